//! Packets that did not arrive: telling their senders about those that came here in vain, and hearing about ours.
//!
//! # What is believed of an error (RFC 5927)
//! Anybody can send one. So it must quote a packet of this host's own to the host it is about, and the transport protocol
//! must know that packet: UDP by a socket that can have sent it, TCP by the connection and its sequence number. That a port
//! is closed or a protocol not spoken, only the destination itself can say. What a router says of a path's MTU is believed
//! down to a floor, for ten minutes.
//!
//! # What is answered
//! Errors have one rate limit for both families, go to the station the cause came from (so that a flood of forged sources
//! makes this host ask for nobody), and never answer what came to a group (except where RFC 8200 section 4.2 says so), an
//! error, or a packet of this host.

use super::input::Link;
use super::ip::{Hop, Progress};
use super::path_mtu::plateau_below;
use super::{Event, Outlet, Stack};
use crate::net::udp::SocketError;
use crate::net::wire::{
    Addresses, DEFAULT_TTL, ICMP_HEADER, IPV4_HEADER, IPV6_HEADER, IPV6_MIN_MTU, IcmpHeader, Icmpv6Header,
    Icmpv6Message, IpProtocol, Ipv4Packet, Ipv6Packet, MIN_REASSEMBLY, PacketInfo, Report, UdpDatagram,
    Undelivered, upper_layer, upper_layer_unchecked,
};
use core::net::{IpAddr, SocketAddr};
use zerocopy::IntoBytes;

/// Bytes of the refused packet that an ICMP error quotes: as many as fit the packet every host accepts (RFC 1812 section 4.3.2.3).
const QUOTE4: usize = MIN_REASSEMBLY - IPV4_HEADER - ICMP_HEADER;
/// The same for ICMPv6 (RFC 4443 section 3: up to the least MTU).
const QUOTE6: usize = IPV6_MIN_MTU - IPV6_HEADER - ICMP_HEADER;

/// A packet of this host that did not arrive.
#[derive(Debug, Clone, Copy)]
pub(super) struct IcmpError<'a> {
    /// Why.
    pub why: Undelivered,
    /// What the packet carried.
    pub protocol: IpProtocol,
    /// From this host, to whom.
    pub addresses: Addresses,
    /// The beginning of its transport header and data; often eight bytes and no more (RFC 792).
    pub transport: &'a [u8],
}

impl Stack {
    /// The packet whose beginning is `quote` did not arrive, says `reporter`. True if the protocol it belongs to believes it.
    pub(super) fn handle_quote(
        &self,
        outlet: &mut impl Outlet,
        reporter: IpAddr,
        quote: &[u8],
        why: Undelivered,
    ) -> bool {
        let Some((mut error, packet_len)) = read_quote(quote, reporter.is_ipv4(), why) else { return false };
        let (source, destination) = (error.addresses.source(), error.addresses.destination());
        let by_host = matches!(why, Undelivered::Port | Undelivered::Protocol);
        if !self.addressing.is_local(source) || (by_host && destination != reporter) {
            return false;
        }
        if let Undelivered::TooBig { mtu } = why {
            let mtu = if mtu == 0 && reporter.is_ipv4() { plateau_below(packet_len) } else { mtu };
            // What fits cannot have been too big (RFC 5927 section 7.2).
            if mtu as usize >= packet_len.min(self.addressing.mtu()) {
                return false;
            }
            error.why = Undelivered::TooBig { mtu };
        }
        if !self.handle_icmp_error(outlet, &error) {
            return false;
        }
        if let Undelivered::TooBig { mtu } = error.why
            && self.paths.narrow(destination, mtu, outlet.now()).is_some()
        {
            self.counters.count(Event::PathNarrowed);
            self.want_poll(outlet);
        }
        true
    }

    /// Whose packet it was that did not arrive: one arm for each protocol. True if it is believed; then a path's MTU, if that is what the error is about, is
    /// noted after this.
    pub(super) fn handle_icmp_error(&self, outlet: &mut impl Outlet, error: &IcmpError<'_>) -> bool {
        match error.protocol {
            IpProtocol::UDP => self.handle_udp_error(error),
            IpProtocol::TCP => self.handle_tcp_error(outlet, error),
            _ => false,
        }
    }

    /// Tells the socket that sent a datagram that it did not arrive, if it is connected; a socket with many peers would not
    /// know whom the error concerns (RFC 1122 section 4.1.3.3).
    fn handle_udp_error(&self, error: &IcmpError<'_>) -> bool {
        let Ok(udp) = UdpDatagram::header(error.transport) else { return false };
        let local = SocketAddr::new(error.addresses.source(), udp.source_port());
        let peer = SocketAddr::new(error.addresses.destination(), udp.destination_port());
        let error = match error.why {
            Undelivered::Port => SocketError::Refused,
            Undelivered::Protocol => SocketError::NoProtocol,
            Undelivered::Host => SocketError::HostUnreachable,
            Undelivered::Network => SocketError::NetworkUnreachable,
            Undelivered::Prohibited => SocketError::Prohibited,
            // Later datagrams are cut to fit; a hop limit is the sender's own choice. Neither is the socket's trouble.
            Undelivered::TooBig { .. } | Undelivered::HopLimit => return self.udp.sends_to(local, peer),
        };
        self.udp.post_error(local, peer, error)
    }

    /// Tells the sender of a packet why it came in vain, unless too many have been told already.
    #[cold]
    pub(super) fn report(
        &self,
        outlet: &mut impl Outlet,
        addresses: &Addresses,
        link: &Link<'_>,
        report: Report,
    ) {
        let Some((source, protocol, quote)) = self.answerable(addresses, link) else { return };
        if !self.icmp_errors.take(addresses.source(), outlet.now()) {
            self.counters.count(Event::UnreachableLimited);
            return;
        }
        let Some(back) = Addresses::new(source, addresses.source()) else { return };
        let [front, rest] = link.packet;
        let front = &front[..front.len().min(quote)];
        let rest = &rest[..rest.len().min(quote - front.len())];
        let packet = PacketInfo { addresses: back, protocol, hop_limit: DEFAULT_TTL, traffic_class: 0 };
        let (icmp, icmpv6);
        let header = match back {
            Addresses::V4 { .. } => {
                let Some(header) = IcmpHeader::error(report, [front, rest]) else { return };
                icmp = header;
                icmp.as_bytes()
            }
            Addresses::V6 { .. } => {
                icmpv6 = Icmpv6Header::error(&back, report, [front, rest]);
                icmpv6.as_bytes()
            }
        };
        let parts = [header, front, rest];
        let (hop, mtu) = (Hop::Station(link.station), self.addressing.mtu());
        match self.transmit_parts(outlet, hop, &packet, parts, mtu, &mut Progress::default()) {
            Ok(()) => self.counters.count(Event::UnreachableSent),
            Err(_) => self.counters.count(Event::EgressFull),
        }
    }

    /// From whom an error about a packet goes, as what, and how many bytes of it are quoted; `None` if nobody is to be told.
    fn answerable(&self, addresses: &Addresses, link: &Link<'_>) -> Option<(IpAddr, IpProtocol, usize)> {
        match *addresses {
            Addresses::V4 { destination, .. } => Some((destination.into(), IpProtocol::ICMP, QUOTE4)),
            Addresses::V6 { source, destination } => {
                let (header, payload) = Ipv6Packet::parse_quoted(link.packet[0]).ok()?;
                let upper = upper_layer_unchecked(header.next_header(), payload);
                let is_error = upper.is_ok_and(|upper| {
                    upper.protocol == IpProtocol::ICMPV6 && Icmpv6Message::is_error(&payload[upper.at..])
                });
                if is_error || source.is_unspecified() {
                    return None;
                }
                let own = if destination.is_multicast() {
                    self.addressing.source_for6(source)
                } else {
                    destination
                };
                Some((own.into(), IpProtocol::ICMPV6, QUOTE6))
            }
        }
    }
}

/// What a quoted packet was, and its length. Fragments but the first say nothing about themselves.
fn read_quote(quote: &[u8], ipv4: bool, why: Undelivered) -> Option<(IcmpError<'_>, usize)> {
    if ipv4 {
        let (header, transport) = Ipv4Packet::parse_quoted(quote).ok()?;
        let (protocol, addresses) = (header.protocol(), header.addresses());
        let error = IcmpError { why, protocol, addresses, transport };
        return (header.fragment_offset() == 0).then_some((error, header.total_len()));
    }
    let (header, payload) = Ipv6Packet::parse_quoted(quote).ok()?;
    let upper = upper_layer(header.next_header(), payload).ok()?;
    let (protocol, addresses, transport) = (upper.protocol, header.addresses(), &payload[upper.at..]);
    let error = IcmpError { why, protocol, addresses, transport };
    let first = upper.fragment.is_none_or(|fragment| fragment.offset() == 0);
    first.then_some((error, IPV6_HEADER + header.payload_len()))
}
