//! One shard: a hash table over the items in its cells, and what they count.
//!
//! Owns finding, linking and unlinking, and the moment an item is over: expired, or flushed. Dead items are removed when
//! somebody comes across them, by the [crawler](Shard::crawl), or as the least recently used.
//!
//! | an item is | in the table and the order of use | its memory |
//! |---|---|---|
//! | reserved (being received) | no | pinned by its writer |
//! | linked | yes | may be pinned by readers, and does not make way then |
//! | unlinked | no | is given back with the last pin |
//!
//! Pinned cells are at most half of all, and all others make way, so that slow clients never keep others from storing.

use super::cells::{CELL, Cell, Cells, Cursor, HEADER, NONE, cells_of};
use super::evict::List;
use super::stats::Counters;
use super::time::{Expiry, Now};

/// Bits of an item's `state`.
pub(super) mod state {
    /// In the table.
    pub const LINKED: u8 = 1;
    /// In the protected list, or to return to it.
    pub const PROTECTED: u8 = 2;
    /// Used since it was put in its place in the order of use.
    pub const ACTIVE: u8 = 4;
    /// Used since it was stored.
    pub const FETCHED: u8 = 8;
    /// Invalidated by a meta command.
    pub const STALE: u8 = 16;
    /// Somebody has been told to renew it.
    pub const TOKEN_SENT: u8 = 32;
    /// Its key came in base64 and goes out so.
    pub const BINARY_KEY: u8 = 64;
}

/// Bytes for a bucket of the hash table.
const BUCKET: usize = size_of::<u32>();

/// Why there is no item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absent {
    /// None was stored, or it made way.
    Unknown,
    /// It was there until just now.
    Expired,
    /// It was there until just now.
    Flushed,
}

pub(super) struct Shard {
    pub cells: Cells,
    buckets: Box<[u32]>,
    pub lists: [List; 3],
    pub counters: Counters,
    /// Items in the table, and their bytes of key, value and header.
    pub items: u64,
    pub bytes: u64,
    pub pinned_cells: usize,
    /// Items of earlier epochs are dead.
    epoch: u16,
    /// When the next one begins.
    flush_at: Option<u32>,
    /// Whether items make way for others.
    pub evicts: bool,
}

impl Shard {
    /// A shard of at most `bytes` with everything in it; `None` if the system refuses the address space.
    pub fn new(bytes: usize, evicts: bool) -> Option<Self> {
        // A bucket for two cells: few items are smaller than two.
        let buckets = (bytes / CELL / 2).max(1).next_power_of_two() / 2;
        let buckets = buckets.max(1);
        let limit = ((bytes - buckets * BUCKET) / CELL).min(NONE as usize);
        Some(Self {
            cells: Cells::new(limit)?,
            buckets: vec![NONE; buckets].into(),
            lists: Default::default(),
            counters: Counters::default(),
            items: 0,
            bytes: 0,
            pinned_cells: 0,
            epoch: 0,
            flush_at: None,
            evicts,
        })
    }

    /// Bytes of real memory in use, the hash table counted as a whole.
    pub fn memory(&self) -> u64 {
        (self.cells.touched() * CELL + self.buckets.len() * BUCKET) as u64
    }

    /// Buckets of the hash table.
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

    /// Cells of an item.
    pub fn size(&self, item: u32) -> usize {
        let item = self.item(item);
        cells_of(usize::from(item.key_len) + item.value_len as usize)
    }

    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// The living item with this key. A dead one is removed on the way.
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

    /// Why an item is over, if it is.
    #[inline]
    pub fn death(&self, item: u32, now: Now) -> Option<Absent> {
        let item = self.item(item);
        if item.epoch != self.epoch {
            Some(Absent::Flushed)
        } else {
            Expiry::from_raw(item.expiry).is_over(now).then_some(Absent::Expired)
        }
    }

    /// Puts a filled item into the table, as the most recent. Nobody else has its key.
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
        self.push(item);
    }

    /// Takes an item out of the table; its memory goes back unless somebody still reads it.
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
        self.detach(item);
        let cell = self.item_mut(item);
        cell.state &= !state::LINKED;
        let bytes = HEADER + usize::from(cell.key_len) + cell.value_len as usize;
        self.items -= 1;
        self.bytes -= bytes as u64;
        if self.item(item).pins == 0 {
            self.cells.give(item);
        }
    }

    /// A new item outside the table with its key written, and the place of its value. `None` when there is no room.
    pub fn create(&mut self, key: &[u8], hash: u32, value_len: usize, now: Now) -> Option<(u32, Cursor)> {
        let item = self.take(cells_of(key.len() + value_len), now)?;
        let cell = self.item_mut(item);
        (cell.hash, cell.value_len, cell.key_len) = (hash, value_len as u32, key.len() as u8);
        (cell.flags, cell.expiry, cell.pins, cell.state) = (0, 0, 0, 0);
        let mut cursor = Cursor::start(item);
        self.cells.write(&mut cursor, key);
        Some((item, cursor))
    }

    /// Keeps an item's memory, whatever happens to the item. False when too much is kept already.
    pub fn pin(&mut self, item: u32) -> bool {
        let cells = if self.item(item).pins == 0 { self.size(item) } else { 0 };
        if self.item(item).pins == u16::MAX || (self.pinned_cells + cells) * 2 > self.cells.limit() {
            return false;
        }
        self.pinned_cells += cells;
        let moves = cells > 0 && self.is_linked(item);
        if moves {
            self.detach(item);
        }
        self.item_mut(item).pins += 1;
        if moves {
            self.push(item);
        }
        true
    }

    /// Takes one pin away.
    pub fn unpin(&mut self, item: u32) {
        if self.item(item).pins > 1 {
            self.item_mut(item).pins -= 1;
            return;
        }
        self.pinned_cells -= self.size(item);
        if self.is_linked(item) {
            self.detach(item);
            self.item_mut(item).pins = 0;
            self.push(item);
        } else {
            self.item_mut(item).pins = 0;
            self.cells.give(item);
        }
    }

    fn is_linked(&self, item: u32) -> bool {
        self.item(item).state & state::LINKED != 0
    }

    /// All items stored until now are over, at once or at a later second, in which case the last call counts.
    pub fn flush(&mut self, at: Option<u32>, now: Now) {
        // One that is due already is not forgotten for a later one.
        self.begin_epoch_if_due(now);
        self.flush_at = Some(at.unwrap_or(now.seconds));
        self.begin_epoch_if_due(now);
    }

    fn begin_epoch_if_due(&mut self, now: Now) {
        if self.flush_at.is_some_and(|at| at <= now.seconds) {
            self.flush_at = None;
            self.epoch = self.epoch.wrapping_add(1);
            if self.epoch == 0 {
                // Nobody may mistake an item of 65,536 epochs ago for one of this.
                while let Some(item) = self.any() {
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

    /// The items of a bucket.
    pub fn bucket_items(&self, bucket: usize) -> impl Iterator<Item = u32> + '_ {
        let first = self.buckets[bucket];
        std::iter::successors((first != NONE).then_some(first), |&item| {
            let next = self.item(item).chain;
            (next != NONE).then_some(next)
        })
    }

    /// Everything that must hold between two operations.
    ///
    /// # Panics
    /// When it does not.
    #[cfg(any(test, fuzzing, feature = "check"))]
    pub fn check(&self) {
        let (mut items, mut bytes, mut cells, mut pinned) = (0, 0, 0, 0);
        for bucket in 0..self.buckets.len() {
            for at in self.bucket_items(bucket) {
                let item = self.item(at);
                assert!(item.state & state::LINKED != 0 && self.bucket(item.hash) == bucket);
                items += 1;
                bytes += u64::from(item.key_len) + u64::from(item.value_len) + HEADER as u64;
                cells += self.size(at);
                pinned += usize::from(item.pins > 0) * self.size(at);
            }
        }
        assert_eq!((items, bytes), (self.items, self.bytes));
        assert!(self.pinned_cells >= pinned);
        // What is pinned and not linked is all that is neither free nor in the table.
        assert_eq!(cells + self.cells.free() + self.pinned_cells - pinned, self.cells.limit());
        self.check_lists(items, cells);
    }
}
