//! Headers of the binary protocol: requests are decoded, answers are written.

use crate::store::{MAX_KEY, Mode};

/// First byte of a request.
pub(super) const REQUEST: u8 = 0x80;
/// First byte of an answer.
const RESPONSE: u8 = 0x81;
/// Bytes of a header.
pub(super) const HEADER: usize = 24;

/// Statuses.
pub(super) mod status {
    pub const OK: u16 = 0;
    pub const NOT_FOUND: u16 = 1;
    pub const EXISTS: u16 = 2;
    pub const TOO_LARGE: u16 = 3;
    pub const INVALID: u16 = 4;
    pub const NOT_STORED: u16 = 5;
    pub const NOT_NUMERIC: u16 = 6;
    pub const UNKNOWN: u16 = 0x81;
    pub const NO_MEMORY: u16 = 0x82;
    pub const TEMPORARY: u16 = 0x86;
}

/// The header of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    opcode: u8,
    pub key_len: usize,
    pub extras_len: usize,
    /// Bytes of extras, key and value together.
    pub body_len: usize,
    opaque: [u8; 4],
    /// Version of the intended item; 0 means any.
    pub cas: u64,
}

/// The command of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
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
    /// Decodes a header without checking it.
    pub fn decode(bytes: &[u8; HEADER]) -> Self {
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

    /// Returns the command, and true if it is quiet.
    pub fn command(&self) -> Option<(Command, bool)> {
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

    /// Returns true if the lengths fit the command; extras and key are no longer than the body.
    pub fn is_valid(&self, command: Command) -> bool {
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

    /// Appends an answer's header and the available parts of its body; `value_len` more bytes
    /// follow.
    pub fn answer(&self, out: &mut Vec<u8>, status: u16, cas: u64, parts: [&[u8]; 2], value_len: usize) {
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

    /// Appends a success answer with a value.
    pub fn succeed(&self, out: &mut Vec<u8>, cas: u64, value: &[u8]) {
        self.answer(out, status::OK, cas, [&[], &[]], value.len());
        out.extend_from_slice(value);
    }

    /// Appends an error answer with its text.
    pub fn fail(&self, out: &mut Vec<u8>, status: u16) {
        let text = match status {
            status::NOT_FOUND => "Not found",
            status::EXISTS => "Data exists for key.",
            status::TOO_LARGE => "Too large.",
            status::INVALID => "Invalid arguments",
            status::NOT_STORED => "Not stored.",
            status::NOT_NUMERIC => "Non-numeric server-side value for incr or decr",
            status::NO_MEMORY => "Out of memory",
            status::TEMPORARY => "Temporary failure",
            _ => "Unknown command",
        };
        self.answer(out, status, 0, [&[], &[]], text.len());
        out.extend_from_slice(text.as_bytes());
    }

    /// Appends one statistic; an empty one marks the end.
    pub fn statistic(&self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        self.answer(out, status::OK, 0, [&[], name], value.len());
        out.extend_from_slice(value);
    }
}
