//! The relay: calls wakers of other executors, outside all locks.
//!
//! An object learns of a change under its lock, with preemption off. A waker of another executor is
//! foreign code there: it may take a lock of its own, or drop the last reference to a task and with
//! it the very socket whose lock is held. So the object moves such a waker into a queue, and one
//! thread calls it. This costs a switch between user threads, about 100 ns; wakers of Tailwater's
//! own tasks are called in place ([`is_direct`](super::waker::is_direct)).
//!
//! The queue never grows on the waking side: a place is reserved before a waker is armed
//! ([`Ticket`]).
//!
//! The thread is a user thread, or an ordinary one if no runtime was started when the first foreign
//! waker came. A waker that blocks holds up the wakers after it.

use crate::ground::spin::SpinLock;
use crate::records::runtime::started;
use crate::sync::Once;
use crate::verbs::wait::{WaitList, wait};
use core::task::Waker;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

struct Relay {
    queue: VecDeque<Waker>,
    /// Places that are reserved in `queue`.
    reserved: usize,
    sleeper: WaitList,
}

static RELAY: SpinLock<Relay> =
    SpinLock::new(Relay { queue: VecDeque::new(), reserved: 0, sleeper: WaitList::new() });

/// A place in the queue.
#[derive(Debug)]
pub(crate) struct Ticket(());

impl Ticket {
    /// Reserves a place. The caller holds no lock.
    pub(crate) fn reserve() -> Self {
        static START: Once = Once::new();
        START.call_once(start);
        let mut relay = RELAY.lock();
        relay.reserved += 1;
        let reserved = relay.reserved;
        relay.queue.reserve(reserved);
        Self(())
    }

    /// Has `waker` called soon. Allocates nothing; may be called under any object's lock.
    pub(crate) fn relay(self, waker: Waker) {
        core::mem::forget(self);
        let mut relay = RELAY.lock();
        relay.reserved -= 1;
        debug_assert!(relay.queue.len() < relay.queue.capacity(), "each waker has a place reserved");
        relay.queue.push_back(waker);
        relay.sleeper.wake_one();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        RELAY.lock().reserved -= 1;
    }
}

fn start() {
    if started().is_some() {
        crate::thread::spawn_normal(run);
    } else {
        std::thread::spawn(run);
    }
}

/// Calls wakers: never returns.
fn run() {
    loop {
        let mut relay = RELAY.lock();
        let Some(waker) = relay.queue.pop_front() else {
            // SAFETY: `sleeper` is the only list that the lock guards, and it stays there.
            unsafe { wait(relay, |relay| &mut relay.sleeper, None) };
            continue;
        };
        drop(relay);
        // A panic of one executor's waker is reported by the panic hook, and is no other's affair.
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        crate::poll();
    }
}
