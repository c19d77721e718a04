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
use tailwater_tcp::{Instant, Segment, TimeWait, TimeWaitResponse};

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
            let Some((at, oldest)) = shard.order.pop_front() else { break };
            if shard.entries.get(&oldest).is_some_and(|entry| entry.in_line == at) {
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
    pub fn handle_segment(&self, key: &Key, segment: &Segment<'_>, now: Instant) -> Option<TimeWaitResponse> {
        let mut shard = self.shard(key).lock();
        let response = shard.entries.get_mut(key)?.rest.handle_segment(segment, now);
        if matches!(response, TimeWaitResponse::Reopen { .. }) {
            shard.entries.remove(key);
        }
        Some(response)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Single;
    use core::net::{IpAddr, Ipv4Addr};
    use tailwater_tcp::{Config, Connection, EcnCodepoint, Flow, InitialNumbers, Opening, Seq};

    /// Returns the rest of a connection that both sides have closed at `now`.
    fn rest(now: Instant) -> TimeWait {
        let opening = |local_port, remote_port| Opening {
            local_port,
            remote_port,
            numbers: InitialNumbers { seq: Seq(1), timestamp_offset: 0 },
            path_mss: 1000,
            default_mss: 536,
        };
        let mut ends = [(1, 2), (2, 1)]
            .map(|(local, remote)| Connection::connect(&Config::default(), &opening(local, remote), now));
        for round in 0..20 {
            for side in 0..2 {
                let mut sent = None;
                let _ = ends[side].poll_transmit(now, |outgoing| {
                    let mut bytes = vec![0; outgoing.len()];
                    outgoing.emit(&mut bytes);
                    sent = Some(bytes);
                    Ok(())
                });
                if let Some(bytes) = sent {
                    let segment = Segment::parse(&bytes).unwrap();
                    let _ = ends[1 - side].handle_segment(now, &segment, EcnCodepoint::NotEct);
                }
            }
            if round == 10 {
                for end in &mut ends {
                    let _ = end.close();
                }
            }
        }
        ends[0].time_wait().expect("both have closed at once")
    }

    fn key(i: u32) -> Key {
        let ip = |n: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0000 | n));
        Key::from(&Flow { local: ip(1), remote: ip(i), local_port: 80, remote_port: 1000 })
    }

    #[test]
    fn a_flow_that_closed_again_is_not_taken_for_the_oldest() {
        let waits = TimeWaits::<Single>::new(1);
        // One closes a nanosecond after the other.
        let closed = |key, at| waits.insert(key, rest(Instant(at)), Instant(at));
        let first = key(0);
        closed(first, 1);
        waits.remove(&first);
        closed(first, 2);
        let mut others = (1..).map(key).filter(|key| core::ptr::eq(waits.shard(key), waits.shard(&first)));
        // One rest for all: only the first two have to differ.
        let (late, last) = (rest(Instant(3)), Instant(3));
        let mut add = |count| {
            for key in others.by_ref().take(count) {
                waits.insert(key, late, last);
            }
        };
        add(PER_SHARD - 1);
        assert!(waits.contains(&first), "the removed one made room");
        assert_eq!(waits.len(), PER_SHARD);
        add(1);
        assert!(!waits.contains(&first), "now it is the oldest");
        assert_eq!(waits.len(), PER_SHARD);
    }
}
