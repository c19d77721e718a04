//! Lists of all items, for administrators.
//!
//! Owns what is listed of an item. A list is made bucket by bucket, with the shard locked for one
//! bucket at a time: items that are stored or removed meanwhile may be missing or in it.

use super::cells::{HEADER, state};
use super::shard::Shard;
use super::time::{Expiry, Now};

/// An item as lists have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dumped {
    /// Seconds until it expires; `None` for never.
    pub left: Option<u32>,
    /// Seconds since the last access.
    pub idle: u32,
    /// Number of its version.
    pub cas: u64,
    /// True if it was read since it was stored.
    pub fetched: bool,
    /// Bytes of its value.
    pub value_len: usize,
    /// Bytes of its key, value and header.
    pub size: usize,
}

impl Shard {
    /// Passes key and facts of each living item of a bucket to `take`.
    pub fn dump(&mut self, bucket: usize, now: Now, mut take: impl FnMut(&[u8], &Dumped)) {
        self.begin_epoch_if_due(now);
        for at in self.bucket_items(bucket).filter(|&item| self.death(item, now).is_none()) {
            let item = self.item(at);
            let (key, key_len, _) = self.key_of(at);
            let value_len = item.value_len as usize;
            let dumped = Dumped {
                left: Expiry::from_raw(item.expiry).left(now),
                idle: now.seconds.saturating_sub(item.accessed),
                cas: item.cas,
                fetched: item.state & state::FETCHED != 0,
                value_len,
                size: HEADER + key_len + value_len,
            };
            take(&key[..key_len], &dumped);
        }
    }
}
