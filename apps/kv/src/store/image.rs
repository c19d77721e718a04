//! Images of items: what another store needs in order to have the same item.
//!
//! Owns the conversion of an item to its image and back. An image has the version number, so that
//! a client's `cas` is valid at the other store, and the expiration as Unix time. The time of the
//! last use is not in it.

use super::cells::state;
use super::read::{Facts, Hit};
use super::time::{Expiry, Now};
use super::{Filling, Locked, Pinned, Refusal, Store};

/// An item without key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// The client's flags.
    pub flags: u32,
    /// Number of this version.
    pub cas: u64,
    /// Unix time of its expiration; `None` for never.
    pub expires: Option<i64>,
    /// True if it has been invalidated.
    pub stale: bool,
    /// True if a client has been asked to renew it.
    pub token_sent: bool,
    /// True if its key was received in base64.
    pub binary_key: bool,
    /// Bytes of the value.
    pub value_len: usize,
}

impl Image {
    fn of(facts: &Facts, now: Now) -> Self {
        Self {
            flags: facts.flags,
            cas: facts.cas,
            expires: facts.ttl.map(|left| now.unix() + i64::from(left)),
            stale: facts.stale,
            token_sent: facts.token_sent,
            binary_key: facts.binary_key,
            value_len: facts.value_len,
        }
    }

    fn state(&self) -> u8 {
        let bits = [
            (self.stale, state::STALE),
            (self.token_sent, state::TOKEN_SENT),
            (self.binary_key, state::BINARY_KEY),
        ];
        bits.into_iter().filter(|(set, _)| *set).fold(0, |bits, (_, bit)| bits | bit)
    }
}

impl Locked<'_> {
    /// Returns the image of the key's item, and the item to read its value from. This is no use of
    /// the item.
    pub fn image(&mut self) -> Option<(Image, Hit)> {
        let hit = self.peek_hit()?;
        Some((Image::of(&hit.facts, self.now), hit))
    }

    /// Pins the value as [`pin`](Self::pin) does, whatever clients have pinned; `None` if it has
    /// too many pins.
    pub fn pin_image(&mut self, hit: &Hit) -> Option<Pinned> {
        self.shard.pin_beyond(hit.item).then(|| self.pinned(hit))
    }

    /// Reserves room for the item of an image as [`reserve`](Self::reserve) does, whatever clients
    /// have pinned.
    ///
    /// # Errors
    /// If it is too large or there is no room. The key then has no item.
    pub fn reserve_image(&mut self, value_len: usize) -> Result<Filling, Refusal> {
        if !self.store.fits(self.key.len(), value_len) {
            self.forget();
            return Err(Refusal::TooLarge);
        }
        let Some((item, cursor)) = self.shard.create(self.key, self.hash, value_len, self.now) else {
            self.forget();
            return Err(Refusal::NoMemory);
        };
        assert!(self.shard.pin_beyond(item), "a new item has no pins");
        Ok(Filling { shard: self.index, item, cursor, left: value_len })
    }

    /// Replaces the key's item by that of an image.
    ///
    /// # Errors
    /// If it is too large or there is no room. The key then has no item.
    pub fn restore(&mut self, image: &Image, value: &[u8]) -> Result<(), Refusal> {
        self.forget();
        if !self.store.fits(self.key.len(), value.len()) {
            return Err(Refusal::TooLarge);
        }
        let created = self.shard.create(self.key, self.hash, value.len(), self.now);
        let (item, mut cursor) = created.ok_or(Refusal::NoMemory)?;
        self.shard.cells.write(&mut cursor, value);
        self.link_image(item, image);
        Ok(())
    }

    fn link_image(&mut self, item: u32, image: &Image) {
        self.store.last_cas.fetch_max(image.cas, std::sync::atomic::Ordering::Relaxed);
        let cell = self.shard.item_mut(item);
        (cell.flags, cell.cas, cell.state) = (image.flags, image.cas, image.state());
        cell.expiry = image.expires.map_or(Expiry::NEVER, |unix| Expiry::at_unix(unix, self.now)).to_raw();
        self.shard.link(item, self.now);
    }

    /// Removes the key's item, if there is one, as if it had never been stored.
    pub fn forget(&mut self) {
        if let Ok(item) = self.shard.find(self.key, self.hash, self.now) {
            self.shard.remove(item);
        }
    }
}

impl Store {
    /// Stores a completely received item as that of an image.
    ///
    /// # Panics
    /// If some of it is missing.
    #[expect(clippy::needless_pass_by_value, reason = "must not be used afterwards")]
    pub fn restore(&self, filling: Filling, image: &Image, now: Now) {
        assert_eq!(filling.left(), 0, "the caller has filled it");
        let Filling { shard: index, item, .. } = filling;
        let shard = self.shard(index);
        let hash = shard.item(item).hash;
        let (key, len, _) = shard.key_of(item);
        let mut locked =
            Locked { shard, store: self, key: &key[..len], hash, index, now, horizon: None, wrote: false };
        locked.forget();
        locked.link_image(item, image);
        locked.shard.unpin(item);
    }
}
