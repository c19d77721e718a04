//! Ethernet and IP headers of a frame to be sent, written in place.

use crate::ethernet::{ETHERNET_HEADER, EtherType, EthernetHeader, MacAddr};
use crate::ip::{Addresses, Fragmenting, IpProtocol, PacketInfo};
use crate::ipv4::{IPV4_HEADER, Ipv4Header};
use crate::ipv6::{FRAGMENT_HEADER, FragmentHeader, IPV6_HEADER, Ipv6Header};

/// The stations between which a frame travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stations {
    /// Station that sends the frame.
    pub source: MacAddr,
    /// Station or group the frame is for.
    pub destination: MacAddr,
}

impl Addresses {
    /// Returns the bytes of an IP header without options or extensions.
    #[inline]
    pub const fn header_len(&self) -> usize {
        match self {
            Self::V4 { .. } => IPV4_HEADER,
            Self::V6 { .. } => IPV6_HEADER,
        }
    }
}

impl PacketInfo {
    /// Returns the bytes of Ethernet and IP header before the payload of a packet that is no
    /// fragment.
    #[inline]
    pub const fn overhead(&self) -> usize {
        ETHERNET_HEADER + self.addresses.header_len()
    }

    /// Returns the bytes of Ethernet and IP header before the payload, including the extension of a
    /// fragment.
    #[inline]
    pub const fn overhead_of(&self, fragmenting: Fragmenting) -> usize {
        let extension = match (self.addresses, fragmenting) {
            (Addresses::V6 { .. }, Fragmenting::Piece { .. }) => FRAGMENT_HEADER,
            _ => 0,
        };
        self.overhead() + extension
    }

    /// Writes Ethernet and IP header for `len` bytes of payload.
    ///
    /// # Panics
    /// If `out` is not [`overhead_of`](Self::overhead_of) bytes long, or the packet would exceed
    /// 65,535 bytes; callers check against the MTU first.
    #[inline]
    pub fn write_headers(&self, out: &mut [u8], stations: Stations, fragmenting: Fragmenting, len: usize) {
        let Stations { source, destination } = stations;
        let ethertype = match self.addresses {
            Addresses::V4 { .. } => EtherType::IPV4,
            Addresses::V6 { .. } => EtherType::IPV6,
        };
        let (ethernet, ip) = out.split_at_mut(ETHERNET_HEADER);
        ethernet.copy_from_slice(&EthernetHeader { destination, source, ethertype }.to_bytes());
        match (self.addresses, fragmenting) {
            (Addresses::V4 { .. }, _) => {
                ip.copy_from_slice(&Ipv4Header::of(self, fragmenting, len).to_bytes());
            }
            (Addresses::V6 { .. }, Fragmenting::Piece { identification, offset, more }) => {
                let (ip, fragment) = ip.split_at_mut(IPV6_HEADER);
                ip.copy_from_slice(
                    &Ipv6Header::of(self, IpProtocol::FRAGMENT, FRAGMENT_HEADER + len).to_bytes(),
                );
                fragment.copy_from_slice(
                    &FragmentHeader::new(self.protocol, identification, offset, more).to_bytes(),
                );
            }
            (Addresses::V6 { .. }, _) => {
                ip.copy_from_slice(&Ipv6Header::of(self, self.protocol, len).to_bytes());
            }
        }
    }
}
