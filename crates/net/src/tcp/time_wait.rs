//! Connections in TIME-WAIT (RFC 9293 section 3.4.2): 48 bytes each, for a minute.
//!
//! When there are too many, the oldest is removed. All last equally long, so the oldest is the
//! first in line. One whose time began again, because its peer's FIN was repeated, is put back when
//! its turn comes.

use super::key::{Key, Seeds};
use crate::platform::{Lock, Platform};
use alloc::collections::VecDeque;
use core::hash::BuildHasher;
use core::time::Duration;
use hashbrown::HashMap;
use tailwater_tcp::{Instant, Segment, TimeWait, Verdict};

const SHARDS: usize = 16;
const PER_SHARD: usize = super::MAX_TIME_WAITS / SHARDS;
/// They are removed in groups, which lets some last a little longer.
const GROUP: Duration = Duration::from_millis(500);
/// Time after which a connection opened by this host may reuse the flow: the timestamp clock must
/// have ticked, so that the peer can tell the two apart (RFC 6191 section 2).
const REUSE_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Shard {
    entries: HashMap<Key, Entry, Seeds>,
    /// In the order in which they began. A key whose entry is gone, or is here under another time,
    /// is skipped.
    order: VecDeque<(Instant, Key)>,
}

#[derive(Debug)]
struct Entry {
    rest: TimeWait,
    since: Instant,
    /// The time under which it is in `order`.
    in_line: Instant,
}

/// See the module documentation.
#[derive(Debug)]
pub struct TimeWaits<P: Platform> {
    shards: [P::Lock<Shard>; SHARDS],
    seeds: Seeds,
}

impl<P: Platform> TimeWaits<P> {
    /// Makes an empty table.
    pub fn new(seed: u64) -> Self {
        let seeds = Seeds::new(seed);
        let shard = |_| Lock::new(Shard { entries: HashMap::with_hasher(seeds), order: VecDeque::new() });
        Self { shards: core::array::from_fn(shard), seeds }
    }

    fn shard(&self, key: &Key) -> &P::Lock<Shard> {
        &self.shards[(self.seeds.hash_one(key) >> 32) as usize % SHARDS]
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    /// Adds `rest`. True if it is the first of its shard: then [`next`](Self::next) may have
    /// changed.
    pub fn insert(&self, key: Key, rest: TimeWait, now: Instant) -> bool {
        let mut shard = self.shard(&key).lock();
        let shard = &mut *shard;
        while shard.order.len() >= PER_SHARD {
            if let Some((_, oldest)) = shard.order.pop_front() {
                shard.entries.remove(&oldest);
            }
        }
        shard.order.push_back((rest.expires_at(), key));
        shard.entries.insert(key, Entry { rest, since: now, in_line: rest.expires_at() });
        shard.order.len() == 1
    }

    /// Returns whether a new connection of this host may not reuse `key` yet.
    pub fn blocks(&self, key: &Key, now: Instant) -> bool {
        self.shard(key).lock().entries.get(key).is_some_and(|entry| now - entry.since < REUSE_AFTER)
    }

    /// Returns whether `key` is in TIME-WAIT.
    pub fn contains(&self, key: &Key) -> bool {
        self.shard(key).lock().entries.contains_key(key)
    }

    /// Removes `key`.
    pub fn remove(&self, key: &Key) {
        self.shard(key).lock().entries.remove(key);
    }

    /// Handles a segment; `None` if its connection is not in TIME-WAIT. Removes a connection that
    /// begins anew.
    pub fn handle_segment(&self, key: &Key, segment: &Segment<'_>, now: Instant) -> Option<Verdict> {
        let mut shard = self.shard(key).lock();
        let verdict = shard.entries.get_mut(key)?.rest.handle_segment(segment, now);
        if matches!(verdict, Verdict::Reopen { .. }) {
            shard.entries.remove(key);
        }
        Some(verdict)
    }

    /// Returns when [`poll`](Self::poll) has something to do.
    pub fn next(&self) -> Option<Instant> {
        self.shards.iter().filter_map(|shard| shard.lock().order.front().map(|&(at, _)| at + GROUP)).min()
    }

    /// Removes expired entries.
    pub fn poll(&self, now: Instant) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let shard = &mut *shard;
            // Each turn takes one out, or puts one at the end with a later time.
            while let Some(&(at, key)) = shard.order.front().filter(|&&(at, _)| at <= now) {
                shard.order.pop_front();
                let Some(entry) = shard.entries.get_mut(&key).filter(|entry| entry.in_line == at) else {
                    continue;
                };
                if entry.rest.expires_at() <= now {
                    shard.entries.remove(&key);
                } else {
                    // Its time began again.
                    entry.in_line = entry.rest.expires_at();
                    shard.order.push_back((entry.in_line, key));
                }
            }
            if shard.entries.capacity() > 64 && shard.entries.len() < shard.entries.capacity() / 8 {
                let room = shard.entries.len() * 2;
                shard.entries.shrink_to(room);
                shard.order.shrink_to(shard.order.len() * 2);
            }
        }
    }
}
