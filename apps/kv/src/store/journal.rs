//! The journal of a store: which keys have changed, in the order of the changes.
//!
//! Owns the numbers of changes and the changes that a reader has not taken yet. A change is a
//! number and a key, never a value: a reader looks up the key's present item, so a later change of
//! the key may be in it already, and no item is copied or held. Changes are recorded under the lock
//! of their shard. For one key, a reader that takes change `n` therefore finds an item that is at
//! least as new as `n`.
//!
//! | event | recorded | why |
//! |---|---|---|
//! | an item is stored, joined, counted, touched, invalidated, created by a retrieval | its key | |
//! | a client is asked to renew it (flag R of meta get) | its key | only one client may be |
//! | a deletion, also of a key without an item | its key | a backup may have an item that was evicted here |
//! | a value is refused, and so the key's item removed | its key | |
//! | a flush | all shards, with all of them locked | no write is on the wrong side of it |
//! | a flush is scheduled | its second | the store that takes over executes it |
//! | expiry, eviction, use | nothing | each store does so by itself |
//!
//! Memory: one entry per change that an attached reader has not taken. Whoever records changes
//! waits for the readers, so the bound is that of the recording threads' input.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tailwater::sync::{Mutex, MutexGuard, Notify};

use super::Now;

/// A change of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The item of this key.
    Key(Arc<[u8]>),
    /// All items stored before are dead.
    Flush,
    /// A flush is scheduled: [`Journal::scheduled`] has its second.
    Schedule,
}

/// The journal of a store.
#[derive(Debug)]
pub struct Journal {
    state: Mutex<State>,
    /// Wakes the reader of this index.
    wake: Box<[Notify]>,
    /// Second of the scheduled flush, 0 for none. Changed under `state`, and without it from a due
    /// second to 0; relaxed, because a flush orders itself by the locks of the shards.
    scheduled: AtomicU32,
}

#[derive(Debug)]
struct State {
    /// Number of the last change, 0 before the first.
    last: u64,
    /// The last changes, in order; empty while no reader is attached.
    changes: VecDeque<Change>,
    /// Number of the change that each reader takes next, if it is attached.
    next: Box<[Option<u64>]>,
}

impl State {
    /// Drops the changes that all attached readers have taken.
    fn trim(&mut self) {
        let oldest = self.next.iter().flatten().min().copied().unwrap_or(self.last + 1);
        let kept = (self.last + 1 - oldest) as usize;
        self.changes.drain(..self.changes.len() - kept);
    }
}

impl Journal {
    /// Creates a journal for `readers`, none of which is attached.
    #[must_use]
    pub fn new(readers: usize) -> Self {
        let state = State { last: 0, changes: VecDeque::new(), next: vec![None; readers].into() };
        let wake = (0..readers).map(|_| Notify::new()).collect();
        Self { state: Mutex::new(state), wake, scheduled: AtomicU32::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches a reader: it takes all later changes. Returns the result of `then`, which is called
    /// with the number of the last change before, while no change is recorded.
    ///
    /// # Panics
    /// As of all methods with a reader, if its index is out of bounds.
    pub fn attach<T>(&self, reader: usize, then: impl FnOnce(u64) -> T) -> T {
        let mut state = self.lock();
        state.next[reader] = Some(state.last + 1);
        state.trim();
        then(state.last)
    }

    /// Detaches a reader and wakes it.
    pub fn detach(&self, reader: usize) {
        let mut state = self.lock();
        state.next[reader] = None;
        state.trim();
        drop(state);
        self.wake[reader].notify_one();
    }

    /// Appends up to `most` changes to `out`; returns the number of the last one taken so far,
    /// `None` if the reader is detached.
    pub fn take(&self, reader: usize, most: usize, out: &mut Vec<Change>) -> Option<u64> {
        let mut state = self.lock();
        let next = state.next[reader]?;
        let waiting = (state.last + 1 - next) as usize;
        let first = state.changes.len() - waiting;
        let count = waiting.min(most);
        out.extend(state.changes.range(first..first + count).cloned());
        let next = next + count as u64;
        state.next[reader] = Some(next);
        state.trim();
        Some(next - 1)
    }

    /// Waits until there may be a change for the reader, or it may be detached, at most `limit`.
    pub fn wait(&self, reader: usize, limit: Duration) {
        self.wake[reader].wait_timeout(limit);
    }

    /// Returns the second of the scheduled flush, if there is one.
    #[must_use]
    pub fn scheduled(&self) -> Option<u32> {
        Some(self.scheduled.load(Relaxed)).filter(|&second| second != 0)
    }

    /// Records a change of a key, whose shard is locked; returns its number.
    pub(super) fn record_key(&self, key: &[u8]) -> u64 {
        self.record(self.lock(), || Change::Key(key.into()))
    }

    /// Records a flush, with all shards locked, in place of the scheduled one; returns its number.
    pub(super) fn record_flush(&self) -> u64 {
        let state = self.lock();
        self.scheduled.store(0, Relaxed);
        self.record(state, || Change::Flush)
    }

    /// Schedules a flush for a later second, in place of another; returns the number of the change.
    pub(super) fn schedule(&self, second: u32) -> u64 {
        let state = self.lock();
        self.scheduled.store(second, Relaxed);
        self.record(state, || Change::Schedule)
    }

    /// Returns true to one caller if a scheduled flush is due, which it must then execute.
    #[inline]
    pub(super) fn claim_due(&self, now: Now) -> bool {
        let second = self.scheduled.load(Relaxed);
        second != 0
            && second <= now.seconds
            && self.scheduled.compare_exchange(second, 0, Relaxed, Relaxed).is_ok()
    }

    fn record(&self, mut state: MutexGuard<'_, State>, change: impl FnOnce() -> Change) -> u64 {
        state.last += 1;
        let number = state.last;
        if state.next.iter().any(Option::is_some) {
            state.changes.push_back(change());
            // Wakes each reader at the first change that it has not taken; it takes all.
            for (next, wake) in state.next.iter().zip(&self.wake) {
                if *next == Some(number) {
                    wake.notify_one();
                }
            }
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(journal: &Journal, reader: usize, most: usize) -> (Option<u64>, Vec<String>) {
        let mut changes = Vec::new();
        let last = journal.take(reader, most, &mut changes);
        let name = |change: &Change| match change {
            Change::Key(key) => String::from_utf8_lossy(key).into_owned(),
            other => format!("{other:?}"),
        };
        (last, changes.iter().map(name).collect())
    }

    #[test]
    fn each_reader_takes_each_change_after_it_was_attached() {
        let journal = Journal::new(2);
        assert_eq!(journal.record_key(b"before"), 1);
        assert_eq!(journal.lock().changes.len(), 0);
        assert_eq!(journal.attach(0, |last| last), 1);
        journal.record_key(b"a");
        assert_eq!(journal.attach(1, |last| last), 2);
        journal.record_key(b"b");
        journal.record_flush();
        assert_eq!(keys(&journal, 0, 2), (Some(3), vec!["a".into(), "b".into()]));
        assert_eq!(keys(&journal, 1, 9), (Some(4), vec!["b".into(), "Flush".into()]));
        assert_eq!(journal.lock().changes.len(), 1, "what all have taken is dropped");
        assert_eq!(keys(&journal, 0, 9), (Some(4), vec!["Flush".into()]));
        assert_eq!(keys(&journal, 0, 9), (Some(4), vec![]));
    }

    #[test]
    fn a_detached_reader_keeps_nothing_and_is_told() {
        let journal = Journal::new(2);
        journal.attach(0, drop);
        journal.record_key(b"a");
        journal.detach(0);
        assert_eq!((keys(&journal, 0, 9), journal.lock().changes.len()), ((None, vec![]), 0));
        // It was woken, and does not wait.
        journal.wait(0, Duration::MAX);
        assert_eq!((journal.record_key(b"b"), journal.attach(0, |last| last)), (2, 2));
    }

    #[test]
    fn a_scheduled_flush_is_claimed_once_when_it_is_due() {
        let (journal, at) = (Journal::new(0), |seconds| Now { seconds, start_unix: 0 });
        journal.schedule(50);
        assert!(!journal.claim_due(at(49)) && journal.scheduled() == Some(50));
        assert!(journal.claim_due(at(51)) && !journal.claim_due(at(51)));
        journal.schedule(60);
        journal.record_flush();
        assert!(!journal.claim_due(at(60)), "an earlier flush replaces it");
    }
}
