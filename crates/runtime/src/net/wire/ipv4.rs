//! IPv4 headers (RFC 791).

use super::checksum::checksum;
use super::error::{Layer, WireError};
use super::ip::{Addresses, Fragmenting, PacketInfo};
use core::net::Ipv4Addr;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header without options.
pub const IPV4_HEADER: usize = 20;
/// Hops a datagram may take unless the socket says otherwise (RFC 1700, "IP time to live").
pub const DEFAULT_TTL: u8 = 64;
/// Every host must accept datagrams of this many bytes (RFC 791 section 3.1, "Total Length").
pub const MIN_REASSEMBLY: usize = 576;

/// Version 4, five words of header.
const VERSION_IHL: u8 = 0x45;
/// The "don't fragment" flag (RFC 791 section 3.1).
const DONT_FRAGMENT: u16 = 0x4000;
/// The "more fragments" flag.
const MORE_FRAGMENTS: u16 = 0x2000;
/// "More fragments" and the fragment offset: any of these set makes a fragment.
const FRAGMENT_MASK: u16 = 0x3fff;

/// What an IP packet's payload is (IANA protocol-numbers).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// IPv6's hop-by-hop options (RFC 8200 section 4.3).
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP (RFC 792).
    pub const ICMP: Self = Self(1);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// IPv6's routing header (RFC 8200 section 4.4).
    pub const ROUTING: Self = Self(43);
    /// IPv6's fragment header (RFC 8200 section 4.5).
    pub const FRAGMENT: Self = Self(44);
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// IPv6: nothing follows (RFC 8200 section 4.7).
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// IPv6's destination options (RFC 8200 section 4.6).
    pub const DESTINATION_OPTIONS: Self = Self(60);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
}

/// Whether a parser verifies checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    /// Compute and compare.
    Verify,
    /// Somebody trusted has vouched for the frame.
    Trust,
}

/// The header's fixed part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv4Header {
    version_ihl: u8,
    dscp_ecn: u8,
    total_len: U16,
    identification: U16,
    flags_fragment: U16,
    ttl: u8,
    protocol: IpProtocol,
    checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

const _: () = assert!(size_of::<Ipv4Header>() == IPV4_HEADER);

impl Ipv4Header {
    /// The header of `packet`, without options, for `len` bytes of payload, its checksum filled in. A packet that nobody may
    /// fragment is atomic, so that its identification may be any value: zero (RFC 6864 section 4.1).
    ///
    /// # Panics
    /// If header and payload exceed 65 535 bytes, or the addresses are IPv6: callers check against the MTU first.
    #[inline]
    pub fn of(packet: &PacketInfo, fragmenting: Fragmenting, len: usize) -> Self {
        let Addresses::V4 { source, destination } = packet.addresses else {
            panic!("an IPv4 header for IPv6 addresses")
        };
        let total_len = u16::try_from(IPV4_HEADER + len).expect("an IPv4 packet has at most 65535 bytes");
        let (identification, flags_fragment) = match fragmenting {
            Fragmenting::Forbidden => (0, DONT_FRAGMENT),
            Fragmenting::Allowed { identification } => (identification as u16, 0),
            Fragmenting::Piece { identification, offset, more } => {
                debug_assert!(offset.is_multiple_of(8) && offset < 1 << 16, "a fragment at {offset}");
                let flags = if more { MORE_FRAGMENTS } else { 0 };
                (identification as u16, (offset / 8) as u16 | flags)
            }
        };
        let mut header = Self {
            version_ihl: VERSION_IHL,
            dscp_ecn: packet.traffic_class,
            total_len: total_len.into(),
            identification: identification.into(),
            flags_fragment: flags_fragment.into(),
            ttl: packet.hop_limit,
            protocol: packet.protocol,
            checksum: 0.into(),
            source: source.octets(),
            destination: destination.octets(),
        };
        header.checksum = checksum(header.as_bytes()).into();
        header
    }

    /// Length of the header with its options, 20 to 60 bytes in a parsed packet.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0xf) * 4
    }

    /// Length of header and payload in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        self.total_len.get().into()
    }

    /// Remaining hops.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.ttl
    }

    /// What the payload is.
    #[inline]
    pub fn protocol(&self) -> IpProtocol {
        self.protocol
    }

    /// From whom.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        self.source.into()
    }

    /// To whom.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        self.destination.into()
    }

    /// Both addresses.
    #[inline]
    pub fn addresses(&self) -> Addresses {
        Addresses::V4 { source: self.source(), destination: self.destination() }
    }

    /// Differentiated services and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.dscp_ecn
    }

    /// What the pieces of a datagram have in common.
    #[inline]
    pub fn identification(&self) -> u16 {
        self.identification.get()
    }

    /// Whether this is a piece of a larger datagram.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.flags_fragment.get() & FRAGMENT_MASK != 0
    }

    /// Whether this is a piece and not the last.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.flags_fragment.get() & MORE_FRAGMENTS != 0
    }

    /// Offset of this fragment's data in the original datagram, in bytes; zero for a whole datagram and for a first fragment.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(self.flags_fragment.get() & 0x1fff) * 8
    }
}

/// A checked packet.
#[derive(Debug, Clone, Copy)]
pub struct Ipv4Packet<'a> {
    /// The fixed part of the header.
    pub header: &'a Ipv4Header,
    /// The packet from its first header byte to its last payload byte, padding cut off.
    pub bytes: &'a [u8],
    /// What follows header and options.
    pub payload: &'a [u8],
}

impl<'a> Ipv4Packet<'a> {
    /// Reads a packet, whole or a fragment, from the payload of a frame, which may end in padding. Options are stepped over:
    /// none of them concerns a host that does not forward.
    ///
    /// The time to live is not looked at: a host must accept what reaches it (RFC 1122 section 3.2.1.7).
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Field`], [`WireError::Checksum`].
    #[inline]
    pub fn parse(bytes: &'a [u8], checksums: Checksums) -> Result<Self, WireError> {
        let (header, header_len) = Self::header(bytes)?;
        if checksums == Checksums::Verify && checksum(&bytes[..header_len]) != 0 {
            return Err(WireError::Checksum { layer: Layer::Ipv4 });
        }
        let total_len = header.total_len();
        if total_len < header_len {
            return Err(WireError::Field {
                layer: Layer::Ipv4,
                field: "total length",
                value: total_len as u16,
            });
        }
        if total_len > bytes.len() {
            return Err(WireError::Truncated { layer: Layer::Ipv4, need: total_len, have: bytes.len() });
        }
        Ok(Self { header, bytes: &bytes[..total_len], payload: &bytes[header_len..total_len] })
    }

    /// Reads the header of the packet that an ICMP error quotes: cut short after a few bytes of payload (RFC 792), its
    /// checksum possibly stale. Gives the header and what is there of the payload.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Field`].
    pub fn parse_quoted(bytes: &'a [u8]) -> Result<(&'a Ipv4Header, &'a [u8]), WireError> {
        let (header, header_len) = Self::header(bytes)?;
        Ok((header, &bytes[header_len..]))
    }

    /// Header and its length, which is within `bytes`.
    #[inline]
    fn header(bytes: &'a [u8]) -> Result<(&'a Ipv4Header, usize), WireError> {
        let truncated = |need| WireError::Truncated { layer: Layer::Ipv4, need, have: bytes.len() };
        let refuse = |field, value| Err(WireError::Field { layer: Layer::Ipv4, field, value });
        let (header, _) = Ipv4Header::ref_from_prefix(bytes).map_err(|_| truncated(IPV4_HEADER))?;
        if header.version_ihl >> 4 != 4 {
            return refuse("version", (header.version_ihl >> 4).into());
        }
        let header_len = header.header_len();
        if header_len < IPV4_HEADER {
            return refuse("header length", header_len as u16);
        }
        if header_len > bytes.len() {
            return Err(truncated(header_len));
        }
        Ok((header, header_len))
    }
}
