//! A frame has arrived: whom it is for, and what it does.

use super::{Event, Outlet, Stack};
use crate::net::FLAG_CHECKSUM_OK;
use crate::net::udp::Offer;
use crate::net::wire::{
    ArpPacket, Checksums, EtherType, EthernetHeader, IcmpMessage, IpProtocol, Ipv4Packet, MacAddr,
    UdpDatagram, WireError,
};
use core::net::SocketAddrV4;

impl From<WireError> for Event {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Truncated { .. } | WireError::Field { .. } => Self::Malformed,
            WireError::Checksum { .. } => Self::BadChecksum,
            WireError::Fragment => Self::Fragment,
        }
    }
}

impl Stack {
    /// Processes one frame in place. `flags` are the ring record's. A frame that is dropped is counted.
    #[inline]
    pub fn input(&self, outlet: &mut impl Outlet, frame: &[u8], flags: u8) {
        let checksums = if flags & FLAG_CHECKSUM_OK != 0 { Checksums::Trust } else { Checksums::Verify };
        if let Err(event) = self.handle_frame(outlet, frame, checksums) {
            self.counters.count(event);
        }
    }

    #[inline]
    fn handle_frame(
        &self,
        outlet: &mut impl Outlet,
        frame: &[u8],
        checksums: Checksums,
    ) -> Result<(), Event> {
        let (ethernet, payload) = EthernetHeader::parse(frame)?;
        let for_us =
            ethernet.destination == self.addressing.mac() || ethernet.destination == MacAddr::BROADCAST;
        if !for_us || !ethernet.source.is_station() {
            return Err(Event::ForeignMac);
        }
        match ethernet.ethertype {
            EtherType::IPV4 => {
                let packet = Ipv4Packet::parse(payload, checksums)?;
                self.handle_ipv4(outlet, ethernet, &packet, checksums)
            }
            EtherType::ARP => self.handle_arp(outlet, &ArpPacket::parse(payload)?),
            _ => Err(Event::UnknownEtherType),
        }
    }

    /// RFC 1122 section 3.2.1.3 for the addresses, section 3.3.6 for packets to one host in frames to all.
    #[inline]
    fn handle_ipv4(
        &self,
        outlet: &mut impl Outlet,
        ethernet: &EthernetHeader,
        packet: &Ipv4Packet<'_>,
        checksums: Checksums,
    ) -> Result<(), Event> {
        let (source, destination) = (packet.header.source(), packet.header.destination());
        let to_all = destination != self.addressing.ip();
        let wrong = if to_all {
            !self.addressing.is_broadcast(destination)
        } else {
            ethernet.destination == MacAddr::BROADCAST
        };
        if wrong {
            return Err(Event::ForeignAddress);
        }
        if !self.addressing.is_peer(source) {
            return Err(Event::MartianSource);
        }
        match packet.header.protocol() {
            IpProtocol::UDP => {
                let udp = UdpDatagram::parse(packet.payload, source, destination, checksums)?;
                let from = SocketAddrV4::new(source, udp.header.source_port());
                let to = SocketAddrV4::new(destination, udp.header.destination_port());
                if self.udp.deliver(from, to, udp.payload) != Offer::NotMine {
                    return Ok(());
                }
                if !to_all {
                    self.refuse(outlet, ethernet.source, packet);
                }
                Err(Event::NoSocket)
            }
            // RFC 1122 section 3.2.2.6: an echo request to all may be ignored, and no error is ever sent to all.
            IpProtocol::ICMP if to_all => Err(Event::IcmpIgnored),
            IpProtocol::ICMP => {
                let message = IcmpMessage::parse(packet.payload, checksums)?;
                self.handle_icmp(outlet, ethernet.source, source, &message)
            }
            _ => Err(Event::UnknownProtocol),
        }
    }
}
