//! Commands that read: get, gat, touch, and meta get.

use super::cells::{Cursor, HEADER};
use super::shard::{Absent, state};
use super::time::Expiry;
use super::{Locked, Pinned};

/// What a reading command does besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Get {
    /// The item lives until then from now on.
    pub touch: Option<Expiry>,
    /// Whether this is a use of the item, which keeps it longer.
    pub bump: bool,
    /// Whether the item is asked for, and not just touched: what is counted.
    pub fetch: bool,
    /// What to do for the caches of meta get; `None` for other commands, which do not see them.
    pub meta: Option<MetaGet>,
}

/// Flags of meta get that renew items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetaGet {
    /// An empty item is made where there is none, with this end; the key came in base64 (flag N).
    pub vivify: Option<(Expiry, bool)>,
    /// Number of the version of an item that is made, instead of the next one (flag E).
    pub version: Option<u64>,
    /// The first to ask for an item that ends before this is told to renew it (flag R).
    pub recache: Option<Expiry>,
}

impl Get {
    /// `get`, without anything besides.
    pub const PLAIN: Self = Self { touch: None, bump: true, fetch: true, meta: None };
}

/// What is known about an item.
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
    /// Whether it had been used before this command.
    pub fetched: bool,
    /// Whether it has been invalidated.
    pub stale: bool,
    /// Whether somebody else has been told to renew it.
    pub token_sent: bool,
    /// Whether this client is told to renew it.
    pub won: bool,
    /// Whether its key came in base64.
    pub binary_key: bool,
    /// Bytes of the item altogether.
    pub size: usize,
}

/// An item that was found, for as long as its shard is locked.
#[derive(Debug)]
pub struct Hit {
    item: u32,
    /// What is known about it.
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

    /// An empty item for this key, which has none, if one is to be made.
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

    /// Whether the client that asks now is to renew the item.
    fn wins(&self, item: u32, meta: MetaGet) -> bool {
        let item = self.shard.item(item);
        let wanted = item.state & state::STALE != 0
            || meta.recache.is_some_and(|recache| Expiry::from_raw(item.expiry).is_before(recache));
        wanted && item.state & state::TOKEN_SENT == 0
    }

    /// What is known about an item, before it is used.
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

    /// What is known about the key's item, without using it (`me`).
    pub fn peek(&mut self) -> Option<Facts> {
        let item = self.shard.find(self.key, self.hash, self.now).ok()?;
        Some(self.facts(item))
    }

    /// Appends the value to `out`, which has room for it.
    #[inline]
    pub fn append_value(&self, hit: &Hit, out: &mut Vec<u8>) {
        let mut cursor = Cursor::start(hit.item);
        self.shard.cells.skip(&mut cursor, self.key.len());
        self.shard.cells.read(&mut cursor, hit.facts.value_len, |piece| out.extend_from_slice(piece));
    }

    /// Keeps the value as it is, to be [read](super::Store::drain) piece by piece. `None` when too much is kept already.
    pub fn pin(&mut self, hit: &Hit) -> Option<Pinned> {
        if !self.shard.pin(hit.item) {
            self.shard.counters.out_of_memory += 1;
            return None;
        }
        let mut cursor = Cursor::start(hit.item);
        self.shard.cells.skip(&mut cursor, self.key.len());
        Some(Pinned { shard: self.index, item: hit.item, cursor, left: hit.facts.value_len })
    }
}
