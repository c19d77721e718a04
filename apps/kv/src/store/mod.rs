//! The store: items under keys within a byte limit, shared by any number of threads.
//!
//! ```text
//! Store       shards, each under its own lock; sums, flush, crawl        mod
//! Locked      one key's shard, locked: the commands                      read, write
//! Filling     an item that arrives piece by piece; Pinned, one that      transfer
//!             leaves so
//! Shard       hash table, epochs of flush_all, pins                      shard
//!             eviction                                                   evict
//! Dumped      an item in a list of all                                   dump
//! Journal     which keys have changed, for replication                   journal
//! Image       an item as another store needs it                          image
//! Order       lists in the order of use                                  order
//! Cells       memory                                                     cells
//! ```
//!
//! It has no socket, protocol or clock: the present second is an argument, and so is the secret of
//! its hash function. The semantics are memcached 1.6's (protocol.txt): each method names its
//! command.
//!
//! Memory: a store of `bytes` reserves that much address space at its creation and never allocates
//! again. Cells and hash tables together stay within `bytes`; items that clients send or receive
//! piece by piece are in cells too.

mod cells;
mod dump;
mod evict;
mod image;
mod journal;
mod order;
mod read;
mod shard;
mod stats;
mod time;
mod transfer;
mod write;

#[cfg(test)]
mod tests;

pub use dump::Dumped;
pub use image::Image;
pub use journal::{Change, Journal};
pub use read::{Facts, Get, Hit, MetaGet};
pub use stats::{Counters, Totals};
pub use time::{Expiry, Now};
pub use transfer::{Filling, Pinned, Refusal};
pub use write::{Arithmetic, Counted, Delete, Deleted, Mode, Put, Stored};

use std::cell::Cell;
use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{OnceLock, PoisonError};

use siphasher::sip::SipHasher13;
use tailwater::sync::{Mutex, MutexGuard};

use cells::CELL;
use shard::Shard;

/// Longest key, in bytes.
pub const MAX_KEY: usize = 250;
/// Bytes of memory come in cells of this size.
pub const CELL_BYTES: usize = CELL;
/// Maximum number of shards.
const MAX_SHARDS: usize = 64;
/// Bytes of a shard at least, in items of the largest size, unless there is only one shard.
const LARGEST_PER_SHARD: usize = 8;

/// The configuration of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Memory for items and hash tables, in bytes; at least [`Config::MIN_MEMORY`], and enough for
    /// two items of `max_item`. 2.4 times `max_item` suffices.
    pub memory: usize,
    /// Maximum bytes of an item's key, value and header together; 1 KiB to 1 GiB.
    pub max_item: usize,
    /// True if items make way for others when memory is full; otherwise storing fails then.
    pub evict: bool,
    /// Secret of the hash function, so that clients cannot choose keys that collide.
    pub secret: [u64; 2],
}

impl Config {
    /// Least memory of a store.
    pub const MIN_MEMORY: usize = 64 << 10;
    /// Bounds of `max_item`, as of memcached's `-I`.
    pub const ITEM_BOUNDS: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 30;
}

/// Why a store was not created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Items would not fit.
    #[error(
        "{memory} bytes of memory are too few for items of up to {max_item} bytes; it takes up to 2.4 times as \
         much, and at least 64 KiB"
    )]
    TooSmall {
        /// As configured, with what other memory takes of it.
        memory: usize,
        /// As configured.
        max_item: usize,
    },
    /// The largest item is out of bounds.
    #[error("items of up to {0} bytes are not possible; the limit is between 1 KiB and 1 GiB")]
    ItemSize(usize),
    /// The system refused the memory.
    #[error("the system has no {0} bytes of address space")]
    NoMemory(usize),
}

/// A store.
pub struct Store {
    shards: Box<[Mutex<Shard>]>,
    config: Config,
    /// The last version number issued. Relaxed, because numbers must only differ, and grow under
    /// one lock.
    last_cas: AtomicU64,
    /// Bytes of the limit that are not the store's.
    beside: usize,
    /// The limit in bytes, `beside` included. Relaxed: it is only reported.
    limit: AtomicU64,
    /// Held while the limit is changed, so that all shards get the same.
    limiting: Mutex<()>,
    /// Set for a store that is replicated.
    journal: OnceLock<Journal>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("shards", &self.shards.len()).finish_non_exhaustive()
    }
}

impl Store {
    /// Creates an empty store.
    ///
    /// # Errors
    /// If `config` is out of bounds, or the address space cannot be reserved.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Self::beside(config, 0)
    }

    /// Creates an empty store in what `beside` bytes of other memory leave of the configured bytes,
    /// which then limit both.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn beside(mut config: Config, beside: usize) -> Result<Self, ConfigError> {
        let limit = config.memory;
        config.memory = config.memory.saturating_sub(beside);
        let Config { memory, max_item, .. } = config;
        if !Config::ITEM_BOUNDS.contains(&max_item) {
            return Err(ConfigError::ItemSize(max_item));
        }
        let shards = (memory / max_item / LARGEST_PER_SHARD).clamp(1, MAX_SHARDS);
        // The largest power of two that is not greater.
        let shards = (shards + 1).next_power_of_two() / 2;
        let bytes = memory / shards;
        if memory < Config::MIN_MEMORY || !holds_largest(bytes, shard::buckets_for(bytes), max_item) {
            return Err(ConfigError::TooSmall { memory: limit, max_item });
        }
        let shard = || Some(Mutex::new(Shard::new(bytes, config.evict)?));
        let shards: Option<_> = (0..shards).map(|_| shard()).collect();
        let shards = shards.ok_or(ConfigError::NoMemory(memory))?;
        let (last_cas, limit) = (AtomicU64::new(0), AtomicU64::new(limit as u64));
        let (limiting, journal) = (Mutex::new(()), OnceLock::new());
        Ok(Self { shards, config, last_cas, beside, limit, limiting, journal })
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Returns how the limit is divided.
    #[must_use]
    pub fn room(&self) -> Room {
        // All shards have the same.
        Room { shards: self.shards.len() as u64, cells: self.shard(0).cells.limit() as u64 }
    }

    /// Removes the dead items of the shard of `key` in some of its buckets, from `bucket` on, which
    /// it advances; returns true after the last one. A bounded piece of work.
    pub fn sweep(&self, key: &[u8], bucket: &mut usize, now: Now) -> bool {
        let mut shard = self.shard(self.place(key).0);
        shard.crawl(*bucket, CRAWL, now);
        *bucket += CRAWL;
        *bucket >= shard.buckets()
    }

    /// Sets the limit, at most to what the store was created with, and evicts items that are too
    /// many (`cache_memlimit`); returns false if it is out of bounds: each shard must keep room for
    /// two items of the largest size. Memory that was in use stays with the process, for later
    /// items.
    ///
    /// The limit of each shard is lowered in steps of a bounded number of evictions, with a poll
    /// point and the shard unlocked between two.
    pub fn set_limit(&self, limit: usize, now: Now) -> bool {
        let memory = limit.saturating_sub(self.beside);
        let bytes = memory / self.shards.len();
        // All shards have the same size.
        let buckets = self.shard(0).buckets();
        if memory > self.config.memory || !holds_largest(bytes, buckets, self.config.max_item) {
            return false;
        }
        let _limiting = self.limiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.limit.store(limit as u64, Relaxed);
        for index in 0..self.shards.len() {
            while !self.shard(index).approach_limit(bytes, now) {
                tailwater::poll();
            }
            tailwater::poll();
        }
        true
    }

    /// Returns true if an item with such a key and value may be stored at all.
    #[must_use]
    pub fn fits(&self, key_len: usize, value_len: usize) -> bool {
        value_len <= self.config.max_item && cells::HEADER + key_len + value_len <= self.config.max_item
    }

    /// Returns the shard of `key`, locked, for one command.
    ///
    /// # Panics
    /// If the key is longer than [`MAX_KEY`].
    #[inline]
    pub fn lock<'a>(&'a self, key: &'a [u8], now: Now) -> Locked<'a> {
        assert!(key.len() <= MAX_KEY, "protocols refuse longer keys");
        self.flush_if_due(now);
        let (index, hash) = self.place(key);
        Locked { shard: self.shard(index), store: self, key, hash, index, now, horizon: None, wrote: false }
    }

    /// Returns the index of the key's shard, and the hash that selects its bucket.
    #[inline]
    fn place(&self, key: &[u8]) -> (usize, u32) {
        let [first, second] = self.config.secret;
        let mut hasher = SipHasher13::new_with_keys(first, second);
        hasher.write(key);
        let hash = hasher.finish();
        // The upper half selects the shard, the lower one the bucket.
        ((hash >> 32) as usize & (self.shards.len() - 1), hash as u32)
    }

    /// Locks a shard. A panic with a lock held would be a defect of this module; other connections
    /// continue.
    #[inline]
    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        (0..self.shards.len()).map(|index| self.shard(index))
    }

    /// Returns the number of a new version.
    #[inline]
    fn next_cas(&self) -> u64 {
        self.last_cas.fetch_add(1, Relaxed) + 1
    }

    /// Expires all items stored until now, or until the second `at` begins (`flush_all`). Returns
    /// the number of the change, 0 without a journal.
    pub fn flush(&self, at: Option<u32>, now: Now) -> u64 {
        let Some(journal) = self.journal.get() else {
            self.each().for_each(|mut shard| shard.flush(at, now));
            return 0;
        };
        // A flush that is due already is not replaced by a later one.
        self.flush_if_due(now);
        match at.filter(|&second| second > now.seconds) {
            Some(second) => journal.schedule(second),
            None => self.flush_now(journal, now),
        }
    }

    /// Flushes all shards together, so that each change is before or after it in the journal as it
    /// is in its shard.
    fn flush_now(&self, journal: &Journal, now: Now) -> u64 {
        // Nothing else locks two shards.
        let mut shards: Vec<_> = self.each().collect();
        let number = journal.record_flush();
        for shard in &mut shards {
            shard.flush(None, now);
            shard.last_change = number;
        }
        number
    }

    /// Executes the scheduled flush if it is due.
    #[inline]
    pub fn flush_if_due(&self, now: Now) {
        if let Some(journal) = self.journal.get().filter(|journal| journal.claim_due(now)) {
            self.flush_now(journal, now);
        }
    }

    /// Has a new store record its changes; returns false if it does so already.
    pub fn keep_journal(&self, journal: Journal) -> bool {
        self.journal.set(journal).is_ok()
    }

    /// Returns the journal, if changes are recorded.
    #[must_use]
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.get()
    }

    /// Returns the sums over all shards.
    #[must_use]
    pub fn totals(&self, now: Now) -> Totals {
        let mut totals = Totals::default();
        for shard in self.each() {
            totals.counters += shard.counters;
            totals.items += shard.items;
            totals.bytes += shard.bytes;
            totals.memory += shard.memory();
            totals.cells += shard.cells.limit() as u64;
            totals.free_cells += shard.cells.free() as u64;
            totals.pinned_cells += shard.pinned_cells as u64;
            totals.protected += shard.order.list(order::PROTECTED).items;
            totals.age = totals.age.max(shard.order.age(&shard.cells, order::PROBATION, now));
            totals.protected_age =
                totals.protected_age.max(shard.order.age(&shard.cells, order::PROTECTED, now));
            totals.buckets += shard.buckets() as u64;
        }
        totals
    }

    /// Resets the counters (`stats reset`).
    pub fn reset_counters(&self) {
        self.each().for_each(|mut shard| shard.counters = Counters::default());
    }

    /// Returns the number of living items by their size, ascending: cells of 64 bytes
    /// (`stats sizes`). Sizes of more than 64 cells are rounded up, by less than a sixteenth, so
    /// there are at most some hundred.
    #[must_use]
    pub fn sizes(&self, now: Now) -> std::collections::BTreeMap<usize, u64> {
        let mut sizes = std::collections::BTreeMap::new();
        for index in 0..self.shards.len() {
            let buckets = self.shard(index).buckets();
            for first in (0..buckets).step_by(CRAWL) {
                tailwater::poll();
                // Locked for a few buckets at a time.
                let mut shard = self.shard(index);
                shard.begin_epoch_if_due(now);
                for item in (first..buckets.min(first + CRAWL)).flat_map(|bucket| shard.bucket_items(bucket))
                {
                    if shard.death(item, now).is_none() {
                        *sizes.entry(rounded(shard.cells.size(item)) * CELL).or_default() += 1;
                    }
                }
            }
        }
        sizes
    }

    /// Passes the living items of the next bucket that has any to `take` and moves on, over a
    /// bounded number of buckets without items; returns false after the last bucket
    /// (`lru_crawler metadump`). A poll point.
    pub fn dump(&self, progress: &mut Crawl, now: Now, mut take: impl FnMut(&[u8], &Dumped)) -> bool {
        tailwater::poll();
        let Some(shard) = self.shards.get(progress.shard) else { return false };
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let end = shard.buckets().min(progress.bucket + CRAWL);
        let mut found = false;
        while progress.bucket < end && !found {
            shard.dump(progress.bucket, now, |key, item| {
                found = true;
                take(key, item);
            });
            progress.bucket += 1;
        }
        if progress.bucket == shard.buckets() {
            *progress = Crawl { shard: progress.shard + 1, bucket: 0 };
        }
        progress.shard < self.shards.len()
    }

    /// Removes the dead items of one step of `progress`, a bounded piece of work that goes round
    /// all buckets; returns true when a round is complete. A poll point.
    pub fn crawl(&self, progress: &mut Crawl, now: Now) -> bool {
        tailwater::poll();
        let mut shard = self.shard(progress.shard);
        shard.crawl(progress.bucket, CRAWL, now);
        progress.bucket += CRAWL;
        if progress.bucket >= shard.buckets() {
            *progress = Crawl { shard: progress.shard + 1, bucket: 0 };
        }
        if progress.shard == self.shards.len() {
            *progress = Crawl::default();
        }
        *progress == Crawl::default()
    }

    /// Returns the number of steps of [`crawl`](Self::crawl) in a round.
    #[must_use]
    pub fn crawl_steps(&self) -> usize {
        self.each().map(|shard| shard.buckets().div_ceil(CRAWL)).sum()
    }

    /// Checks the invariants that hold between two operations.
    ///
    /// # Panics
    /// If one does not hold.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn check(&self) {
        self.each().for_each(|shard| shard.check());
        let totals = self.totals(Now { seconds: Now::FIRST, start_unix: 0 });
        assert!(totals.memory <= self.config.memory as u64, "{totals:?}");
    }
}

/// The room of a store: that of each shard, since a key belongs into one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Number of shards, a power of two.
    pub shards: u64,
    /// Cells of each.
    pub cells: u64,
}

impl Room {
    /// Returns true if all items of a full store with this `other` room, and with the same secret
    /// of its hash function, fit into this one.
    #[must_use]
    pub fn holds(self, other: Self) -> bool {
        // Some bits of the hash select the shard: all items of one are in one of fewer shards, and
        // those of one of more shards are all in one.
        let joined = other.shards.div_ceil(self.shards.max(1));
        other.cells.checked_mul(joined).is_some_and(|cells| cells <= self.cells)
    }
}

/// Returns a number of cells up to 64, or the next above with only five significant bits.
fn rounded(cells: usize) -> usize {
    let step = if cells > 64 { 1 << (cells.ilog2() - 4) } else { 1 };
    cells.next_multiple_of(step)
}

/// Returns true if a shard of `bytes` with this many buckets holds two items of `max_item` bytes:
/// one that is being sent or received may take half of the cells, and no more (`Shard::pin`).
fn holds_largest(bytes: usize, buckets: usize, max_item: usize) -> bool {
    shard::cells_in(bytes, buckets) >= 2 * cells::cells_of(max_item - cells::HEADER)
}

/// Buckets that the crawler, or a list, checks under one lock.
const CRAWL: usize = 256;

/// The crawler's progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Crawl {
    shard: usize,
    bucket: usize,
}

/// One key's shard, locked: a command's view of the store.
pub struct Locked<'a> {
    shard: MutexGuard<'a, Shard>,
    store: &'a Store,
    key: &'a [u8],
    hash: u32,
    index: usize,
    now: Now,
    horizon: Option<&'a Horizon>,
    /// True if this command has changed something.
    wrote: bool,
}

/// The latest changes that a series of commands has made, or may have seen.
#[derive(Debug, Default)]
pub struct Horizon {
    seen: Cell<u64>,
    wrote: Cell<u64>,
}

impl Horizon {
    /// Records that change `number` was seen, and whether it was made.
    pub fn raise(&self, number: u64, wrote: bool) {
        self.seen.set(self.seen.get().max(number));
        if wrote {
            self.wrote.set(self.wrote.get().max(number));
        }
    }

    /// Returns the number of the latest change that may have been seen: the last one of any shard
    /// that a command used.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen.get()
    }

    /// Returns the number of the latest change made.
    #[must_use]
    pub fn wrote(&self) -> u64 {
        self.wrote.get()
    }
}

impl<'a> Locked<'a> {
    /// Has `horizon` rise by what this command does or may see.
    #[must_use]
    pub fn within(mut self, horizon: &'a Horizon) -> Self {
        self.horizon = Some(horizon);
        self
    }

    /// Records a change that the command was to make in the journal, if there is one.
    fn changed(&mut self) {
        self.changed_by_reading();
        self.wrote = true;
    }

    /// Records a change in the journal, if there is one.
    fn changed_by_reading(&mut self) {
        if let Some(journal) = self.store.journal.get() {
            self.shard.last_change = journal.record_key(self.key);
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(horizon) = self.horizon {
            horizon.raise(self.shard.last_change, self.wrote);
        }
    }
}

impl std::fmt::Debug for Locked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locked").field("key", &self.key.escape_ascii().to_string()).finish_non_exhaustive()
    }
}
