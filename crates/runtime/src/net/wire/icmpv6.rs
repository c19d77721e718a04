//! ICMPv6 messages (RFC 4443): echo, errors both ways; and neighbour discovery (RFC 4861), which rides on them.

use super::error::{Layer, WireError};
use super::ethernet::MacAddr;
use super::icmp::{ICMP_HEADER, Report, Undelivered};
use super::ip::Addresses;
use super::ipv4::{Checksums, IpProtocol};
use super::ipv6::PROBLEM_NEXT_HEADER;
use core::net::Ipv6Addr;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const DESTINATION_UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const CODE_PORT: u8 = 4;
const CODE_REASSEMBLY: u8 = 1;

const OPTION_SOURCE_LINK: u8 = 1;
const OPTION_TARGET_LINK: u8 = 2;
/// Bytes of a link-layer address option for Ethernet (RFC 2464 section 6).
const LINK_OPTION: usize = 8;
/// Options of one message that are looked at: Ethernet's longest frame has room for more, and no honest host needs them.
const MAX_OPTIONS: usize = 16;

/// Hop limit of neighbour discovery: no router forwards it, so that what arrives with it comes from the link (RFC 4861
/// section 7.1).
pub const ND_HOP_LIMIT: u8 = 255;
/// Bytes of a neighbour solicitation or advertisement with its link-layer address option.
pub const ND_MESSAGE: usize = ICMP_HEADER + 16 + LINK_OPTION;

/// The header: what its last four bytes say depends on type and code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Icmpv6Header {
    kind: u8,
    code: u8,
    checksum: U16,
    rest: [u8; 4],
}

const _: () = assert!(size_of::<Icmpv6Header>() == ICMP_HEADER);

impl Icmpv6Header {
    /// The header of the reply to an echo request with these identifier and sequence bytes, to precede `data`.
    pub fn echo_reply(addresses: &Addresses, identity: [u8; 4], data: &[u8]) -> Self {
        Self::with_checksum(addresses, ECHO_REPLY, 0, identity, [data, &[]])
    }

    /// The header of an error, to precede the quoted packet, which may be in two parts of which the first has even length.
    pub fn error(addresses: &Addresses, report: Report, quote: [&[u8]; 2]) -> Self {
        let (kind, code, pointer) = match report {
            Report::Port => (DESTINATION_UNREACHABLE, CODE_PORT, 0),
            Report::Protocol { pointer } => (PARAMETER_PROBLEM, PROBLEM_NEXT_HEADER, pointer),
            Report::Reassembly => (TIME_EXCEEDED, CODE_REASSEMBLY, 0),
            Report::Problem { code, pointer } => (PARAMETER_PROBLEM, code, pointer),
        };
        Self::with_checksum(addresses, kind, code, (pointer as u32).to_be_bytes(), quote)
    }

    fn with_checksum(addresses: &Addresses, kind: u8, code: u8, rest: [u8; 4], data: [&[u8]; 2]) -> Self {
        let mut header = Self { kind, code, checksum: 0.into(), rest };
        let len = ICMP_HEADER + data[0].len() + data[1].len();
        let sum = addresses.pseudo_header(IpProtocol::ICMPV6, len).bytes(header.as_bytes());
        header.checksum = sum.bytes(data[0]).bytes(data[1]).finish().into();
        header
    }
}

/// A neighbour solicitation or advertisement, with the one option this stack sends and reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbour {
    /// Who has `target`?
    Solicitation {
        /// The address asked for.
        target: Ipv6Addr,
        /// The sender's link-layer address; absent in a probe for duplicates (RFC 4862 section 5.4.2).
        source: Option<MacAddr>,
    },
    /// The sender has `target`.
    Advertisement {
        /// The address.
        target: Ipv6Addr,
        /// It answers a solicitation (RFC 4861 section 4.4, flag S).
        solicited: bool,
        /// It is to replace what is known (flag O).
        replaces: bool,
        /// Where `target` is; absent when the one that asked must know.
        mac: Option<MacAddr>,
    },
}

/// The bytes of both messages, with an option.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct NeighbourLayout {
    header: Icmpv6Header,
    target: [u8; 16],
    option: [u8; 2],
    mac: MacAddr,
}

const _: () = assert!(size_of::<NeighbourLayout>() == ND_MESSAGE);

impl Neighbour {
    /// The bytes of the message, its checksum filled in, and how many of them there are: without a link-layer address, the
    /// last eight are none.
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
            header: Icmpv6Header { kind, code: 0, checksum: 0.into(), rest: [flags, 0, 0, 0] },
            target: target.octets(),
            option: [option, (LINK_OPTION / 8) as u8],
            mac: mac.unwrap_or(MacAddr::ZERO),
        };
        let len = if mac.is_some() { ND_MESSAGE } else { ND_MESSAGE - LINK_OPTION };
        let sum = addresses.pseudo_header(IpProtocol::ICMPV6, len).bytes(&message.as_bytes()[..len]);
        message.header.checksum = sum.finish().into();
        (zerocopy::transmute!(message), len)
    }

    /// Reads what follows the header of a message of either kind (RFC 4861 sections 7.1.1 and 7.1.2, as far as they concern
    /// the message alone).
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

/// The link-layer address in the options, if it is there. Options of other kinds are stepped over; one of length zero, or
/// that is longer than what is left, condemns the message (RFC 4861 section 4.6).
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
    /// Neighbour discovery. That the hop limit is [`ND_HOP_LIMIT`] is for who has the IP header to check.
    Neighbour(Neighbour),
    /// Well-formed, and no concern of this stack.
    Other {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
    },
}

impl<'a> Icmpv6Message<'a> {
    /// Reads a message from the payload of a packet between these addresses.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Checksum`], [`WireError::Field`] for neighbour discovery that breaks its rules.
    pub fn parse(bytes: &'a [u8], addresses: &Addresses, checksums: Checksums) -> Result<Self, WireError> {
        let Ok((header, data)) = Icmpv6Header::ref_from_prefix(bytes) else {
            return Err(WireError::Truncated { layer: Layer::Icmpv6, need: ICMP_HEADER, have: bytes.len() });
        };
        let sum = || addresses.pseudo_header(IpProtocol::ICMPV6, bytes.len()).bytes(bytes);
        if checksums == Checksums::Verify && sum().finish() != 0 {
            return Err(WireError::Checksum { layer: Layer::Icmpv6 });
        }
        Ok(match (header.kind, header.code) {
            (ECHO_REQUEST, 0) => Self::EchoRequest { identity: header.rest, data },
            (NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT, _) => {
                Self::Neighbour(Neighbour::parse(header, data)?)
            }
            (kind, code) => match undelivered(header) {
                Some(why) => Self::Error { why, quote: data },
                None => Self::Other { kind, code },
            },
        })
    }

    /// Whether `bytes`, the beginning of a message, are an error's: no error answers one (RFC 4443 section 2.4 (e.1)). What
    /// is too short to tell counts as one.
    pub fn is_error(bytes: &[u8]) -> bool {
        bytes.first().is_none_or(|kind| *kind < 128)
    }
}

fn undelivered(header: &Icmpv6Header) -> Option<Undelivered> {
    Some(match (header.kind, header.code) {
        (DESTINATION_UNREACHABLE, 0 | 2) => Undelivered::Network,
        (DESTINATION_UNREACHABLE, 1 | 5 | 6) => Undelivered::Prohibited,
        (DESTINATION_UNREACHABLE, 3) => Undelivered::Host,
        (DESTINATION_UNREACHABLE, CODE_PORT) => Undelivered::Port,
        // The code is for the receiver to ignore (RFC 4443 section 3.2).
        (PACKET_TOO_BIG, _) => Undelivered::TooBig { mtu: u32::from_be_bytes(header.rest) },
        (TIME_EXCEEDED, 0) => Undelivered::HopLimit,
        (PARAMETER_PROBLEM, PROBLEM_NEXT_HEADER) => Undelivered::Protocol,
        _ => return None,
    })
}
