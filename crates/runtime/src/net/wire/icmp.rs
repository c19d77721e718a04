//! ICMP messages (RFC 792): echo, and "port unreachable" both ways.

use super::checksum::{Sum, checksum};
use super::error::{Layer, WireError};
use super::ipv4::Checksums;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of header before an echo's data or an error's quotation.
pub const ICMP_HEADER: usize = 8;

const ECHO_REPLY: u8 = 0;
const DESTINATION_UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const CODE_PORT: u8 = 3;

/// The header: what it says depends on type and code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IcmpHeader {
    kind: u8,
    code: u8,
    checksum: U16,
    rest: [u8; 4],
}

const _: () = assert!(size_of::<IcmpHeader>() == ICMP_HEADER);

impl IcmpHeader {
    /// The header of the reply to an echo request with these identifier and sequence bytes, to precede `data`.
    pub fn echo_reply(identity: [u8; 4], data: &[u8]) -> Self {
        Self::with_checksum(ECHO_REPLY, 0, identity, data)
    }

    /// The header of a "port unreachable" message, to precede the quoted packet.
    pub fn port_unreachable(quote: &[u8]) -> Self {
        Self::with_checksum(DESTINATION_UNREACHABLE, CODE_PORT, [0; 4], quote)
    }

    fn with_checksum(kind: u8, code: u8, rest: [u8; 4], data: &[u8]) -> Self {
        let mut header = Self { kind, code, checksum: 0.into(), rest };
        header.checksum = Sum::new().bytes(header.as_bytes()).bytes(data).finish().into();
        header
    }
}

/// A checked message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpMessage<'a> {
    /// Wants its data back.
    EchoRequest {
        /// Identifier and sequence number, which the reply repeats.
        identity: [u8; 4],
        /// The data to repeat.
        data: &'a [u8],
    },
    /// A datagram of ours found no socket.
    PortUnreachable {
        /// The beginning of that datagram's packet.
        quote: &'a [u8],
    },
    /// Well-formed, and no concern of this stack.
    Other {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
    },
}

impl<'a> IcmpMessage<'a> {
    /// Reads a message from the payload of an IPv4 packet.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Checksum`].
    pub fn parse(bytes: &'a [u8], checksums: Checksums) -> Result<Self, WireError> {
        let Ok((header, data)) = IcmpHeader::ref_from_prefix(bytes) else {
            return Err(WireError::Truncated { layer: Layer::Icmp, need: ICMP_HEADER, have: bytes.len() });
        };
        if checksums == Checksums::Verify && checksum(bytes) != 0 {
            return Err(WireError::Checksum { layer: Layer::Icmp });
        }
        Ok(match (header.kind, header.code) {
            (ECHO_REQUEST, 0) => Self::EchoRequest { identity: header.rest, data },
            (DESTINATION_UNREACHABLE, CODE_PORT) => Self::PortUnreachable { quote: data },
            (kind, code) => Self::Other { kind, code },
        })
    }
}
