//! [`EventLoop::run`]: a handler for each condition, which may not wait.

use super::condition::{Batch, Condition};
use super::event_loop::EventLoop;
use crate::records::kthread::current_uthread;
use crate::records::uthread::Uthread;
use core::ops::ControlFlow;
use core::sync::atomic::Ordering::Relaxed;

/// Makes blocking calls of this thread panic while it exists.
struct Handling(Option<(&'static Uthread, bool)>);

impl Handling {
    fn begin() -> Self {
        let me = current_uthread();
        Self(me.map(|me| {
            // A handler may run another loop, which does not allow it to wait.
            let handles = me.handles.load(Relaxed);
            me.handles.store(true, Relaxed);
            (me, handles)
        }))
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        if let Some((me, handles)) = self.0 {
            me.handles.store(handles, Relaxed);
        }
    }
}

impl EventLoop {
    /// Polls for ever, and calls `handler` with each condition, until it returns
    /// [`ControlFlow::Break`]. Conditions that it has not seen by then are the next round's. Those
    /// of a socket that a handler has closed are dropped.
    ///
    /// A handler runs to completion on the loop's own stack. It may be preempted, as all user
    /// threads, but not wait.
    ///
    /// # Panics
    /// On a user thread, in a handler that calls something that waits: a lock that another thread
    /// holds, a blocking socket, `sleep`, `join`, or this loop's [`poll`](Self::poll). A lock that
    /// is free does not panic: use `try_lock`. On another thread nothing is checked.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::ops::ControlFlow;
    /// use tailwater::events::{Condition, EventLoop};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let mut events = EventLoop::new();
    ///     let waker = events.waker();
    ///     tailwater::thread::spawn(move || waker.wake());
    ///     events.run(|_, condition| match condition {
    ///         Condition::Woken => ControlFlow::Break(()),
    ///         _ => ControlFlow::Continue(()),
    ///     });
    /// }
    /// ```
    pub fn run<T>(&mut self, mut handler: impl FnMut(&mut Self, Condition) -> ControlFlow<T>) -> T {
        let mut batch = Batch::new();
        loop {
            if self.unhandled.is_empty() {
                self.poll(&mut batch, None);
                self.unhandled.extend(batch.iter());
            }
            while let Some(condition) = self.next_unhandled() {
                let handling = Handling::begin();
                let flow = handler(self, condition);
                drop(handling);
                if let ControlFlow::Break(value) = flow {
                    return value;
                }
            }
        }
    }
}
