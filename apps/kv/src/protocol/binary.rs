//! The binary protocol (memcached's protocol_binary.h and its wiki page "BinaryProtocolRevamped"), for clients that still use
//! it: all commands, quiet ones included; SASL is an unknown command, as in a memcached that was started without it.
//!
//! A packet that contradicts itself ends the connection, after an error if its command is known: nothing says where the next
//! one would begin.

use super::connection::{Block, Next, Reply, Turn};
use super::stats;
use crate::service::VERSION;
use crate::store::{Arithmetic, Counted, Delete, Deleted, Expiry, Get, Locked, MAX_KEY, Mode, Put, Stored};

/// First byte of a request.
pub(super) const REQUEST: u8 = 0x80;
/// First byte of an answer.
const RESPONSE: u8 = 0x81;
const HEADER: usize = 24;
/// Longest extras of any command.
const MAX_EXTRAS: usize = 20;
/// Expiration time that says: do not create a counter.
const NO_CREATE: u32 = u32::MAX;

/// Statuses.
mod status {
    pub const OK: u16 = 0;
    pub const NOT_FOUND: u16 = 1;
    pub const EXISTS: u16 = 2;
    pub const TOO_LARGE: u16 = 3;
    pub const INVALID: u16 = 4;
    pub const NOT_STORED: u16 = 5;
    pub const NOT_NUMERIC: u16 = 6;
    pub const UNKNOWN: u16 = 0x81;
    pub const NO_MEMORY: u16 = 0x82;
}

/// The header of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    opcode: u8,
    key_len: usize,
    extras_len: usize,
    body_len: usize,
    opaque: [u8; 4],
    cas: u64,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Get { key: bool, touch: bool },
    Touch,
    Store(Mode),
    Delete,
    Count { up: bool },
    Quit,
    Flush,
    Noop,
    Version,
    Stat,
}

impl Header {
    fn decode(bytes: &[u8; HEADER]) -> Self {
        let two = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let cas = u64::from(u32::from_be_bytes(four(16))) << 32 | u64::from(u32::from_be_bytes(four(20)));
        Self {
            opcode: bytes[1],
            key_len: two(2).into(),
            extras_len: bytes[4].into(),
            body_len: u32::from_be_bytes(four(8)) as usize,
            opaque: four(12),
            cas,
        }
    }

    /// The command, and whether it is quiet.
    fn command(&self) -> Option<(Command, bool)> {
        use Command::{Count, Delete, Flush, Get, Noop, Quit, Stat, Store, Touch, Version};
        let get = |key, touch| Get { key, touch };
        Some(match self.opcode {
            0x00 => (get(false, false), false),
            0x01 => (Store(Mode::Set), false),
            0x02 => (Store(Mode::Add), false),
            0x03 => (Store(Mode::Replace), false),
            0x04 => (Delete, false),
            0x05 => (Count { up: true }, false),
            0x06 => (Count { up: false }, false),
            0x07 => (Quit, false),
            0x08 => (Flush, false),
            0x09 => (get(false, false), true),
            0x0a => (Noop, false),
            0x0b => (Version, false),
            0x0c => (get(true, false), false),
            0x0d => (get(true, false), true),
            0x0e => (Store(Mode::Append), false),
            0x0f => (Store(Mode::Prepend), false),
            0x10 => (Stat, false),
            0x11 => (Store(Mode::Set), true),
            0x12 => (Store(Mode::Add), true),
            0x13 => (Store(Mode::Replace), true),
            0x14 => (Delete, true),
            0x15 => (Count { up: true }, true),
            0x16 => (Count { up: false }, true),
            0x17 => (Quit, true),
            0x18 => (Flush, true),
            0x19 => (Store(Mode::Append), true),
            0x1a => (Store(Mode::Prepend), true),
            0x1c => (Touch, false),
            0x1d => (get(false, true), false),
            0x1e => (get(false, true), true),
            0x23 => (get(true, true), false),
            0x24 => (get(true, true), true),
            _ => return None,
        })
    }

    /// Whether the lengths are those of the command.
    fn is_valid(&self, command: Command) -> bool {
        let value = self.body_len - self.key_len - self.extras_len;
        let key = (1..=MAX_KEY).contains(&self.key_len);
        match command {
            Command::Get { touch: false, .. } | Command::Delete => key && self.extras_len == 0 && value == 0,
            Command::Get { touch: true, .. } | Command::Touch => key && self.extras_len == 4 && value == 0,
            Command::Store(Mode::Append | Mode::Prepend) => key && self.extras_len == 0,
            Command::Store(_) => key && self.extras_len == 8,
            Command::Count { .. } => key && self.extras_len == 20 && value == 0,
            Command::Quit | Command::Noop | Command::Version => self.body_len == 0,
            Command::Flush => self.key_len == 0 && matches!(self.extras_len, 0 | 4) && value == 0,
            Command::Stat => self.key_len <= MAX_KEY && self.extras_len == 0 && value == 0,
        }
    }

    /// Appends an answer's header and the parts of its body that are at hand; `value_len` more bytes follow.
    fn answer(&self, out: &mut Vec<u8>, status: u16, cas: u64, parts: [&[u8]; 2], value_len: usize) {
        let [extras, key] = parts;
        let body_len = (extras.len() + key.len() + value_len) as u32;
        out.extend_from_slice(&[RESPONSE, self.opcode]);
        out.extend_from_slice(&(key.len() as u16).to_be_bytes());
        out.extend_from_slice(&[extras.len() as u8, 0]);
        out.extend_from_slice(&status.to_be_bytes());
        out.extend_from_slice(&body_len.to_be_bytes());
        out.extend_from_slice(&self.opaque);
        out.extend_from_slice(&cas.to_be_bytes());
        out.extend_from_slice(extras);
        out.extend_from_slice(key);
    }

    fn succeed(&self, out: &mut Vec<u8>, cas: u64, value: &[u8]) {
        self.answer(out, status::OK, cas, [&[], &[]], value.len());
        out.extend_from_slice(value);
    }

    /// An error, with its text.
    fn fail(&self, out: &mut Vec<u8>, status: u16) {
        let text = match status {
            status::NOT_FOUND => "Not found",
            status::EXISTS => "Data exists for key.",
            status::TOO_LARGE => "Too large.",
            status::INVALID => "Invalid arguments",
            status::NOT_STORED => "Not stored.",
            status::NOT_NUMERIC => "Non-numeric server-side value for incr or decr",
            status::NO_MEMORY => "Out of memory",
            _ => "Unknown command",
        };
        self.answer(out, status, 0, [&[], &[]], text.len());
        out.extend_from_slice(text.as_bytes());
    }

    /// One statistic; an empty one is the end.
    fn statistic(&self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        self.answer(out, status::OK, 0, [&[], name], value.len());
        out.extend_from_slice(value);
    }
}

/// Carries out the packet at the beginning of `buffered`, and says how many bytes of it are used up: all but the value of what
/// is to be stored. `None` if there is too little.
pub(super) fn command<'a>(buffered: &'a [u8], turn: &mut Turn) -> Option<(usize, Next<'a>)> {
    let header = buffered.first_chunk::<HEADER>()?;
    let header = Header::decode(header);
    let head = header.extras_len + header.key_len;
    if buffered[0] != REQUEST || head > header.body_len {
        if buffered[0] == REQUEST {
            header.fail(turn.out, status::UNKNOWN);
        }
        return Some((HEADER, Next::Close));
    }
    let Some((command, quiet)) = header.command() else {
        header.fail(turn.out, status::UNKNOWN);
        return Some((HEADER, Next::Swallow(header.body_len)));
    };
    if header.extras_len > MAX_EXTRAS || !header.is_valid(command) {
        header.fail(turn.out, status::INVALID);
        return Some((HEADER, Next::Close));
    }
    let body = buffered.get(HEADER..HEADER + head)?;
    let (extras, key) = body.split_at(header.extras_len);
    let four = |at: usize| u32::from_be_bytes(extras[at..at + 4].try_into().expect("the length is right"));
    let next = match command {
        Command::Store(mode) => {
            let (flags, exptime) = if extras.is_empty() { (0, 0) } else { (four(0), four(4)) };
            let expiry = Expiry::decode(signed(exptime), turn.now);
            let compare = (header.cas != 0).then_some(header.cas);
            let put = Put { compare, ..Put::new(mode, flags, expiry) };
            let len = header.body_len - head;
            Next::Block(Block { key, decoded: None, len, put, reply: Reply::Binary(header) })
        }
        Command::Get { .. } | Command::Touch => {
            let touch = (!extras.is_empty()).then(|| Expiry::decode(signed(four(0)), turn.now));
            get(&header, command, quiet, key, touch, turn)
        }
        Command::Count { up } => {
            let eight = |at: usize| u64::from(four(at)) << 32 | u64::from(four(at + 4));
            let expiry = four(16);
            let create = (expiry != NO_CREATE).then(|| (eight(8), Expiry::decode(signed(expiry), turn.now)));
            count(&header, key, up, eight(0), create, quiet, turn);
            Next::Done
        }
        Command::Flush => {
            let delay = if extras.is_empty() { 0 } else { signed(four(0)) };
            match turn.flush(delay) {
                true if quiet => {}
                true => header.succeed(turn.out, 0, &[]),
                false => header.fail(turn.out, status::UNKNOWN),
            }
            Next::Done
        }
        _ => simple(&header, command, quiet, key, turn),
    };
    Some((HEADER + head, next))
}

/// Expiration times are signed in the text protocol; here negative ones are large.
fn signed(time: u32) -> i64 {
    i64::from(time as i32)
}

fn simple<'a>(header: &Header, command: Command, quiet: bool, key: &'a [u8], turn: &mut Turn) -> Next<'a> {
    let out = &mut *turn.out;
    match command {
        Command::Quit => {
            if !quiet {
                header.succeed(out, 0, &[]);
            }
            return Next::Close;
        }
        Command::Delete => {
            let compare = (header.cas != 0).then_some(header.cas);
            let how = Delete { compare, invalidate: None };
            match turn.service.store.lock(key, turn.now).delete(&how) {
                Deleted::Deleted if quiet => {}
                Deleted::Deleted => header.succeed(out, 0, &[]),
                Deleted::NotFound => header.fail(out, status::NOT_FOUND),
                Deleted::Exists => header.fail(out, status::EXISTS),
            }
        }
        Command::Version => header.succeed(out, 0, VERSION.as_bytes()),
        Command::Stat => {
            let known = stats::each(key, turn.service, turn.now, |name, value| {
                header.statistic(out, name.as_bytes(), value.as_bytes());
            });
            if known { header.statistic(out, b"", b"") } else { header.fail(out, status::NOT_FOUND) }
        }
        _ => header.succeed(out, 0, &[]),
    }
    Next::Done
}

fn get<'a>(
    header: &Header,
    command: Command,
    quiet: bool,
    key: &'a [u8],
    touch: Option<Expiry>,
    turn: &mut Turn,
) -> Next<'a> {
    let with_key = matches!(command, Command::Get { key: true, .. });
    let with_value = command != Command::Touch;
    let mut locked: Locked = turn.service.store.lock(key, turn.now);
    let hit = locked.get(&Get { touch, fetch: with_value, ..Get::PLAIN });
    let out = &mut *turn.out;
    let Some(hit) = hit else {
        match (quiet, with_key) {
            (true, _) => {}
            (false, true) => header.answer(out, status::NOT_FOUND, 0, [&[], key], 0),
            (false, false) => header.fail(out, status::NOT_FOUND),
        }
        return Next::Done;
    };
    let large = with_value && hit.facts.value_len > turn.inline_limit;
    let pinned = if large { locked.pin(&hit) } else { None };
    if large && pinned.is_none() {
        drop(locked);
        header.fail(out, status::NO_MEMORY);
        return Next::Done;
    }
    let flags = hit.facts.flags.to_be_bytes();
    let value_len = if with_value { hit.facts.value_len } else { 0 };
    let key = if with_key { key } else { &[] };
    header.answer(out, status::OK, hit.facts.cas, [&flags, key], value_len);
    match pinned {
        Some(pinned) => return Next::Send(pinned),
        None if with_value => locked.append_value(&hit, out),
        None => {}
    }
    Next::Done
}

fn count(
    header: &Header,
    key: &[u8],
    up: bool,
    delta: u64,
    vivify: Option<(u64, Expiry)>,
    quiet: bool,
    turn: &mut Turn,
) {
    let how = Arithmetic { up, delta, compare: header.cas, vivify, touch: None, binary_key: false };
    let counted = turn.service.store.lock(key, turn.now).arithmetic(&how);
    match counted {
        Counted::Value(..) if quiet => {}
        Counted::Value(value, facts) => header.succeed(turn.out, facts.cas, &value.to_be_bytes()),
        Counted::NotFound => header.fail(turn.out, status::NOT_FOUND),
        Counted::Exists => header.fail(turn.out, status::EXISTS),
        Counted::NotNumeric => header.fail(turn.out, status::NOT_NUMERIC),
        Counted::NoMemory => header.fail(turn.out, status::NO_MEMORY),
    }
}

/// Answers to what was to be stored.
pub(super) fn stored(stored: Stored, header: &Header, turn: &mut Turn) {
    let Some((Command::Store(mode), quiet)) = header.command() else { return };
    let status = match stored {
        Stored::Stored { .. } if quiet => return,
        Stored::Stored { cas } => return header.succeed(turn.out, cas, &[]),
        Stored::NotStored => match mode {
            Mode::Add => status::EXISTS,
            Mode::Replace => status::NOT_FOUND,
            Mode::Set | Mode::Append | Mode::Prepend => status::NOT_STORED,
        },
        Stored::Exists => status::EXISTS,
        Stored::NotFound => status::NOT_FOUND,
        Stored::TooLarge => status::TOO_LARGE,
        Stored::NoMemory => status::NO_MEMORY,
    };
    header.fail(turn.out, status);
}
