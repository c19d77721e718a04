//! First-in first-out queues of blocked calls, with what each call waits for.
//!
//! A [`WaitList`] only records that threads wait; each [`Entry`] of a [`Queue`] also carries a
//! payload that the two sides exchange under the queue's lock (a message, a number of permits). The
//! thread that makes room pops the oldest entry, does the waiter's work for it and wakes it: no
//! third thread can take what is handed over, so queues are fair by construction. A thread's
//! entry lies on its stack, which needs no allocation; a future's lies on the heap ([`Queued`]).
//!
//! One blocked call may have entries in several queues (a select). Its [`Sleeper`] lets exactly one
//! of them be granted.
//!
//! | event | holds | does |
//! |---|---|---|
//! | block | queue lock(s), then the sleeper's | takes the sleeper's lock before another thread knows it; links the entries; unlocks the queues; [`Held::sleep`], which unlocks the sleeper |
//! | grant | queue lock, then the sleeper's | unlinks the entry; `Open` to `Granted`; exchanges the payload; unlocks the sleeper and wakes, of a call with a deadline the other way round |
//! | time-out | sleeper's lock | `Open` to `Abandoned`, unless granted |
//! | the call returns | queue locks, one by one | unlinks the entries that were not granted |
//!
//! Locks are taken in that order only: queue, then sleeper. While a granter waits for the lock of a
//! sleeper that is about to fall asleep, it may hold a queue's; the sleeper's call takes none then.
//!
//! An entry outlives every access. One that was granted is last touched by its granter before the
//! wake-up, or, if the call has a deadline and may wake by itself, under the sleeper's lock, which
//! `sleep` then takes once more before it returns. Every other one is touched under its queue's
//! lock, which its owner takes to unlink it. Loom model: `ground::models::sleeper`.

use crate::ground::list::{Linked, Links, List};
use crate::ground::spin::{SpinGuard, SpinLock};
use crate::verbs::wait::{self, WaitList, WaitOutcome};
use crate::verbs::watch::Watchers;
use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicUsize, Ordering};
#[cfg(feature = "future")]
use std::sync::Arc;
use tailwater_shm::Cycles;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Any of the entries may be granted.
    Open,
    /// One of them was granted.
    Granted,
    /// The deadline passed first.
    Abandoned,
}

#[derive(Debug)]
struct SleepState {
    phase: Phase,
    list: WaitList,
    /// Of a call that is a future: see [`Queued`].
    watchers: Watchers,
}

/// One blocked call, at most one of whose entries is granted.
#[derive(Debug)]
pub(crate) struct Sleeper {
    state: SpinLock<SleepState>,
    /// The case number of the granted entry. Written by the granter under the lock, read by the
    /// call after it was woken.
    granted: AtomicUsize,
}

impl Sleeper {
    pub(crate) const fn new() -> Self {
        let state = SleepState { phase: Phase::Open, list: WaitList::new(), watchers: Watchers::new() };
        Self { state: SpinLock::new(state), granted: AtomicUsize::new(0) }
    }

    /// Locks the sleeper, without a locked instruction.
    ///
    /// # Safety
    /// No other thread knows the sleeper yet: it is new, and of no queued entry.
    pub(crate) unsafe fn hold(&self) -> Held<'_> {
        // SAFETY: by the caller's contract.
        Held { sleeper: self, state: unsafe { self.state.lock_unshared() } }
    }

    /// Returns the case number that a granter has written.
    fn granted(&self) -> usize {
        // Relaxed: ordered by the wait node or by the lock.
        self.granted.load(Ordering::Relaxed)
    }
}

/// A [`Sleeper`] that is locked: none of its entries can be granted yet.
#[must_use = "granters spin, with their queues locked, until the sleeper sleeps"]
#[derive(Debug)]
pub(crate) struct Held<'s> {
    sleeper: &'s Sleeper,
    state: SpinGuard<'s, SleepState>,
}

impl Held<'_> {
    /// Waits until an entry is granted, and returns its case number; `None` if `deadline` passed
    /// first, after which no entry will be granted. The caller holds no other lock.
    pub(crate) fn sleep(self, deadline: Option<Cycles>) -> Option<usize> {
        let Self { sleeper, state } = self;
        // SAFETY: `list` is the state's only list, and stays in it.
        let outcome = unsafe { wait::wait(state, |s| &mut s.list, deadline) };
        if deadline.is_none() {
            assert_eq!(outcome, WaitOutcome::Woken, "a wait without a deadline ended without a grant");
            // The granter was done with the sleeper when it woke this call.
            return Some(sleeper.granted());
        }
        // Also waits for a granter that has woken this call and is about to unlock.
        let mut state = sleeper.state.lock();
        if state.phase == Phase::Granted {
            return Some(sleeper.granted());
        }
        state.phase = Phase::Abandoned;
        None
    }
}

/// A blocked call's place in one queue.
#[derive(Debug)]
pub(crate) struct Entry<P> {
    payload: UnsafeCell<P>,
    sleeper: *const Sleeper,
    case: usize,
    links: Links<Entry<P>>,
}

impl<P> Linked for Entry<P> {
    fn links(&self) -> &Links<Self> {
        &self.links
    }
}

impl<P> Entry<P> {
    /// Returns an entry in no queue; `case` is what [`Held::sleep`] returns when it is granted.
    pub(crate) const fn new(payload: P, sleeper: *const Sleeper, case: usize) -> Self {
        Self { payload: UnsafeCell::new(payload), sleeper, case, links: Links::new() }
    }

    /// Returns the payload of an entry that has left its queue.
    pub(crate) fn into_payload(self) -> P {
        debug_assert!(!self.links.are_linked(), "an entry left its frame while it was queued");
        self.payload.into_inner()
    }
}

/// A call that is about to return: wakes its thread when dropped, which may be after the queue was
/// unlocked.
#[must_use = "the payload has to be exchanged before the waiter is woken"]
pub(crate) struct Grant<'g, P> {
    entry: *const Entry<P>,
    /// Present until the grant is dropped.
    sleeper: ManuallyDrop<SpinGuard<'g, SleepState>>,
}

impl<P> Grant<'_, P> {
    /// Returns the payload: first what the waiter brought, then what it will find.
    pub(crate) fn payload(&mut self) -> &mut P {
        // SAFETY: the entry is unlinked and its owner waits until `self` is dropped: no other
        // thread uses it.
        unsafe { &mut *(*self.entry).payload.get() }
    }
}

impl<P> Drop for Grant<'_, P> {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        let mut sleeper = unsafe { ManuallyDrop::take(&mut self.sleeper) };
        sleeper.watchers.notify();
        wait::wake_one_and_unlock(sleeper, |s| &mut s.list);
    }
}

/// Blocked calls, oldest first. Lives inside the [`SpinLock`] that guards what they wait for.
#[derive(Debug)]
pub(crate) struct Queue<P> {
    entries: List<Entry<P>>,
    len: usize,
}

// SAFETY: entries are reached only under the lock the queue lies in; their payloads go from thread
// to thread.
unsafe impl<P: Send> Send for Queue<P> {}

impl<P> Queue<P> {
    pub(crate) const fn new() -> Self {
        Self { entries: List::new(), len: 0 }
    }

    /// Returns the number of queued entries, including those of calls whose deadline has just
    /// passed.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the payloads, oldest first.
    fn payloads(&self) -> impl Iterator<Item = &P> {
        // SAFETY: payloads of linked entries are touched under the lock that `&self` implies.
        self.entries.iter().map(|entry| unsafe { &*entry.payload.get() })
    }

    /// Returns the payload of the oldest entry.
    pub(crate) fn front(&self) -> Option<&P> {
        self.payloads().next()
    }

    /// Returns how many entries at the front fulfil `condition` without a gap; at most `limit`.
    pub(crate) fn count_front(&self, limit: usize, condition: impl Fn(&P) -> bool) -> usize {
        self.payloads().take(limit).take_while(|payload| condition(payload)).count()
    }

    /// Appends `entry`.
    ///
    /// # Safety
    /// The entry is in no queue, its sleeper is alive, and neither moves nor dies before the entry
    /// was granted and [`Held::sleep`] has returned, or [`remove`](Self::remove) was called for
    /// it.
    pub(crate) unsafe fn push_back(&mut self, entry: &Entry<P>) {
        // SAFETY: by the caller's contract: a grant takes the entry out as well.
        unsafe { self.entries.push_back(entry) };
        self.len += 1;
    }

    /// Grants and returns the oldest entry whose call is still open.
    pub(crate) fn pop<'g>(&mut self) -> Option<Grant<'g, P>>
    where
        P: 'g,
    {
        self.pop_if(|_| true)
    }

    /// As [`pop`](Self::pop), while the payload of the entry at the front fulfils `condition`.
    pub(crate) fn pop_if<'g>(&mut self, condition: impl Fn(&P) -> bool) -> Option<Grant<'g, P>>
    where
        P: 'g,
    {
        // Each turn unlinks an entry, so the loop ends with the queue.
        while self.front().is_some_and(&condition) {
            let entry = self.entries.pop_front()?;
            self.len -= 1;
            // SAFETY: an entry that was not granted is alive as long as we hold the queue's lock:
            // its owner takes that to remove it.
            let entry = unsafe { entry.as_ref() };
            // SAFETY: the sleeper lives as long as its entry. Should this call win, the frame both
            // lie in is not left before the grant is dropped, because that ends the wait; otherwise
            // the lock is released right here.
            let sleeper = unsafe { &*entry.sleeper };
            let mut state = sleeper.state.lock();
            if state.phase == Phase::Open {
                state.phase = Phase::Granted;
                // Relaxed: see `Sleeper::granted`.
                sleeper.granted.store(entry.case, Ordering::Relaxed);
                return Some(Grant { entry, sleeper: ManuallyDrop::new(state) });
            }
        }
        None
    }

    /// Unlinks `entry`, if it is still in the queue.
    ///
    /// # Safety
    /// The entry is in this queue, or in none.
    pub(crate) unsafe fn remove(&mut self, entry: &Entry<P>) {
        // SAFETY: by the caller's contract.
        if unsafe { self.entries.remove(entry) } {
            self.len -= 1;
        }
    }
}

/// Blocks the calling thread in the queue that `queue` returns from the guarded state, until its
/// entry is granted (true) or `deadline` passes; returns the final payload. Unlocks the state while
/// it waits and does not lock it again for the caller.
///
/// # Safety
/// 1. Whenever `queue` is called it returns the same queue, which is part of the value that the
///    lock guards.
/// 2. While calls wait in the queue it is not moved, and no other queue is put in its place.
///
/// # Panics
/// On a user thread that holds another spin lock.
pub(crate) unsafe fn wait_in<S, P>(
    mut guard: SpinGuard<'_, S>,
    queue: impl Fn(&mut S) -> &mut Queue<P>,
    payload: P,
    deadline: Option<Cycles>,
) -> (bool, P) {
    wait::check_may_block(guard.no_preempt());
    let sleeper = Sleeper::new();
    // SAFETY: it is new, and its entry is queued below.
    let asleep = unsafe { sleeper.hold() };
    let entry = Entry::new(payload, &raw const sleeper, 0);
    // SAFETY: both stay in this frame, which ends after a grant and `sleep`, or after `remove`.
    unsafe { queue(&mut guard).push_back(&entry) };
    let lock = guard.lock_of();
    drop(guard);
    let granted = asleep.sleep(deadline).is_some();
    if !granted {
        // SAFETY: it was put into this queue above, and a grant takes it out.
        unsafe { queue(&mut lock.lock()).remove(&entry) };
    }
    (granted, entry.into_payload())
}

/// A call of a future in one queue: a [`Sleeper`] without a thread, whose watchers are notified of
/// the grant, and its entry.
#[cfg(feature = "future")]
#[derive(Debug)]
pub(crate) struct Queued<P> {
    sleeper: Sleeper,
    entry: Entry<P>,
}

// SAFETY: the entry is used under its queue's lock, and by no other thread once it has left.
#[cfg(feature = "future")]
unsafe impl<P: Send> Send for Queued<P> {}
// SAFETY: as above; a shared reference gives no access to the payload.
#[cfg(feature = "future")]
unsafe impl<P: Send> Sync for Queued<P> {}

#[cfg(feature = "future")]
impl<P> Queued<P> {
    /// Returns a call that is in no queue.
    pub(crate) fn new(payload: P) -> Arc<Self> {
        let entry = Entry::new(payload, core::ptr::null(), 0);
        let mut queued = Arc::new(Self { sleeper: Sleeper::new(), entry });
        let sleeper = &raw const queued.sleeper;
        Arc::get_mut(&mut queued).expect("it is new").entry.sleeper = sleeper;
        queued
    }

    /// Appends the call to a queue.
    ///
    /// # Safety
    /// 1. It is in no queue, and not moved out of its `Arc`.
    /// 2. It dies after it was granted, as [`is_granted`](Self::is_granted) or
    ///    [`granted_or`](Self::granted_or) say, or after [`leave`](Self::leave). All grants of the
    ///    queue are dropped under its lock.
    pub(crate) unsafe fn join(&self, queue: &mut Queue<P>) {
        // SAFETY: it neither moves nor dies by both points; a grant is over when it can be seen,
        // because it ends by unlocking the sleeper.
        unsafe { queue.push_back(&self.entry) };
    }

    /// Leaves the queue, if it is still there.
    ///
    /// # Safety
    /// `queue` is the one that it has joined.
    pub(crate) unsafe fn leave(&self, queue: &mut Queue<P>) {
        // SAFETY: by the caller's contract.
        unsafe { queue.remove(&self.entry) };
    }

    /// Returns whether it was granted.
    pub(crate) fn is_granted(&self) -> bool {
        self.granted_or(|_| {})
    }

    /// Returns whether it was granted; if not, calls `arm` with what is notified of the grant,
    /// locked.
    pub(crate) fn granted_or(&self, arm: impl FnOnce(&mut Watchers)) -> bool {
        let mut state = self.sleeper.state.lock();
        let granted = state.phase == Phase::Granted;
        if !granted {
            arm(&mut state.watchers);
        }
        granted
    }

    /// Calls `change` with what is notified of the grant, locked.
    pub(crate) fn with_watchers(&self, change: impl FnOnce(&mut Watchers)) {
        change(&mut self.sleeper.state.lock().watchers);
    }
}
