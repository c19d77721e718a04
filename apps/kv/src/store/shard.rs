//! One shard: a hash table over the items in its cells, and its counters.
//!
//! Owns lookup, linking and unlinking, and the death of items by expiry or flush. Dead items are
//! removed when a lookup meets them, by the [crawler](Shard::crawl), or as the least recently used.
//!
//! | an item is | in the table and the order of use | its memory |
//! |---|---|---|
//! | reserved (being received) | no | pinned by its writer |
//! | linked | yes | may be pinned by readers, and is not evicted then |
//! | unlinked | no | is freed with the last pin |
//!
//! Clients pin at most half of the cells, and all others can be evicted, so slow clients never keep
//! others from storing. Replication pins beyond that half, one item for each link, so slow clients
//! do not keep it from sending or receiving.

use super::MAX_KEY;
use super::cells::{CELL, Cell, Cells, Cursor, HEADER, NONE, state};
use super::order::Order;
use super::stats::Counters;
use super::time::{Expiry, Now};

/// Bytes of a bucket of the hash table.
const BUCKET: usize = size_of::<u32>();
/// Cells by which the limit is lowered under one lock, and so the maximum of items evicted then.
const LOWERED: usize = 64;

/// Why an item was not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absent {
    /// None was stored, or it was evicted.
    Unknown,
    /// It had expired or been flushed, and was just removed.
    Expired,
    /// It had expired or been flushed, and was just removed.
    Flushed,
}

pub(super) struct Shard {
    pub cells: Cells,
    buckets: Box<[u32]>,
    pub order: Order,
    pub counters: Counters,
    /// Items in the table, and their bytes of key, value and header.
    pub items: u64,
    pub bytes: u64,
    pub pinned_cells: usize,
    /// Items of earlier epochs are dead.
    epoch: u16,
    /// Second in which the next epoch begins.
    flush_at: Option<u32>,
    /// True if items may be evicted.
    pub evicts: bool,
    /// Number of the last change in the journal, 0 for none.
    pub last_change: u64,
}

/// Returns the number of buckets of a shard of `bytes`.
pub(super) fn buckets_for(bytes: usize) -> usize {
    // One bucket for four to eight cells: few items are smaller than three.
    let buckets = (bytes / CELL / 4).max(1).next_power_of_two() / 2;
    buckets.max(1)
}

/// Returns the number of cells of a shard of `bytes` with so many buckets.
pub(super) fn cells_in(bytes: usize, buckets: usize) -> usize {
    (bytes.saturating_sub(buckets * BUCKET) / CELL).min(NONE as usize)
}

impl Shard {
    /// Creates a shard of at most `bytes` in all; `None` if the system refuses the address space.
    pub fn new(bytes: usize, evicts: bool) -> Option<Self> {
        let buckets = buckets_for(bytes);
        Some(Self {
            cells: Cells::new(cells_in(bytes, buckets))?,
            buckets: vec![NONE; buckets].into(),
            order: Order::default(),
            counters: Counters::default(),
            items: 0,
            bytes: 0,
            pinned_cells: 0,
            epoch: 0,
            flush_at: None,
            evicts,
            last_change: 0,
        })
    }

    /// Returns the bytes of real memory in use, the whole hash table included.
    pub fn memory(&self) -> u64 {
        (self.cells.touched() * CELL + self.buckets.len() * BUCKET) as u64
    }

    /// Moves the limit towards `bytes` with the hash table, at most what was reserved, and evicts
    /// what is above it, at most [`LOWERED`] items. Returns true if the limit is reached. It is
    /// lowered in steps because a command that stores an item evicts all that is above the limit.
    pub fn approach_limit(&mut self, bytes: usize, now: Now) -> bool {
        let wanted = cells_in(bytes, self.buckets.len());
        let step = wanted.max(self.cells.used().saturating_sub(LOWERED));
        self.cells.set_limit(step);
        while self.cells.used() > step {
            if !self.evict_one(now) {
                // The others are pinned, or evictions are off: clients free what is too many.
                self.cells.set_limit(wanted);
                return true;
            }
        }
        step == wanted
    }

    /// Returns the number of buckets.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    #[inline]
    pub fn item(&self, item: u32) -> &Cell {
        self.cells.get(item)
    }

    #[inline]
    pub fn item_mut(&mut self, item: u32) -> &mut Cell {
        self.cells.get_mut(item)
    }

    /// Returns an item's key in a buffer, its length, and the position of the value.
    pub fn key_of(&self, item: u32) -> ([u8; MAX_KEY], usize, Cursor) {
        let len = usize::from(self.item(item).key_len);
        let (mut key, mut filled, mut cursor) = ([0; MAX_KEY], 0, Cursor::start(item));
        self.cells.read(&mut cursor, len, |piece| {
            key[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        });
        (key, len, cursor)
    }

    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// Returns the living item with this key; removes a dead one on the way.
    #[inline]
    pub fn find(&mut self, key: &[u8], hash: u32, now: Now) -> Result<u32, Absent> {
        self.begin_epoch_if_due(now);
        let mut at = self.buckets[self.bucket(hash)];
        while at != NONE {
            let item = self.item(at);
            if item.hash == hash && usize::from(item.key_len) == key.len() && self.cells.starts_with(at, key)
            {
                return match self.death(at, now) {
                    None => Ok(at),
                    Some(why) => {
                        self.remove(at);
                        Err(why)
                    }
                };
            }
            at = item.chain;
        }
        Err(Absent::Unknown)
    }

    /// Returns why an item is dead, if it is.
    #[inline]
    pub fn death(&self, item: u32, now: Now) -> Option<Absent> {
        let item = self.item(item);
        if item.epoch != self.epoch {
            Some(Absent::Flushed)
        } else {
            Expiry::from_raw(item.expiry).is_over(now).then_some(Absent::Expired)
        }
    }

    /// Links a filled item into the table as the most recent. No other item has its key.
    pub fn link(&mut self, item: u32, now: Now) {
        let (epoch, bucket) = (self.epoch, self.bucket(self.item(item).hash));
        let next = std::mem::replace(&mut self.buckets[bucket], item);
        let cell = self.item_mut(item);
        (cell.chain, cell.epoch, cell.accessed) = (next, epoch, now.seconds);
        cell.state |= state::LINKED;
        let bytes = HEADER + usize::from(cell.key_len) + cell.value_len as usize;
        self.items += 1;
        self.bytes += bytes as u64;
        self.counters.total_items += 1;
        self.order.push(&mut self.cells, item);
    }

    /// Unlinks an item; frees its memory unless it is pinned.
    pub fn remove(&mut self, item: u32) {
        let (hash, chain) = (self.item(item).hash, self.item(item).chain);
        let bucket = self.bucket(hash);
        if self.buckets[bucket] == item {
            self.buckets[bucket] = chain;
        } else {
            let mut before = self.buckets[bucket];
            while self.item(before).chain != item {
                before = self.item(before).chain;
            }
            self.item_mut(before).chain = chain;
        }
        self.order.detach(&mut self.cells, item);
        let cell = self.item_mut(item);
        cell.state &= !state::LINKED;
        let bytes = HEADER + usize::from(cell.key_len) + cell.value_len as usize;
        self.items -= 1;
        self.bytes -= bytes as u64;
        if self.item(item).pins == 0 {
            self.cells.give(item);
        }
    }

    /// Pins an item's memory, whatever happens to the item; returns false if too much is pinned
    /// already.
    pub fn pin(&mut self, item: u32) -> bool {
        (self.pinned_cells + self.newly_pinned(item)) * 2 <= self.cells.limit() && self.pin_beyond(item)
    }

    /// Returns the number of cells that a pin of an item adds to those that are pinned.
    fn newly_pinned(&self, item: u32) -> usize {
        if self.item(item).pins == 0 { self.cells.size(item) } else { 0 }
    }

    /// Pins an item's memory even if clients have pinned their half; returns false if the item has
    /// too many pins.
    pub fn pin_beyond(&mut self, item: u32) -> bool {
        if self.item(item).pins == u16::MAX {
            return false;
        }
        let cells = self.newly_pinned(item);
        self.pinned_cells += cells;
        let moves = cells > 0 && self.is_linked(item);
        if moves {
            self.order.detach(&mut self.cells, item);
        }
        self.item_mut(item).pins += 1;
        if moves {
            self.order.push(&mut self.cells, item);
        }
        true
    }

    /// Removes one pin.
    pub fn unpin(&mut self, item: u32) {
        if self.item(item).pins > 1 {
            self.item_mut(item).pins -= 1;
            return;
        }
        self.pinned_cells -= self.cells.size(item);
        if self.is_linked(item) {
            self.order.detach(&mut self.cells, item);
            self.item_mut(item).pins = 0;
            self.order.push(&mut self.cells, item);
        } else {
            self.item_mut(item).pins = 0;
            self.cells.give(item);
        }
    }

    fn is_linked(&self, item: u32) -> bool {
        self.item(item).state & state::LINKED != 0
    }

    /// Expires all items stored until now, at once or at a later second; of later seconds the last
    /// call counts.
    pub fn flush(&mut self, at: Option<u32>, now: Now) {
        // A flush that is due already is not replaced by a later one.
        self.begin_epoch_if_due(now);
        self.flush_at = Some(at.unwrap_or(now.seconds));
        self.begin_epoch_if_due(now);
    }

    /// Begins a new epoch if a delayed flush is due: all items are dead from then on.
    pub fn begin_epoch_if_due(&mut self, now: Now) {
        if self.flush_at.is_some_and(|at| at <= now.seconds) {
            self.flush_at = None;
            self.epoch = self.epoch.wrapping_add(1);
            if self.epoch == 0 {
                // An item of 65,536 epochs ago must not count as one of this epoch.
                while let Some(item) = self.order.any() {
                    self.remove(item);
                }
            }
        }
    }

    /// Removes the dead items of the bucket at `bucket` and of the `count - 1` following ones.
    pub fn crawl(&mut self, bucket: usize, count: usize, now: Now) {
        self.begin_epoch_if_due(now);
        for bucket in bucket..(bucket + count).min(self.buckets.len()) {
            let mut at = self.buckets[bucket];
            while at != NONE {
                let next = self.item(at).chain;
                self.counters.crawler_items_checked += 1;
                if self.death(at, now).is_some() {
                    self.counters.crawler_reclaimed += 1;
                    self.remove(at);
                }
                at = next;
            }
        }
    }

    /// Returns the items of a bucket.
    pub fn bucket_items(&self, bucket: usize) -> impl Iterator<Item = u32> + '_ {
        let first = self.buckets[bucket];
        std::iter::successors((first != NONE).then_some(first), |&item| {
            let next = self.item(item).chain;
            (next != NONE).then_some(next)
        })
    }

    /// Checks the invariants that hold between two operations.
    ///
    /// # Panics
    /// If one does not hold.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn check(&self) {
        let (mut items, mut bytes, mut cells, mut pinned) = (0, 0, 0, 0);
        for bucket in 0..self.buckets.len() {
            for at in self.bucket_items(bucket) {
                let item = self.item(at);
                assert!(item.state & state::LINKED != 0 && self.bucket(item.hash) == bucket);
                items += 1;
                bytes += u64::from(item.key_len) + u64::from(item.value_len) + HEADER as u64;
                cells += self.cells.size(at);
                pinned += usize::from(item.pins > 0) * self.cells.size(at);
            }
        }
        assert_eq!((items, bytes), (self.items, self.bytes));
        assert!(self.pinned_cells >= pinned);
        // Items that are pinned and not linked are all that is neither free nor in the table.
        assert_eq!(cells + self.pinned_cells - pinned, self.cells.used());
        self.order.check(&self.cells, items, cells);
    }
}
