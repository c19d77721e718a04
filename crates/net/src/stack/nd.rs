//! ICMPv6: echoes, errors, and neighbour discovery (RFC 4443, RFC 4861).
//!
//! # Evidence accepted, and protocols not implemented
//! Neighbour discovery and ARP share one kind of cache with one state machine, in which evidence of
//! a neighbour's station makes it reachable. Evidence is a solicitation for this host, which it is
//! about to answer, and an advertisement of a neighbour that was solicited or is cached; one
//! without the override flag does not replace a cached address (RFC 4861 section 7.2.5). A message
//! that was routed or fragmented is ignored (section 7.1, RFC 6980).
//!
//! * **Duplicate address detection** (RFC 4862 section 5.4) is not done (`DupAddrDetectTransmits`
//!   is zero): the IOKernel gives every address to one runtime and lets no other send from it.
//!   Others' probes are answered, so that they find this host's addresses taken.
//! * **Router advertisements** are ignored: address, prefix and gateway are configured, and a host
//!   that accepted advertisements could be misdirected by any station of the link. So are
//!   **redirects**.
//! * **Multicast listener discovery** (RFC 3810) is not implemented: the IOKernel's switch floods
//!   groups.

use super::Stack;
use super::ip::Hop;
use crate::addressing::{ALL_NODES, solicited_node};
use crate::arrived::{Arrived, Link};
use crate::counters::CountedEvent;
use crate::neighbour::{Ask, Evidence, Heard, Question};
use crate::outlet::Outlet;
use crate::platform::Platform;
use core::net::Ipv6Addr;
use tailwater_wire::{
    Addresses, Fragmenting, Icmpv6Header, Icmpv6Message, IpProtocol, MacAddr, ND_HOP_LIMIT, Neighbour,
    PacketInfo,
};

impl<P: Platform> Stack<P> {
    /// Handles a message from the link.
    pub(super) fn handle_icmpv6(
        &self,
        outlet: &mut impl Outlet<P>,
        arrived: &Arrived<'_>,
        link: &Link<'_>,
        message: &Icmpv6Message<'_>,
    ) -> Result<(), CountedEvent> {
        let Addresses::V6 { source, destination } = arrived.addresses else {
            return Err(CountedEvent::IcmpIgnored);
        };
        match *message {
            Icmpv6Message::Neighbour(_) if !link.never_routed => Err(CountedEvent::NdInvalid),
            Icmpv6Message::Neighbour(Neighbour::Solicitation { target, source: mac }) => {
                self.handle_solicitation(outlet, (source, destination), link.station, (target, mac))
            }
            Icmpv6Message::Neighbour(Neighbour::Advertisement { target, solicited, replaces, mac }) => {
                if solicited && link.to_all {
                    return Err(CountedEvent::NdInvalid);
                }
                // An answer to a unicast solicitation may omit the link-layer address (RFC 4861
                // section 4.4).
                let mac = mac.or(solicited.then_some(link.station)).ok_or(CountedEvent::NdInvalid)?;
                let heard = self.handle_advertisement(outlet, target, mac, replaces);
                self.share_answer(link.to_all)?;
                heard
            }
            _ if source.is_unspecified() => Err(CountedEvent::MartianSource),
            Icmpv6Message::EchoRequest { identity, data } => {
                // To a group as well (RFC 4443 section 4.2), but then within the limit of errors:
                // one request causes many replies.
                let own = if link.to_all { self.addressing.source_for6(source) } else { destination };
                if link.to_all && !self.icmp_errors.take(source.into(), outlet.now()) {
                    return Err(CountedEvent::UnreachableLimited);
                }
                let back = Addresses::V6 { source: own, destination: source };
                let header = Icmpv6Header::echo_reply(&back, identity, data).to_bytes();
                let parts = [&header[..], data, &[]];
                self.echo(outlet, arrived, back, link.station, parts);
                Ok(())
            }
            Icmpv6Message::Error { why, quote }
                if !link.to_all
                    && (self.handle_departure(outlet, arrived, why, quote)
                        || self.handle_quote(outlet, source.into(), quote, why)) =>
            {
                Ok(())
            }
            Icmpv6Message::Error { .. } | Icmpv6Message::Other { .. } => {
                if !link.to_all {
                    self.leave_to_other(CountedEvent::IcmpIgnored)?;
                }
                Err(CountedEvent::IcmpIgnored)
            }
        }
    }

    /// Handles a neighbour solicitation (RFC 4861 sections 7.2.3 and 7.2.4).
    fn handle_solicitation(
        &self,
        outlet: &mut impl Outlet<P>,
        (source, destination): (Ipv6Addr, Ipv6Addr),
        station: MacAddr,
        (target, mac): (Ipv6Addr, Option<MacAddr>),
    ) -> Result<(), CountedEvent> {
        let advertisement = |solicited| Neighbour::Advertisement {
            target,
            solicited,
            replaces: true,
            mac: Some(self.addressing.mac()),
        };
        let ours = self.addressing.has_ip6(target);
        if source.is_unspecified() {
            // Duplicate address detection (section 7.1.1): the answer goes to all nodes.
            if mac.is_some() || destination != solicited_node(target) {
                return Err(CountedEvent::NdInvalid);
            }
            if ours {
                if !self.probe_answers.take(outlet.now()) {
                    return Err(CountedEvent::NdLimited);
                }
                self.counters.count(CountedEvent::NdAnswered);
                let all_nodes = (target, ALL_NODES, MacAddr::of_group(ALL_NODES));
                self.transmit_neighbour(outlet, all_nodes, advertisement(false));
            }
            return Ok(());
        }
        let mac = mac.unwrap_or(station);
        if !mac.is_station() || !self.addressing.is_on_link6(source) {
            return Err(CountedEvent::NdInvalid);
        }
        if !ours {
            return Ok(());
        }
        let result = self.hear_neighbour(outlet, source, mac, Evidence::Request);
        self.counters.count(CountedEvent::NdAnswered);
        self.transmit_neighbour(outlet, (target, source, mac), advertisement(true));
        result
    }

    /// Handles a neighbour advertisement (RFC 4861 section 7.2.5).
    fn handle_advertisement(
        &self,
        outlet: &mut impl Outlet<P>,
        target: Ipv6Addr,
        mac: MacAddr,
        replaces: bool,
    ) -> Result<(), CountedEvent> {
        if self.addressing.has_ip6(target) {
            return Err(CountedEvent::NdConflict);
        }
        if !mac.is_station() || !self.addressing.is_peer6(target) || !self.addressing.is_on_link6(target) {
            return Err(CountedEvent::NdInvalid);
        }
        let evidence = if replaces { Evidence::Answer } else { Evidence::WeakAnswer };
        self.hear_neighbour(outlet, target, mac, evidence)
    }

    fn hear_neighbour(
        &self,
        outlet: &mut impl Outlet<P>,
        ip: Ipv6Addr,
        mac: MacAddr,
        evidence: Evidence,
    ) -> Result<(), CountedEvent> {
        let heard = self.neighbours6.hear(ip, mac, evidence, outlet.now());
        self.want_poll(outlet);
        match heard {
            Heard::Known(frames) => self.release(outlet, mac, frames),
            Heard::Ignored => return Err(CountedEvent::NdIgnored),
            Heard::Stranger => {}
        }
        Ok(())
    }

    /// Solicits a neighbour. If there is no room, the next timer repeats it.
    pub(super) fn ask6(&self, outlet: &mut impl Outlet<P>, question: Question<Ipv6Addr>) {
        let target = question.address;
        let group = solicited_node(target);
        let (to, mac) = match question.ask {
            Ask::All => (group, MacAddr::of_group(group)),
            Ask::Station(mac) => (target, mac),
        };
        self.counters.count(CountedEvent::NdSolicited);
        let solicitation = Neighbour::Solicitation { target, source: Some(self.addressing.mac()) };
        self.transmit_neighbour(outlet, (self.addressing.source_for6(target), to, mac), solicitation);
    }

    /// Announces this host's addresses to all nodes (RFC 4861 section 7.2.6).
    pub(super) fn announce6(&self, outlet: &mut impl Outlet<P>) {
        for target in self.addressing.link_ips6() {
            let mac = Some(self.addressing.mac());
            let advertisement = Neighbour::Advertisement { target, solicited: false, replaces: true, mac };
            let all_nodes = (target, ALL_NODES, MacAddr::of_group(ALL_NODES));
            self.transmit_neighbour(outlet, all_nodes, advertisement);
        }
    }

    fn transmit_neighbour(
        &self,
        outlet: &mut impl Outlet<P>,
        (source, destination, mac): (Ipv6Addr, Ipv6Addr, MacAddr),
        message: Neighbour,
    ) {
        let addresses = Addresses::V6 { source, destination };
        let (bytes, len) = message.encode(&addresses);
        let packet =
            PacketInfo { addresses, protocol: IpProtocol::ICMPV6, hop_limit: ND_HOP_LIMIT, traffic_class: 0 };
        let fill = |out: &mut [u8], _| out.copy_from_slice(&bytes[..len]);
        let hop = Hop::Station(mac);
        if self.transmit_via(outlet, hop, &packet, Fragmenting::Forbidden, len, fill).is_err() {
            self.counters.count(CountedEvent::EgressFull);
        }
    }
}
