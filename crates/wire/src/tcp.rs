//! The fixed part of a TCP header (RFC 9293 section 3.1).
//!
//! Owns the layout. Options, sequence arithmetic and what a segment does are the TCP crate's.

use crate::error::{Layer, WireError};
use crate::layout::layout;

/// Bytes of a header without options.
pub const TCP_HEADER: usize = 20;

layout! {
    /// The header's fixed part, as it is on the wire.
    pub struct TcpHeader[TCP_HEADER] {
        /// Port of the sender.
        pub source: u16,
        /// Port of the receiver.
        pub destination: u16,
        /// Number of the first byte of data, or of the SYN.
        pub sequence: u32,
        /// The next number the sender expects.
        pub acknowledgment: u32,
        /// Data offset in words, in the upper four bits; the lower four are reserved.
        pub offset: u8,
        /// Control bits, FIN lowest, CWR highest.
        pub flags: u8,
        /// Receive window, not yet scaled.
        pub window: u16,
        /// Checksum over pseudo-header and segment.
        pub checksum: u16,
        /// Urgent pointer.
        pub urgent: u16,
    }
}

impl TcpHeader {
    /// Splits a segment into the header's fixed part, and options and data. Checks nothing but the
    /// length.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(Self, &[u8]), WireError> {
        Self::split(segment).ok_or(WireError::Truncated {
            layer: Layer::Tcp,
            need: TCP_HEADER,
            have: segment.len(),
        })
    }

    /// Returns the bytes of header including options, as the data offset states them: 0 to 60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.offset >> 4) * 4
    }
}
