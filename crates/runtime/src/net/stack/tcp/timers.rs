//! When connections and listeners want to be looked at.
//!
//! A connection's deadline moves with every segment, mostly away. So one is in here at most once, under the earliest deadline it has had since it was last
//! looked at: a later one costs nothing, and one that fires early is put back for
//! the time that the socket noted when it was settled last, without a look at the connection. A connection at rest needs no timer, and stays here until that
//! fires or is put off, as is done while a kthread has nothing else to do.
//!
//! Ordered maps rather than heaps, because a connection that ends has to be taken out: its timer may be hours away.

use super::listen::Listening;
use super::socket::Socket;
use crate::sync::spin::SpinLock;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_tcp::Instant;

/// Parts, by the number of the socket: kthreads seldom meet.
const SHARDS: usize = 16;

/// A time that never comes: what a timer that is not here is set to.
pub const NEVER: Instant = Instant(u64::MAX);

/// Whose time has come.
#[derive(Debug)]
pub enum Due {
    /// A connection's.
    Socket(Arc<Socket>),
    /// A listening socket's: an answer to a SYN is to be repeated.
    Listening(Arc<Listening>),
}

#[derive(Debug)]
struct Shard {
    entries: SpinLock<BTreeMap<(Instant, u64), Due>>,
    /// The first entry's time, for [`Timers::next`]. Written under the lock; Relaxed: whoever sets an earlier one says so by `poll_by`.
    next: AtomicU64,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Timers {
    shards: [Shard; SHARDS],
}

impl Timers {
    /// None.
    pub fn new() -> Self {
        let shard = |_| Shard { entries: SpinLock::new(BTreeMap::new()), next: AtomicU64::new(u64::MAX) };
        Self { shards: core::array::from_fn(shard) }
    }

    fn shard(&self, id: u64) -> &Shard {
        &self.shards[(id % SHARDS as u64) as usize]
    }

    /// Puts `due`, number `id`, here for `at` instead of for `former`. True if it is the first of its part: then somebody has to be told.
    pub fn insert(&self, id: u64, former: Instant, at: Instant, due: Due) -> bool {
        let shard = self.shard(id);
        let mut entries = shard.entries.lock();
        let old = if former == NEVER { None } else { entries.remove(&(former, id)) };
        entries.insert((at, id), due);
        let first = update(shard, &entries);
        drop(entries);
        drop(old);
        first == at.0
    }

    /// Takes number `id`, here for `at`, out.
    pub fn remove(&self, id: u64, at: Instant) {
        let shard = self.shard(id);
        let mut entries = shard.entries.lock();
        let old = entries.remove(&(at, id));
        update(shard, &entries);
        drop(entries);
        drop(old);
    }

    /// The earliest.
    pub fn next(&self) -> Option<Instant> {
        let next = self.shards.iter().map(|shard| shard.next.load(Relaxed)).min().unwrap_or(u64::MAX);
        (next != u64::MAX).then_some(Instant(next))
    }

    /// The earliest, if it is a connection's: when it is due, and whose it is.
    pub fn first_socket(&self) -> Option<(Instant, Arc<Socket>)> {
        let shard = self.shards.iter().min_by_key(|shard| shard.next.load(Relaxed))?;
        if shard.next.load(Relaxed) == u64::MAX {
            return None;
        }
        match shard.entries.lock().first_key_value()? {
            (&(at, _), Due::Socket(socket)) => Some((at, Arc::clone(socket))),
            (_, Due::Listening(_)) => None,
        }
    }

    /// Moves up to `limit` of those whose time has come into `due`.
    pub fn take(&self, now: Instant, limit: usize, due: &mut Vec<Due>) {
        for shard in self.shards.iter().filter(|shard| shard.next.load(Relaxed) <= now.0) {
            let mut entries = shard.entries.lock();
            while due.len() < limit {
                let Some(first) = entries.first_entry().filter(|entry| entry.key().0 <= now) else { break };
                due.push(first.remove());
            }
            update(shard, &entries);
        }
    }
}

fn update(shard: &Shard, entries: &BTreeMap<(Instant, u64), Due>) -> u64 {
    let first = entries.first_key_value().map_or(u64::MAX, |(&(at, _), _)| at.0);
    shard.next.store(first, Relaxed);
    first
}
