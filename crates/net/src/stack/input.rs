//! Received frames, and packets of this host to itself: checked, and passed to their protocol.

use super::Stack;
use crate::arrived::{Arrived, Link, Origin};
use crate::counters::CountedEvent;
use crate::loopback::{LocalPacket, LoopbackBatch};
use crate::outlet::{InputBatch, NoBatch, Outlet};
use crate::platform::Platform;
use crate::reassembly::{Key, Piece};
use crate::udp::Offer;
use core::net::{Ipv4Addr, SocketAddr};
use tailwater_wire::{
    Addresses, ArpPacket, Checksums, EtherType, EthernetHeader, ExtensionError, IPV6_HEADER, IcmpMessage,
    Icmpv6Message, IpProtocol, Ipv4Packet, Ipv6Packet, MacAddr, ND_HOP_LIMIT, Report, UdpDatagram,
    upper_layer,
};

impl<P: Platform> Stack<P> {
    /// Processes one frame in place, by itself. A frame that is dropped is counted.
    #[inline]
    pub fn input(&self, outlet: &mut impl Outlet<P>, frame: &[u8], checksums: Checksums) {
        self.input_in_batch(&mut NoBatch, outlet, frame, checksums);
    }

    /// As [`input`](Self::input), for a frame of `batch`.
    #[inline]
    pub fn input_in_batch(
        &self,
        batch: &mut impl InputBatch<P>,
        outlet: &mut impl Outlet<P>,
        frame: &[u8],
        checksums: Checksums,
    ) {
        if let Err(event) = self.handle_frame(batch, outlet, frame, checksums) {
            self.counters.count(event);
            if event == CountedEvent::PassedOn {
                outlet.pass_on(frame, checksums);
            }
        }
    }

    /// Takes all packets that this host has sent to itself, for [`input_local`](Self::input_local).
    /// False if there are none.
    pub fn take_loopback(&self, batch: &mut LoopbackBatch) -> bool {
        self.loopback.take(batch)
    }

    /// Returns whether no packet from this host to itself waits.
    pub fn is_loopback_empty(&self) -> bool {
        self.loopback.is_empty()
    }

    /// Processes one packet that this host has sent to itself.
    pub fn input_local(&self, outlet: &mut impl Outlet<P>, packet: &LocalPacket<'_>) {
        let &LocalPacket { addresses, protocol, traffic_class, payload } = packet;
        let (checksums, origin) = (Checksums::Trust, Origin::Loopback);
        let arrived = Arrived { addresses, protocol, traffic_class, payload, checksums, origin };
        if let Err(event) = self.handle_transport(&mut NoBatch, outlet, &arrived) {
            self.counters.count(event);
        }
    }

    #[inline]
    fn handle_frame(
        &self,
        batch: &mut impl InputBatch<P>,
        outlet: &mut impl Outlet<P>,
        frame: &[u8],
        checksums: Checksums,
    ) -> Result<(), CountedEvent> {
        let (ethernet, payload) = EthernetHeader::parse(frame)?;
        let for_us = ethernet.destination == self.addressing.mac() || self.hears(ethernet.destination);
        if !for_us || !ethernet.source.is_station() {
            return Err(CountedEvent::ForeignMac);
        }
        match ethernet.ethertype {
            EtherType::IPV4 => {
                let packet = Ipv4Packet::parse(payload, checksums)?;
                self.handle_ipv4(batch, outlet, &ethernet, &packet, checksums)
            }
            EtherType::IPV6 if self.addressing.ip6().is_some() => {
                let packet = Ipv6Packet::parse(payload)?;
                self.handle_ipv6(batch, outlet, &ethernet, &packet, checksums)
            }
            EtherType::ARP => self.handle_arp(outlet, &ArpPacket::parse(payload)?),
            _ => Err(CountedEvent::UnknownEtherType),
        }
    }

    /// Returns whether frames to `mac`, a group address, may be for this host.
    #[inline]
    fn hears(&self, mac: MacAddr) -> bool {
        self.addressing.hears(mac) || self.udp.groups().hears(mac)
    }

    /// Returns whether an IPv4 packet to several hosts is for this one, too.
    #[inline]
    fn is_to_us(&self, destination: Ipv4Addr) -> bool {
        self.addressing.is_broadcast(destination) || self.udp.groups().has(destination.into())
    }

    /// RFC 1122 section 3.2.1.3 for the addresses, section 3.3.6 for packets to one host in frames
    /// to all.
    #[inline]
    fn handle_ipv4(
        &self,
        batch: &mut impl InputBatch<P>,
        outlet: &mut impl Outlet<P>,
        ethernet: &EthernetHeader,
        packet: &Ipv4Packet<'_>,
        checksums: Checksums,
    ) -> Result<(), CountedEvent> {
        let header = packet.header;
        let (source, destination) = (header.source(), header.destination());
        let to_all = destination != self.addressing.ip();
        let wrong = if to_all { !self.is_to_us(destination) } else { ethernet.destination.is_group() };
        if wrong {
            return Err(CountedEvent::ForeignAddress);
        }
        if !self.addressing.is_peer(source) {
            return Err(CountedEvent::MartianSource);
        }
        if header.is_fragment() {
            let identification = header.identification().into();
            let addresses = header.addresses();
            let key = Key { addresses, protocol: header.protocol(), identification };
            let piece = Piece {
                offset: header.fragment_offset(),
                more: header.more_fragments(),
                data: packet.payload,
                header: &packet.bytes[..packet.bytes.len() - packet.payload.len()],
                protocol: header.protocol(),
                traffic_class: header.traffic_class(),
                station: ethernet.source,
            };
            return self.handle_piece(batch, outlet, &key, &piece, to_all);
        }
        let link = Link {
            station: ethernet.source,
            packet: [packet.bytes, &[]],
            to_all,
            never_routed: false,
            named_at: 0,
        };
        let arrived = Arrived {
            addresses: header.addresses(),
            protocol: header.protocol(),
            traffic_class: header.traffic_class(),
            payload: packet.payload,
            checksums,
            origin: Origin::Link(link),
        };
        self.handle_transport(batch, outlet, &arrived)
    }

    #[inline]
    fn handle_ipv6(
        &self,
        batch: &mut impl InputBatch<P>,
        outlet: &mut impl Outlet<P>,
        ethernet: &EthernetHeader,
        packet: &Ipv6Packet<'_>,
        checksums: Checksums,
    ) -> Result<(), CountedEvent> {
        let header = packet.header;
        let (source, destination) = (header.source(), header.destination());
        let to_all = destination.is_multicast();
        let wrong = if to_all {
            !(self.addressing.is_group_member(destination) || self.udp.groups().has(destination.into()))
        } else {
            !self.addressing.has_ip6(destination) || ethernet.destination.is_group()
        };
        if wrong {
            return Err(CountedEvent::ForeignAddress);
        }
        // A host without an address may only send duplicate address detection (RFC 4861 section
        // 7.1.1).
        let probes = source.is_unspecified() && to_all && header.next_header() == IpProtocol::ICMPV6;
        if !(self.addressing.is_peer6(source) || probes) {
            return Err(CountedEvent::MartianSource);
        }
        let mut link = Link {
            station: ethernet.source,
            packet: [packet.bytes, &[]],
            to_all,
            never_routed: header.hop_limit() == ND_HOP_LIMIT,
            named_at: 0,
        };
        let upper = match upper_layer(header.next_header(), packet.payload) {
            Ok(upper) => upper,
            Err(error) => return Err(self.handle_extension_error(outlet, &header.addresses(), &link, error)),
        };
        link.named_at = upper.named_at;
        if let Some(fragment) = upper.fragment {
            // A packet that is its own only fragment is whole (RFC 6946).
            if fragment.offset() != 0 || fragment.more() {
                let identification = fragment.identification();
                // Pieces may disagree about the protocol: it is no part of the key.
                let key = Key { addresses: header.addresses(), protocol: IpProtocol(0), identification };
                let (before, data) = packet.bytes.split_at(IPV6_HEADER + upper.at);
                let piece = Piece {
                    offset: fragment.offset(),
                    more: fragment.more(),
                    data,
                    header: before,
                    protocol: upper.protocol,
                    traffic_class: header.traffic_class(),
                    station: ethernet.source,
                };
                return self.handle_piece(batch, outlet, &key, &piece, to_all);
            }
            link.never_routed = false;
        }
        let arrived = Arrived {
            addresses: header.addresses(),
            protocol: upper.protocol,
            traffic_class: header.traffic_class(),
            payload: &packet.payload[upper.at..],
            checksums,
            origin: Origin::Link(link),
        };
        self.handle_transport(batch, outlet, &arrived)
    }

    #[cold]
    pub(super) fn handle_extension_error(
        &self,
        outlet: &mut impl Outlet<P>,
        addresses: &Addresses,
        link: &Link<'_>,
        error: ExtensionError,
    ) -> CountedEvent {
        match error {
            ExtensionError::Wire(error) => error.into(),
            ExtensionError::Silent => CountedEvent::ExtensionRefused,
            ExtensionError::Problem { code, pointer, answers_group } => {
                if !link.to_all || answers_group {
                    self.report(outlet, addresses, link, Report::Problem { code, pointer });
                }
                CountedEvent::ExtensionRefused
            }
        }
    }

    /// Passes a packet's payload to its protocol: one arm for each.
    #[inline]
    pub(super) fn handle_transport(
        &self,
        batch: &mut impl InputBatch<P>,
        outlet: &mut impl Outlet<P>,
        arrived: &Arrived<'_>,
    ) -> Result<(), CountedEvent> {
        match (arrived.protocol, &arrived.origin) {
            #[cfg(feature = "tcp")]
            (IpProtocol::TCP, _) => self.handle_tcp(batch, outlet, arrived),
            (IpProtocol::UDP, _) => self.handle_udp(batch, outlet, arrived),
            // RFC 1122 section 3.2.2.6: an echo request to all may be ignored, and no error is ever
            // sent to all.
            (IpProtocol::ICMP, Origin::Link(Link { to_all: true, .. })) => Err(CountedEvent::IcmpIgnored),
            (IpProtocol::ICMP, Origin::Link(link)) if matches!(arrived.addresses, Addresses::V4 { .. }) => {
                let message = IcmpMessage::parse(arrived.payload, arrived.checksums)?;
                self.handle_icmp(outlet, arrived, link.station, &message)
            }
            (IpProtocol::ICMPV6, Origin::Link(link)) if matches!(arrived.addresses, Addresses::V6 { .. }) => {
                let message = Icmpv6Message::parse(arrived.payload, &arrived.addresses, arrived.checksums)?;
                self.handle_icmpv6(outlet, arrived, link, &message)
            }
            (IpProtocol::NO_NEXT_HEADER, _) => Ok(()),
            (_, Origin::Link(link)) => {
                if !link.to_all {
                    let report = Report::Protocol { pointer: link.named_at };
                    self.report(outlet, &arrived.addresses, link, report);
                }
                Err(CountedEvent::UnknownProtocol)
            }
            (_, Origin::Loopback) => Err(CountedEvent::UnknownProtocol),
        }
    }

    #[inline]
    fn handle_udp(
        &self,
        batch: &impl InputBatch<P>,
        outlet: &mut impl Outlet<P>,
        arrived: &Arrived<'_>,
    ) -> Result<(), CountedEvent> {
        let addresses = &arrived.addresses;
        let udp = UdpDatagram::parse(arrived.payload, addresses, arrived.checksums)?;
        let from = SocketAddr::new(addresses.source(), udp.header.source_port());
        let to = SocketAddr::new(addresses.destination(), udp.header.destination_port());
        if self.udp.deliver_traced(from, to, udp.payload, batch.traced()) != Offer::NotMine {
            return Ok(());
        }
        match &arrived.origin {
            Origin::Link(link) if !link.to_all => {
                self.leave_to_other(CountedEvent::NoSocket)?;
                self.report(outlet, addresses, link, Report::Port);
            }
            _ => {}
        }
        Err(CountedEvent::NoSocket)
    }
}
