//! The limit on copies of broadcasts and multicasts.
//!
//! A frame to a group costs the polling thread a copy for each receiver, and each receiver the time
//! to look at it. So each runtime may cause a number of copies a second (`broadcast-copies`), and
//! as many at once; a frame beyond is dropped, counted, and charged to the runtime
//! ([`crate::tenant`]). A network stack itself sends few frames to groups, ARP and neighbour
//! discovery for the most part, a few for each peer. Frames of ports are not limited, but each
//! frame to a group leaves half of a receiver's ring to frames for that receiver alone
//! ([`leaves_room`]).

use std::collections::HashMap;
use tailwater_sched::RuntimeId;
use tailwater_shm::ring::Producer;
use tailwater_shm::{Clock, Cycles};

use crate::config::Config;
use crate::firewall::Bucket;

/// Part of a ring that frames to groups leave free.
const ROOM: u32 = 2;

/// What is left to each runtime that has sent frames to groups.
#[derive(Debug)]
pub(super) struct BroadcastLimit {
    /// Copies per second.
    rate: u64,
    buckets: HashMap<RuntimeId, Bucket>,
}

impl BroadcastLimit {
    pub(super) fn new(config: &Config) -> Self {
        Self { rate: config.broadcast_copies.into(), buckets: HashMap::new() }
    }

    pub(super) fn remove(&mut self, id: RuntimeId) {
        self.buckets.remove(&id);
    }

    /// Returns whether runtime `id` may cause this many copies now, and counts them if it may. A
    /// frame of more copies than all of a second's counts as those.
    pub(super) fn take(&mut self, id: RuntimeId, copies: usize, clock: Clock, now: Cycles) -> bool {
        let rate = self.rate;
        let bucket = self.buckets.entry(id).or_insert_with(|| Bucket::new(rate, rate, clock.hz()));
        bucket.try_take((copies as u64).min(rate), now)
    }
}

/// Returns whether a ring of `lines` lines has room for a frame to a group.
pub(super) fn leaves_room(ring: &Producer, lines: u32) -> bool {
    ring.head().wrapping_sub(ring.unchecked_tail()) <= lines - lines / ROOM
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_runtime_has_its_own_copies_and_gets_them_back_with_time() {
        let config = Config { broadcast_copies: 1_000, ..Config::default() };
        let mut limit = BroadcastLimit::new(&config);
        let clock = Clock::from_hz(1_000_000_000);
        let mut take = |id, copies, now| limit.take(RuntimeId(id), copies, clock, now);
        assert!(take(0, 600, 5) && take(0, 400, 5) && !take(0, 1, 5));
        assert!(take(1, 1_000, 5), "another's copies");
        assert!(!take(0, 11, 10_000_005) && take(0, 10, 10_000_005));
        assert!(take(0, 5_000, 2_000_000_000), "a frame to more receivers than copies passes alone");
        limit.remove(RuntimeId(0));
        assert_eq!(limit.buckets.len(), 1);
    }
}
