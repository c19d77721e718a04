//! Wait lists: how a thread sleeps until another says so.
//!
//! A [`WaitList`] is part of the state it guards, under that state's [`SpinLock`](super::spin::SpinLock). [`wait`] links a node on the waiter's own
//! stack, unlocks and blocks; [`WaitList::wake_one`] unlinks the oldest node and makes its thread runnable. Nothing allocates.
//!
//! A node's `state` decides between a wake and a timeout: both swap it from `WAITING`, one wins.
//!
//! | event | holds | does |
//! |---|---|---|
//! | wake | list lock | unlinks the node; swaps `WAITING` for `WOKEN`, or stores it if there is no timeout; makes the thread runnable |
//! | wake of all | list lock | moves the nodes to a ring of its own, then wakes them batch by batch, unlocking in between |
//! | timeout | timer lock | swaps `WAITING` for `TIMED_OUT`; makes the thread runnable; the node stays linked |
//! | waiter resumes, woken | nothing | takes its timer out (waits for a timer in the act of firing) |
//! | waiter resumes, timed out | list lock | unlinks its node, if a waker has not skipped over it |
//!
//! The node therefore outlives every access: a waker touches it under the list lock before the thread is runnable, a timer
//! under the timer lock. Ordinary OS threads may wait too; they are unparked instead of queued.

use crate::kthread::{self, NoPreempt};
use crate::sync::list::{self, Linked, Links, List};
use crate::sync::spin::SpinGuard;
use crate::timer::TimerNode;
use crate::uthread::Uthread;
use crate::worker;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};
use tailwater_shm::Cycles;

/// Threads that are woken in one go: about 3 us, if their stacks are in no cache; a core is taken by signal after 5.
pub(crate) const WAKE_BATCH: usize = 32;

const WAITING: u8 = 0;
const WOKEN: u8 = 1;
const TIMED_OUT: u8 = 2;

/// How a wait ended.
///
/// # Examples
/// ```
/// use tailwater::sync::{spin::SpinLock, wait::{WaitList, WaitOutcome, wait}};
///
/// // A deadline in cycles that has passed long ago.
/// let nobody = SpinLock::new(WaitList::new());
/// assert_eq!(wait(nobody.lock(), |list| list, Some(0)), WaitOutcome::TimedOut);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOutcome {
    /// Somebody woke this thread.
    Woken,
    /// The deadline passed first.
    TimedOut,
}

#[derive(Debug)]
enum Waiter {
    User(&'static Uthread),
    Os(std::thread::Thread),
    /// The node is no thread's but closes a ring.
    Nobody,
}

impl Waiter {
    fn current() -> Self {
        kthread::current_uthread().map_or_else(|| Self::Os(std::thread::current()), Self::User)
    }
}

/// A waiting thread. The timer comes first: a timer node's address is its wait node's.
#[repr(C)]
#[derive(Debug)]
struct WaitNode {
    timer: TimerNode,
    state: AtomicU8,
    waiter: Waiter,
    /// Whether a timeout may end the wait.
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

    /// Ends the wait with `outcome` unless it has ended already.
    #[inline]
    fn finish(&self, outcome: u8) -> bool {
        match &self.waiter {
            Waiter::User(uthread) => {
                let uthread = *uthread;
                if !self.end_wait(outcome) {
                    return false;
                }
                worker::ready(uthread);
            }
            Waiter::Os(thread) => {
                // It may leave as soon as the state changes: take its handle before.
                let thread = thread.clone();
                if !self.end_wait(outcome) {
                    return false;
                }
                thread.unpark();
            }
            Waiter::Nobody => return false,
        }
        true
    }

    #[inline]
    fn end_wait(&self, outcome: u8) -> bool {
        if !self.timed {
            // Release: pairs with the Acquire load of the waiter: it sees what its waker did before. There is no other waker:
            // the list lock is held, and the node was on the list.
            self.state.store(outcome, Ordering::Release);
            return true;
        }
        // AcqRel: Release as above.
        self.state.compare_exchange(WAITING, outcome, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// A timer fired: `TimerNode::fire` of every wait node.
///
/// # Safety
/// `node` is the timer of a live [`WaitNode`].
unsafe fn time_out(node: NonNull<TimerNode>) {
    // SAFETY: the timer is the first field of a repr(C) WaitNode, alive by contract.
    unsafe { node.cast::<WaitNode>().as_ref() }.finish(TIMED_OUT);
}

/// Threads waiting for one condition, oldest first. Lives inside the [`SpinLock`](super::spin::SpinLock) that guards the condition.
///
/// # Examples
/// ```
/// use tailwater::sync::spin::SpinLock;
/// use tailwater::sync::wait::{WaitList, WaitOutcome, wait, wake_all};
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
///         assert_eq!(wait(state, |gate| &mut gate.waiters, None), WaitOutcome::Woken);
///     }
/// });
/// ```
#[derive(Debug)]
pub struct WaitList(List<WaitNode>);

// SAFETY: nodes are reached only under the lock the list lies in.
unsafe impl Send for WaitList {}

impl Default for WaitList {
    fn default() -> Self {
        Self::new()
    }
}

impl WaitList {
    /// An empty list.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::{spin::SpinLock, wait::WaitList};
    ///
    /// static WAITERS: SpinLock<WaitList> = SpinLock::new(WaitList::new());
    /// assert!(!WAITERS.lock().wake_one(), "nobody waits");
    /// ```
    pub const fn new() -> Self {
        Self(List::new())
    }

    /// Whether nobody waits (threads whose wait has just timed out may still be counted).
    ///
    /// # Examples
    /// ```
    /// assert!(tailwater::sync::wait::WaitList::new().is_empty());
    /// ```
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes the thread that has waited longest; false when nobody waits.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::spin::SpinLock;
    /// use tailwater::sync::wait::{WaitList, WaitOutcome, wait};
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
    ///         gate.waiters.wake_one();
    ///     });
    ///     loop {
    ///         let state = gate.lock();
    ///         if state.open {
    ///             break;
    ///         }
    ///         assert_eq!(wait(state, |gate| &mut gate.waiters, None), WaitOutcome::Woken);
    ///     }
    /// });
    /// ```
    #[inline]
    pub fn wake_one(&mut self) -> bool {
        // Each turn unlinks a node, so the loop ends with the list.
        while let Some(node) = self.0.pop_front() {
            // SAFETY: its thread is not runnable yet, or, timed out, needs the lock we hold before it may leave.
            if unsafe { node.as_ref() }.finish(WOKEN) {
                return true;
            }
        }
        false
    }
}

/// Refuses to block, before anything is linked that an unwinding thread would leave behind. `guard` is the caller's only one.
///
/// # Panics
/// On a user thread that holds another spin lock, or reads an [`Rcu`](crate::sync::Rcu).
pub(crate) fn check_may_block(guard: &NoPreempt) {
    let depth = guard.kthread().map_or(1, kthread::Kthread::preempt_depth);
    assert!(
        depth == 1,
        "a user thread would wait while it holds a spin lock (a SpinLock) or reads an Rcu: end that first"
    );
}

/// Blocks the calling thread on the list that `list` finds in the guarded state, until it is woken or `deadline` (in TSC
/// cycles) passes. Unlocks the state while it waits and does not lock it again for the caller.
///
/// Works in user threads and in ordinary OS threads.
///
/// # Panics
/// On a user thread that holds another spin lock, or reads an [`Rcu`](crate::sync::Rcu).
///
/// # Examples
/// ```
/// use tailwater::sync::spin::SpinLock;
/// use tailwater::sync::wait::{WaitList, WaitOutcome, wait, wake_all};
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
///         assert_eq!(wait(state, |gate| &mut gate.waiters, None), WaitOutcome::Woken);
///     }
/// });
/// ```
pub fn wait<T>(
    mut guard: SpinGuard<'_, T>,
    list: impl Fn(&mut T) -> &mut WaitList,
    deadline: Option<Cycles>,
) -> WaitOutcome {
    check_may_block(guard.no_preempt());
    let node = WaitNode::new(deadline.is_some());
    // SAFETY: the node stays in this frame, which ends after a waker has taken it out, or after `remove`.
    unsafe { list(&mut guard).0.push_back(&node) };
    let lock = guard.lock_of();
    match node.waiter {
        Waiter::User(_) => {
            // SAFETY: the node leaves this frame only after `disarm`.
            let timer =
                deadline.map(|deadline| unsafe { worker::arm(guard.no_preempt(), &node.timer, deadline) });
            worker::block(guard.unlock_keeping_preemption_off());
            if let Some(kthread) = timer {
                worker::disarm(kthread, &node.timer);
            }
        }
        Waiter::Os(_) => {
            drop(guard);
            wait_os(&node, deadline);
        }
        Waiter::Nobody => unreachable!("a waiting node is the current thread's"),
    }
    // Acquire: pairs with the AcqRel swap in `finish`.
    if node.state.load(Ordering::Acquire) == WOKEN {
        return WaitOutcome::Woken;
    }
    list(&mut lock.lock()).0.remove(&node);
    WaitOutcome::TimedOut
}

/// Wakes everybody who waits on the list that `list` finds in the guarded state, and unlocks; returns how many. Who comes later is not
/// woken.
///
/// Wakes in batches, between which it unlocks and passes a poll point: however many wait, the caller can be preempted, and so
/// others may see the state before the last one was woken.
///
/// # Examples
/// ```
/// use tailwater::sync::spin::SpinLock;
/// use tailwater::sync::wait::{WaitList, WaitOutcome, wait, wake_all};
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
///         assert_eq!(wait(state, |gate| &mut gate.waiters, None), WaitOutcome::Woken);
///     }
/// });
/// ```
pub fn wake_all<T>(mut guard: SpinGuard<'_, T>, list: impl Fn(&mut T) -> &mut WaitList) -> usize {
    if list(&mut guard).is_empty() {
        return 0;
    }
    let lock = guard.lock_of();
    let anchor = WaitNode::of(Waiter::Nobody, false);
    // SAFETY: the nodes are as they were on the list: their threads leave under its lock only, or woken. The anchor stays in this
    // frame, which ends when the ring is empty.
    unsafe { list(&mut guard).0.move_to_ring(&anchor) };
    let mut woken = 0;
    // Each turn unlinks a batch or finds the ring empty, and nobody adds to a ring.
    loop {
        let (unlinked, finished) = wake_batch(&anchor, &guard);
        drop(guard);
        woken += finished;
        if unlinked < WAKE_BATCH {
            return woken;
        }
        crate::poll();
        guard = lock.lock();
    }
}

/// Unlinks up to [`WAKE_BATCH`] nodes of the ring and ends their waits. Returns how many it unlinked, and how many of these were not
/// timed out already. `_held` is the lock of their list.
fn wake_batch<T>(anchor: &WaitNode, _held: &SpinGuard<'_, T>) -> (usize, usize) {
    let (mut unlinked, mut finished) = (0, 0);
    let mut batch = [None; WAKE_BATCH];
    let mut users = 0;
    while unlinked < WAKE_BATCH
        && let Some(node) = list::pop_ring(anchor)
    {
        unlinked += 1;
        // SAFETY: as in `wake_one`.
        let node = unsafe { node.as_ref() };
        match node.waiter {
            Waiter::User(uthread) if node.end_wait(WOKEN) => {
                batch[users] = Some(uthread);
                users += 1;
            }
            Waiter::User(_) => {}
            _ => finished += usize::from(node.finish(WOKEN)),
        }
    }
    worker::ready_all(batch[..users].iter().copied().flatten());
    (unlinked, finished + users)
}

fn wait_os(node: &WaitNode, deadline: Option<Cycles>) {
    let clock = crate::clock();
    while node.state.load(Ordering::Acquire) == WAITING {
        match deadline {
            None => std::thread::park(),
            Some(deadline) => {
                let now = tailwater_shm::clock::now();
                if now >= deadline {
                    // AcqRel: as in `finish`; a waker may have won.
                    let _ =
                        node.state.compare_exchange(WAITING, TIMED_OUT, Ordering::AcqRel, Ordering::Acquire);
                    return;
                }
                std::thread::park_timeout(std::time::Duration::from_nanos(clock.to_ns(deadline - now)));
            }
        }
    }
}

/// Blocks the calling user thread until `deadline` (in TSC cycles).
pub(crate) fn sleep_until(deadline: Cycles) {
    let guard = NoPreempt::new();
    check_may_block(&guard);
    let node = WaitNode::new(true);
    // SAFETY: the node leaves this frame only after `disarm`.
    let kthread = unsafe { worker::arm(&guard, &node.timer, deadline) };
    worker::block(guard);
    worker::disarm(kthread, &node.timer);
}
