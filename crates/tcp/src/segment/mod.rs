//! TCP segments on the wire (RFC 9293 section 3.1): read from hostile bytes, written for Linux to like.
//!
//! Owns the fixed header and its flags; options are next door. Never sums: the checksum covers the IP pseudo header, which
//! only the caller knows, so it verifies before [`Segment::parse`] and fills in after [`Header::emit`]. The urgent pointer
//! is not kept: urgent data is delivered in line, as RFC 6093 section 3.1 has all applications ask for.

mod options;

pub use options::{
    MAX_OPTIONS, MAX_SACK_BLOCKS, MAX_WINDOW_SCALE, Options, SackBlock, SackBlocks, Timestamps,
};

use crate::Seq;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header without options.
pub const FIXED_HEADER: usize = 20;
/// Bytes of the longest header: fifteen words.
pub const MAX_HEADER: usize = FIXED_HEADER + MAX_OPTIONS;

bitflags::bitflags! {
    /// The control bits (RFC 9293 section 3.1, RFC 3168 section 6.1).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Flags: u8 {
        /// No more data from the sender.
        const FIN = 1;
        /// Synchronise sequence numbers.
        const SYN = 1 << 1;
        /// Reset the connection.
        const RST = 1 << 2;
        /// Hand what was received to the application.
        const PSH = 1 << 3;
        /// The acknowledgment field is significant.
        const ACK = 1 << 4;
        /// The urgent pointer is significant; ignored here.
        const URG = 1 << 5;
        /// ECN-Echo: congestion was experienced.
        const ECE = 1 << 6;
        /// Congestion window reduced.
        const CWR = 1 << 7;
    }
}

/// Why bytes are no segment. It is dropped; there is nobody to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The bytes end before the header does.
    #[error("TCP: a header of {need} bytes in a segment of {have}")]
    Truncated {
        /// Bytes needed.
        need: usize,
        /// Bytes present.
        have: usize,
    },
    /// The header claims to be shorter than its fixed part.
    #[error("TCP: a data offset of {words} words is below 5")]
    DataOffset {
        /// What it claims.
        words: u8,
    },
    /// A port is zero, which nobody can have (RFC 6335 section 6).
    #[error("TCP: port zero")]
    Port,
}

/// The bytes of the fixed header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    source: U16,
    destination: U16,
    seq: U32,
    ack: U32,
    /// Data offset in words, in the high four bits.
    offset: u8,
    flags: u8,
    window: U16,
    checksum: U16,
    urgent: U16,
}

const _: () = assert!(size_of::<Layout>() == FIXED_HEADER);

/// A header: all but checksum and urgent pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Port of the sender.
    pub source: u16,
    /// Port of the receiver.
    pub destination: u16,
    /// Number of the first byte of data, or of the SYN.
    pub seq: Seq,
    /// The next number expected by the sender; meaningful with [`Flags::ACK`].
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// The window as it is on the wire: not yet shifted (RFC 7323 section 2.2).
    pub window: u16,
    /// Options.
    pub options: Options,
}

impl Header {
    /// Bytes of this header: a multiple of four, 20 to 60.
    #[inline]
    pub fn len(&self) -> usize {
        FIXED_HEADER + self.options.len()
    }

    /// Never: a header has at least twenty bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the header into the beginning of `out` with a checksum of zero, and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`len`](Self::len).
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.len();
        let (fixed, options) = out[..len].split_at_mut(FIXED_HEADER);
        let layout = Layout {
            source: self.source.into(),
            destination: self.destination.into(),
            seq: self.seq.0.into(),
            ack: self.ack.0.into(),
            offset: (len as u8 / 4) << 4,
            flags: self.flags.bits(),
            window: self.window.into(),
            checksum: 0.into(),
            urgent: 0.into(),
        };
        fixed.copy_from_slice(layout.as_bytes());
        self.options.emit(options);
        len
    }
}

/// A header and the data behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The header.
    pub header: Header,
    /// The data.
    pub payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Reads a segment: all of `bytes`, which is what the IP header's length leaves.
    ///
    /// Options that cannot be understood are skipped; from one with an impossible length on, all are ignored (RFC 9293
    /// section 3.2 asks that they do no harm).
    ///
    /// # Errors
    /// [`ParseError`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let Ok((raw, _)) = Layout::ref_from_prefix(bytes) else {
            return Err(ParseError::Truncated { need: FIXED_HEADER, have: bytes.len() });
        };
        let words = raw.offset >> 4;
        let header_len = usize::from(words) * 4;
        if header_len < FIXED_HEADER {
            return Err(ParseError::DataOffset { words });
        }
        let Some((header, payload)) = bytes.split_at_checked(header_len) else {
            return Err(ParseError::Truncated { need: header_len, have: bytes.len() });
        };
        if raw.source == 0 || raw.destination == 0 {
            return Err(ParseError::Port);
        }
        let header = Header {
            source: raw.source.get(),
            destination: raw.destination.get(),
            seq: Seq(raw.seq.get()),
            ack: Seq(raw.ack.get()),
            flags: Flags::from_bits_retain(raw.flags),
            window: raw.window.get(),
            options: Options::parse(&header[FIXED_HEADER..]),
        };
        Ok(Self { header, payload })
    }

    /// How many sequence numbers the segment takes: its data, SYN and FIN (RFC 9293 section 3.4).
    #[inline]
    pub fn sequence_len(&self) -> u32 {
        self.payload.len() as u32
            + u32::from(self.header.flags.contains(Flags::SYN))
            + u32::from(self.header.flags.contains(Flags::FIN))
    }
}

#[cfg(test)]
mod tests;
