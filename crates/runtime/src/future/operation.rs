//! One operation on one object as a future: tried under the object's lock, and armed under the same
//! lock if it would wait.
//!
//! Owns [`WakerNode`], the watcher whose action is to wake a future, and [`Wait`], the future.
//! There is no poller in between: a change calls the waker.
//!
//! A node leaves its object when it has fired, when its future is dropped, and never otherwise; it
//! is armed anew by each poll that has to wait. So a future that is dropped costs its object a lock
//! if it ever waited, and nothing if it did not. The node of a TCP stream's half outlives the
//! futures; its methods take it out.

use super::relay::Ticket;
use super::waker::is_direct;
use crate::verbs::watch::{Signal, Watcher, Watchers};
use core::cell::UnsafeCell;
use core::future::Future;
use core::marker::PhantomPinned;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, Waker};

/// A waker and, unless it may be called in place, its place in the relay's queue.
#[derive(Debug)]
pub(crate) struct Armed {
    waker: Waker,
    ticket: Option<Ticket>,
}

impl Armed {
    /// Returns the waker of a poll, ready to be armed. The caller holds no lock, because foreign
    /// wakers are cloned by foreign code.
    #[inline]
    pub(crate) fn new(context: &Context<'_>) -> Self {
        let waker = context.waker();
        let ticket = if is_direct(waker) { None } else { Some(Ticket::reserve()) };
        Self { waker: waker.clone(), ticket }
    }

    /// Wakes the future, now or soon. May be called under any lock.
    pub(crate) fn wake(self) {
        match self.ticket {
            None => self.waker.wake(),
            Some(ticket) => ticket.relay(self.waker),
        }
    }
}

/// A watcher that wakes a future once.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct WakerNode {
    watcher: Watcher,
    armed: UnsafeCell<Option<Armed>>,
}

// SAFETY: `armed` and the links are used under the lock of the object that is watched, by the
// contracts of `arm` and `disarm`; wakers may be moved between threads.
unsafe impl Send for WakerNode {}
// SAFETY: as above.
unsafe impl Sync for WakerNode {}

impl WakerNode {
    /// Returns a node that watches nothing.
    pub(crate) const fn new() -> Self {
        Self { watcher: Watcher::new(fire), armed: UnsafeCell::new(None) }
    }

    /// Watches, to wake `armed`; returns what was armed before, for the caller to drop without the
    /// lock.
    ///
    /// # Safety
    /// 1. The node is in `watchers` or in none, and all its uses are under their lock.
    /// 2. It neither moves nor dies before [`disarm`](Self::disarm) was called for it.
    #[must_use = "a foreign waker is not dropped under a lock"]
    pub(crate) unsafe fn arm(&self, watchers: &mut Watchers, armed: Armed) -> Option<Armed> {
        if !self.watcher.is_linked() {
            // SAFETY: 1. by points 1 and 2. 2. By point 1.
            unsafe { watchers.add(&self.watcher) };
        }
        // SAFETY: the lock is held, by point 1.
        unsafe { (*self.armed.get()).replace(armed) }
    }

    /// Watches no more; returns what was armed.
    ///
    /// # Safety
    /// As point 1 of [`arm`](Self::arm).
    #[must_use = "a foreign waker is not dropped under a lock"]
    pub(crate) unsafe fn disarm(&self, watchers: &mut Watchers) -> Option<Armed> {
        // SAFETY: by the caller's contract, for both.
        unsafe {
            watchers.remove(&self.watcher);
            (*self.armed.get()).take()
        }
    }
}

/// The callback of a [`WakerNode`] at a change of its object.
///
/// # Safety
/// `watcher` is the first field of one, and the lock of its object is held.
unsafe fn fire(watcher: NonNull<Watcher>, _: Signal) -> bool {
    // SAFETY: by the caller's contract.
    let node = unsafe { watcher.cast::<WakerNode>().as_ref() };
    // SAFETY: the lock is held.
    if let Some(armed) = unsafe { (*node.armed.get()).take() } {
        armed.wake();
    }
    false
}

/// Something that is done at once or after a change of an object.
pub(crate) trait Operation {
    /// What it results in.
    type Output;

    /// Tries it. If it would wait, calls `arm` under the object's lock, and returns `None`.
    fn attempt(&mut self, arm: impl FnOnce(&mut Watchers)) -> Option<Self::Output>;

    /// Calls `change` with the watchers that `arm` gets, under the same lock.
    fn with_watchers(&self, change: impl FnOnce(&mut Watchers));
}

/// An [`Operation`] as a future.
#[derive(Debug)]
pub(crate) struct Wait<O: Operation> {
    operation: O,
    node: WakerNode,
    /// True once the node was armed.
    waited: bool,
    _pinned: PhantomPinned,
}

impl<O: Operation> Wait<O> {
    pub(crate) const fn new(operation: O) -> Self {
        Self { operation, node: WakerNode::new(), waited: false, _pinned: PhantomPinned }
    }

    /// Tries the operation.
    pub(crate) fn poll(self: Pin<&mut Self>, context: &Context<'_>) -> Poll<O::Output> {
        crate::poll();
        let mut armed = Some(Armed::new(context));
        // SAFETY: nothing is moved out of `this`; the operation is never pinned.
        let this = unsafe { self.get_unchecked_mut() };
        let node = &this.node;
        let mut replaced = None;
        let output = this.operation.attempt(|watchers| {
            // SAFETY: 1. the operation passes the same watchers at all times, locked. 2. The node
            // is pinned, and `drop` disarms it.
            replaced = armed.take().and_then(|armed| unsafe { node.arm(watchers, armed) });
        });
        this.waited |= armed.is_none();
        output.map_or(Poll::Pending, Poll::Ready)
    }
}

impl<O: Operation> Future for Wait<O> {
    type Output = O::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<O::Output> {
        Wait::poll(self, context)
    }
}

impl<O: Operation> Drop for Wait<O> {
    fn drop(&mut self) {
        if self.waited {
            let mut armed = None;
            // SAFETY: as in `poll`.
            self.operation.with_watchers(|watchers| armed = unsafe { self.node.disarm(watchers) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_as_small_as_the_book_says() {
        assert_eq!(2 * size_of::<WakerNode>(), 112);
    }
}
