//! Resolution of addresses: what a frame of ARP or neighbour discovery says, and the answer to a
//! question.
//!
//! Pure: who answers for which address is decided by the switch and by a port that stands for the
//! programs behind it.

use crate::arp::{ArpOperation, ArpPacket};
use crate::checksum::Checksums;
use crate::ethernet::{ETHERNET_HEADER, EtherType, EthernetHeader, MacAddr};
use crate::frame::ARP_FRAME;
use crate::headers::Stations;
use crate::icmpv6::{Icmpv6Message, ND_HOP_LIMIT, ND_MESSAGE, Neighbour};
use crate::ip::{Addresses, Fragmenting, IpProtocol, PacketInfo};
use crate::ipv6::{IPV6_HEADER, Ipv6Packet};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Deref;

/// Length of the longest answer: a neighbour advertisement.
const MAX_ANSWER: usize = ETHERNET_HEADER + IPV6_HEADER + ND_MESSAGE;

/// What a message of ARP or neighbour discovery says about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// A host asks for the station of `target`.
    Question {
        /// The address that is asked for.
        target: IpAddr,
        /// The asking host's address,
        by: IpAddr,
        /// and its station.
        station: MacAddr,
    },
    /// A host states that an address is its own, or is about to take it.
    Claim(IpAddr),
}

/// Returns what a frame says about an address; `None` for other frames.
pub fn resolution(frame: &[u8]) -> Option<Resolution> {
    let (ethernet, bytes) = EthernetHeader::parse(frame).ok()?;
    match ethernet.ethertype {
        EtherType::ARP => {
            let arp = ArpPacket::parse(bytes).ok()?;
            // A probe has no sender (RFC 5227 section 1.1), an announcement asks for itself.
            let asks = arp.operation == ArpOperation::Request && !arp.sender_ip.is_unspecified();
            if !arp.sender_mac.is_station() || arp.sender_mac != ethernet.source {
                return None;
            }
            Some(if asks && arp.sender_ip != arp.target_ip {
                let (target, by) = (arp.target_ip.into(), arp.sender_ip.into());
                Resolution::Question { target, by, station: arp.sender_mac }
            } else if arp.sender_ip.is_unspecified() {
                Resolution::Claim(arp.target_ip.into())
            } else {
                Resolution::Claim(arp.sender_ip.into())
            })
        }
        EtherType::IPV6 => {
            let packet = Ipv6Packet::parse(bytes).ok()?;
            let header = packet.header;
            if header.next_header() != IpProtocol::ICMPV6 || header.hop_limit() != ND_HOP_LIMIT {
                return None;
            }
            let message =
                Icmpv6Message::parse(packet.payload, &header.addresses(), Checksums::Verify).ok()?;
            let Icmpv6Message::Neighbour(neighbour) = message else { return None };
            Some(match neighbour {
                Neighbour::Advertisement { target, .. } => Resolution::Claim(target.into()),
                Neighbour::Solicitation { target, source: None } if header.source().is_unspecified() => {
                    Resolution::Claim(target.into())
                }
                Neighbour::Solicitation { source: Some(station), .. } if station != ethernet.source => {
                    return None;
                }
                Neighbour::Solicitation { target, source } => {
                    let (target, by) = (target.into(), header.source().into());
                    Resolution::Question { target, by, station: source.unwrap_or(ethernet.source) }
                }
            })
        }
        _ => None,
    }
}

/// The frame that answers a question.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    bytes: [u8; MAX_ANSWER],
    len: usize,
}

impl Deref for Answer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Returns the answer to a question: `target` is at `own`.
pub fn resolved(target: IpAddr, own: MacAddr, (by, station): (IpAddr, MacAddr)) -> Option<Answer> {
    match (target, by) {
        (IpAddr::V4(target), IpAddr::V4(by)) => Some(arp_reply((target, own), (by, station))),
        (IpAddr::V6(target), IpAddr::V6(by)) => Some(advertisement((target, own), (by, station))),
        _ => None,
    }
}

fn arp_reply((target, own): (Ipv4Addr, MacAddr), (by, station): (Ipv4Addr, MacAddr)) -> Answer {
    let header = EthernetHeader { destination: station, source: own, ethertype: EtherType::ARP };
    let reply = ArpPacket {
        operation: ArpOperation::Reply,
        sender_mac: own,
        sender_ip: target,
        target_mac: station,
        target_ip: by,
    };
    let mut answer = Answer { bytes: [0; MAX_ANSWER], len: ARP_FRAME };
    answer.bytes[..ETHERNET_HEADER].copy_from_slice(&header.to_bytes());
    answer.bytes[ETHERNET_HEADER..ARP_FRAME].copy_from_slice(&reply.encode());
    answer
}

fn advertisement((target, own): (Ipv6Addr, MacAddr), (by, station): (Ipv6Addr, MacAddr)) -> Answer {
    let addresses = Addresses::V6 { source: target, destination: by };
    // Without the override flag: a host that has the address now is believed rather.
    let message = Neighbour::Advertisement { target, solicited: true, replaces: false, mac: Some(own) };
    let (message, len) = message.encode(&addresses);
    let packet =
        PacketInfo { addresses, protocol: IpProtocol::ICMPV6, hop_limit: ND_HOP_LIMIT, traffic_class: 0 };
    let overhead = packet.overhead();
    let mut answer = Answer { bytes: [0; MAX_ANSWER], len: overhead + len };
    let (headers, payload) = answer.bytes.split_at_mut(overhead);
    packet.write_headers(
        headers,
        Stations { source: own, destination: station },
        Fragmenting::Forbidden,
        len,
    );
    payload[..len].copy_from_slice(&message[..len]);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tailwater_testkit::frames::ipv6;

    proptest! {
        /// Also messages whose checksum is right and that are about something else, or cut short.
        #[test]
        fn any_bytes_are_read(mut bytes in prop::collection::vec(any::<u8>(), 0..100), arp in any::<bool>(),
            kind in 133u8..138, source in any::<u128>()) {
            if let Some(code) = bytes.get_mut(12..22) {
                code.copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, if arp { 1 } else { 2 }]);
            }
            resolution(&bytes);
            if let Some(header) = bytes.first_chunk_mut() {
                *header = [kind, 0, 0, 0];
                let addresses = Addresses::V6 { source: source.into(), destination: 2.into() };
                let sum = addresses.pseudo_header(IpProtocol::ICMPV6, bytes.len()).bytes(&bytes).finish();
                bytes[2..4].copy_from_slice(&sum.to_be_bytes());
            }
            resolution(&ipv6(source, 2, IpProtocol::ICMPV6.0, ND_HOP_LIMIT, &bytes));
        }
    }
}
