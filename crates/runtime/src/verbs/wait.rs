//! Wait lists: how a thread sleeps until another one wakes it.
//!
//! A [`WaitList`] is part of the state whose change is waited for, under that state's
//! [`SpinLock`](crate::ground::spin::SpinLock). [`wait`] links a node on the waiter's own stack,
//! unlocks and blocks; [`WaitList::wake_one`] unlinks the oldest node and makes its thread
//! runnable. Nothing allocates.
//!
//! A node's `state` decides between a wake and a timeout: both swap it from `WAITING`, and one
//! wins.
//!
//! | event | holds | does |
//! |---|---|---|
//! | wake | list lock, which [`wake_one_and_unlock`] releases after the first step if there is no timeout | unlinks the node; swaps `WAITING` for `WOKEN`, or stores it if there is no timeout; makes the thread runnable |
//! | wake of all | list lock | moves the nodes to a ring of its own, then wakes them batch by batch, unlocking in between |
//! | timeout | timer lock | swaps `WAITING` for `TIMED_OUT`; makes the thread runnable; the node stays linked |
//! | waiter resumes, woken | - | takes its timer out, and waits for a timer that is firing |
//! | waiter resumes, timed out | list lock | unlinks its node, if a waker has not skipped over it |
//!
//! So a node outlives every access: a waker uses it under the list lock, or, unlinked and without a
//! timeout, alone, before the thread is runnable, a timer under the timer lock. Ordinary OS threads
//! may wait too; they are unparked instead of queued.

use super::ready::{ready, ready_all};
use super::switch::{block, poll};
use super::timers::arm;
use crate::ground::guard::{Head, NoPreempt};
use crate::ground::list::{self, Linked, Links, List};
use crate::ground::spin::SpinGuard;
use crate::ground::timer::TimerNode;
use crate::records::kthread::current_uthread;
use crate::records::runtime::clock;
use crate::records::uthread::{Runnable, Uthread};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};
use tailwater_shm::Cycles;

/// Threads woken in one go: about 3 us if their stacks are in no cache; a core is taken by signal
/// after 5.
pub(crate) const WAKE_BATCH: usize = 32;

const WAITING: u8 = 0;
const WOKEN: u8 = 1;
const TIMED_OUT: u8 = 2;

/// How a wait ended.
///
/// # Examples
/// ```
/// use tailwater::internals::{SpinLock, WaitList, WaitOutcome, wait};
///
/// let waiters = SpinLock::new(WaitList::new());
/// // The deadline has passed already.
/// // SAFETY: the list is all that the lock guards, and it stays there.
/// let outcome = unsafe { wait(waiters.lock(), |list| list, Some(std::time::Instant::now())) };
/// assert_eq!(outcome, WaitOutcome::TimedOut);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitOutcome {
    /// Another thread woke this one.
    Woken,
    /// The deadline passed first.
    TimedOut,
}

#[derive(Debug)]
enum Waiter {
    User(&'static Uthread),
    Os(std::thread::Thread),
    /// The node is no thread's but closes a ring.
    Anchor,
}

impl Waiter {
    fn current() -> Self {
        current_uthread().map_or_else(|| Self::Os(std::thread::current()), Self::User)
    }
}

/// A waiting thread. The timer comes first: a timer node's address is its wait node's.
#[repr(C)]
#[derive(Debug)]
struct WaitNode {
    timer: TimerNode,
    state: AtomicU8,
    waiter: Waiter,
    /// True if a timeout may end the wait.
    timed: bool,
    links: Links<WaitNode>,
}

impl Linked for WaitNode {
    fn links(&self) -> &Links<Self> {
        &self.links
    }
}

impl WaitNode {
    fn new(timed: bool) -> Self {
        Self::of(Waiter::current(), timed)
    }

    fn of(waiter: Waiter, timed: bool) -> Self {
        Self {
            timer: TimerNode::new(time_out),
            state: AtomicU8::new(WAITING),
            waiter,
            timed,
            links: Links::new(),
        }
    }

    /// Ends the wait with `outcome` and wakes the thread; false if the wait has ended already.
    /// Wakers call this for a node that they have unlinked under the list lock, and the node's
    /// timer when it fires.
    #[inline]
    fn finish(&self, outcome: u8) -> bool {
        match &self.waiter {
            Waiter::User(uthread) => {
                let uthread = *uthread;
                if !self.end_wait(outcome) {
                    return false;
                }
                // SAFETY: 1. the thread blocks with preemption off since it linked the node. 2.
                // `end_wait` is true once a wait.
                ready(unsafe { Runnable::new(uthread) });
            }
            Waiter::Os(thread) => {
                // It may leave as soon as the state changes, so its handle is taken before.
                let thread = thread.clone();
                if !self.end_wait(outcome) {
                    return false;
                }
                thread.unpark();
            }
            Waiter::Anchor => return false,
        }
        true
    }

    /// Changes the state to `outcome`; false if the wait has ended already.
    #[inline]
    fn end_wait(&self, outcome: u8) -> bool {
        if !self.timed {
            // Release: pairs with the Acquire load of the waiter, which sees what its waker did
            // before. There is no other waker: the caller has taken the node out of the list.
            self.state.store(outcome, Ordering::Release);
            return true;
        }
        // AcqRel: Release as above.
        self.state.compare_exchange(WAITING, outcome, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// The callback of each wait node's timer.
///
/// # Safety
/// `node` is the timer of a live [`WaitNode`].
unsafe fn time_out(node: NonNull<TimerNode>) {
    // SAFETY: the timer is the first field of a repr(C) WaitNode, alive by contract.
    unsafe { node.cast::<WaitNode>().as_ref() }.finish(TIMED_OUT);
}

/// Threads that wait for one condition, oldest first. Lies inside the
/// [`SpinLock`](crate::ground::spin::SpinLock) that guards the condition.
///
/// # Examples
/// ```
/// use tailwater::internals::{SpinLock, WaitList, WaitOutcome, wait, wake_all};
///
/// #[derive(Default)]
/// struct Gate {
///     open: bool,
///     waiters: WaitList,
/// }
///
/// let gate = SpinLock::new(Gate::default());
/// std::thread::scope(|s| {
///     s.spawn(|| {
///         let mut gate = gate.lock();
///         gate.open = true;
///         wake_all(gate, |gate| &mut gate.waiters);
///     });
///     loop {
///         let state = gate.lock();
///         if state.open {
///             break;
///         }
///         // SAFETY: `waiters` is the only list that the lock guards, and it stays in its gate.
///         let outcome = unsafe { wait(state, |gate| &mut gate.waiters, None) };
///         assert_eq!(outcome, WaitOutcome::Woken);
///     }
/// });
/// ```
#[derive(Debug)]
pub struct WaitList(List<WaitNode>);

// SAFETY: nodes are reached only under the lock that the list lies in, by the contract of `wait`.
unsafe impl Send for WaitList {}

impl Default for WaitList {
    fn default() -> Self {
        Self::new()
    }
}

impl WaitList {
    /// Returns an empty list.
    pub const fn new() -> Self {
        Self(List::new())
    }

    /// Returns whether no thread waits. Threads whose wait has just timed out may still count.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes the thread that has waited longest; false if none waits.
    #[inline]
    pub fn wake_one(&mut self) -> bool {
        // Each turn unlinks a node, so the loop ends with the list.
        while let Some(node) = self.0.pop_front() {
            // SAFETY: its thread is not runnable yet, or, timed out, needs the list's lock before
            // it may leave.
            if unsafe { node.as_ref() }.finish(WOKEN) {
                return true;
            }
        }
        false
    }
}

/// Wakes the thread that has waited longest on the list that `list` finds in the guarded state, and
/// unlocks. A thread that waits without a deadline is woken after that: the guarded state, which
/// may lie in the frame that the thread leaves then, is not touched any more.
pub(crate) fn wake_one_and_unlock<T>(mut guard: SpinGuard<'_, T>, list: impl Fn(&mut T) -> &mut WaitList) {
    // Each turn unlinks a node, so the loop ends with the list.
    while let Some(node) = list(&mut guard).0.pop_front() {
        // SAFETY: as in `wake_one`; without a deadline, its thread waits until `finish`.
        let node = unsafe { node.as_ref() };
        if !node.timed {
            let guard = guard.unlock_keeping_preemption_off();
            node.finish(WOKEN);
            drop(guard);
            return;
        }
        if node.finish(WOKEN) {
            return;
        }
    }
}

/// Panics where the caller must not block, before a node is linked that an unwinding thread would
/// leave behind. `guard` is the caller's only proof.
///
/// # Panics
/// On a user thread that holds another spin lock, or reads an [`Rcu`](crate::sync::Rcu), or runs a
/// handler of an event loop.
pub(crate) fn check_may_block(guard: &NoPreempt) {
    let depth = guard.head().map_or(1, Head::preempt_depth);
    assert!(
        depth == 1,
        "a user thread would wait within no_preempt, with a spin lock held, or while it reads an Rcu: end that first"
    );
    let me = guard.kthread().and_then(|kthread| kthread.current());
    assert!(
        // What a panicking handler drops may wait.
        me.is_none_or(|me| !me.handles.load(Ordering::Relaxed) || std::thread::panicking()),
        "a handler of an event loop would wait, and with it all sockets of the loop: let another thread do what waits \
         (tailwater::thread::spawn), and have it call the loop's Waker"
    );
}

/// Blocks the calling thread on the list that `list` finds in the guarded state, until it is woken
/// or `deadline` (in cycles of the TSC) passes. Unlocks the state while it waits, and does not lock
/// it again for the caller.
///
/// Works in user threads and in ordinary OS threads.
///
/// # Safety
/// 1. Whenever `list` is called it returns the same list, which is part of the value that the lock
///    guards.
/// 2. While threads wait on the list it is not moved, and no other list is put in its place.
///
/// # Panics
/// On a user thread that holds another spin lock, or reads an [`Rcu`](crate::sync::Rcu).
pub(crate) unsafe fn wait<T>(
    mut guard: SpinGuard<'_, T>,
    list: impl Fn(&mut T) -> &mut WaitList,
    deadline: Option<Cycles>,
) -> WaitOutcome {
    check_may_block(guard.no_preempt());
    let node = WaitNode::new(deadline.is_some());
    // SAFETY: the node stays in this frame, which ends after a waker has taken it out of this very
    // list (by the contract), or after `remove`.
    unsafe { list(&mut guard).0.push_back(&node) };
    let lock = guard.lock_of();
    match node.waiter {
        Waiter::User(_) => {
            let kthread = guard.no_preempt().kthread().expect("user threads run on kthreads");
            // SAFETY: 1. it is a new node. 2. Dropped below.
            let timer = deadline.map(|deadline| unsafe { arm(kthread, &node.timer, deadline) });
            block(guard.unlock_keeping_preemption_off());
            drop(timer);
        }
        Waiter::Os(_) => {
            drop(guard);
            wait_os(&node, deadline);
        }
        Waiter::Anchor => unreachable!("a waiting node is the current thread's"),
    }
    // Acquire: pairs with the Release in `end_wait`.
    if node.state.load(Ordering::Acquire) == WOKEN {
        return WaitOutcome::Woken;
    }
    // SAFETY: the node is in this list, or in a ring made of it, or a waker has taken it out.
    unsafe { list(&mut lock.lock()).0.remove(&node) };
    WaitOutcome::TimedOut
}

/// Wakes all threads that wait on the list that `list` finds in the guarded state, and unlocks;
/// returns how many. Threads that come later are not woken.
///
/// Wakes in batches, between which it unlocks and passes a poll point: the caller can be preempted
/// however many wait, and other threads may see the state before the last waiter was woken. When
/// it has unlocked after the last batch it does not touch the lock again, so a woken thread that
/// locks once more knows, if all others have done so, that the state is no longer in use. For an
/// example see [`WaitList`].
pub fn wake_all<T>(mut guard: SpinGuard<'_, T>, list: impl Fn(&mut T) -> &mut WaitList) -> usize {
    if list(&mut guard).is_empty() {
        return 0;
    }
    let lock = guard.lock_of();
    let anchor = WaitNode::of(Waiter::Anchor, false);
    // SAFETY: the anchor stays in this frame, which ends when the ring is empty.
    unsafe { list(&mut guard).0.move_to_ring(&anchor) };
    let mut woken = 0;
    // Each turn unlinks a batch or finds the ring empty, and no node is added to a ring.
    loop {
        let batch = wake_batch(&anchor, &guard);
        drop(guard);
        woken += batch.woken;
        if batch.is_last {
            return woken;
        }
        poll();
        guard = lock.lock();
    }
}

/// What [`wake_batch`] did.
struct Batch {
    /// Number of threads whose wait it ended.
    woken: usize,
    /// True if the ring is empty now. The lock may be gone as soon as it is released, with the last
    /// of the threads, so this is not to be looked up later.
    is_last: bool,
}

/// Unlinks up to [`WAKE_BATCH`] nodes of the ring and ends their waits, except of those that have
/// timed out already. `_held` is the lock of their list.
fn wake_batch<T>(anchor: &WaitNode, _held: &SpinGuard<'_, T>) -> Batch {
    let mut woken = 0;
    let mut batch = [const { None }; WAKE_BATCH];
    let mut users = 0;
    for _ in 0..WAKE_BATCH {
        // SAFETY: `_held` is the lock.
        let Some(node) = (unsafe { list::pop_ring(anchor) }) else { break };
        // SAFETY: as in `wake_one`.
        let node = unsafe { node.as_ref() };
        match node.waiter {
            Waiter::User(uthread) if node.end_wait(WOKEN) => {
                // SAFETY: as in `finish`.
                batch[users] = Some(unsafe { Runnable::new(uthread) });
                users += 1;
            }
            Waiter::User(_) => {}
            _ => woken += usize::from(node.finish(WOKEN)),
        }
    }
    ready_all(batch.into_iter().take(users).flatten());
    // SAFETY: `_held` is the lock.
    Batch { woken: woken + users, is_last: unsafe { list::is_ring_empty(anchor) } }
}

fn wait_os(node: &WaitNode, deadline: Option<Cycles>) {
    let clock = clock();
    while node.state.load(Ordering::Acquire) == WAITING {
        match deadline {
            None => std::thread::park(),
            Some(deadline) => {
                let now = tailwater_shm::clock::now();
                if now >= deadline {
                    // AcqRel: as in `end_wait`; a waker may have won.
                    let _ =
                        node.state.compare_exchange(WAITING, TIMED_OUT, Ordering::AcqRel, Ordering::Acquire);
                    return;
                }
                std::thread::park_timeout(std::time::Duration::from_nanos(clock.to_ns(deadline - now)));
            }
        }
    }
}

/// Blocks the calling user thread until `deadline` (in cycles of the TSC).
///
/// # Panics
/// On an ordinary thread, and as [`wait`].
pub(crate) fn sleep_until(deadline: Cycles) {
    let guard = NoPreempt::new();
    check_may_block(&guard);
    let node = WaitNode::new(true);
    let kthread = guard.kthread().expect("only a user thread can block here");
    // SAFETY: 1. it is a new node. 2. Dropped below.
    let timer = unsafe { arm(kthread, &node.timer, deadline) };
    block(guard);
    drop(timer);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ground::spin::SpinLock;

    #[test]
    fn the_last_batch_is_known_as_the_last_while_the_lock_is_held() {
        for (waiters, batches) in [(1, 1), (31, 1), (32, 1), (33, 2), (63, 2), (64, 2), (65, 3)] {
            let nodes: Vec<_> = (0..waiters).map(|_| WaitNode::new(false)).collect();
            let lock = SpinLock::new(WaitList::new());
            let anchor = WaitNode::of(Waiter::Anchor, false);
            let mut held = lock.lock();
            for node in &nodes {
                // SAFETY: the nodes outlive the list.
                unsafe { held.0.push_back(node) };
            }
            // SAFETY: it is in no list, and outlives the ring.
            assert!(unsafe { held.0.move_to_ring(&anchor) });
            let done: Vec<_> = (0..batches).map(|_| wake_batch(&anchor, &held)).collect();
            assert_eq!(done.iter().map(|batch| batch.woken).sum::<usize>(), waiters);
            let last: Vec<_> = done.iter().map(|batch| batch.is_last).collect();
            let expected: Vec<_> = (1..=batches).map(|batch| batch == batches).collect();
            assert_eq!(last, expected, "{waiters} waiters");
        }
    }
}
