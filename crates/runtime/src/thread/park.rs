//! [`park`] and [`park_timeout`]: the table of states is in [`identity`](crate::records::identity).

use crate::ground::guard::NoPreempt;
use crate::ground::timer::TimerNode;
use crate::records::identity::{EMPTY, PARKED, TOKEN};
use crate::records::kthread::current_uthread;
use crate::records::runtime::deadline_after;
use crate::records::uthread::{Runnable, Uthread};
use crate::verbs::ready::ready;
use crate::verbs::switch::{block, poll};
use crate::verbs::timers::arm;
use crate::verbs::wait::check_may_block;
use core::num::NonZeroU64;
use core::ptr::NonNull;
use std::time::Duration;
use tailwater_shm::Cycles;

/// Waits for the caller's token and takes it. As `std::thread::park`, may also return without one:
/// test the condition in a loop.
///
/// # Examples
/// ```standalone_crate
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use tailwater::thread;
///
/// #[tailwater::main]
/// fn main() {
///     let ready = Arc::new(AtomicBool::new(false));
///     let waiter = thread::spawn({
///         let ready = Arc::clone(&ready);
///         move || {
///             while !ready.load(Ordering::Acquire) {
///                 thread::park();
///             }
///         }
///     });
///     ready.store(true, Ordering::Release);
///     waiter.thread().unpark();
///     waiter.join().unwrap();
/// }
/// ```
pub fn park() {
    match current_uthread() {
        Some(me) => park_user(me, None),
        None => std::thread::park(),
    }
}

/// As [`park`], for at most `timeout`.
///
/// # Examples
/// ```standalone_crate
/// use std::time::{Duration, Instant};
///
/// #[tailwater::main]
/// fn main() {
///     let start = Instant::now();
///     while start.elapsed() < Duration::from_millis(2) {
///         tailwater::thread::park_timeout(Duration::from_millis(2));
///     }
/// }
/// ```
pub fn park_timeout(timeout: Duration) {
    match current_uthread() {
        Some(me) => park_user(me, Some(deadline_after(timeout))),
        None => std::thread::park_timeout(timeout),
    }
}

/// The timer of a thread parked for a limited time. The timer comes first: its address is the
/// node's.
#[repr(C)]
struct ParkNode {
    timer: TimerNode,
    record: &'static Uthread,
    id: NonZeroU64,
}

fn park_user(me: &'static Uthread, deadline: Option<Cycles>) {
    poll();
    let id = me.identity.id().expect("a running thread has an id");
    if me.identity.change(id, TOKEN, EMPTY) {
        return;
    }
    let guard = NoPreempt::new();
    check_may_block(&guard);
    if !me.identity.change(id, EMPTY, PARKED) {
        // The only other state is a token, which has just been given.
        me.identity.change(id, TOKEN, EMPTY);
        return;
    }
    // From here on another kthread may queue this thread; that kthread waits in `claim` until the
    // stack is no longer in use.
    let node = ParkNode { timer: TimerNode::new(time_out), record: me, id };
    let kthread = guard.kthread().expect("user threads run on kthreads");
    // SAFETY: 1. it is a new node. 2. Dropped below.
    let timer = deadline.map(|deadline| unsafe { arm(kthread, &node.timer, deadline) });
    block(guard);
    drop(timer);
    me.identity.change(id, TOKEN, EMPTY);
}

/// Wakes a parked thread whose time is over: the function of every park node's timer.
///
/// # Safety
/// `node` is the timer of a live [`ParkNode`].
unsafe fn time_out(node: NonNull<TimerNode>) {
    // SAFETY: the timer is the first field of a repr(C) ParkNode, alive by contract.
    let node = unsafe { node.cast::<ParkNode>().as_ref() };
    let record = node.record;
    if record.identity.change(node.id, PARKED, EMPTY) {
        // SAFETY: 1. it parks with preemption off since `PARKED`. 2. `PARKED` was left by this
        // change alone.
        ready(unsafe { Runnable::new(record) });
    }
}
