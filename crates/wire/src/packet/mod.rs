//! IP packets as far as a switch and a firewall parse them: addresses, upper-layer protocol, ports,
//! fragmentation.
//!
//! Owns the walk over IPv4 options and IPv6 extension headers, with bounds: every offset is checked
//! against the bytes present, and a chain of more than [`MAX_EXTENSIONS`] headers is refused, so
//! that nothing hides behind it (RFC 7113 section 3). Pure; checks no sender: which packets it may
//! send is decided by the switch and the firewall.
//!
//! A host's walk is [`upper_layer`](crate::ipv6::upper_layer): it checks options, names the byte at
//! fault, ends at a fragment, and takes a header that no host here knows for the protocol. The walk
//! here looks past all that. A test compares both where neither difference counts.

use crate::ethernet::ETHERNET_HEADER;
use crate::frame::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::ip::IpProtocol;
use crate::ipv4::{IPV4_HEADER, Ipv4Header};
use crate::ipv6::{IPV6_HEADER, Ipv6Packet, MAX_EXTENSIONS};
use crate::tcp::TCP_HEADER;
use crate::udp::UDP_HEADER;

// Plain numbers, as those of [`crate::frame`]: rules and the eBPF programs compare bytes.
/// Number of the protocol ICMP.
pub const ICMP: u8 = IpProtocol::ICMP.0;
/// Number of the protocol TCP.
pub const TCP: u8 = IpProtocol::TCP.0;
/// Number of the protocol UDP.
pub const UDP: u8 = IpProtocol::UDP.0;
/// Number of the protocol ICMPv6.
pub const ICMPV6: u8 = IpProtocol::ICMPV6.0;
/// The flag ACK of TCP.
const ACK: u8 = 0x10;

/// Lengths or headers that contradict one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The family of a packet's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Which part of a datagram a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it. An IPv6 packet may have a fragment header all the same (RFC 6946).
    Whole,
    /// The first fragment: the upper-layer header must be in it.
    First,
    /// A later fragment, at this multiple of eight bytes.
    Later(u16),
}

/// One IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The family of both addresses.
    pub family: Family,
    /// As a big-endian number; an IPv4 address in the low 32 bits.
    pub source: u128,
    /// As [`source`](Self::source).
    pub destination: u128,
    /// Upper-layer protocol: what follows the last extension header.
    pub protocol: u8,
    /// Hop limit, or time to live.
    pub hop_limit: u8,
    /// Which part of its datagram it is.
    pub part: Part,
    /// What the fragments of a datagram have in common; 0 in IPv6 without a fragment header.
    pub identification: u32,
    /// Has an IPv6 fragment header.
    pub fragment_header: bool,
    /// The packet names the routers of its path (IPv4 options, IPv6 routing headers with segments
    /// left).
    pub source_routed: bool,
    /// Bytes from the upper-layer header to the packet's end.
    pub length: usize,
    /// The first of these bytes, as many as were passed to [`decode`].
    pub payload: &'a [u8],
}

/// How much of a packet must be present.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All of it, in this many bytes, not all of which are passed.
    All(usize),
    /// Its beginning, as an ICMP error quotes it.
    Beginning,
}

impl Extent {
    fn holds(self, bytes: usize) -> bool {
        match self {
            Self::All(len) => bytes <= len,
            Self::Beginning => true,
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Parses the packet in a frame of `len` bytes that begins with `shown`; `None` if the frame
/// carries none.
#[inline]
pub fn decode(shown: &[u8], len: usize) -> Result<Option<Packet<'_>>, Malformed> {
    let (header, packet) = shown.split_at_checked(ETHERNET_HEADER).ok_or(Malformed)?;
    let extent = Extent::All(len.saturating_sub(ETHERNET_HEADER));
    match u16_at(header, 12) {
        ETHERTYPE_IPV4 => decode_ipv4(packet, extent).map(Some),
        ETHERTYPE_IPV6 => decode_ipv6(packet, extent).map(Some),
        _ => Ok(None),
    }
}

fn decode_ipv4(bytes: &[u8], extent: Extent) -> Result<Packet<'_>, Malformed> {
    let (fixed, _) = Ipv4Header::parse(bytes).map_err(|_| Malformed)?;
    let (header, total) = (fixed.header_len(), fixed.total_len());
    if total < header || !extent.holds(total) {
        return Err(Malformed);
    }
    Ok(Packet {
        family: Family::V4,
        source: fixed.source().to_bits().into(),
        destination: fixed.destination().to_bits().into(),
        protocol: fixed.protocol().0,
        hop_limit: fixed.ttl(),
        part: part((fixed.fragment_offset() / 8) as u16, fixed.more_fragments()),
        identification: fixed.identification().into(),
        fragment_header: false,
        source_routed: bytes.get(IPV4_HEADER..header).is_some_and(has_source_route),
        length: total - header,
        payload: bytes.get(header..total.min(bytes.len())).unwrap_or(&[]),
    })
}

fn part(offset: u16, more: bool) -> Part {
    match (offset, more) {
        (0, false) => Part::Whole,
        (0, true) => Part::First,
        (offset, _) => Part::Later(offset),
    }
}

/// Returns whether IPv4 options contain a loose or strict source route (RFC 791 section 3.1).
fn has_source_route(mut options: &[u8]) -> bool {
    // Bounded: every round takes at least one of at most forty bytes.
    while let [kind, rest @ ..] = options {
        let taken = match (kind, rest) {
            (131 | 137, _) => return true,
            (0, _) => return false,
            (1, _) => 1,
            (_, [length, ..]) if *length >= 2 => usize::from(*length),
            _ => return false,
        };
        options = options.get(taken..).unwrap_or(&[]);
    }
    false
}

fn decode_ipv6(bytes: &[u8], extent: Extent) -> Result<Packet<'_>, Malformed> {
    let (fixed, _) = Ipv6Packet::parse_quoted(bytes).map_err(|_| Malformed)?;
    let end = IPV6_HEADER + fixed.payload_len();
    if !extent.holds(end) {
        return Err(Malformed);
    }
    let chain = walk(bytes, fixed.next_header(), end)?;
    Ok(Packet {
        family: Family::V6,
        source: fixed.source().to_bits(),
        destination: fixed.destination().to_bits(),
        protocol: chain.protocol.0,
        hop_limit: fixed.hop_limit(),
        part: chain.part,
        identification: chain.identification,
        fragment_header: chain.fragment_header,
        source_routed: chain.source_routed,
        length: end - chain.at,
        payload: bytes.get(chain.at..end.min(bytes.len())).unwrap_or(&[]),
    })
}

/// The end of a chain of extension headers.
struct Chain {
    protocol: IpProtocol,
    at: usize,
    part: Part,
    identification: u32,
    fragment_header: bool,
    source_routed: bool,
}

/// Walks the extension headers of the IPv6 packet `bytes`, which ends at `end` (RFC 8200 section
/// 4).
fn walk(bytes: &[u8], first: IpProtocol, end: usize) -> Result<Chain, Malformed> {
    let mut chain = Chain {
        protocol: first,
        at: IPV6_HEADER,
        part: Part::Whole,
        identification: 0,
        fragment_header: false,
        source_routed: false,
    };
    for _ in 0..=MAX_EXTENSIONS {
        if !is_extension(chain.protocol) {
            return Ok(chain);
        }
        let header: &[u8; 8] =
            bytes.get(chain.at..end.min(bytes.len())).and_then(<[u8]>::first_chunk).ok_or(Malformed)?;
        let mut size = 8 + 8 * usize::from(header[1]);
        match chain.protocol {
            // Only directly after the fixed header (section 4.1).
            IpProtocol::HOP_BY_HOP if chain.at != IPV6_HEADER => return Err(Malformed),
            IpProtocol::ROUTING => chain.source_routed |= header[3] != 0,
            IpProtocol::FRAGMENT if chain.fragment_header => return Err(Malformed),
            IpProtocol::FRAGMENT => {
                size = 8;
                let offset = u16_at(header, 2);
                chain.part = part(offset >> 3, offset & 1 != 0);
                chain.identification = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
                chain.fragment_header = true;
            }
            // The length is in units of four bytes, less two (RFC 4302 section 2.2).
            IpProtocol::AUTHENTICATION => size = 4 * (usize::from(header[1]) + 2),
            _ => {}
        }
        chain.protocol = IpProtocol(header[0]);
        chain.at += size;
        if chain.at > end {
            return Err(Malformed);
        }
        if matches!(chain.part, Part::Later(_)) {
            return Ok(chain);
        }
    }
    Err(Malformed)
}

/// Returns whether this is an extension header, with its length in the second byte.
fn is_extension(protocol: IpProtocol) -> bool {
    matches!(
        protocol,
        IpProtocol::HOP_BY_HOP
            | IpProtocol::ROUTING
            | IpProtocol::FRAGMENT
            | IpProtocol::AUTHENTICATION
            | IpProtocol::DESTINATION_OPTIONS
            | IpProtocol::MOBILITY
            | IpProtocol::HIP
            | IpProtocol::SHIM6
    )
}

impl<'a> Packet<'a> {
    /// Returns source and destination port of TCP and UDP.
    #[inline]
    pub fn ports(&self) -> Option<(u16, u16)> {
        let here = matches!(self.protocol, TCP | UDP) && !matches!(self.part, Part::Later(_));
        (here && self.payload.len() >= 4).then(|| (u16_at(self.payload, 0), u16_at(self.payload, 2)))
    }

    /// Returns the flags of TCP.
    #[inline]
    pub fn tcp_flags(&self) -> Option<u8> {
        let here = self.protocol == TCP && !matches!(self.part, Part::Later(_));
        self.payload.get(13).filter(|_| here).copied()
    }

    /// Returns whether it is a TCP segment that acknowledges, and has neither data nor another flag
    /// than those that report congestion of data (RFC 3168 section 6.1).
    #[inline]
    pub fn is_bare_ack(&self) -> bool {
        let header = self.payload.get(12).map_or(0, |&offset| usize::from(offset >> 4) * 4);
        self.part == Part::Whole
            && self.tcp_flags().is_some_and(|flags| flags & 0x3f == ACK)
            && header >= TCP_HEADER
            && header == self.length
    }

    /// Returns whether it is a fragment cut so that a reader of single packets does not see the
    /// upper-layer header that the receiver will reassemble: one without the header, or one that
    /// overlaps the flags of TCP (RFC 1858, RFC 3128, RFC 7112).
    #[inline]
    pub fn hides_header(&self) -> bool {
        let least = match self.protocol {
            TCP => TCP_HEADER,
            UDP | ICMP | ICMPV6 => UDP_HEADER,
            _ => 0,
        };
        match self.part {
            Part::Whole => false,
            Part::First => self.length < least,
            Part::Later(offset) => self.protocol == TCP && offset < 3,
        }
    }

    /// Returns the flow hash: of addresses, protocol, and ports unless it is a fragment, so that
    /// all fragments of a datagram have one hash. An ICMP error has the hash of the flow it is
    /// about.
    #[inline]
    pub fn hash(&self) -> u32 {
        match self.quoted() {
            // The quoted packet went in the other direction.
            Some(quoted) => {
                Packet { source: quoted.destination, destination: quoted.source, ..quoted }.mixed(true)
            }
            None => self.mixed(false),
        }
    }

    #[inline]
    fn mixed(&self, swap_ports: bool) -> u32 {
        let ports = match self.ports() {
            Some((source, destination)) if self.part == Part::Whole => {
                let (first, second) = if swap_ports { (destination, source) } else { (source, destination) };
                u64::from(first) << 16 | u64::from(second)
            }
            _ => 0,
        };
        let last = ports << 8 | u64::from(self.protocol);
        match self.family {
            Family::V4 => mix((self.source as u64) << 32 | self.destination as u64, last),
            Family::V6 => mix_ipv6(self.source, self.destination, last),
        }
    }

    /// Returns the packet that an ICMP or ICMPv6 error is about.
    #[inline]
    pub fn quoted(&self) -> Option<Packet<'a>> {
        let quote = self.quote()?;
        let quoted = match self.family {
            Family::V4 => decode_ipv4(quote, Extent::Beginning),
            Family::V6 => decode_ipv6(quote, Extent::Beginning),
        };
        quoted.ok()
    }

    /// Returns the destination of the packet that an ICMP or ICMPv6 error is about. It is in the
    /// fixed header: a host also reports packets whose extension headers are wrong or cut short.
    pub fn quoted_destination(&self) -> Option<u128> {
        let quote = self.quote()?;
        match self.family {
            Family::V4 => decode_ipv4(quote, Extent::Beginning).ok().map(|quoted| quoted.destination),
            Family::V6 => {
                Ipv6Packet::parse_quoted(quote).ok().map(|(fixed, _)| fixed.destination().to_bits())
            }
        }
    }

    /// Returns the bytes that an ICMP or ICMPv6 error quotes (RFC 792, RFC 4443 section 3).
    #[inline]
    fn quote(&self) -> Option<&'a [u8]> {
        if self.part != Part::Whole {
            return None;
        }
        let quote = self.payload.get(8..)?;
        match (self.family, self.protocol, self.payload[0]) {
            // Destination unreachable, source quench, redirect, time exceeded, parameter problem.
            (Family::V4, ICMP, 3 | 4 | 5 | 11 | 12) | (Family::V6, ICMPV6, 1..=4) => Some(quote),
            _ => None,
        }
    }
}

/// Mixes addresses and ports of a frame into a flow hash: two multiplications, about 2 ns. Not
/// symmetric, and no defence against a sender that causes collisions: those cost only its flow's
/// receiver its balance.
#[inline(always)]
pub fn mix(addresses: u64, ports: u64) -> u32 {
    let h = (addresses ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let h = (h ^ (h >> 32) ^ ports).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (h >> 32) as u32
}

/// As [`mix`], for IPv6 addresses: every bit of both affects the hash; about 4 ns.
#[inline]
fn mix_ipv6(source: u128, destination: u128, ports: u64) -> u32 {
    let fold = |h: u64, word: u64| {
        let h = (h ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h ^ (h >> 32)
    };
    let halves = |address: u128| [(address >> 64) as u64, address as u64];
    let h = [halves(source), halves(destination)].as_flattened().iter().fold(0, |h, &word| fold(h, word));
    mix(h, ports)
}

#[cfg(test)]
mod tests;
