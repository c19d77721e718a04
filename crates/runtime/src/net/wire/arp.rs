//! ARP packets for IPv4 over Ethernet (RFC 826).

use super::error::{Layer, WireError};
use super::ethernet::MacAddr;
use core::net::Ipv4Addr;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an ARP packet for IPv4 over Ethernet.
pub const ARP_PACKET: usize = 28;

/// Hardware type of Ethernet (IANA arp-parameters).
const HARDWARE_ETHERNET: u16 = 1;
const PROTOCOL_IPV4: u16 = 0x0800;

/// What an ARP packet does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArpOperation {
    /// Asks who has the target address.
    Request,
    /// Says that the sender has the sender address.
    Reply,
}

/// The bytes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    hardware_type: U16,
    protocol_type: U16,
    hardware_len: u8,
    protocol_len: u8,
    operation: U16,
    sender_mac: MacAddr,
    sender_ip: [u8; 4],
    target_mac: MacAddr,
    target_ip: [u8; 4],
}

const _: () = assert!(size_of::<Layout>() == ARP_PACKET);

/// A checked packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArpPacket {
    /// Question or answer.
    pub operation: ArpOperation,
    /// Link-layer address of the sender.
    pub sender_mac: MacAddr,
    /// IP address of the sender; unspecified in a probe (RFC 5227 section 1.1).
    pub sender_ip: Ipv4Addr,
    /// Link-layer address of the target, meaningless in a request.
    pub target_mac: MacAddr,
    /// IP address of the target.
    pub target_ip: Ipv4Addr,
}

impl ArpPacket {
    /// Reads a packet. Bytes after it are padding.
    ///
    /// # Errors
    /// [`WireError::Truncated`], or [`WireError::Field`] for another hardware, protocol, address length or operation.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let Ok((raw, _padding)) = Layout::ref_from_prefix(bytes) else {
            return Err(WireError::Truncated { layer: Layer::Arp, need: ARP_PACKET, have: bytes.len() });
        };
        let refuse = |field, value| Err(WireError::Field { layer: Layer::Arp, field, value });
        if raw.hardware_type != HARDWARE_ETHERNET {
            return refuse("hardware type", raw.hardware_type.get());
        }
        if raw.protocol_type != PROTOCOL_IPV4 {
            return refuse("protocol type", raw.protocol_type.get());
        }
        if raw.hardware_len != 6 {
            return refuse("hardware address length", raw.hardware_len.into());
        }
        if raw.protocol_len != 4 {
            return refuse("protocol address length", raw.protocol_len.into());
        }
        let operation = match raw.operation.get() {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            other => return refuse("operation", other),
        };
        Ok(Self {
            operation,
            sender_mac: raw.sender_mac,
            sender_ip: raw.sender_ip.into(),
            target_mac: raw.target_mac,
            target_ip: raw.target_ip.into(),
        })
    }

    /// The bytes of this packet.
    pub fn encode(&self) -> [u8; ARP_PACKET] {
        let raw = Layout {
            hardware_type: HARDWARE_ETHERNET.into(),
            protocol_type: PROTOCOL_IPV4.into(),
            hardware_len: 6,
            protocol_len: 4,
            operation: match self.operation {
                ArpOperation::Request => 1.into(),
                ArpOperation::Reply => 2.into(),
            },
            sender_mac: self.sender_mac,
            sender_ip: self.sender_ip.octets(),
            target_mac: self.target_mac,
            target_ip: self.target_ip.octets(),
        };
        zerocopy::transmute!(raw)
    }
}
