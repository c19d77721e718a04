//! Timers of connections and listeners.
//!
//! A connection's deadline moves with every segment, mostly to a later time. A connection is
//! therefore here at most once, under the earliest deadline since its timer last fired: a later
//! deadline costs nothing. A timer that fires early is set again for the deadline stored in the
//! socket, without reading the connection. A connection at rest needs no timer; its old one stays
//! until it fires, or is postponed while a kthread is idle.
//!
//! The shards are ordered maps and not heaps, because the timer of a connection that ends is
//! removed; it may be hours away.

use super::listen::Listening;
use super::socket::Socket;
use crate::platform::{Lock, Platform};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tailwater_tcp::Instant;

/// Shards, by the number of the socket, so that threads seldom contend.
const SHARDS: usize = 16;

/// The owner of an expired timer.
#[derive(Debug)]
pub enum Due<P: Platform> {
    /// A connection.
    Socket(Arc<Socket<P>>),
    /// A listening socket: an answer to a SYN is due again.
    Listening(Arc<Listening<P>>),
}

#[derive(Debug)]
struct Shard<P: Platform> {
    entries: P::Lock<BTreeMap<(Instant, u64), Due<P>>>,
    /// The first entry's time, for [`Timers::next`]. Written under the lock. Relaxed: the setter of
    /// an earlier timer calls `poll_by`.
    next: AtomicU64,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Timers<P: Platform> {
    shards: [Shard<P>; SHARDS],
}

impl<P: Platform> Timers<P> {
    /// Makes an empty table.
    pub fn new() -> Self {
        let shard = |_| Shard { entries: Lock::new(BTreeMap::new()), next: AtomicU64::new(u64::MAX) };
        Self { shards: core::array::from_fn(shard) }
    }

    fn shard(&self, id: u64) -> &Shard<P> {
        &self.shards[(id % SHARDS as u64) as usize]
    }

    /// Sets the timer of `due`, number `id`, for `at` instead of `former`. True if it is the first
    /// of its shard: then the caller calls `poll_by`.
    pub fn insert(&self, id: u64, former: Instant, at: Instant, due: Due<P>) -> bool {
        let shard = self.shard(id);
        let mut entries = shard.entries.lock();
        let old = if former == Instant::NEVER { None } else { entries.remove(&(former, id)) };
        entries.insert((at, id), due);
        let first = update(shard, &entries);
        drop(entries);
        drop(old);
        first == at.0
    }

    /// Removes the timer of number `id`, set for `at`.
    pub fn remove(&self, id: u64, at: Instant) {
        let shard = self.shard(id);
        let mut entries = shard.entries.lock();
        let old = entries.remove(&(at, id));
        update(shard, &entries);
        drop(entries);
        drop(old);
    }

    /// Returns the earliest deadline.
    pub fn next(&self) -> Option<Instant> {
        let next = self.shards.iter().map(|shard| shard.next.load(Relaxed)).min().unwrap_or(u64::MAX);
        (next != u64::MAX).then_some(Instant(next))
    }

    /// Returns the earliest timer, if it is a connection's: its deadline and its owner.
    pub fn first_socket(&self) -> Option<(Instant, Arc<Socket<P>>)> {
        let shard = self.shards.iter().min_by_key(|shard| shard.next.load(Relaxed))?;
        if shard.next.load(Relaxed) == u64::MAX {
            return None;
        }
        match shard.entries.lock().first_key_value()? {
            (&(at, _), Due::Socket(socket)) => Some((at, Arc::clone(socket))),
            (_, Due::Listening(_)) => None,
        }
    }

    /// Moves up to `limit` expired timers into `due`.
    pub fn take(&self, now: Instant, limit: usize, due: &mut Vec<Due<P>>) {
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

fn update<P: Platform>(shard: &Shard<P>, entries: &BTreeMap<(Instant, u64), Due<P>>) -> u64 {
    let first = entries.first_key_value().map_or(u64::MAX, |(&(at, _), _)| at.0);
    shard.next.store(first, Relaxed);
    first
}
