//! The protocol of `sync::queue`: a call without a deadline waits in a queue, and another thread
//! grants its entry.
//!
//! The sleeper's lock is the spin lock that ships, the queue's is loom's, since a model of two
//! locks that spin has too many interleavings. An `Arc` keeps the call's frame, which loom watches
//! in place of the memory.

use super::Waiter;
use crate::ground::spin::SpinLock;
use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::thread;
use std::sync::Arc;

/// What the sleeper's lock guards.
struct State {
    open: bool,
    /// Stands for the wait list, into which the call links itself while it holds the lock.
    list: UnsafeCell<bool>,
}

/// The frame of the call.
struct Call {
    sleeper: SpinLock<State>,
    thread: Waiter,
    /// Read by the granter while it uses the frame, written when the call leaves it.
    frame: UnsafeCell<()>,
}

/// `Queue::pop`, and the drop of the grant.
fn grant(queue: &Mutex<Option<Arc<Call>>>) {
    let entry = queue.lock().unwrap().take();
    let call = entry.expect("the entry is queued before the granter starts");
    call.frame.with(|_| {
        let mut state = call.sleeper.lock();
        assert!(core::mem::replace(&mut state.open, false));
        // SAFETY: loom checks that the call is not in here.
        assert!(state.list.with(|linked| unsafe { *linked }), "granted before it sleeps");
    });
    call.thread.wake();
}

#[test]
fn a_call_sleeps_before_it_is_granted_and_leaves_when_the_granter_is_done_with_its_frame() {
    loom::model(|| {
        let call = Arc::new(Call {
            sleeper: SpinLock::new(State { open: true, list: UnsafeCell::new(false) }),
            thread: Waiter::new(),
            frame: UnsafeCell::new(()),
        });
        let queue = Arc::new(Mutex::new(None));
        // SAFETY: it is in no queue yet.
        let held = unsafe { call.sleeper.lock_unshared() };
        *queue.lock().unwrap() = Some(Arc::clone(&call));
        let granter = thread::spawn(move || grant(&queue));
        // SAFETY: loom checks that the granter is not in here.
        held.list.with_mut(|linked| unsafe { *linked = true });
        drop(held);
        call.thread.wait();
        call.frame.with_mut(|_| ());
        granter.join().unwrap();
    });
}
