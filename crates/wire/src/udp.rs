//! UDP headers (RFC 768).

use crate::checksum::Checksums;
use crate::error::{Layer, WireError};
use crate::ip::{Addresses, IpProtocol};
use crate::layout::layout;

/// Bytes of header.
pub const UDP_HEADER: usize = 8;

layout! {
    /// The header.
    pub struct UdpHeader[UDP_HEADER] {
        source: u16,
        destination: u16,
        len: u16,
        checksum: u16,
    }
}

impl UdpHeader {
    /// Returns the header of a datagram between these addresses and ports, with its checksum. A sum
    /// of zero is sent as all ones, because zero means that there is no checksum.
    ///
    /// # Panics
    /// If the datagram exceeds 65,535 bytes; callers check first.
    #[inline]
    pub fn new(addresses: &Addresses, ports: (u16, u16), payload: &[u8]) -> Self {
        let len = u16::try_from(UDP_HEADER + payload.len()).expect("a UDP datagram has at most 65535 bytes");
        let mut header = Self { source: ports.0, destination: ports.1, len, checksum: 0 };
        let pseudo_header = addresses.pseudo_header(IpProtocol::UDP, len.into());
        let sum = pseudo_header.bytes(&header.to_bytes()).bytes(payload).finish();
        header.checksum = if sum == 0 { 0xffff } else { sum };
        header
    }

    /// Port of the sender; zero if no answer is expected.
    #[inline]
    pub fn source_port(&self) -> u16 {
        self.source
    }

    /// Port of the receiver.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        self.destination
    }
}

/// A checked datagram.
#[derive(Debug, Clone, Copy)]
pub struct UdpDatagram<'a> {
    /// The header.
    pub header: UdpHeader,
    /// The data.
    pub payload: &'a [u8],
}

impl<'a> UdpDatagram<'a> {
    /// Parses a datagram from the payload of a packet between these addresses. A checksum of zero
    /// means that the sender computed none; it is accepted over IPv4 (RFC 768) and refused over
    /// IPv6 (RFC 8200 section 8.1).
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Field`] (length below eight, destination port zero),
    /// [`WireError::Checksum`].
    #[inline]
    pub fn parse(bytes: &'a [u8], addresses: &Addresses, checksums: Checksums) -> Result<Self, WireError> {
        let header = Self::header(bytes)?;
        let len = usize::from(header.len);
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

    /// Returns the header alone, unverified: an ICMP error may quote no more than these eight
    /// bytes.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    #[inline]
    pub fn header(bytes: &'a [u8]) -> Result<UdpHeader, WireError> {
        UdpHeader::split(bytes).map(|(header, _)| header).ok_or(WireError::Truncated {
            layer: Layer::Udp,
            need: UDP_HEADER,
            have: bytes.len(),
        })
    }
}
