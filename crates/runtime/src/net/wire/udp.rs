//! UDP headers (RFC 768).

use super::error::{Layer, WireError};
use super::ip::Addresses;
use super::ipv4::{Checksums, IpProtocol};
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

impl UdpHeader {
    /// The header of a datagram between these addresses and ports, its checksum filled in. A sum of zero is sent as all
    /// ones, since zero means "none".
    ///
    /// # Panics
    /// If the datagram exceeds 65 535 bytes: callers check first.
    #[inline]
    pub fn new(addresses: &Addresses, ports: (u16, u16), payload: &[u8]) -> Self {
        let len = u16::try_from(UDP_HEADER + payload.len()).expect("a UDP datagram has at most 65535 bytes");
        let mut header =
            Self { source: ports.0.into(), destination: ports.1.into(), len: len.into(), checksum: 0.into() };
        let pseudo_header = addresses.pseudo_header(IpProtocol::UDP, len.into());
        let sum = pseudo_header.bytes(header.as_bytes()).bytes(payload).finish();
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
    /// Reads a datagram from the payload of a packet between these addresses. A checksum of zero means that the sender
    /// computed none, and is accepted over IPv4 (RFC 768) and refused over IPv6 (RFC 8200 section 8.1).
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Field`] (length below eight, destination port zero), [`WireError::Checksum`].
    #[inline]
    pub fn parse(bytes: &'a [u8], addresses: &Addresses, checksums: Checksums) -> Result<Self, WireError> {
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
            && !(header.checksum == 0 && matches!(addresses, Addresses::V4 { .. }))
            && addresses.pseudo_header(IpProtocol::UDP, len).bytes(&bytes[..len]).finish() != 0
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
