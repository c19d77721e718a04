//! Eviction: segmented LRU with lazy promotion.
//!
//! There are two lists, oldest last. A new item enters *probation*. Using an item sets a bit in its
//! own header and moves nothing, so reading writes no other item. When room is needed, the oldest
//! item of probation is evicted if it was not used; if it was, it moves to *protected*, which holds
//! at most four fifths of the cells and returns its oldest to probation. So one pass over many keys
//! displaces the items that were used once, and spares those that were used again.
//!
//! An item whose memory is pinned waits in a third list, *pinned*: evicting it would free nothing,
//! and examining it would use up the bound. It returns to its own list, as the newest, with the
//! last pin.
//!
//! Every search of a list is bounded by [`LOOKS`].

use super::cells::{Cursor, NONE, cells_of, state};
use super::order::PROTECTED;
use super::shard::{Absent, Shard};
use super::time::{Expiry, Now};

/// Items examined until one is evicted, used or not.
const LOOKS: usize = 32;
impl Shard {
    /// Creates an item outside the table with its key written; returns it and the position of its
    /// value. `None` if there is no room.
    pub fn create(&mut self, key: &[u8], hash: u32, value_len: usize, now: Now) -> Option<(u32, Cursor)> {
        let item = self.take(cells_of(key.len() + value_len), now)?;
        let cell = self.item_mut(item);
        (cell.hash, cell.value_len, cell.key_len) = (hash, value_len as u32, key.len() as u8);
        (cell.flags, cell.expiry, cell.pins, cell.state) = (0, 0, 0, 0);
        let mut cursor = Cursor::start(item);
        self.cells.write(&mut cursor, key);
        Some((item, cursor))
    }

    /// Takes a chain of `len` cells, evicting items for it; `None` if that does not suffice.
    fn take(&mut self, len: usize, now: Now) -> Option<u32> {
        if len > self.cells.limit() {
            return None;
        }
        while self.cells.free() < len {
            if !self.evict_one(now) {
                self.counters.out_of_memory += 1;
                return None;
            }
        }
        Some(self.cells.take(len))
    }

    /// Evicts one item; returns false if none may be evicted.
    pub fn evict_one(&mut self, now: Now) -> bool {
        self.bound_protected();
        for look in 0..LOOKS {
            let Some(item) = self.order.oldest() else { return false };
            let (cell, death) = (self.item(item), self.death(item, now));
            if death.is_none() && cell.state & state::ACTIVE != 0 && look + 8 < LOOKS && self.evicts {
                self.counters.promoted += 1;
                self.order.place(&mut self.cells, item, true);
            } else if death.is_none() && !self.evicts {
                return false;
            } else {
                self.count_gone(item, death, now);
                self.remove(item);
                return true;
            }
        }
        false
    }

    /// Moves the oldest items of protected back to probation while it has more than its share.
    fn bound_protected(&mut self) {
        for _ in 0..LOOKS {
            let protected = self.order.list(PROTECTED);
            let oldest = protected.oldest;
            if oldest == NONE || protected.cells * 5 <= self.cells.limit() * 4 {
                return;
            }
            let active = self.item(oldest).state & state::ACTIVE != 0;
            self.order.place(&mut self.cells, oldest, active);
        }
    }

    fn count_gone(&mut self, item: u32, death: Option<Absent>, now: Now) {
        let cell = self.item(item);
        let unfetched = u64::from(cell.state & state::FETCHED == 0);
        let nonzero = u64::from(Expiry::from_raw(cell.expiry) != Expiry::NEVER);
        let active = u64::from(cell.state & state::ACTIVE != 0);
        let idle = now.seconds.saturating_sub(cell.accessed);
        let counters = &mut self.counters;
        if death.is_some() {
            counters.reclaimed += 1;
            counters.expired_unfetched += unfetched;
        } else {
            counters.evictions += 1;
            counters.evicted_unfetched += unfetched;
            counters.evicted_nonzero += nonzero;
            counters.evicted_active += active;
            counters.evicted_time = u64::from(idle);
        }
    }
}
