//! Items larger than a connection's buffer: received and sent piece by piece.
//!
//! An item that is received gets its cells first and enters the table when it is complete, so that
//! other clients never see half of it. One that is sent keeps its cells until all is sent, even if
//! it is replaced meanwhile. The holder of a [`Filling`] or a [`Pinned`] returns it by exactly one
//! of the methods that take it; connections do so when they end.

use super::cells::Cursor;
use super::shard::Shard;
use super::{Locked, Store};

/// An item that is being received.
#[derive(Debug)]
#[must_use = "it occupies memory until it is committed or abandoned"]
pub struct Filling {
    pub(super) shard: usize,
    pub(super) item: u32,
    pub(super) cursor: Cursor,
    /// Bytes of the value that are missing.
    pub(super) left: usize,
}

/// An item that is being sent.
#[derive(Debug)]
#[must_use = "it occupies memory until it is released"]
pub struct Pinned {
    pub(super) shard: usize,
    pub(super) item: u32,
    pub(super) cursor: Cursor,
    pub(super) left: usize,
}

/// Why an item cannot be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is larger than an item may be.
    TooLarge,
    /// There is no room, and nothing to evict.
    NoMemory,
}

impl Pinned {
    /// Returns the number of bytes not read yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }
}

impl Filling {
    /// Returns the number of missing bytes.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }
}

impl Locked<'_> {
    /// Reserves room for an item of this key that arrives piece by piece.
    ///
    /// # Errors
    /// If it is too large or there is no room. The key's present item is then removed, because the
    /// client meant to replace it.
    pub fn reserve(&mut self, value_len: usize) -> Result<Filling, Refusal> {
        self.reserve_or_refuse(value_len).inspect_err(|_| self.remove_refused())
    }

    fn reserve_or_refuse(&mut self, value_len: usize) -> Result<Filling, Refusal> {
        if !self.store.fits(self.key.len(), value_len) {
            self.shard.counters.too_large += 1;
            return Err(Refusal::TooLarge);
        }
        let created = self.shard.create(self.key, self.hash, value_len, self.now);
        let (item, cursor) = created.ok_or(Refusal::NoMemory)?;
        if !self.shard.pin(item) {
            self.shard.cells.give(item);
            self.shard.counters.out_of_memory += 1;
            return Err(Refusal::NoMemory);
        }
        Ok(Filling { shard: self.index, item, cursor, left: value_len })
    }

    /// Removes the item that was to be replaced, so that it is not taken for the new value.
    pub(super) fn remove_refused(&mut self) {
        self.forget();
        self.changed();
    }
}

impl Store {
    /// Appends the bytes that have arrived.
    ///
    /// # Panics
    /// If they are more than are missing.
    pub fn fill(&self, filling: &mut Filling, bytes: &[u8]) {
        assert!(bytes.len() <= filling.left, "the caller knows the length");
        filling.left -= bytes.len();
        self.shard(filling.shard).cells.write(&mut filling.cursor, bytes);
    }

    /// Drops an item that will not be completed.
    #[expect(clippy::needless_pass_by_value, reason = "must not be used afterwards")]
    pub fn abandon(&self, filling: Filling) {
        let Filling { shard, item, .. } = filling;
        self.shard(shard).unpin(item);
    }

    /// Appends up to `most` bytes of the value to `out`.
    pub fn drain(&self, pinned: &mut Pinned, most: usize, out: &mut Vec<u8>) {
        let len = most.min(pinned.left);
        pinned.left -= len;
        let shard: &Shard = &self.shard(pinned.shard);
        shard.cells.read(&mut pinned.cursor, len, |piece| out.extend_from_slice(piece));
    }

    /// Releases an item that was sent or will not be.
    #[expect(clippy::needless_pass_by_value, reason = "must not be used afterwards")]
    pub fn release(&self, pinned: Pinned) {
        let Pinned { shard, item, .. } = pinned;
        self.shard(shard).unpin(item);
    }
}
