//! First-in first-out queues of blocked calls, with what each call waits for.
//!
//! A [`WaitList`] only records that threads wait; each [`Entry`] of a [`Queue`] also carries a
//! payload that the two sides exchange under the queue's lock (a message, a number of permits). The
//! thread that makes room pops the oldest entry, does the waiter's work for it and wakes it: no
//! third thread can take what is handed over, so queues are fair by construction. Entries lie on
//! the stacks of the waiting threads; nothing allocates.
//!
//! One blocked call may have entries in several queues (a select). Its [`Sleeper`] lets exactly one
//! of them be granted.
//!
//! | event | holds | does |
//! |---|---|---|
//! | block | queue lock(s) | links the entries; unlocks; [`Sleeper::sleep`] |
//! | grant | queue lock, then the sleeper's | unlinks the entry; `Open` to `Granted`; exchanges the payload; wakes |
//! | time-out | sleeper's lock | `Open` to `Abandoned`, unless granted |
//! | the call returns | queue locks, one by one | unlinks the entries that were not granted |
//!
//! Locks are taken in that order only: queue, then sleeper. An entry outlives every access: one
//! that was granted is last touched under the sleeper's lock, which `sleep` takes once more before
//! it returns; every other one is touched under its queue's lock, which its owner takes to unlink
//! it.

use crate::ground::list::{Linked, Links, List};
use crate::ground::spin::{SpinGuard, SpinLock};
use crate::verbs::wait::{self, WaitList};
use core::cell::UnsafeCell;
use tailwater_shm::Cycles;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Any of the entries may be granted.
    Open,
    /// The entry with this case number was granted.
    Granted(usize),
    /// The deadline passed first.
    Abandoned,
}

#[derive(Debug)]
struct SleepState {
    phase: Phase,
    list: WaitList,
}

/// One blocked call, at most one of whose entries is granted.
#[derive(Debug)]
pub(crate) struct Sleeper(SpinLock<SleepState>);

impl Sleeper {
    pub(crate) const fn new() -> Self {
        Self(SpinLock::new(SleepState { phase: Phase::Open, list: WaitList::new() }))
    }

    /// Waits until an entry is granted, and returns its case number; `None` if `deadline` passed
    /// first, after which no entry will be granted. The caller holds no lock.
    pub(crate) fn sleep(&self, deadline: Option<Cycles>) -> Option<usize> {
        let state = self.0.lock();
        if state.phase == Phase::Open {
            // SAFETY: `list` is the state's only list, and stays in it.
            unsafe { wait::wait(state, |s| &mut s.list, deadline) };
        } else {
            drop(state);
        }
        // Also waits for a granter that has woken us and is about to unlock.
        let mut state = self.0.lock();
        match state.phase {
            Phase::Granted(case) => Some(case),
            Phase::Open | Phase::Abandoned => {
                state.phase = Phase::Abandoned;
                None
            }
        }
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
    /// Returns an entry in no queue; `case` is what [`Sleeper::sleep`] returns when it is granted.
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
    sleeper: SpinGuard<'g, SleepState>,
}

impl<P> Grant<'_, P> {
    /// Returns the payload: first what the waiter brought, then what it will find.
    pub(crate) fn payload(&mut self) -> &mut P {
        // SAFETY: the entry is unlinked and its owner waits for the sleeper's lock, which `self`
        // holds: no other thread uses it.
        unsafe { &mut *(*self.entry).payload.get() }
    }
}

impl<P> Drop for Grant<'_, P> {
    fn drop(&mut self) {
        self.sleeper.list.wake_one();
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
    /// was granted and [`Sleeper::sleep`] has returned, or [`remove`](Self::remove) was called for
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
            // lie in is not left before the guard is dropped, because `sleep` takes the lock again;
            // otherwise the guard is dropped right here.
            let mut sleeper = unsafe { (*entry.sleeper).0.lock() };
            if sleeper.phase == Phase::Open {
                sleeper.phase = Phase::Granted(entry.case);
                return Some(Grant { entry, sleeper });
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
    let entry = Entry::new(payload, &raw const sleeper, 0);
    // SAFETY: both stay in this frame, which ends after a grant and `sleep`, or after `remove`.
    unsafe { queue(&mut guard).push_back(&entry) };
    let lock = guard.lock_of();
    drop(guard);
    let granted = sleeper.sleep(deadline).is_some();
    if !granted {
        // SAFETY: it was put into this queue above, and a grant takes it out.
        unsafe { queue(&mut lock.lock()).remove(&entry) };
    }
    (granted, entry.into_payload())
}
