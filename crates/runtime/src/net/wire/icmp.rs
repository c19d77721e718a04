//! ICMP messages (RFC 792): echo, and errors both ways.

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
const TIME_EXCEEDED: u8 = 11;
const CODE_PROTOCOL: u8 = 2;
const CODE_PORT: u8 = 3;
const CODE_REASSEMBLY: u8 = 1;

/// Why a packet did not arrive, as an ICMP or ICMPv6 error says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Undelivered {
    /// No route leads to its network (RFC 792 type 3 codes 0, 5, 6, 11; RFC 4443 type 1 codes 0, 2).
    Network,
    /// The host does not answer (RFC 792 type 3 codes 1, 7, 8, 12; RFC 4443 type 1 code 3).
    Host,
    /// The host does not speak its protocol (RFC 792 type 3 code 2; RFC 4443 type 4 code 1).
    Protocol,
    /// Nobody listens at its port (RFC 792 type 3 code 3; RFC 4443 type 1 code 4).
    Port,
    /// Somebody on the way forbids it (RFC 1812 section 5.2.7.1; RFC 4443 type 1 codes 1, 5, 6).
    Prohibited,
    /// A link on the way carries packets of `mtu` bytes only (RFC 1191, RFC 4443 type 2). Zero: the router did not say (RFC
    /// 1191 section 5).
    TooBig {
        /// Bytes the link carries, as alleged.
        mtu: u32,
    },
    /// It ran out of hops (RFC 792 type 11 code 0; RFC 4443 type 3 code 0).
    HopLimit,
}

/// An error this host reports to the sender of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// Nobody listens at its port.
    Port,
    /// Its protocol is not spoken here. IPv6 points at the byte that names it, counted from the packet's first.
    Protocol {
        /// That byte.
        pointer: usize,
    },
    /// Not all of its pieces came in time.
    Reassembly,
    /// A field, of IPv6's headers only.
    Problem {
        /// RFC 4443 section 3.4.
        code: u8,
        /// The guilty byte.
        pointer: usize,
    },
}

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
        Self::with_checksum(ECHO_REPLY, 0, identity, [data, &[]])
    }

    /// The header of an error, to precede the quoted packet, which may be in two parts of which the first has even length. A
    /// [`Report::Problem`] is IPv6's and has no place here: `None`.
    pub fn error(report: Report, quote: [&[u8]; 2]) -> Option<Self> {
        let (kind, code) = match report {
            Report::Port => (DESTINATION_UNREACHABLE, CODE_PORT),
            Report::Protocol { .. } => (DESTINATION_UNREACHABLE, CODE_PROTOCOL),
            Report::Reassembly => (TIME_EXCEEDED, CODE_REASSEMBLY),
            Report::Problem { .. } => return None,
        };
        Some(Self::with_checksum(kind, code, [0; 4], quote))
    }

    fn with_checksum(kind: u8, code: u8, rest: [u8; 4], data: [&[u8]; 2]) -> Self {
        let mut header = Self { kind, code, checksum: 0.into(), rest };
        header.checksum = Sum::new().bytes(header.as_bytes()).bytes(data[0]).bytes(data[1]).finish().into();
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
    /// A packet of ours did not arrive.
    Error {
        /// Why.
        why: Undelivered,
        /// The beginning of that packet.
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
            (kind, code) => match undelivered(header) {
                Some(why) => Self::Error { why, quote: data },
                None => Self::Other { kind, code },
            },
        })
    }
}

fn undelivered(header: &IcmpHeader) -> Option<Undelivered> {
    let [.., high, low] = header.rest;
    Some(match (header.kind, header.code) {
        (DESTINATION_UNREACHABLE, 0 | 5 | 6 | 11) => Undelivered::Network,
        (DESTINATION_UNREACHABLE, 1 | 7 | 8 | 12) => Undelivered::Host,
        (DESTINATION_UNREACHABLE, CODE_PROTOCOL) => Undelivered::Protocol,
        (DESTINATION_UNREACHABLE, CODE_PORT) => Undelivered::Port,
        (DESTINATION_UNREACHABLE, 4) => Undelivered::TooBig { mtu: u16::from_be_bytes([high, low]).into() },
        (DESTINATION_UNREACHABLE, 9 | 10 | 13..=15) => Undelivered::Prohibited,
        (TIME_EXCEEDED, 0) => Undelivered::HopLimit,
        _ => return None,
    })
}
