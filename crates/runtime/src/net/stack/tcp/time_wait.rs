//! What is left of connections in TIME-WAIT (RFC 9293 section 3.4.2): a value of 48 bytes each, for a minute.
//!
//! Bounded: when there are too many, the oldest goes first. All last equally long, so the oldest is the first in line; one that began again (its peer's FIN was
//! repeated) is found out when its turn comes.

use super::key::{Key, Seeds};
use crate::sync::spin::SpinLock;
use core::hash::BuildHasher;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use tailwater_tcp::{Instant, Segment, TimeWait, Verdict};

const SHARDS: usize = 16;
const PER_SHARD: usize = super::MAX_TIME_WAITS / SHARDS;
/// They end in groups: nobody minds one that lasts a little longer.
const GROUP: Duration = Duration::from_millis(500);
/// When a connection of this host's own may take the place of its predecessor: the clock of timestamps must have ticked, so that the peer can tell them apart (RFC
/// 6191 section 2).
const REUSE_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Shard {
    entries: HashMap<Key, Entry, Seeds>,
    /// In the order in which they began. A key whose entry is gone, or stands here under another time, stands here in vain.
    order: VecDeque<(Instant, Key)>,
}

#[derive(Debug)]
struct Entry {
    rest: TimeWait,
    since: Instant,
    /// Under which time it stands in line.
    in_line: Instant,
}

/// See the module documentation.
#[derive(Debug)]
pub struct TimeWaits {
    shards: [SpinLock<Shard>; SHARDS],
    seeds: Seeds,
}

impl TimeWaits {
    /// None.
    pub fn new(seed: u64) -> Self {
        let seeds = Seeds::new(seed);
        let shard = |_| SpinLock::new(Shard { entries: HashMap::with_hasher(seeds), order: VecDeque::new() });
        Self { shards: core::array::from_fn(shard), seeds }
    }

    fn shard(&self, key: &Key) -> &SpinLock<Shard> {
        &self.shards[(self.seeds.hash_one(key) >> 32) as usize % SHARDS]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    /// Keeps `rest`. True if it is the first of its shard: then somebody has to be told of [`next`](Self::next).
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

    /// Whether a new connection of this host's may not take the place of `key`.
    pub fn blocks(&self, key: &Key, now: Instant) -> bool {
        self.shard(key).lock().entries.get(key).is_some_and(|entry| now - entry.since < REUSE_AFTER)
    }

    /// Whether `key` is here.
    pub fn contains(&self, key: &Key) -> bool {
        self.shard(key).lock().entries.contains_key(key)
    }

    /// Forgets `key`.
    pub fn remove(&self, key: &Key) {
        self.shard(key).lock().entries.remove(key);
    }

    /// What a segment does; `None` if nothing is left of its connection. Forgets what the verdict says is to be forgotten.
    pub fn handle_segment(&self, key: &Key, segment: &Segment<'_>, now: Instant) -> Option<Verdict> {
        let mut shard = self.shard(key).lock();
        let verdict = shard.entries.get_mut(key)?.rest.handle_segment(segment, now);
        if matches!(verdict, Verdict::Reopen { .. }) {
            shard.entries.remove(key);
        }
        Some(verdict)
    }

    /// When [`poll`](Self::poll) has something to do.
    pub fn next(&self) -> Option<Instant> {
        self.shards.iter().filter_map(|shard| shard.lock().order.front().map(|&(at, _)| at + GROUP)).min()
    }

    /// Forgets those that have lasted long enough.
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
                    // It began again.
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
