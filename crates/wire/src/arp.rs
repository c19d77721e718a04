//! ARP packets for IPv4 over Ethernet (RFC 826).

use crate::error::{Layer, WireError};
use crate::ethernet::{EtherType, MacAddr};
use crate::layout::layout;
use core::net::Ipv4Addr;

/// Bytes of an ARP packet for IPv4 over Ethernet.
pub const ARP_PACKET: usize = 28;

/// Hardware type of Ethernet (IANA arp-parameters).
const HARDWARE_ETHERNET: u16 = 1;
const PROTOCOL_IPV4: u16 = EtherType::IPV4.0;

/// The operation field of an ARP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArpOperation {
    /// Asks for the station that has the target address.
    Request,
    /// States that the sender's station has the sender address.
    Reply,
}

layout! {
    /// The packet as it is on the wire.
    struct Layout[ARP_PACKET] {
        hardware_type: u16,
        protocol_type: u16,
        hardware_len: u8,
        protocol_len: u8,
        operation: u16,
        sender_mac: MacAddr,
        sender_ip: [u8; 4],
        target_mac: MacAddr,
        target_ip: [u8; 4],
    }
}

/// A checked packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArpPacket {
    /// Request or reply.
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
    /// Parses a packet. Bytes after it are padding.
    ///
    /// # Errors
    /// [`WireError::Truncated`], or [`WireError::Field`] for another hardware, protocol, address
    /// length or operation.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let Some((raw, _padding)) = Layout::split(bytes) else {
            return Err(WireError::Truncated { layer: Layer::Arp, need: ARP_PACKET, have: bytes.len() });
        };
        let refuse = |field, value| Err(WireError::Field { layer: Layer::Arp, field, value });
        if raw.hardware_type != HARDWARE_ETHERNET {
            return refuse("hardware type", raw.hardware_type);
        }
        if raw.protocol_type != PROTOCOL_IPV4 {
            return refuse("protocol type", raw.protocol_type);
        }
        if raw.hardware_len != 6 {
            return refuse("hardware address length", raw.hardware_len.into());
        }
        if raw.protocol_len != 4 {
            return refuse("protocol address length", raw.protocol_len.into());
        }
        let operation = match raw.operation {
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

    /// Returns the packet as it is on the wire.
    pub fn encode(&self) -> [u8; ARP_PACKET] {
        let raw = Layout {
            hardware_type: HARDWARE_ETHERNET,
            protocol_type: PROTOCOL_IPV4,
            hardware_len: 6,
            protocol_len: 4,
            operation: match self.operation {
                ArpOperation::Request => 1,
                ArpOperation::Reply => 2,
            },
            sender_mac: self.sender_mac,
            sender_ip: self.sender_ip.octets(),
            target_mac: self.target_mac,
            target_ip: self.target_ip.octets(),
        };
        raw.to_bytes()
    }
}
