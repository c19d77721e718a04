//! The order of use: three lists of a shard's items, linked through their first cells, oldest last.
//!
//! Owns the ends and the sums of the lists. [`super::evict`] decides which item moves where;
//! [`super::shard`] adds and removes items.

use super::cells::{Cells, NONE, state};
use super::time::Now;

/// List of items not used again.
pub(super) const PROBATION: usize = 0;
/// List of items used again.
pub(super) const PROTECTED: usize = 1;

/// List of pinned items.
pub(super) const PINNED: usize = 2;

/// One of the lists.
pub(super) struct List {
    newest: u32,
    pub oldest: u32,
    /// Number of items in the list.
    pub items: u64,
    pub cells: usize,
}

impl Default for List {
    fn default() -> Self {
        Self { newest: NONE, oldest: NONE, items: 0, cells: 0 }
    }
}

/// The lists of a shard.
#[derive(Default)]
pub(super) struct Order {
    lists: [List; 3],
}

/// Returns the list that an item belongs to.
fn list_of(cells: &Cells, item: u32) -> usize {
    let item = cells.get(item);
    match item.state & state::PROTECTED {
        _ if item.pins > 0 => PINNED,
        0 => PROBATION,
        _ => PROTECTED,
    }
}

impl Order {
    /// Returns one of the lists.
    pub(super) fn list(&self, list: usize) -> &List {
        &self.lists[list]
    }

    /// Puts an item into the list it belongs to, as the newest.
    pub(super) fn push(&mut self, cells: &mut Cells, item: u32) {
        let list = list_of(cells, item);
        let (size, second) = (cells.size(item), self.lists[list].newest);
        let cell = cells.get_mut(item);
        (cell.newer, cell.older) = (NONE, second);
        match second {
            NONE => self.lists[list].oldest = item,
            second => cells.get_mut(second).newer = item,
        }
        let list = &mut self.lists[list];
        (list.newest, list.items, list.cells) = (item, list.items + 1, list.cells + size);
    }

    /// Takes an item out of its list.
    pub(super) fn detach(&mut self, cells: &mut Cells, item: u32) {
        let (size, list) = (cells.size(item), list_of(cells, item));
        let (newer, older) = (cells.get(item).newer, cells.get(item).older);
        match newer {
            NONE => self.lists[list].newest = older,
            newer => cells.get_mut(newer).older = older,
        }
        match older {
            NONE => self.lists[list].oldest = newer,
            older => cells.get_mut(older).newer = newer,
        }
        let list = &mut self.lists[list];
        (list.items, list.cells) = (list.items - 1, list.cells - size);
    }

    /// Moves an unpinned item to another list, as not used since.
    pub(super) fn place(&mut self, cells: &mut Cells, item: u32, protected: bool) {
        self.detach(cells, item);
        let cell = cells.get_mut(item);
        cell.state &= !(state::ACTIVE | state::PROTECTED);
        cell.state |= if protected { state::PROTECTED } else { 0 };
        self.push(cells, item);
    }

    /// Returns the first item to evict, if there is one.
    pub(super) fn oldest(&self) -> Option<u32> {
        let [probation, protected, _] = &self.lists;
        [probation.oldest, protected.oldest].into_iter().find(|&item| item != NONE)
    }

    /// Returns an item of the table, if there is one.
    pub(super) fn any(&self) -> Option<u32> {
        self.lists.iter().map(|list| list.oldest).find(|&item| item != NONE)
    }

    /// Returns the seconds since the oldest item of a list was used.
    pub(super) fn age(&self, cells: &Cells, list: usize, now: Now) -> u32 {
        match self.lists[list].oldest {
            NONE => 0,
            item => now.seconds.saturating_sub(cells.get(item).accessed),
        }
    }

    /// Checks that the lists hold all items of the table, each once.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check(&self, cells: &Cells, items: u64, all_cells: usize) {
        assert_eq!(self.lists.iter().map(|list| list.items).sum::<u64>(), items);
        assert_eq!(self.lists.iter().map(|list| list.cells).sum::<usize>(), all_cells);
        for (number, list) in self.lists.iter().enumerate() {
            let (mut at, mut newer, mut len) = (list.newest, NONE, 0);
            while at != NONE {
                assert_eq!((cells.get(at).newer, list_of(cells, at)), (newer, number));
                (newer, at, len) = (at, cells.get(at).older, len + 1);
                assert!(len <= items);
            }
            assert_eq!((newer, len), (list.oldest, list.items));
        }
    }
}
