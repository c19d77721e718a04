//! ICMPv6 messages (RFC 4443): echo, errors both ways, and neighbour discovery (RFC 4861).

use crate::checksum::Checksums;
use crate::error::{Layer, WireError};
use crate::ethernet::MacAddr;
use crate::icmp::{ICMP_HEADER, Report, Undelivered};
use crate::ip::{Addresses, IpProtocol};
use crate::ipv6::PROBLEM_NEXT_HEADER;
use crate::layout::layout;
use core::net::Ipv6Addr;
use kind::{
    DESTINATION_UNREACHABLE, ECHO_REPLY, ECHO_REQUEST, NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION,
    PACKET_TOO_BIG, PARAMETER_PROBLEM, TIME_EXCEEDED,
};

/// Types of messages (RFC 4443, RFC 4861).
pub mod kind {
    #![allow(missing_docs, reason = "the names are those of the RFCs")]
    pub const DESTINATION_UNREACHABLE: u8 = 1;
    pub const PACKET_TOO_BIG: u8 = 2;
    pub const TIME_EXCEEDED: u8 = 3;
    pub const PARAMETER_PROBLEM: u8 = 4;
    pub const ECHO_REQUEST: u8 = 128;
    pub const ECHO_REPLY: u8 = 129;
    pub const ROUTER_SOLICITATION: u8 = 133;
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
}

const CODE_ADDRESS: u8 = 3;
const CODE_PORT: u8 = 4;
const CODE_REASSEMBLY: u8 = 1;

/// Options with a link-layer address (RFC 4861 section 4.6.1).
pub const OPTION_SOURCE_LINK: u8 = 1;
/// As [`OPTION_SOURCE_LINK`].
pub const OPTION_TARGET_LINK: u8 = 2;
/// Bytes of a link-layer address option for Ethernet (RFC 2464 section 6).
const LINK_OPTION: usize = 8;
/// Maximum number of options of one message. The longest Ethernet frame has room for more; no
/// regular message does.
const MAX_OPTIONS: usize = 16;

/// Hop limit of neighbour discovery. Routers decrement it, so a message that arrives with it comes
/// from the link (RFC 4861 section 7.1).
pub const ND_HOP_LIMIT: u8 = 255;
/// Bytes of a neighbour solicitation or advertisement with its link-layer address option.
pub const ND_MESSAGE: usize = ICMP_HEADER + 16 + LINK_OPTION;

layout! {
    /// The header. The meaning of its last four bytes depends on type and code.
    pub struct Icmpv6Header[ICMP_HEADER] {
        kind: u8,
        code: u8,
        checksum: u16,
        rest: [u8; 4],
    }
}

impl Icmpv6Header {
    /// Returns the header of the reply to an echo request with the identifier and sequence number
    /// in `identity`. `data` follows it.
    pub fn echo_reply(addresses: &Addresses, identity: [u8; 4], data: &[u8]) -> Self {
        Self::with_checksum(addresses, ECHO_REPLY, 0, identity, [data, &[]])
    }

    /// Returns the header of an error; the quoted packet follows it, in two parts of which the
    /// first has even length.
    pub fn error(addresses: &Addresses, report: Report, quote: [&[u8]; 2]) -> Self {
        let (kind, code, pointer) = match report {
            Report::Host => (DESTINATION_UNREACHABLE, CODE_ADDRESS, 0),
            Report::Port => (DESTINATION_UNREACHABLE, CODE_PORT, 0),
            Report::Protocol { pointer } => (PARAMETER_PROBLEM, PROBLEM_NEXT_HEADER, pointer),
            Report::Reassembly => (TIME_EXCEEDED, CODE_REASSEMBLY, 0),
            Report::Problem { code, pointer } => (PARAMETER_PROBLEM, code, pointer),
        };
        Self::with_checksum(addresses, kind, code, (pointer as u32).to_be_bytes(), quote)
    }

    fn with_checksum(addresses: &Addresses, kind: u8, code: u8, rest: [u8; 4], data: [&[u8]; 2]) -> Self {
        let mut header = Self { kind, code, checksum: 0, rest };
        let len = ICMP_HEADER + data[0].len() + data[1].len();
        let sum = addresses.pseudo_header(IpProtocol::ICMPV6, len).bytes(&header.to_bytes());
        header.checksum = sum.bytes(data[0]).bytes(data[1]).finish();
        header
    }
}

/// A neighbour solicitation or advertisement, with its link-layer address option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbour {
    /// Asks for the station that has `target`.
    Solicitation {
        /// The address asked for.
        target: Ipv6Addr,
        /// The sender's link-layer address; absent in duplicate address detection (RFC 4862 section
        /// 5.4.2).
        source: Option<MacAddr>,
    },
    /// States that the sender has `target`.
    Advertisement {
        /// The address.
        target: Ipv6Addr,
        /// True if it answers a solicitation (RFC 4861 section 4.4, flag S).
        solicited: bool,
        /// True if it overrides a cached address (flag O).
        replaces: bool,
        /// The station of `target`; may be absent in an answer to a unicast solicitation.
        mac: Option<MacAddr>,
    },
}

layout! {
    /// Both messages with an option, as they are on the wire.
    struct NeighbourLayout[ND_MESSAGE] {
        header: Icmpv6Header,
        target: [u8; 16],
        option: [u8; 2],
        mac: MacAddr,
    }
}

impl Neighbour {
    /// Returns the message with its checksum, and its length: without a link-layer address the last
    /// eight bytes do not belong to it.
    pub fn encode(&self, addresses: &Addresses) -> ([u8; ND_MESSAGE], usize) {
        const S: u8 = 0x40;
        const O: u8 = 0x20;
        let (kind, flags, target, option, mac) = match *self {
            Self::Solicitation { target, source } => {
                (NEIGHBOUR_SOLICITATION, 0, target, OPTION_SOURCE_LINK, source)
            }
            Self::Advertisement { target, solicited, replaces, mac } => {
                let flags = if solicited { S } else { 0 } | if replaces { O } else { 0 };
                (NEIGHBOUR_ADVERTISEMENT, flags, target, OPTION_TARGET_LINK, mac)
            }
        };
        let mut message = NeighbourLayout {
            header: Icmpv6Header { kind, code: 0, checksum: 0, rest: [flags, 0, 0, 0] },
            target: target.octets(),
            option: [option, (LINK_OPTION / 8) as u8],
            mac: mac.unwrap_or(MacAddr::ZERO),
        };
        let len = if mac.is_some() { ND_MESSAGE } else { ND_MESSAGE - LINK_OPTION };
        let sum = addresses.pseudo_header(IpProtocol::ICMPV6, len).bytes(&message.to_bytes()[..len]);
        message.header.checksum = sum.finish();
        (message.to_bytes(), len)
    }

    /// Parses the body of a message of either kind (RFC 4861 sections 7.1.1 and 7.1.2, as far as
    /// they concern the message alone).
    fn parse(header: &Icmpv6Header, body: &[u8]) -> Result<Self, WireError> {
        let Some((target, options)) = body.split_first_chunk::<16>() else {
            let (need, have) = (ICMP_HEADER + 16, ICMP_HEADER + body.len());
            return Err(WireError::Truncated { layer: Layer::Icmpv6, need, have });
        };
        let refuse = |field, value| Err(WireError::Field { layer: Layer::Icmpv6, field, value });
        if header.code != 0 {
            return refuse("code", header.code.into());
        }
        let target = Ipv6Addr::from(*target);
        if target.is_multicast() {
            return refuse("target address", u16::from_be_bytes([target.octets()[0], target.octets()[1]]));
        }
        if header.kind == NEIGHBOUR_SOLICITATION {
            let source = link_option(options, OPTION_SOURCE_LINK)?;
            return Ok(Self::Solicitation { target, source });
        }
        let flags = header.rest[0];
        let mac = link_option(options, OPTION_TARGET_LINK)?;
        Ok(Self::Advertisement { target, solicited: flags & 0x40 != 0, replaces: flags & 0x20 != 0, mac })
    }
}

/// Returns the link-layer address in the options, if there is one. Options of other kinds are
/// skipped. An option of length zero, or longer than the bytes left, invalidates the message (RFC
/// 4861 section 4.6).
fn link_option(mut options: &[u8], wanted: u8) -> Result<Option<MacAddr>, WireError> {
    let mut found = None;
    for _ in 0..MAX_OPTIONS {
        let &[kind, units, ..] = options else {
            return if options.is_empty() {
                Ok(found)
            } else {
                Err(WireError::Truncated { layer: Layer::Icmpv6, need: 2, have: options.len() })
            };
        };
        let len = 8 * usize::from(units);
        if len == 0 || len > options.len() {
            return Err(WireError::Field {
                layer: Layer::Icmpv6,
                field: "option length",
                value: units.into(),
            });
        }
        let (option, rest) = options.split_at(len);
        if kind == wanted && len == LINK_OPTION {
            let &[_, _, a, b, c, d, e, f] = option else { unreachable!("its length was checked") };
            found = Some(MacAddr([a, b, c, d, e, f]));
        }
        options = rest;
    }
    Err(WireError::Field { layer: Layer::Icmpv6, field: "number of options", value: MAX_OPTIONS as u16 + 1 })
}

/// A checked message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Icmpv6Message<'a> {
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
    /// Neighbour discovery. The caller checks that the IP header's hop limit is [`ND_HOP_LIMIT`].
    Neighbour(Neighbour),
    /// Well-formed, and not handled here.
    Other {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
    },
}

impl<'a> Icmpv6Message<'a> {
    /// Parses a message from the payload of a packet between these addresses.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Checksum`], [`WireError::Field`] for neighbour
    /// discovery that breaks its rules.
    pub fn parse(bytes: &'a [u8], addresses: &Addresses, checksums: Checksums) -> Result<Self, WireError> {
        let Some((header, data)) = Icmpv6Header::split(bytes) else {
            return Err(WireError::Truncated { layer: Layer::Icmpv6, need: ICMP_HEADER, have: bytes.len() });
        };
        let sum = || addresses.pseudo_header(IpProtocol::ICMPV6, bytes.len()).bytes(bytes);
        if checksums == Checksums::Verify && sum().finish() != 0 {
            return Err(WireError::Checksum { layer: Layer::Icmpv6 });
        }
        Ok(match (header.kind, header.code) {
            (ECHO_REQUEST, 0) => Self::EchoRequest { identity: header.rest, data },
            (NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT, _) => {
                Self::Neighbour(Neighbour::parse(&header, data)?)
            }
            (kind, code) => match undelivered(&header) {
                Some(why) => Self::Error { why, quote: data },
                None => Self::Other { kind, code },
            },
        })
    }

    /// Returns whether `bytes`, the beginning of a message, belong to an error, which no error may
    /// answer (RFC 4443 section 2.4 (e.1)), or are too short to tell.
    pub fn is_error(bytes: &[u8]) -> bool {
        bytes.first().is_none_or(|kind| *kind < 128)
    }
}

fn undelivered(header: &Icmpv6Header) -> Option<Undelivered> {
    Some(match (header.kind, header.code) {
        (DESTINATION_UNREACHABLE, 0 | 2) => Undelivered::Network,
        (DESTINATION_UNREACHABLE, 1 | 5 | 6) => Undelivered::Prohibited,
        (DESTINATION_UNREACHABLE, CODE_ADDRESS) => Undelivered::Host,
        (DESTINATION_UNREACHABLE, CODE_PORT) => Undelivered::Port,
        // Receivers ignore the code (RFC 4443 section 3.2).
        (PACKET_TOO_BIG, _) => Undelivered::TooBig { mtu: u32::from_be_bytes(header.rest) },
        (TIME_EXCEEDED, 0) => Undelivered::HopLimit,
        (PARAMETER_PROBLEM, PROBLEM_NEXT_HEADER) => Undelivered::Protocol,
        _ => return None,
    })
}
