//! Commands that write: set and its kin, delete, incr and decr, and their meta forms.

use super::cells::{Cursor, state};
use super::shard::Shard;
use super::time::{Expiry, Now};
use super::{Facts, Filling, Horizon, Locked, Store};

/// Digits of 2^64 - 1.
const MAX_NUMBER: usize = 20;
/// Bytes of a value within which its number, and the space after it if the value is longer, must
/// lie.
const WINDOW: usize = 64;

/// How an item is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Unconditionally.
    Set,
    /// Only if the key has none.
    Add,
    /// Only if the key has one.
    Replace,
    /// After the present value.
    Append,
    /// Before the present value.
    Prepend,
}

/// The parameters of a storing command besides key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// The mode.
    pub mode: Mode,
    /// The client's flags. `Append` and `Prepend` keep the present ones, and the present `expiry`.
    pub flags: u32,
    /// Its expiration.
    pub expiry: Expiry,
    /// Stores only if this is the present version (`cas`); 0 matches none.
    pub compare: Option<u64>,
    /// With `compare`: stores an older version than the present one too, as stale (flag I of meta
    /// set).
    pub invalidate: bool,
    /// `Append` and `Prepend` store an item with this expiration if there is none (flag N of meta
    /// set).
    pub vivify: Option<Expiry>,
    /// True if the key was received in base64.
    pub binary_key: bool,
    /// Number of the new version, instead of the next one (flag E of meta commands).
    pub version: Option<u64>,
}

impl Put {
    /// Creates the parameters of an unconditional command.
    #[must_use]
    pub fn new(mode: Mode, flags: u32, expiry: Expiry) -> Self {
        let (compare, invalidate, vivify, binary_key, version) = (None, false, None, false, None);
        Self { mode, flags, expiry, compare, invalidate, vivify, binary_key, version }
    }
}

/// The result of a storing command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// It is stored.
    Stored {
        /// Number of its version.
        cas: u64,
    },
    /// The mode's condition was not met.
    NotStored,
    /// Another version is present.
    Exists,
    /// There is no item to compare with.
    NotFound,
    /// It is larger than an item may be; the key's item was removed.
    TooLarge,
    /// There is no room, and nothing to evict; the key's item was removed.
    NoMemory,
}

/// The fields that a stale item keeps of the newer one it replaces.
#[derive(Debug, Clone, Copy)]
struct Kept {
    expiry: u32,
    token_sent: u8,
}

/// How a new item is stored beside the key's present one.
enum Decision {
    /// Store the new one alone; if it is stale, with these fields of the present one.
    Alone { stale: Option<Kept> },
    /// Join both.
    Join(u32),
    /// Store nothing.
    Refuse(Stored),
}

/// `delete` and meta delete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delete {
    /// Deletes only this version; 0 matches none.
    pub compare: Option<u64>,
    /// Keeps the item as stale, with another expiration if one is given.
    pub invalidate: Option<Option<Expiry>>,
    /// With `invalidate`: number of the stale version, instead of the next one (flag E).
    pub version: Option<u64>,
}

/// The result of a deleting command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// It was deleted, or is stale.
    Deleted,
    /// The key has none.
    NotFound,
    /// Another version is present.
    Exists,
}

/// `incr`, `decr` and meta arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arithmetic {
    /// Up, modulo 2^64, or down, to 0.
    pub up: bool,
    /// The difference.
    pub delta: u64,
    /// Changes only this version; 0 stands for any.
    pub compare: u64,
    /// If there is no item, one is created with this number and expiration.
    pub vivify: Option<(u64, Expiry)>,
    /// New expiration on success.
    pub touch: Option<Expiry>,
    /// True if the key was received in base64.
    pub binary_key: bool,
    /// Number of the new version, instead of the next one (flag E of meta commands).
    pub version: Option<u64>,
}

/// The result of an arithmetic command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// The new value, and facts about the item.
    Value(u64, Facts),
    /// The key has none.
    NotFound,
    /// Another version is present.
    Exists,
    /// The value is not a decimal number of 64 bits.
    NotNumeric,
    /// The result is longer than the old one and there is no room.
    NoMemory,
}

impl Locked<'_> {
    /// Stores `value` (`set`, `add`, `replace`, `append`, `prepend`, `cas`, `ms`).
    pub fn put(&mut self, put: &Put, value: &[u8]) -> Stored {
        self.shard.counters.cmd_set += 1;
        if !self.store.fits(self.key.len(), value.len()) {
            self.shard.counters.too_large += 1;
            self.remove_refused();
            return Stored::TooLarge;
        }
        let old = self.shard.find(self.key, self.hash, self.now).ok();
        let stale = match decide(&mut self.shard, old, put) {
            Decision::Refuse(why) => return why,
            Decision::Join(old) => {
                return self.join(put, old, value.len(), |shard, cursor| shard.cells.write(cursor, value));
            }
            Decision::Alone { stale } => stale,
        };
        // Removed first, so that its cells, which are in the cache, are reused.
        if let Some(old) = old {
            self.shard.remove(old);
        }
        let Some((item, mut cursor)) = self.shard.create(self.key, self.hash, value.len(), self.now) else {
            self.changed();
            return Stored::NoMemory;
        };
        self.shard.cells.write(&mut cursor, value);
        self.finish(item, put, stale)
    }

    /// Links a new item whose key and value are written.
    fn finish(&mut self, item: u32, put: &Put, stale: Option<Kept>) -> Stored {
        let cas = put.version.unwrap_or_else(|| self.store.next_cas());
        let joins = matches!(put.mode, Mode::Append | Mode::Prepend);
        let cell = self.shard.item_mut(item);
        (cell.cas, cell.flags) = (cas, put.flags);
        cell.expiry = if joins { put.vivify } else { Some(put.expiry) }.unwrap_or(Expiry::NEVER).to_raw();
        cell.state = if put.binary_key { state::BINARY_KEY } else { 0 };
        if let Some(Kept { expiry, token_sent }) = stale {
            cell.expiry = expiry;
            cell.state |= state::STALE | token_sent;
        }
        self.shard.link(item, self.now);
        self.changed();
        Stored::Stored { cas }
    }

    /// Replaces `old` by a copy with `len` more bytes, which `write` puts at the cursor.
    fn join(
        &mut self,
        put: &Put,
        old: u32,
        len: usize,
        write: impl FnOnce(&mut Shard, &mut Cursor),
    ) -> Stored {
        let (old_len, key_len) = (self.shard.item(old).value_len as usize, self.key.len());
        // It must not be evicted for its own successor while it is copied.
        if !self.store.fits(key_len, old_len + len) || !self.shard.pin(old) {
            return Stored::NotStored;
        }
        let Some((item, mut to)) = self.shard.create(self.key, self.hash, old_len + len, self.now) else {
            self.shard.unpin(old);
            return Stored::NotStored;
        };
        let mut from = Cursor::start(old);
        self.shard.cells.skip(&mut from, key_len);
        if put.mode == Mode::Append {
            self.shard.cells.copy(&mut from, &mut to, old_len);
            write(&mut self.shard, &mut to);
        } else {
            write(&mut self.shard, &mut to);
            self.shard.cells.copy(&mut from, &mut to, old_len);
        }
        let cas = put.version.unwrap_or_else(|| self.store.next_cas());
        let (flags, expiry, binary) = {
            let old = self.shard.item(old);
            (old.flags, old.expiry, old.state & state::BINARY_KEY)
        };
        self.shard.remove(old);
        self.shard.unpin(old);
        let cell = self.shard.item_mut(item);
        (cell.cas, cell.flags, cell.expiry, cell.state) = (cas, flags, expiry, binary);
        self.shard.link(item, self.now);
        self.changed();
        Stored::Stored { cas }
    }

    /// Deletes or invalidates (`delete`, `md`).
    pub fn delete(&mut self, delete: &Delete) -> Deleted {
        let Ok(item) = self.shard.find(self.key, self.hash, self.now) else {
            self.shard.counters.delete_misses += 1;
            // Another store may have an item that was evicted here.
            self.changed();
            return Deleted::NotFound;
        };
        if delete.compare.is_some_and(|compare| compare != self.shard.item(item).cas) {
            self.shard.counters.delete_misses += 1;
            return Deleted::Exists;
        }
        if let Some(expiry) = delete.invalidate {
            let cas = delete.version.unwrap_or_else(|| self.store.next_cas());
            let cell = self.shard.item_mut(item);
            cell.state = (cell.state | state::STALE) & !state::TOKEN_SENT;
            cell.cas = cas;
            cell.expiry = expiry.map_or(cell.expiry, Expiry::to_raw);
        } else {
            self.shard.counters.delete_hits += 1;
            self.shard.remove(item);
        }
        self.changed();
        Deleted::Deleted
    }

    /// Counts up or down (`incr`, `decr`, `ma`).
    pub fn arithmetic(&mut self, how: &Arithmetic) -> Counted {
        let Ok(item) = self.shard.find(self.key, self.hash, self.now) else {
            return self.vivify_number(how);
        };
        if how.compare != 0 && how.compare != self.shard.item(item).cas {
            return Counted::Exists;
        }
        let Some(value) = self.number(item) else { return Counted::NotNumeric };
        let counters = &mut self.shard.counters;
        *if how.up { &mut counters.incr_hits } else { &mut counters.decr_hits } += 1;
        let value = if how.up { value.wrapping_add(how.delta) } else { value.saturating_sub(how.delta) };
        let written = self.write_number(item, value);
        self.changed();
        let Some(item) = written else { return Counted::NoMemory };
        let cas = how.version.unwrap_or_else(|| self.store.next_cas());
        let now = self.now;
        let cell = self.shard.item_mut(item);
        cell.state |= state::ACTIVE;
        (cell.cas, cell.accessed) = (cas, now.seconds);
        if let Some(expiry) = how.touch {
            cell.expiry = expiry.to_raw();
        }
        Counted::Value(value, self.facts(item))
    }

    fn vivify_number(&mut self, how: &Arithmetic) -> Counted {
        let counters = &mut self.shard.counters;
        let Some((value, expiry)) = how.vivify else {
            *if how.up { &mut counters.incr_misses } else { &mut counters.decr_misses } += 1;
            return Counted::NotFound;
        };
        let mut put = Put::new(Mode::Set, 0, how.touch.unwrap_or(expiry));
        (put.binary_key, put.version) = (how.binary_key, how.version);
        let mut digits = [0; MAX_NUMBER];
        if !matches!(self.put(&put, decimal(value, &mut digits)), Stored::Stored { .. }) {
            return Counted::NoMemory;
        }
        let item = self.shard.find(self.key, self.hash, self.now);
        // The new expiration is in the past.
        item.map_or(Counted::NotFound, |item| Counted::Value(value, self.facts(item)))
    }

    /// Returns the number at an item's beginning, up to its end or a space, as strtoull(3) reads
    /// it.
    fn number(&self, item: u32) -> Option<u64> {
        let value_len = self.shard.item(item).value_len as usize;
        let len = value_len.min(WINDOW);
        let (mut bytes, mut filled) = ([0; WINDOW], 0);
        let mut cursor = Cursor::start(item);
        self.shard.cells.skip(&mut cursor, self.key.len());
        self.shard.cells.read(&mut cursor, len, |piece| {
            bytes[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        });
        let rest = bytes[..len].trim_ascii_start();
        let digits = rest.split(u8::is_ascii_whitespace).next()?;
        let is_whole = digits.len() < rest.len() || len == value_len;
        std::str::from_utf8(digits).ok().filter(|_| is_whole)?.parse().ok()
    }

    /// Writes a number into an item, in place and padded with spaces, unless it is longer than the
    /// present value or the item is pinned; then it creates another item. Returns the item.
    fn write_number(&mut self, item: u32, value: u64) -> Option<u32> {
        let mut digits = [0; MAX_NUMBER];
        let digits = decimal(value, &mut digits);
        let (old_len, key_len) = (self.shard.item(item).value_len as usize, self.key.len());
        if digits.len() <= old_len && self.shard.item(item).pins == 0 {
            let mut cursor = Cursor::start(item);
            self.shard.cells.skip(&mut cursor, key_len);
            self.shard.cells.write(&mut cursor, digits);
            let mut spaces = old_len - digits.len();
            while spaces > 0 {
                let now = spaces.min(WINDOW);
                self.shard.cells.write(&mut cursor, &[b' '; WINDOW][..now]);
                spaces -= now;
            }
            return Some(item);
        }
        let (flags, expiry, binary) = {
            let old = self.shard.item(item);
            (old.flags, old.expiry, old.state & state::BINARY_KEY)
        };
        self.shard.remove(item);
        let (new, mut cursor) = self.shard.create(self.key, self.hash, digits.len(), self.now)?;
        self.shard.cells.write(&mut cursor, digits);
        let cell = self.shard.item_mut(new);
        (cell.flags, cell.expiry, cell.state) = (flags, expiry, binary);
        self.shard.link(new, self.now);
        Some(new)
    }
}

impl Store {
    /// Stores a completely received item, as [`Locked::put`] does.
    ///
    /// # Panics
    /// If some of it is missing.
    #[expect(clippy::needless_pass_by_value, reason = "must not be used afterwards")]
    pub fn commit(&self, filling: Filling, put: &Put, now: Now, horizon: &Horizon) -> Stored {
        assert_eq!(filling.left(), 0, "the caller has filled it");
        let Filling { shard: index, item: new, .. } = filling;
        let mut shard = self.shard(index);
        shard.counters.cmd_set += 1;
        let hash = shard.item(new).hash;
        let (key, key_len, mut cursor) = shard.key_of(new);
        let key = &key[..key_len];
        let old = shard.find(key, hash, now).ok();
        let decision = decide(&mut shard, old, put);
        let mut locked = Locked { shard, store: self, key, hash, index, now, horizon: None, wrote: false };
        locked = locked.within(horizon);
        let stored = match decision {
            Decision::Refuse(why) => why,
            Decision::Join(old) => {
                let len = locked.shard.item(new).value_len as usize;
                locked.join(put, old, len, |shard, to| shard.cells.copy(&mut cursor, to, len))
            }
            Decision::Alone { stale } => {
                if let Some(old) = old {
                    locked.shard.remove(old);
                }
                locked.finish(new, put, stale)
            }
        };
        // Frees the memory unless the item is in the table now.
        locked.shard.unpin(new);
        stored
    }
}

/// Decides whether and how a new item is stored beside `old` (memcached's protocol.txt, "Storage
/// commands" and "Meta Set").
fn decide(shard: &mut Shard, old: Option<u32>, put: &Put) -> Decision {
    let joins = matches!(put.mode, Mode::Append | Mode::Prepend);
    // `Add` does not compare; `Append` and `Prepend` compare only with a version that can exist.
    let compares = match put.mode {
        Mode::Set | Mode::Replace => put.compare,
        Mode::Append | Mode::Prepend => put.compare.filter(|&cas| cas != 0),
        Mode::Add => None,
    };
    let Some(old) = old else {
        return match (put.mode, compares) {
            (Mode::Set | Mode::Replace, Some(_)) => {
                shard.counters.cas_misses += 1;
                Decision::Refuse(Stored::NotFound)
            }
            (Mode::Set | Mode::Add, _) => Decision::Alone { stale: None },
            _ if joins && put.vivify.is_some() => Decision::Alone { stale: None },
            _ => Decision::Refuse(Stored::NotStored),
        };
    };
    if put.mode == Mode::Add {
        // A client requested the item, which counts as a use.
        shard.item_mut(old).state |= state::ACTIVE;
        return Decision::Refuse(Stored::NotStored);
    }
    let there = shard.item(old).cas;
    match compares {
        Some(cas) if cas != there => {
            if put.invalidate && cas < there && !joins {
                let old = shard.item(old);
                let token_sent = old.state & state::TOKEN_SENT;
                return Decision::Alone { stale: Some(Kept { expiry: old.expiry, token_sent }) };
            }
            shard.counters.cas_badval += 1;
            Decision::Refuse(Stored::Exists)
        }
        compared => {
            shard.counters.cas_hits += u64::from(compared.is_some());
            if joins { Decision::Join(old) } else { Decision::Alone { stale: None } }
        }
    }
}

/// Returns the digits of a number.
pub(crate) fn decimal(mut value: u64, digits: &mut [u8; MAX_NUMBER]) -> &[u8] {
    let mut at = MAX_NUMBER;
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &digits[at..];
        }
    }
}
