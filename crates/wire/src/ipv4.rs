//! IPv4 headers (RFC 791).

use crate::checksum::{Checksums, checksum};
use crate::error::{Layer, WireError};
use crate::ip::{Addresses, Fragmenting, IpProtocol, PacketInfo};
use crate::layout::layout;
use core::net::Ipv4Addr;

/// Bytes of a header without options.
pub const IPV4_HEADER: usize = 20;
/// Bytes of a datagram that every host must accept (RFC 791 section 3.1, "Total Length").
pub const MIN_REASSEMBLY: usize = 576;

/// Version 4, five words of header.
const VERSION_IHL: u8 = 0x45;
/// The "don't fragment" flag (RFC 791 section 3.1).
const DONT_FRAGMENT: u16 = 0x4000;
/// The "more fragments" flag.
const MORE_FRAGMENTS: u16 = 0x2000;
/// "More fragments" and the fragment offset: a packet is a fragment if any of these bits is set.
const FRAGMENT_MASK: u16 = 0x3fff;

layout! {
    /// The header's fixed part.
    pub struct Ipv4Header[IPV4_HEADER] {
        version_ihl: u8,
        dscp_ecn: u8,
        total_len: u16,
        identification: u16,
        flags_fragment: u16,
        ttl: u8,
        protocol: IpProtocol,
        checksum: u16,
        source: [u8; 4],
        destination: [u8; 4],
    }
}

impl Ipv4Header {
    /// Returns the header of `packet`, without options, for `len` bytes of payload, with its
    /// checksum. A packet that may not be fragmented is atomic, so its identification may be any
    /// value, here zero (RFC 6864 section 4.1).
    ///
    /// # Panics
    /// If header and payload exceed 65,535 bytes, or the addresses are IPv6; callers check against
    /// the MTU first.
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
            total_len,
            identification,
            flags_fragment,
            ttl: packet.hop_limit,
            protocol: packet.protocol,
            checksum: 0,
            source: source.octets(),
            destination: destination.octets(),
        };
        header.checksum = checksum(&header.to_bytes());
        header
    }

    /// Splits `bytes` into the header's fixed part, with version and header length checked, and
    /// options and payload, which may be cut short anywhere.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Field`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let refuse = |field, value| Err(WireError::Field { layer: Layer::Ipv4, field, value });
        let Some((header, rest)) = Self::split(bytes) else {
            return Err(WireError::Truncated { layer: Layer::Ipv4, need: IPV4_HEADER, have: bytes.len() });
        };
        if header.version_ihl >> 4 != 4 {
            return refuse("version", (header.version_ihl >> 4).into());
        }
        if header.header_len() < IPV4_HEADER {
            return refuse("header length", header.header_len() as u16);
        }
        Ok((header, rest))
    }

    /// Returns the length of the header with its options, 20 to 60 bytes in a parsed packet.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0xf) * 4
    }

    /// Returns the length of header and payload in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        self.total_len.into()
    }

    /// Remaining hops.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.ttl
    }

    /// Protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> IpProtocol {
        self.protocol
    }

    /// Returns the address of the sender.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        self.source.into()
    }

    /// Returns the address of the receiver.
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

    /// Returns the identification that the fragments of a datagram share.
    #[inline]
    pub fn identification(&self) -> u16 {
        self.identification
    }

    /// Returns whether this is a fragment of a larger datagram.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.flags_fragment & FRAGMENT_MASK != 0
    }

    /// Returns whether this is a fragment and not the last.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.flags_fragment & MORE_FRAGMENTS != 0
    }

    /// Returns the offset of this fragment's data in the original datagram, in bytes; zero for a
    /// whole datagram and for a first fragment.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(self.flags_fragment & 0x1fff) * 8
    }
}

/// Returns the pointer of a loose or strict source route with addresses left (RFC 791 section 3.1):
/// the packet is at a gateway, not at its destination.
#[inline]
fn unfinished_route(mut options: &[u8]) -> Option<u8> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const LOOSE: u8 = 131;
    const STRICT: u8 = 137;
    loop {
        match options {
            [] | [END, ..] => return None,
            [NOTHING, rest @ ..] => options = rest,
            [LOOSE | STRICT, len, pointer, ..] if pointer <= len => return Some(*pointer),
            // A length that is not possible ends the options, as it would end a route.
            [_, len, ..] if *len >= 2 => options = options.get(usize::from(*len)..)?,
            _ => return None,
        }
    }
}

/// A checked packet.
#[derive(Debug, Clone, Copy)]
pub struct Ipv4Packet<'a> {
    /// The fixed part of the header.
    pub header: Ipv4Header,
    /// The packet from the first byte of its header to the last byte of its payload, without
    /// padding.
    pub bytes: &'a [u8],
    /// The bytes after header and options.
    pub payload: &'a [u8],
}

impl<'a> Ipv4Packet<'a> {
    /// Parses a packet, whole or a fragment, from the payload of a frame, which may end in padding.
    /// Options are skipped, except a source route that has not ended: a host that does not forward
    /// drops the packet (RFC 1122 section 3.2.1.8).
    ///
    /// The time to live is not checked: a host must accept a packet that reaches it (RFC 1122
    /// section 3.2.1.7).
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
        if let Some(pointer) = unfinished_route(&bytes[IPV4_HEADER..header_len]) {
            let (layer, value) = (Layer::Ipv4, pointer.into());
            return Err(WireError::Field { layer, field: "pointer of a source route", value });
        }
        Ok(Self { header, bytes: &bytes[..total_len], payload: &bytes[header_len..total_len] })
    }

    /// Parses the header of the packet that an ICMP error quotes, which is cut short after a few
    /// bytes of payload (RFC 792) and whose checksum may be stale. Returns the header and the bytes
    /// of payload present.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Field`].
    pub fn parse_quoted(bytes: &'a [u8]) -> Result<(Ipv4Header, &'a [u8]), WireError> {
        let (header, header_len) = Self::header(bytes)?;
        Ok((header, &bytes[header_len..]))
    }

    /// Returns the header and its length, which is within `bytes`.
    #[inline]
    fn header(bytes: &'a [u8]) -> Result<(Ipv4Header, usize), WireError> {
        let (header, _) = Ipv4Header::parse(bytes)?;
        let header_len = header.header_len();
        if header_len > bytes.len() {
            return Err(WireError::Truncated { layer: Layer::Ipv4, need: header_len, have: bytes.len() });
        }
        Ok((header, header_len))
    }
}
