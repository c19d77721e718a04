//! TCP segments on the wire (RFC 9293 section 3.1): parsed from hostile bytes, written in the
//! layout of Linux.
//!
//! Owns the fixed header and its flags; `options` owns the options. It never computes a checksum:
//! that covers the IP pseudo header, which only the caller knows, so the caller verifies it before
//! [`Segment::parse`] and fills it in after [`Header::emit`]. The urgent pointer is not kept:
//! urgent data is delivered in line, as RFC 6093 section 3.1 recommends for all applications.

mod fast_open;
mod options;

pub use fast_open::{Cookie, FastOpen};
pub use options::{
    MAX_OPTIONS, MAX_SACK_BLOCKS, MAX_WINDOW_SCALE, Options, SackBlock, SackBlocks, Timestamps,
};

use crate::seq::Seq;
use tailwater_wire::{TCP_HEADER, TcpHeader};

/// Bytes of a header without options.
pub const FIXED_HEADER: usize = TCP_HEADER;
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

/// Why bytes are not a segment. The segment is dropped without an answer.
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
        /// The claimed length.
        words: u8,
    },
    /// A port is zero, which is reserved (RFC 6335 section 6).
    #[error("TCP: port zero")]
    Port,
}

/// A header without checksum and urgent pointer.
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
    /// Returns the bytes of this header: a multiple of four, 20 to 60.
    #[inline]
    pub fn len(&self) -> usize {
        FIXED_HEADER + self.options.len()
    }

    /// Returns false: a header has at least twenty bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the header to the beginning of `out` with a checksum of zero; returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`len`](Self::len).
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.len();
        let (fixed, options) = out[..len].split_at_mut(FIXED_HEADER);
        let layout = TcpHeader {
            source: self.source,
            destination: self.destination,
            sequence: self.seq.0,
            acknowledgment: self.ack.0,
            offset: (len as u8 / 4) << 4,
            flags: self.flags.bits(),
            window: self.window,
            checksum: 0,
            urgent: 0,
        };
        fixed.copy_from_slice(&layout.to_bytes());
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
    /// Parses a segment that fills all of `bytes`, as delimited by the IP header's length.
    ///
    /// Unknown options are skipped; from an option with an impossible length on, all are ignored
    /// (RFC 9293 section 3.2 requires that they do no harm).
    ///
    /// # Errors
    /// [`ParseError`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let Ok((raw, _)) = TcpHeader::parse(bytes) else {
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
            source: raw.source,
            destination: raw.destination,
            seq: Seq(raw.sequence),
            ack: Seq(raw.acknowledgment),
            flags: Flags::from_bits_retain(raw.flags),
            window: raw.window,
            options: Options::parse(&header[FIXED_HEADER..]),
        };
        Ok(Self { header, payload })
    }

    /// Returns the number of sequence numbers that the segment takes: its data, SYN and FIN (RFC
    /// 9293 section 3.4).
    #[inline]
    pub fn sequence_len(&self) -> u32 {
        self.payload.len() as u32
            + u32::from(self.header.flags.contains(Flags::SYN))
            + u32::from(self.header.flags.contains(Flags::FIN))
    }
}

#[cfg(test)]
mod tests;
