//! The rocks protocol: reads, scans and writes of an ordered store.
//!
//! Owns the layout on the wire, its checks, and the value of each key. Shinjuku measures with its
//! mix of short reads and long scans (NSDI'19, section 4: RocksDB). Decoding is total: any bytes
//! give a message or a typed error, never a panic.
//!
//! A message is a header of [`HEADER_LEN`] bytes and a body. All integers are little-endian.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, [`MAGIC`] |
//! | 4 | 1 | version, [`VERSION`] |
//! | 5 | 1 | operation: 1 GET, 2 SCAN, 3 PUT; replies add 128 |
//! | 6 | 1 | requests: zero; replies: status, 0 done, 1 not found, 2 refused, 3 failed |
//! | 7 | 1 | zero |
//! | 8 | 8 | id |
//! | 16 | 8 | key |
//! | 24 | 4 | requests: entries that a SCAN reads at most, else zero; replies: entries read or written |
//! | 28 | 4 | length of the body, at most [`MAX_BODY`] |
//!
//! The body of a PUT, and of a GET's reply, is the value. The body of a SCAN's reply is the sum of
//! the keys read, and the sum of the lengths of their values, 8 bytes each, both modulo 2^64. All
//! other bodies are empty.

use crate::content;
use alloc::vec::Vec;

/// First four bytes of every message: `TWrk`.
pub const MAGIC: [u8; 4] = *b"TWrk";
/// Version of this layout.
pub const VERSION: u8 = 1;
/// Bytes before the body.
pub const HEADER_LEN: usize = 32;
/// Longest body in bytes.
pub const MAX_BODY: usize = 1 << 20;
/// Bytes of the body of a SCAN's reply.
pub const SCAN_BODY: usize = 16;
/// Added to the operation of a reply.
const REPLY: u8 = 0x80;

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The value of a key.
    Get,
    /// All entries from a key on, in the order of keys, up to a number of them.
    Scan,
    /// Stores a value.
    Put,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Done,
    /// The key does not exist.
    NotFound,
    /// The server does not accept the request, or it asks for too much.
    Refused,
    /// The store failed.
    Failed,
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The operation.
    pub operation: Operation,
    /// `None` in a request.
    pub status: Option<Status>,
    /// Chosen by the client, returned unchanged.
    pub id: u64,
    /// The key, or a SCAN's first; stored as 8 bytes big-endian, so that the store's order is that
    /// of the numbers.
    pub key: u64,
    /// A SCAN's most entries; in a reply the entries read or written.
    pub count: u32,
    /// Bytes that follow, at most [`MAX_BODY`].
    pub body_len: u32,
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than a header has.
    #[error("a rocks message has at least {HEADER_LEN} bytes, not {got}")]
    Length {
        /// Bytes received.
        got: usize,
    },
    /// The first four bytes are not [`MAGIC`].
    #[error("not a rocks message: it starts with {found:02x?}, not {MAGIC:02x?}")]
    Magic {
        /// The value found.
        found: [u8; 4],
    },
    /// Another version of the protocol.
    #[error("rocks protocol version {found}; this side speaks {VERSION}")]
    Version {
        /// The value found.
        found: u8,
    },
    /// No such operation or status, or a reserved byte that is not zero.
    #[error("byte {at} of a rocks message is {found:#04x}, which is not defined")]
    Field {
        /// Its offset.
        at: usize,
        /// The value found.
        found: u8,
    },
    /// The body is longer than allowed.
    #[error("a body of {len} bytes was announced, more than the limit of {MAX_BODY}")]
    Body {
        /// The announced length.
        len: u32,
    },
}

impl Header {
    /// Returns a request without a body.
    #[must_use]
    pub fn request(operation: Operation, id: u64, key: u64, count: u32) -> Self {
        Self { operation, status: None, id, key, count, body_len: 0 }
    }

    /// Returns the bytes of this header. `decode` gives it back if `body_len` is at most
    /// [`MAX_BODY`].
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = match self.operation {
            Operation::Get => 1,
            Operation::Scan => 2,
            Operation::Put => 3,
        };
        if let Some(status) = self.status {
            bytes[5] |= REPLY;
            bytes[6] = match status {
                Status::Done => 0,
                Status::NotFound => 1,
                Status::Refused => 2,
                Status::Failed => 3,
            };
        }
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.count.to_le_bytes());
        bytes[28..].copy_from_slice(&self.body_len.to_le_bytes());
        bytes
    }

    /// Reads the header at the beginning of `bytes`; ignores what follows.
    ///
    /// # Errors
    /// A [`DecodeError`] that names the first wrong field.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let bytes: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(DecodeError::Length { got: bytes.len() })?;
        let magic = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if magic != MAGIC {
            return Err(DecodeError::Magic { found: magic });
        }
        if bytes[4] != VERSION {
            return Err(DecodeError::Version { found: bytes[4] });
        }
        let field = |at: usize| DecodeError::Field { at, found: bytes[at] };
        let operation = match bytes[5] & !REPLY {
            1 => Operation::Get,
            2 => Operation::Scan,
            3 => Operation::Put,
            _ => return Err(field(5)),
        };
        let status = match (bytes[5] & REPLY != 0, bytes[6]) {
            (false, 0) => None,
            (true, 0) => Some(Status::Done),
            (true, 1) => Some(Status::NotFound),
            (true, 2) => Some(Status::Refused),
            (true, 3) => Some(Status::Failed),
            _ => return Err(field(6)),
        };
        if bytes[7] != 0 {
            return Err(field(7));
        }
        let body_len = get_u32(bytes, 28);
        if body_len as usize > MAX_BODY {
            return Err(DecodeError::Body { len: body_len });
        }
        let (id, key) = (get_u64(bytes, 8), get_u64(bytes, 16));
        Ok(Self { operation, status, id, key, count: get_u32(bytes, 24), body_len })
    }
}

/// The summary of a SCAN: the body of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanSum {
    /// Sum of the keys, modulo 2^64.
    pub keys: u64,
    /// Sum of the lengths of their values in bytes, modulo 2^64.
    pub value_bytes: u64,
}

impl ScanSum {
    /// Returns the summary of a scan of `count` keys from `first` on, if each has a value of
    /// `value_len` bytes.
    #[must_use]
    pub fn expected(first: u64, count: u32, value_len: usize) -> Self {
        let count = u64::from(count);
        // Half of an even product; the sum 0 + 1 + .. + count-1.
        let offsets = count * count.saturating_sub(1) / 2;
        Self {
            keys: first.wrapping_mul(count).wrapping_add(offsets),
            value_bytes: count.wrapping_mul(value_len as u64),
        }
    }

    /// Returns the bytes of this body.
    #[must_use]
    pub fn encode(&self) -> [u8; SCAN_BODY] {
        let mut bytes = [0; SCAN_BODY];
        bytes[..8].copy_from_slice(&self.keys.to_le_bytes());
        bytes[8..].copy_from_slice(&self.value_bytes.to_le_bytes());
        bytes
    }

    /// Reads a body; `None` unless it has [`SCAN_BODY`] bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SCAN_BODY] = bytes.try_into().ok()?;
        Some(Self { keys: get_u64(bytes, 0), value_bytes: get_u64(bytes, 8) })
    }
}

/// Appends the value of `key`, `len` bytes, which clients store and expect.
pub fn write_value(key: u64, len: usize, out: &mut Vec<u8>) {
    content::fill(key, len, out);
}

/// Returns the integer at `at`; the caller has checked the length.
fn get_u64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn any_header() -> impl Strategy<Value = Header> {
        use {Operation::*, Status::*};
        let operation = prop::sample::select(vec![Get, Scan, Put]);
        let status = prop::option::of(prop::sample::select(vec![Done, NotFound, Refused, Failed]));
        (operation, status, any::<(u64, u64, u32)>(), 0..=MAX_BODY as u32).prop_map(
            |(operation, status, (id, key, count), body_len)| Header {
                operation,
                status,
                id,
                key,
                count,
                body_len,
            },
        )
    }

    #[test]
    fn the_layout_is_as_documented() {
        let status = Some(Status::NotFound);
        let header =
            Header { operation: Operation::Scan, status, id: 0x0102, key: 3, count: 4, body_len: 16 };
        let want = b"TWrk\x01\x82\x01\0\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\x10\0\0\0";
        assert_eq!(header.encode(), *want);
    }

    #[test]
    fn each_wrong_field_is_named() {
        let corrupt = |at: usize| {
            let mut bytes = Header::request(Operation::Get, 1, 2, 0).encode();
            bytes[at] = 0xff;
            Header::decode(&bytes).unwrap_err()
        };
        assert!(matches!(corrupt(0), DecodeError::Magic { .. }));
        assert_eq!(corrupt(4), DecodeError::Version { found: 0xff });
        for at in [5, 6, 7] {
            assert_eq!(corrupt(at), DecodeError::Field { at, found: 0xff });
        }
        assert!(matches!(corrupt(30), DecodeError::Body { .. }));
        assert_eq!(Header::decode(&[0; 31]), Err(DecodeError::Length { got: 31 }));
    }

    #[test]
    fn the_sum_of_a_scan_is_that_of_its_keys() {
        for (first, count) in [(0, 0), (5, 1), (7, 100), (u64::MAX - 3, 10)] {
            let keys = (0..u64::from(count)).fold(0u64, |sum, n| sum.wrapping_add(first.wrapping_add(n)));
            let want = ScanSum { keys, value_bytes: u64::from(count) * 64 };
            assert_eq!(ScanSum::expected(first, count, 64), want);
            assert_eq!(ScanSum::decode(&want.encode()), Some(want));
        }
    }

    proptest! {
        #[test]
        fn headers_read_back(header in any_header()) {
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..48), plausible: bool) {
            if plausible && bytes.len() >= 8 {
                bytes[..8].copy_from_slice(b"TWrk\x01\x81\0\0");
            }
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(&header.encode()[..], &bytes[..HEADER_LEN]);
            }
        }
    }
}
