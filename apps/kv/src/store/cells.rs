//! Memory of one shard: cells of 64 bytes, linked into chains; an item is a chain.
//!
//! Why neither slab classes nor segments: classes of different sizes leave memory in the wrong
//! class when sizes change, and need many pages per shard to begin with; segments give up the order
//! of use within them. With one size the only fragmentation is the end of an item's last cell, any
//! item can take any other's place, and the limit is exact: cells are taken from one reservation
//! that never grows. The price is that a large value is copied in pieces of 60 bytes. A cell is one
//! cache line: a look-up reads one line of an item whose key has up to 14 bytes, and another one
//! for every 60 further bytes of the key. The waste at an item's end is half a line: the mean item
//! takes no more than in memcached's classes.
//!
//! Owns the cells, the free list and the positions within chains. It never interprets an item's
//! fields. The reservation is virtual memory; a cell costs real memory from its first use on.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Marks the absence of a cell.
pub(super) const NONE: u32 = u32::MAX;
/// Bytes of a cell: a cache line.
pub(super) const CELL: usize = 64;
/// Bytes of an item's first cell before those of its key.
pub(super) const HEADER: usize = 50;
/// Offset of key and value in the first cell.
const FIRST_AT: usize = HEADER;
/// Bytes of key and value in the first cell.
const FIRST: usize = CELL - HEADER;
/// Offset of data in the other cells, after the link.
const REST_AT: usize = 4;

/// A cell. All fields but `next` are those of an item, in its first cell; further cells hold data
/// in their place.
#[derive(Clone, IntoBytes, FromBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
pub(super) struct Cell {
    /// Next cell of the item, or next free one.
    pub next: u32,
    /// Next item in the hash bucket.
    pub chain: u32,
    /// Neighbours in the order of use.
    pub newer: u32,
    pub older: u32,
    /// Unique number of this version.
    pub cas: u64,
    /// The client's flags.
    pub flags: u32,
    /// See `Expiry`.
    pub expiry: u32,
    /// Second of the last access.
    pub accessed: u32,
    pub value_len: u32,
    /// Low half of the key's hash.
    pub hash: u32,
    /// Flush epoch in which the item was linked.
    pub epoch: u16,
    /// Connections that read or write this item piece by piece.
    pub pins: u16,
    pub key_len: u8,
    /// Bits of `state`.
    pub state: u8,
    data: [u8; FIRST],
}

const _: () = assert!(size_of::<Cell>() == CELL && std::mem::offset_of!(Cell, data) == FIRST_AT);

/// A place among the bytes of an item.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor {
    cell: u32,
    at: usize,
}

impl Cursor {
    /// Returns the position before the key.
    pub fn start(item: u32) -> Self {
        Self { cell: item, at: FIRST_AT }
    }
}

/// All cells of a shard.
pub(super) struct Cells {
    /// Cells used at least once; the capacity is the limit.
    cells: Vec<Cell>,
    limit: usize,
    free: u32,
    free_len: usize,
    /// Cells that may not be used, since the limit was lowered.
    withheld: usize,
}

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
    /// A client has been asked to renew it (flag R).
    pub const TOKEN_SENT: u8 = 32;
    /// Its key was received in base64 and is returned so.
    pub const BINARY_KEY: u8 = 64;
}

/// Returns the number of cells of an item with `bytes` of key and value.
pub(super) fn cells_of(bytes: usize) -> usize {
    1 + bytes.saturating_sub(FIRST).div_ceil(CELL - REST_AT)
}

impl Cells {
    /// Returns the number of cells of an item.
    pub fn size(&self, item: u32) -> usize {
        let item = self.get(item);
        cells_of(usize::from(item.key_len) + item.value_len as usize)
    }

    /// Reserves memory for `limit` cells; `None` if the system refuses the address space.
    pub fn new(limit: usize) -> Option<Self> {
        let mut cells = Vec::new();
        cells.try_reserve_exact(limit).ok()?;
        Some(Self { cells, limit, free: NONE, free_len: 0, withheld: 0 })
    }

    /// Returns the number of cells that may be taken.
    pub fn free(&self) -> usize {
        self.limit().saturating_sub(self.used())
    }

    /// Returns the number of cells in use, which is above the limit for a while after it was
    /// lowered.
    pub fn used(&self) -> usize {
        self.cells.len() - self.free_len
    }

    /// Returns the number of cells that may be in use.
    pub fn limit(&self) -> usize {
        self.limit - self.withheld
    }

    /// Sets the number of cells that may be in use, up to what was reserved.
    pub fn set_limit(&mut self, cells: usize) {
        self.withheld = self.limit.saturating_sub(cells);
    }

    /// Returns the number of cells ever used.
    pub fn touched(&self) -> usize {
        self.cells.len()
    }

    #[inline]
    pub fn get(&self, cell: u32) -> &Cell {
        &self.cells[cell as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, cell: u32) -> &mut Cell {
        &mut self.cells[cell as usize]
    }

    /// Returns a chain of `len` cells, at least 1 and at most [`free`](Self::free).
    pub fn take(&mut self, len: usize) -> u32 {
        let first = self.take_one();
        let mut last = first;
        for _ in 1..len {
            let next = self.take_one();
            self.get_mut(last).next = next;
            last = next;
        }
        self.get_mut(last).next = NONE;
        first
    }

    fn take_one(&mut self) -> u32 {
        if self.free == NONE {
            assert!(self.cells.len() < self.limit, "more cells taken than there are");
            self.cells.push(Cell::new_zeroed_cell());
            return self.cells.len() as u32 - 1;
        }
        let cell = self.free;
        self.free = self.get(cell).next;
        self.free_len -= 1;
        cell
    }

    /// Frees a chain.
    pub fn give(&mut self, first: u32) {
        let (mut last, mut len) = (first, 1);
        while self.get(last).next != NONE {
            last = self.get(last).next;
            len += 1;
        }
        self.get_mut(last).next = self.free;
        self.free = first;
        self.free_len += len;
    }

    /// Copies `bytes` to the cursor's position and moves it behind them. They fit the item.
    #[inline]
    pub fn write(&mut self, cursor: &mut Cursor, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.turn(cursor);
            let len = bytes.len().min(CELL - cursor.at);
            let (now, later) = bytes.split_at(len);
            self.get_mut(cursor.cell).as_mut_bytes()[cursor.at..cursor.at + len].copy_from_slice(now);
            (cursor.at, bytes) = (cursor.at + len, later);
        }
    }

    /// Passes `len` bytes from the cursor's position to `take`, in pieces, and moves it behind
    /// them.
    #[inline]
    pub fn read(&self, cursor: &mut Cursor, mut len: usize, mut take: impl FnMut(&[u8])) {
        while len > 0 {
            self.turn(cursor);
            let now = len.min(CELL - cursor.at);
            take(&self.get(cursor.cell).as_bytes()[cursor.at..cursor.at + now]);
            (cursor.at, len) = (cursor.at + now, len - now);
        }
    }

    /// Moves the cursor over `len` bytes.
    #[inline]
    pub fn skip(&self, cursor: &mut Cursor, mut len: usize) {
        while len > 0 {
            self.turn(cursor);
            let now = len.min(CELL - cursor.at);
            (cursor.at, len) = (cursor.at + now, len - now);
        }
    }

    /// Moves the cursor from the end of a cell to the beginning of the next.
    #[inline]
    fn turn(&self, cursor: &mut Cursor) {
        if cursor.at == CELL {
            *cursor = Cursor { cell: self.get(cursor.cell).next, at: REST_AT };
        }
    }

    /// Copies `len` bytes from one item to another.
    pub fn copy(&mut self, from: &mut Cursor, to: &mut Cursor, mut len: usize) {
        while len > 0 {
            self.turn(from);
            let now = len.min(CELL - from.at);
            let mut piece = [0; CELL];
            piece[..now].copy_from_slice(&self.get(from.cell).as_bytes()[from.at..from.at + now]);
            self.write(to, &piece[..now]);
            (from.at, len) = (from.at + now, len - now);
        }
    }

    /// Returns true if the bytes from the item's beginning are `bytes`.
    #[inline]
    pub fn starts_with(&self, item: u32, bytes: &[u8]) -> bool {
        if bytes.len() <= FIRST {
            return self.get(item).as_bytes()[FIRST_AT..FIRST_AT + bytes.len()] == *bytes;
        }
        let (mut cursor, mut rest, mut equal) = (Cursor::start(item), bytes, true);
        self.read(&mut cursor, bytes.len(), |piece| {
            let (now, later) = rest.split_at(piece.len());
            (equal, rest) = (equal && now == piece, later);
        });
        equal
    }
}

impl Cell {
    fn new_zeroed_cell() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(cells: &Cells, item: u32, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        cells.read(&mut Cursor::start(item), len, |piece| bytes.extend_from_slice(piece));
        bytes
    }

    #[test]
    fn bytes_come_back_whatever_the_length_and_the_pieces() {
        let mut cells = Cells::new(128).unwrap();
        for len in [0, 1, 13, 14, 15, 73, 74, 75, 1000, 5000] {
            let item = cells.take(cells_of(len));
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut cursor = Cursor::start(item);
            bytes.chunks(37).for_each(|piece| cells.write(&mut cursor, piece));
            assert_eq!(read(&cells, item, len), bytes);
            assert!(cells.starts_with(item, &bytes));
            cells.give(item);
            assert_eq!(cells.free(), 128);
        }
    }

    #[test]
    fn a_copy_is_equal_and_other_bytes_are_not() {
        let mut cells = Cells::new(64).unwrap();
        let (from, to) = (cells.take(cells_of(300)), cells.take(cells_of(310)));
        cells.write(&mut Cursor::start(from), &[7; 300]);
        let mut behind = Cursor::start(to);
        cells.write(&mut behind, b"0123456789");
        cells.copy(&mut Cursor::start(from), &mut behind, 300);
        assert!(cells.starts_with(to, b"0123456789\x07\x07"));
        assert!(!cells.starts_with(to, &[7; 200]));
        assert_eq!(read(&cells, to, 310)[10..], [7; 300]);
    }

    #[test]
    fn cells_are_used_again_before_new_ones() {
        let mut cells = Cells::new(8).unwrap();
        let item = cells.take(3);
        cells.give(item);
        cells.take(3);
        assert_eq!((cells.touched(), cells.free()), (3, 5));
    }
}
