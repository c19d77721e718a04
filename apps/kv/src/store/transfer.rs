//! Items larger than a connection's buffer: received and sent piece by piece.
//!
//! An item that arrives gets its cells first and enters the table when it is complete, so that nobody sees half of it; one
//! that leaves keeps its cells until all is sent, even if it is replaced meanwhile. Whoever holds a [`Filling`] or a
//! [`Pinned`] gives it back by exactly one of the methods that take it; connections do so when they end.

use super::cells::Cursor;
use super::shard::Shard;
use super::{Locked, Store};

/// An item that is being received.
#[derive(Debug)]
#[must_use = "it occupies memory until it is committed or abandoned"]
pub struct Filling {
    pub(super) shard: usize,
    pub(super) item: u32,
    cursor: Cursor,
    /// Bytes of the value that are missing.
    left: usize,
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

/// Why no item can be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is larger than an item may be.
    TooLarge,
    /// There is no room, and nothing makes way.
    NoMemory,
}

impl Pinned {
    /// Bytes not read yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }
}

impl Filling {
    /// Bytes that are missing.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }
}

impl Locked<'_> {
    /// Room for an item of this key that will arrive piece by piece.
    ///
    /// # Errors
    /// When it is too large or there is no room. An item that the key has is removed then: its owner meant to replace it.
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

    /// Removes what was to be replaced, so that nobody takes it for the new value.
    pub(super) fn remove_refused(&mut self) {
        if let Ok(item) = self.shard.find(self.key, self.hash, self.now) {
            self.shard.remove(item);
        }
    }
}

impl Store {
    /// Adds what has arrived.
    ///
    /// # Panics
    /// When it is more than is missing.
    pub fn fill(&self, filling: &mut Filling, bytes: &[u8]) {
        assert!(bytes.len() <= filling.left, "the caller knows the length");
        filling.left -= bytes.len();
        self.shard(filling.shard).cells.write(&mut filling.cursor, bytes);
    }

    /// Gives an item up that will not be complete.
    #[expect(clippy::needless_pass_by_value, reason = "nobody may use it afterwards")]
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

    /// The item is sent, or will not be.
    #[expect(clippy::needless_pass_by_value, reason = "nobody may use it afterwards")]
    pub fn release(&self, pinned: Pinned) {
        let Pinned { shard, item, .. } = pinned;
        self.shard(shard).unpin(item);
    }
}
