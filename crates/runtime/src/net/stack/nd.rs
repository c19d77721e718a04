//! ICMPv6: echoes, errors, and neighbour discovery (RFC 4443, RFC 4861).
//!
//! # What is believed, and what is not done
//! Neighbour discovery is ARP with other words here: one cache with one state machine for both, in which evidence of a
//! neighbour's station makes it reachable. Evidence is a solicitation for this host, which is about to be answered, and an
//! advertisement of a neighbour this host has asked for or knows; an advertisement that does not want to replace what is
//! known (RFC 4861 section 7.2.5) does not. What was routed or came in fragments is none (section 7.1, RFC 6980).
//!
//! * **Duplicate address detection** (RFC 4862 section 5.4) is not done (`DupAddrDetectTransmits` is zero): the IOKernel
//!   gives every address to one runtime and lets no other send from it. Others' probes are answered, so that they find this
//!   host's addresses taken.
//! * **Router advertisements** are ignored: address, prefix and gateway are the IOKernel's to say, and a runtime that
//!   believed them could be led astray by any station of the link. So are **redirects**.
//! * **Multicast listener discovery** (RFC 3810) is not spoken: the IOKernel's switch floods groups.

use super::addressing::{ALL_NODES, solicited_node};
use super::input::{Arrived, Link};
use super::ip::Hop;
use super::{Event, Outlet, Stack};
use crate::net::neighbour::{Ask, Heard, Question};
use crate::net::wire::{
    Addresses, Fragmenting, Icmpv6Header, Icmpv6Message, IpProtocol, MacAddr, ND_HOP_LIMIT, Neighbour,
    PacketInfo,
};
use core::net::Ipv6Addr;
use zerocopy::IntoBytes;

impl Stack {
    /// A message that came over the link.
    pub(super) fn handle_icmpv6(
        &self,
        outlet: &mut impl Outlet,
        arrived: &Arrived<'_>,
        link: &Link<'_>,
        message: &Icmpv6Message<'_>,
    ) -> Result<(), Event> {
        let Addresses::V6 { source, destination } = arrived.addresses else { return Err(Event::IcmpIgnored) };
        match *message {
            Icmpv6Message::Neighbour(_) if !link.never_routed => Err(Event::NdInvalid),
            Icmpv6Message::Neighbour(Neighbour::Solicitation { target, source: mac }) => {
                self.handle_solicitation(outlet, (source, destination), link.station, (target, mac))
            }
            Icmpv6Message::Neighbour(Neighbour::Advertisement { target, solicited, replaces, mac }) => {
                if solicited && link.to_all {
                    return Err(Event::NdInvalid);
                }
                // An answer to a question put to one station may leave out what that station must know (RFC 4861 section 4.4).
                let mac = mac.or(solicited.then_some(link.station)).ok_or(Event::NdInvalid)?;
                self.handle_advertisement(outlet, target, mac, replaces)
            }
            _ if source.is_unspecified() => Err(Event::MartianSource),
            Icmpv6Message::EchoRequest { identity, data } => {
                // To a group as well (RFC 4443 section 4.2), but then within the limit of errors: one question makes many answer.
                let own = if link.to_all { self.addressing.source_for6(source) } else { destination };
                if link.to_all && !self.icmp_errors.take(source.into(), outlet.now()) {
                    return Err(Event::UnreachableLimited);
                }
                let back = Addresses::V6 { source: own, destination: source };
                let header = Icmpv6Header::echo_reply(&back, identity, data);
                let parts = [header.as_bytes(), data, &[]];
                self.echo(outlet, arrived, back, link.station, parts);
                Ok(())
            }
            Icmpv6Message::Error { why, quote }
                if !link.to_all && self.handle_quote(outlet, source.into(), quote, why) =>
            {
                Ok(())
            }
            Icmpv6Message::Error { .. } | Icmpv6Message::Other { .. } => Err(Event::IcmpIgnored),
        }
    }

    /// RFC 4861 section 7.2.3 and 7.2.4.
    fn handle_solicitation(
        &self,
        outlet: &mut impl Outlet,
        (source, destination): (Ipv6Addr, Ipv6Addr),
        station: MacAddr,
        (target, mac): (Ipv6Addr, Option<MacAddr>),
    ) -> Result<(), Event> {
        let advertisement = |solicited| Neighbour::Advertisement {
            target,
            solicited,
            replaces: true,
            mac: Some(self.addressing.mac()),
        };
        let ours = self.addressing.has_ip6(target);
        if source.is_unspecified() {
            // A probe for duplicates (section 7.1.1): everybody hears that the address is taken.
            if mac.is_some() || destination != solicited_node(target) {
                return Err(Event::NdInvalid);
            }
            if ours {
                self.counters.count(Event::NdAnswered);
                let everybody = (target, ALL_NODES, MacAddr::of_group(ALL_NODES));
                self.transmit_neighbour(outlet, everybody, advertisement(false));
            }
            return Ok(());
        }
        let mac = mac.unwrap_or(station);
        if !mac.is_station() || !self.addressing.is_on_link6(source) {
            return Err(Event::NdInvalid);
        }
        if !ours {
            return Ok(());
        }
        let result = self.hear_neighbour(outlet, source, mac, true);
        self.counters.count(Event::NdAnswered);
        self.transmit_neighbour(outlet, (target, source, mac), advertisement(true));
        result
    }

    /// RFC 4861 section 7.2.5.
    fn handle_advertisement(
        &self,
        outlet: &mut impl Outlet,
        target: Ipv6Addr,
        mac: MacAddr,
        replaces: bool,
    ) -> Result<(), Event> {
        if self.addressing.has_ip6(target) {
            return Err(Event::NdConflict);
        }
        if !mac.is_station() || !self.addressing.is_peer6(target) || !self.addressing.is_on_link6(target) {
            return Err(Event::NdInvalid);
        }
        if !replaces && self.neighbours6.find(target).is_some_and(|known| known != mac) {
            return Err(Event::NdIgnored);
        }
        self.hear_neighbour(outlet, target, mac, false)
    }

    fn hear_neighbour(
        &self,
        outlet: &mut impl Outlet,
        ip: Ipv6Addr,
        mac: MacAddr,
        introduce: bool,
    ) -> Result<(), Event> {
        let heard = self.neighbours6.hear(ip, mac, introduce, outlet.now());
        self.want_poll(outlet);
        match heard {
            Heard::Known(frames) => self.release(outlet, mac, frames),
            Heard::Ignored => return Err(Event::NdIgnored),
            Heard::Stranger => {}
        }
        Ok(())
    }

    /// Asks for a neighbour. A question that finds no room is repeated with the next timer.
    pub(super) fn ask6(&self, outlet: &mut impl Outlet, question: Question<Ipv6Addr>) {
        let target = question.address;
        let group = solicited_node(target);
        let (to, mac) = match question.ask {
            Ask::All => (group, MacAddr::of_group(group)),
            Ask::Station(mac) => (target, mac),
        };
        self.counters.count(Event::NdSolicited);
        let solicitation = Neighbour::Solicitation { target, source: Some(self.addressing.mac()) };
        self.transmit_neighbour(outlet, (self.addressing.source_for6(target), to, mac), solicitation);
    }

    /// Tells everybody where this host's addresses are (RFC 4861 section 7.2.6).
    pub(super) fn announce6(&self, outlet: &mut impl Outlet) {
        for target in self.addressing.link_ips6() {
            let mac = Some(self.addressing.mac());
            let advertisement = Neighbour::Advertisement { target, solicited: false, replaces: true, mac };
            let everybody = (target, ALL_NODES, MacAddr::of_group(ALL_NODES));
            self.transmit_neighbour(outlet, everybody, advertisement);
        }
    }

    fn transmit_neighbour(
        &self,
        outlet: &mut impl Outlet,
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
            self.counters.count(Event::EgressFull);
        }
    }
}
