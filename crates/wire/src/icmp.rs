//! ICMP messages (RFC 792): echo, and errors both ways.

use crate::checksum::{Checksums, Sum, checksum};
use crate::error::{Layer, WireError};
use crate::layout::layout;
use kind::{DESTINATION_UNREACHABLE, ECHO_REPLY, ECHO_REQUEST, TIME_EXCEEDED};

/// Bytes of header before an echo's data or an error's quotation.
pub const ICMP_HEADER: usize = 8;

/// Types of messages (RFC 792, RFC 1256).
pub mod kind {
    #![allow(missing_docs, reason = "the names are those of the RFCs")]
    pub const ECHO_REPLY: u8 = 0;
    pub const DESTINATION_UNREACHABLE: u8 = 3;
    pub const SOURCE_QUENCH: u8 = 4;
    pub const REDIRECT: u8 = 5;
    pub const ECHO_REQUEST: u8 = 8;
    pub const ROUTER_ADVERTISEMENT: u8 = 9;
    pub const TIME_EXCEEDED: u8 = 11;
    pub const PARAMETER_PROBLEM: u8 = 12;
}

const CODE_HOST: u8 = 1;
const CODE_PROTOCOL: u8 = 2;
const CODE_PORT: u8 = 3;
const CODE_REASSEMBLY: u8 = 1;

/// Why a packet did not arrive, as an ICMP or ICMPv6 error states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Undelivered {
    /// No route leads to its network (RFC 792 type 3 codes 0, 5, 6, 11; RFC 4443 type 1 codes 0,
    /// 2).
    Network,
    /// The host does not answer (RFC 792 type 3 codes 1, 7, 8, 12; RFC 4443 type 1 code 3).
    Host,
    /// The host does not speak its protocol (RFC 792 type 3 code 2; RFC 4443 type 4 code 1).
    Protocol,
    /// No socket is open at its port (RFC 792 type 3 code 3; RFC 4443 type 1 code 4).
    Port,
    /// A filter on the path refused it (RFC 1812 section 5.2.7.1; RFC 4443 type 1 codes 1, 5, 6).
    Prohibited,
    /// A link on the path carries packets of at most `mtu` bytes (RFC 1191, RFC 4443 type 2). Zero
    /// if the router did not state it (RFC 1191 section 5).
    TooBig {
        /// Bytes the link carries, according to the error.
        mtu: u32,
    },
    /// Its hop limit reached zero (RFC 792 type 11 code 0; RFC 4443 type 3 code 0).
    HopLimit,
}

/// An error this host reports to the sender of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// No host has its address.
    Host,
    /// No socket is open at its port.
    Port,
    /// Its protocol is not implemented. An ICMPv6 error points at the byte that names the protocol.
    Protocol {
        /// That byte, counted from the packet's first.
        pointer: usize,
    },
    /// Some of its fragments did not arrive in time.
    Reassembly,
    /// A field of an IPv6 header is wrong.
    Problem {
        /// RFC 4443 section 3.4.
        code: u8,
        /// The byte at fault.
        pointer: usize,
    },
}

layout! {
    /// The header. The meaning of its last four bytes depends on type and code.
    pub struct IcmpHeader[ICMP_HEADER] {
        kind: u8,
        code: u8,
        checksum: u16,
        rest: [u8; 4],
    }
}

impl IcmpHeader {
    /// Returns the header of the reply to an echo request with the identifier and sequence number
    /// in `identity`. `data` follows it.
    pub fn echo_reply(identity: [u8; 4], data: &[u8]) -> Self {
        Self::with_checksum(ECHO_REPLY, 0, identity, [data, &[]])
    }

    /// Returns the header of an error; the quoted packet follows it, in two parts of which the
    /// first has even length. `None` for a [`Report::Problem`], which only ICMPv6 has.
    pub fn error(report: Report, quote: [&[u8]; 2]) -> Option<Self> {
        let (kind, code) = match report {
            Report::Host => (DESTINATION_UNREACHABLE, CODE_HOST),
            Report::Port => (DESTINATION_UNREACHABLE, CODE_PORT),
            Report::Protocol { .. } => (DESTINATION_UNREACHABLE, CODE_PROTOCOL),
            Report::Reassembly => (TIME_EXCEEDED, CODE_REASSEMBLY),
            Report::Problem { .. } => return None,
        };
        Some(Self::with_checksum(kind, code, [0; 4], quote))
    }

    fn with_checksum(kind: u8, code: u8, rest: [u8; 4], data: [&[u8]; 2]) -> Self {
        let mut header = Self { kind, code, checksum: 0, rest };
        header.checksum = Sum::new().bytes(&header.to_bytes()).bytes(data[0]).bytes(data[1]).finish();
        header
    }
}

/// A checked message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpMessage<'a> {
    /// An echo request.
    EchoRequest {
        /// Identifier and sequence number; the reply repeats them.
        identity: [u8; 4],
        /// The data; the reply repeats it.
        data: &'a [u8],
    },
    /// A packet of this host did not arrive.
    Error {
        /// The reason.
        why: Undelivered,
        /// The beginning of that packet.
        quote: &'a [u8],
    },
    /// Well-formed, and not handled here.
    Other {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
    },
}

impl<'a> IcmpMessage<'a> {
    /// Parses a message from the payload of an IPv4 packet.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Checksum`].
    pub fn parse(bytes: &'a [u8], checksums: Checksums) -> Result<Self, WireError> {
        let Some((header, data)) = IcmpHeader::split(bytes) else {
            return Err(WireError::Truncated { layer: Layer::Icmp, need: ICMP_HEADER, have: bytes.len() });
        };
        if checksums == Checksums::Verify && checksum(bytes) != 0 {
            return Err(WireError::Checksum { layer: Layer::Icmp });
        }
        Ok(match (header.kind, header.code) {
            (ECHO_REQUEST, 0) => Self::EchoRequest { identity: header.rest, data },
            (kind, code) => match undelivered(&header) {
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
        (DESTINATION_UNREACHABLE, CODE_HOST | 7 | 8 | 12) => Undelivered::Host,
        (DESTINATION_UNREACHABLE, CODE_PROTOCOL) => Undelivered::Protocol,
        (DESTINATION_UNREACHABLE, CODE_PORT) => Undelivered::Port,
        (DESTINATION_UNREACHABLE, 4) => Undelivered::TooBig { mtu: u16::from_be_bytes([high, low]).into() },
        (DESTINATION_UNREACHABLE, 9 | 10 | 13..=15) => Undelivered::Prohibited,
        (TIME_EXCEEDED, 0) => Undelivered::HopLimit,
        _ => return None,
    })
}
