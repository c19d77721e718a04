//! UDP headers (RFC 768).

use super::checksum::Sum;
use super::error::{Layer, WireError};
use super::ipv4::{Checksums, IpProtocol};
use core::net::Ipv4Addr;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of header.
pub const UDP_HEADER: usize = 8;

/// The header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct UdpHeader {
    source: U16,
    destination: U16,
    len: U16,
    checksum: U16,
}

const _: () = assert!(size_of::<UdpHeader>() == UDP_HEADER);

/// The part of a sum that UDP borrows from the IP header (RFC 768, "pseudo header").
#[inline]
fn pseudo_header(source: Ipv4Addr, destination: Ipv4Addr, len: u16) -> Sum {
    Sum::new().bytes(&source.octets()).bytes(&destination.octets()).word(IpProtocol::UDP.0.into()).word(len)
}

impl UdpHeader {
    /// The header of a datagram, its checksum filled in. A sum of zero is sent as all ones, since zero means "none".
    ///
    /// # Panics
    /// If the datagram exceeds 65 535 bytes: callers check against the MTU first.
    #[inline]
    pub fn new(source: (Ipv4Addr, u16), destination: (Ipv4Addr, u16), payload: &[u8]) -> Self {
        let len = u16::try_from(UDP_HEADER + payload.len()).expect("a UDP datagram has at most 65535 bytes");
        let mut header = Self {
            source: source.1.into(),
            destination: destination.1.into(),
            len: len.into(),
            checksum: 0.into(),
        };
        let sum =
            pseudo_header(source.0, destination.0, len).bytes(header.as_bytes()).bytes(payload).finish();
        header.checksum = if sum == 0 { 0xffff } else { sum }.into();
        header
    }

    /// Port of the sender; zero when it wants no answer.
    #[inline]
    pub fn source_port(&self) -> u16 {
        self.source.get()
    }

    /// Port of the receiver.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        self.destination.get()
    }
}

/// A checked datagram.
#[derive(Debug, Clone, Copy)]
pub struct UdpDatagram<'a> {
    /// The header.
    pub header: &'a UdpHeader,
    /// The data.
    pub payload: &'a [u8],
}

impl<'a> UdpDatagram<'a> {
    /// Reads a datagram from the payload of an IPv4 packet with these addresses. A checksum of zero means that the sender
    /// computed none, and is accepted (RFC 768).
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Field`] (length below eight, destination port zero), [`WireError::Checksum`].
    #[inline]
    pub fn parse(
        bytes: &'a [u8],
        source: Ipv4Addr,
        destination: Ipv4Addr,
        checksums: Checksums,
    ) -> Result<Self, WireError> {
        let header = Self::header(bytes)?;
        let len = usize::from(header.len.get());
        if len < UDP_HEADER {
            return Err(WireError::Field { layer: Layer::Udp, field: "length", value: len as u16 });
        }
        if len > bytes.len() {
            return Err(WireError::Truncated { layer: Layer::Udp, need: len, have: bytes.len() });
        }
        if header.destination == 0 {
            return Err(WireError::Field { layer: Layer::Udp, field: "destination port", value: 0 });
        }
        if checksums == Checksums::Verify
            && header.checksum != 0
            && pseudo_header(source, destination, len as u16).bytes(&bytes[..len]).finish() != 0
        {
            return Err(WireError::Checksum { layer: Layer::Udp });
        }
        Ok(Self { header, payload: &bytes[UDP_HEADER..len] })
    }

    /// The header alone, unverified: for the datagram that an ICMP error quotes, of which only eight bytes are certain.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    #[inline]
    pub fn header(bytes: &'a [u8]) -> Result<&'a UdpHeader, WireError> {
        UdpHeader::ref_from_prefix(bytes).map(|(header, _)| header).map_err(|_| WireError::Truncated {
            layer: Layer::Udp,
            need: UDP_HEADER,
            have: bytes.len(),
        })
    }
}
