//! Commands that read: get, gat, touch, and meta get.

use super::cells::{Cursor, HEADER, state};
use super::shard::Absent;
use super::time::Expiry;
use super::{Locked, Pinned};

/// The side effects of a reading command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Get {
    /// The item's new expiration, if it changes.
    pub touch: Option<Expiry>,
    /// True if this is a use of the item, which keeps it longer.
    pub bump: bool,
    /// True if the item is fetched and not just touched, which is counted.
    pub fetch: bool,
    /// Options of meta get; `None` for other commands.
    pub meta: Option<MetaGet>,
}

/// Flags of meta get that renew items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetaGet {
    /// If there is no item, an empty one is created with this expiration; true if the key is in
    /// base64 (flag N).
    pub vivify: Option<(Expiry, bool)>,
    /// Version of a created item, instead of the next one (flag E).
    pub version: Option<u64>,
    /// The first client that fetches an item that expires before this is asked to renew it (flag
    /// R).
    pub recache: Option<Expiry>,
    /// True if the client cannot store at present, and is not asked to renew the item.
    pub passive: bool,
}

impl Get {
    /// A plain `get`.
    pub const PLAIN: Self = Self { touch: None, bump: true, fetch: true, meta: None };
}

/// Facts about an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The client's flags.
    pub flags: u32,
    /// Number of this version.
    pub cas: u64,
    /// Bytes of the value.
    pub value_len: usize,
    /// Seconds to live; `None` if it has no end.
    pub ttl: Option<u32>,
    /// Seconds since it was used, before this command.
    pub idle: u32,
    /// True if it had been used before this command.
    pub fetched: bool,
    /// True if it has been invalidated.
    pub stale: bool,
    /// True if another client has been asked to renew it.
    pub token_sent: bool,
    /// True if this client is asked to renew it.
    pub won: bool,
    /// True if its key was received in base64.
    pub binary_key: bool,
    /// Bytes of the item altogether.
    pub size: usize,
}

/// An item that was found; valid while its shard is locked.
#[derive(Debug)]
pub struct Hit {
    pub(super) item: u32,
    /// Facts about it.
    pub facts: Facts,
}

impl Locked<'_> {
    /// Looks the key up (`get`, `gets`, `gat`, `gats`, `touch`, `mg`).
    #[inline]
    pub fn get(&mut self, get: &Get) -> Option<Hit> {
        let found = self.shard.find(self.key, self.hash, self.now);
        self.count_get(get, found.err());
        let (item, created) = match found {
            Ok(item) => (item, false),
            Err(_) => (self.vivify(get.meta?)?, true),
        };
        let (now, won) = (self.now, created || get.meta.is_some_and(|meta| self.wins(item, meta)));
        if let Some(expiry) = get.touch {
            self.shard.item_mut(item).expiry = expiry.to_raw();
        }
        if created || get.touch.is_some() {
            self.changed();
        } else if won {
            self.changed_by_reading();
        }
        let facts = Facts { won, ..self.facts(item) };
        let cell = self.shard.item_mut(item);
        if get.bump {
            cell.state |= state::FETCHED | state::ACTIVE;
            cell.accessed = now.seconds;
        }
        if won {
            cell.state |= state::TOKEN_SENT;
        }
        Some(Hit { item, facts })
    }

    fn count_get(&mut self, get: &Get, absent: Option<Absent>) {
        let (hit, counters) = (absent.is_none(), &mut self.shard.counters);
        if get.fetch {
            counters.cmd_get += 1;
            counters.get_hits += u64::from(hit);
            counters.get_misses += u64::from(!hit);
            counters.get_expired += u64::from(absent == Some(Absent::Expired));
            counters.get_flushed += u64::from(absent == Some(Absent::Flushed));
        }
        if get.touch.is_some() {
            counters.cmd_touch += 1;
            counters.touch_hits += u64::from(hit);
            counters.touch_misses += u64::from(!hit);
        }
    }

    /// Creates an empty item for this key, which has none, if the options say so.
    fn vivify(&mut self, meta: MetaGet) -> Option<u32> {
        let (expiry, binary_key) = meta.vivify?;
        let (item, _) = self.shard.create(self.key, self.hash, 0, self.now)?;
        let cas = meta.version.unwrap_or_else(|| self.store.next_cas());
        let cell = self.shard.item_mut(item);
        (cell.expiry, cell.cas) = (expiry.to_raw(), cas);
        cell.state = if binary_key { state::BINARY_KEY } else { 0 };
        self.shard.link(item, self.now);
        Some(item)
    }

    /// Returns true if the requesting client is to renew the item.
    fn wins(&self, item: u32, meta: MetaGet) -> bool {
        let item = self.shard.item(item);
        let wanted = item.state & state::STALE != 0
            || meta.recache.is_some_and(|recache| Expiry::from_raw(item.expiry).is_before(recache));
        wanted && !meta.passive && item.state & state::TOKEN_SENT == 0
    }

    /// Returns the facts about an item, before it is used.
    #[inline]
    pub(super) fn facts(&self, item: u32) -> Facts {
        let (item, now) = (self.shard.item(item), self.now);
        let value_len = item.value_len as usize;
        Facts {
            flags: item.flags,
            cas: item.cas,
            value_len,
            ttl: Expiry::from_raw(item.expiry).left(now),
            idle: now.seconds.saturating_sub(item.accessed),
            fetched: item.state & state::FETCHED != 0,
            stale: item.state & state::STALE != 0,
            token_sent: item.state & state::TOKEN_SENT != 0,
            won: false,
            binary_key: item.state & state::BINARY_KEY != 0,
            size: HEADER + usize::from(item.key_len) + value_len,
        }
    }

    /// Returns the facts about the key's item, without using it (`me`).
    pub fn peek(&mut self) -> Option<Facts> {
        self.peek_hit().map(|hit| hit.facts)
    }

    /// Returns the key's item, without using it.
    pub(super) fn peek_hit(&mut self) -> Option<Hit> {
        let item = self.shard.find(self.key, self.hash, self.now).ok()?;
        Some(Hit { item, facts: self.facts(item) })
    }

    /// Appends the value to `out`, which has room for it.
    #[inline]
    pub fn append_value(&self, hit: &Hit, out: &mut Vec<u8>) {
        let mut cursor = Cursor::start(hit.item);
        self.shard.cells.skip(&mut cursor, self.key.len());
        self.shard.cells.read(&mut cursor, hit.facts.value_len, |piece| out.extend_from_slice(piece));
    }

    /// Pins the value, to be [read](super::Store::drain) piece by piece; `None` if too much is
    /// pinned already.
    pub fn pin(&mut self, hit: &Hit) -> Option<Pinned> {
        if !self.shard.pin(hit.item) {
            self.shard.counters.out_of_memory += 1;
            return None;
        }
        Some(self.pinned(hit))
    }

    /// Returns an item that has just been pinned.
    pub(super) fn pinned(&self, hit: &Hit) -> Pinned {
        let mut cursor = Cursor::start(hit.item);
        self.shard.cells.skip(&mut cursor, self.key.len());
        Pinned { shard: self.index, item: hit.item, cursor, left: hit.facts.value_len }
    }
}
