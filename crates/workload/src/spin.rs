//! The spin protocol: one request, one reply, one UDP datagram each.
//!
//! Owns the layout on the wire and its checks. A request asks the server to compute for `work_ns`
//! and to return the request's fields (the spin server of Shenango NSDI'19, section 7.1). Decoding
//! is total: any bytes give a message or a typed error, never a panic.
//!
//! All integers are little-endian.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, [`MAGIC`] |
//! | 4 | 1 | version, [`VERSION`] |
//! | 5 | 1 | kind: 1 request, 2 reply |
//! | 6 | 2 | zero |
//! | 8 | 8 | id |
//! | 16 | 8 | work in ns |
//! | 24 | 8 | sender's time stamp in ns |
//! | 32 | 8 | replies only: ns from the server's start of the request to its answer |

/// First four bytes of every message: `TWsp`.
pub const MAGIC: [u8; 4] = *b"TWsp";
/// Version of this layout.
pub const VERSION: u8 = 1;
/// Exact length of a request in bytes.
pub const REQUEST_LEN: usize = 32;
/// Exact length of a reply in bytes.
pub const REPLY_LEN: usize = 40;
/// Longest work a server accepts: 10 s, so that a wild value does not occupy a core for centuries.
pub const MAX_WORK_NS: u64 = 10_000_000_000;

const KIND_REQUEST: u8 = 1;
const KIND_REPLY: u8 = 2;

/// A client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Chosen by the client, returned unchanged.
    pub id: u64,
    /// Time to compute in nanoseconds, at most [`MAX_WORK_NS`].
    pub work_ns: u64,
    /// The client's clock at the intended time of sending, returned unchanged; the server does not
    /// read it.
    pub sent_ns: u64,
}

/// The server's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The request, unchanged.
    pub request: Request,
    /// Nanoseconds from the server's start of the request to its answer, on its own clock: the
    /// work, plus any interruptions. 0 if the server has no clock.
    pub served_ns: u64,
}

/// Why bytes are not a message of the kind that was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not exactly as long as the message must be.
    #[error("a spin message of this kind has {want} bytes, not {got}")]
    Length {
        /// Bytes received.
        got: usize,
        /// Bytes a message has.
        want: usize,
    },
    /// The first four bytes are not [`MAGIC`].
    #[error("not a spin message: it starts with {found:02x?}, not {MAGIC:02x?}")]
    Magic {
        /// The value found.
        found: [u8; 4],
    },
    /// Another version of the protocol.
    #[error("spin protocol version {found}; this side speaks {VERSION}")]
    Version {
        /// The value found.
        found: u8,
    },
    /// The message is a request where a reply was expected, or the reverse.
    #[error("spin message kind {found} where {want} was expected (1 is a request, 2 a reply)")]
    Kind {
        /// The value found.
        found: u8,
        /// The value expected.
        want: u8,
    },
    /// The reserved bytes are not zero.
    #[error("the reserved bytes of a spin message are not zero")]
    Reserved,
    /// The work exceeds the bound of all servers.
    #[error("{work_ns} ns of work were requested, more than the limit of {MAX_WORK_NS}")]
    Work {
        /// The requested work.
        work_ns: u64,
    },
}

impl Request {
    /// Returns the bytes of this request. `decode` gives it back if `work_ns` is at most
    /// [`MAX_WORK_NS`].
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        put_header(&mut bytes, KIND_REQUEST, self);
        bytes
    }

    /// Reads a request.
    ///
    /// # Errors
    /// A [`DecodeError`] that names the first wrong field.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let bytes: &[u8; REQUEST_LEN] =
            bytes.try_into().map_err(|_| DecodeError::Length { got: bytes.len(), want: REQUEST_LEN })?;
        get_header(bytes, KIND_REQUEST)
    }
}

impl Reply {
    /// Returns the bytes of this reply. `decode` gives it back if the work is at most
    /// [`MAX_WORK_NS`].
    #[must_use]
    pub fn encode(&self) -> [u8; REPLY_LEN] {
        let mut bytes = [0; REPLY_LEN];
        put_header(&mut bytes, KIND_REPLY, &self.request);
        bytes[32..].copy_from_slice(&self.served_ns.to_le_bytes());
        bytes
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// A [`DecodeError`] that names the first wrong field.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let bytes: &[u8; REPLY_LEN] =
            bytes.try_into().map_err(|_| DecodeError::Length { got: bytes.len(), want: REPLY_LEN })?;
        let request = get_header(bytes, KIND_REPLY)?;
        Ok(Self { request, served_ns: get_u64(bytes, 32) })
    }
}

/// Fills the 32 bytes that both kinds share; `bytes` has at least that many.
fn put_header(bytes: &mut [u8], kind: u8, request: &Request) {
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    bytes[5] = kind;
    bytes[8..16].copy_from_slice(&request.id.to_le_bytes());
    bytes[16..24].copy_from_slice(&request.work_ns.to_le_bytes());
    bytes[24..32].copy_from_slice(&request.sent_ns.to_le_bytes());
}

/// Checks and reads the 32 bytes that both kinds share; `bytes` has at least that many.
fn get_header(bytes: &[u8], want: u8) -> Result<Request, DecodeError> {
    let found = [bytes[0], bytes[1], bytes[2], bytes[3]];
    if found != MAGIC {
        return Err(DecodeError::Magic { found });
    }
    if bytes[4] != VERSION {
        return Err(DecodeError::Version { found: bytes[4] });
    }
    if bytes[5] != want {
        return Err(DecodeError::Kind { found: bytes[5], want });
    }
    if bytes[6..8] != [0, 0] {
        return Err(DecodeError::Reserved);
    }
    let request = Request { id: get_u64(bytes, 8), work_ns: get_u64(bytes, 16), sent_ns: get_u64(bytes, 24) };
    if request.work_ns > MAX_WORK_NS {
        return Err(DecodeError::Work { work_ns: request.work_ns });
    }
    Ok(request)
}

/// Returns the integer at `offset`; the caller has checked the length.
fn get_u64(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REQUEST: Request = Request { id: 0x0102_0304_0506_0708, work_ns: 10_000, sent_ns: 3 };

    #[test]
    fn the_layout_is_as_documented() {
        let bytes = REQUEST.encode();
        assert_eq!(&bytes[..8], b"TWsp\x01\x01\0\0");
        assert_eq!(&bytes[8..16], &[8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(&bytes[16..32], &[0x10, 0x27, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        let reply = Reply { request: REQUEST, served_ns: 5 }.encode();
        assert_eq!(&reply[..8], b"TWsp\x01\x02\0\0");
        assert_eq!(&reply[8..32], &bytes[8..32]);
        assert_eq!(&reply[32..], &[5, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn each_wrong_field_is_named() {
        let corrupt = |at: usize| {
            let mut bytes = REQUEST.encode();
            bytes[at] = 0xff;
            Request::decode(&bytes).unwrap_err()
        };
        assert_eq!(corrupt(0), DecodeError::Magic { found: [0xff, b'W', b's', b'p'] });
        assert_eq!(corrupt(4), DecodeError::Version { found: 0xff });
        assert_eq!(corrupt(5), DecodeError::Kind { found: 0xff, want: 1 });
        assert_eq!(corrupt(7), DecodeError::Reserved);
        assert!(matches!(corrupt(23), DecodeError::Work { .. }));
        assert_eq!(Request::decode(&[0; 31]), Err(DecodeError::Length { got: 31, want: 32 }));
        assert_eq!(Reply::decode(&REQUEST.encode()), Err(DecodeError::Length { got: 32, want: 40 }));
    }

    proptest! {
        #[test]
        fn messages_read_back(id: u64, work_ns in 0..=MAX_WORK_NS, sent_ns: u64, served_ns: u64) {
            let request = Request { id, work_ns, sent_ns };
            prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
            let reply = Reply { request, served_ns };
            prop_assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..48), header: bool) {
            if header && bytes.len() >= 8 {
                bytes[..8].copy_from_slice(b"TWsp\x01\x01\0\0");
            }
            if let Ok(request) = Request::decode(&bytes) {
                prop_assert_eq!(&request.encode()[..], &bytes[..]);
            }
            if let Ok(reply) = Reply::decode(&bytes) {
                prop_assert_eq!(&reply.encode()[..], &bytes[..]);
            }
        }
    }
}
