//! [`park`] and [`park_timeout`]: the table of states is in [`identity`](crate::thread::identity).

use crate::kthread::{self, NoPreempt};
use crate::runtime::deadline_after;
use crate::sync::wait::check_may_block;
use crate::thread::identity::{EMPTY, PARKED, TOKEN};
use crate::timer::TimerNode;
use crate::uthread::Uthread;
use crate::worker;
use core::num::NonZeroU64;
use core::ptr::NonNull;
use std::time::Duration;
use tailwater_shm::Cycles;

/// Waits for the caller's token and takes it. As `std::thread::park`, may also return without one: test the condition in a loop.
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
    match kthread::current_uthread() {
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
    match kthread::current_uthread() {
        Some(me) => park_user(me, Some(deadline_after(timeout))),
        None => std::thread::park_timeout(timeout),
    }
}

/// The timer of a thread parked for a limited time. The timer comes first: its address is the node's.
#[repr(C)]
struct ParkNode {
    timer: TimerNode,
    record: &'static Uthread,
    id: NonZeroU64,
}

fn park_user(me: &'static Uthread, deadline: Option<Cycles>) {
    crate::poll();
    let id = me.identity.id().expect("a running thread has an id");
    if me.identity.change(id, TOKEN, EMPTY) {
        return;
    }
    let guard = NoPreempt::new();
    check_may_block(&guard);
    if !me.identity.change(id, EMPTY, PARKED) {
        // The only other state is a token that came just now.
        me.identity.change(id, TOKEN, EMPTY);
        return;
    }
    // From here on another kthread may queue this thread; it waits in `claim` until we have left the stack.
    let node = ParkNode { timer: TimerNode::new(time_out), record: me, id };
    // SAFETY: the node leaves this frame only after `disarm`.
    let timer = deadline.map(|deadline| unsafe { worker::arm(&guard, &node.timer, deadline) });
    worker::block(guard);
    if let Some(kthread) = timer {
        worker::disarm(kthread, &node.timer);
    }
    me.identity.change(id, TOKEN, EMPTY);
}

/// A timer fired: `TimerNode::fire` of every park node.
///
/// # Safety
/// `node` is the timer of a live [`ParkNode`].
unsafe fn time_out(node: NonNull<TimerNode>) {
    // SAFETY: the timer is the first field of a repr(C) ParkNode, alive by contract.
    let node = unsafe { node.cast::<ParkNode>().as_ref() };
    let record = node.record;
    if record.identity.change(node.id, PARKED, EMPTY) {
        worker::ready(record);
    }
}
