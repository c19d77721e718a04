//! Which item makes way: segmented LRU with lazy promotion.
//!
//! Two lists, oldest last. A new item enters *probation*. Using an item sets a bit in its own header and moves nothing, so
//! that reading costs no writes to other items. When room is needed, the oldest of probation goes if it was not used; if it
//! was, it moves to *protected*, which holds at most four fifths of the cells and gives its oldest back to probation. One
//! pass over many keys thus displaces what was used once, and spares what was used again.
//!
//! An item whose memory somebody keeps waits in a third list, *pinned*: to let it go would free nothing, and to look at it
//! would use up the looks. It returns to its own list, as the newest, with the last pin.
//!
//! Every look at a list is bounded by [`LOOKS`].

use super::cells::NONE;
use super::shard::{Absent, Shard, state};
use super::time::{Expiry, Now};

/// Items looked at until one goes, used or not.
const LOOKS: usize = 32;
/// List of items not used again.
pub(super) const PROBATION: usize = 0;
/// List of items used again.
pub(super) const PROTECTED: usize = 1;

/// List of items whose memory is kept for somebody.
pub(super) const PINNED: usize = 2;

/// One of the lists.
pub(super) struct List {
    newest: u32,
    oldest: u32,
    /// In it.
    pub items: u64,
    pub cells: usize,
}

impl Default for List {
    fn default() -> Self {
        Self { newest: NONE, oldest: NONE, items: 0, cells: 0 }
    }
}

impl Shard {
    /// Puts an item into the list it belongs to, as the newest.
    pub(super) fn push(&mut self, item: u32) {
        let list = self.list_of(item);
        let (cells, second) = (self.size(item), self.lists[list].newest);
        let cell = self.item_mut(item);
        (cell.newer, cell.older) = (NONE, second);
        match second {
            NONE => self.lists[list].oldest = item,
            second => self.item_mut(second).newer = item,
        }
        let list = &mut self.lists[list];
        (list.newest, list.items, list.cells) = (item, list.items + 1, list.cells + cells);
    }

    fn list_of(&self, item: u32) -> usize {
        let item = self.item(item);
        match item.state & state::PROTECTED {
            _ if item.pins > 0 => PINNED,
            0 => PROBATION,
            _ => PROTECTED,
        }
    }

    /// Takes an item out of its list.
    pub(super) fn detach(&mut self, item: u32) {
        let (cells, list) = (self.size(item), self.list_of(item));
        let (newer, older) = (self.item(item).newer, self.item(item).older);
        match newer {
            NONE => self.lists[list].newest = older,
            newer => self.item_mut(newer).older = older,
        }
        match older {
            NONE => self.lists[list].oldest = newer,
            older => self.item_mut(older).newer = newer,
        }
        let list = &mut self.lists[list];
        (list.items, list.cells) = (list.items - 1, list.cells - cells);
    }

    /// Gives an item that nobody keeps another place, as one not used since.
    fn place(&mut self, item: u32, protected: bool) {
        self.detach(item);
        let cell = self.item_mut(item);
        cell.state &= !(state::ACTIVE | state::PROTECTED);
        cell.state |= if protected { state::PROTECTED } else { 0 };
        self.push(item);
    }

    /// The first to go, if any may.
    fn oldest(&self) -> Option<u32> {
        let [probation, protected, _] = &self.lists;
        [probation.oldest, protected.oldest].into_iter().find(|&item| item != NONE)
    }

    /// An item of the table, if there is one.
    pub(super) fn any(&self) -> Option<u32> {
        self.lists.iter().map(|list| list.oldest).find(|&item| item != NONE)
    }

    /// Seconds since the oldest item of a list was used.
    pub(super) fn age(&self, list: usize, now: Now) -> u32 {
        match self.lists[list].oldest {
            NONE => 0,
            item => now.seconds.saturating_sub(self.item(item).accessed),
        }
    }

    /// A chain of `len` cells, for which others make way; `None` if that does not help.
    pub(super) fn take(&mut self, len: usize, now: Now) -> Option<u32> {
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

    /// Makes one item go. False if none may.
    fn evict_one(&mut self, now: Now) -> bool {
        self.bound_protected();
        for look in 0..LOOKS {
            let Some(item) = self.oldest() else { return false };
            let (cell, death) = (self.item(item), self.death(item, now));
            if death.is_none() && cell.state & state::ACTIVE != 0 && look + 8 < LOOKS && self.evicts {
                self.counters.promoted += 1;
                self.place(item, true);
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

    /// Moves the oldest of protected back to probation while it has more than its share.
    fn bound_protected(&mut self) {
        for _ in 0..LOOKS {
            let oldest = self.lists[PROTECTED].oldest;
            if oldest == NONE || self.lists[PROTECTED].cells * 5 <= self.cells.limit() * 4 {
                return;
            }
            let active = self.item(oldest).state & state::ACTIVE != 0;
            self.place(oldest, active);
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

    /// The lists hold all items of the table, each once.
    #[cfg(any(test, fuzzing, feature = "check"))]
    pub(super) fn check_lists(&self, items: u64, cells: usize) {
        assert_eq!(self.lists.iter().map(|list| list.items).sum::<u64>(), items);
        assert_eq!(self.lists.iter().map(|list| list.cells).sum::<usize>(), cells);
        for (number, list) in self.lists.iter().enumerate() {
            let (mut at, mut newer, mut len) = (list.newest, NONE, 0);
            while at != NONE {
                assert_eq!((self.item(at).newer, self.list_of(at)), (newer, number));
                (newer, at, len) = (at, self.item(at).older, len + 1);
                assert!(len <= items);
            }
            assert_eq!((newer, len), (list.oldest, list.items));
        }
    }
}
