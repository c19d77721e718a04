//! ICMP errors in both directions: about packets of this host, and about packets that this host
//! cannot handle.
//!
//! # Errors accepted (RFC 5927)
//! Errors can be forged. One is accepted if it quotes a packet of this host that the transport
//! protocol knows: UDP by a socket that can have sent it, TCP by the connection and a sequence
//! number in flight. Only the destination itself can report that a port is closed or a protocol not
//! implemented. A router's report of a path's MTU is accepted down to a floor, for ten minutes.
//!
//! # Errors sent
//! Errors have one rate limit for both families. They go to the station that the cause came from,
//! so that forged sources cause no address resolution. They do not answer packets to a group
//! (except where RFC 8200 section 4.2 requires it), errors, or packets of this host.

use super::Stack;
use super::ip::{Hop, Progress};
use crate::arrived::{IcmpError, Link};
use crate::counters::CountedEvent;
use crate::outlet::Outlet;
use crate::path_mtu::plateau_below;
use crate::platform::Platform;
use crate::udp::SocketError;
use core::net::{IpAddr, SocketAddr};
use tailwater_wire::{
    Addresses, DEFAULT_TTL, ICMP_HEADER, IPV4_HEADER, IPV6_HEADER, IPV6_MIN_MTU, IcmpHeader, Icmpv6Header,
    Icmpv6Message, IpProtocol, Ipv4Packet, Ipv6Packet, MIN_REASSEMBLY, PacketInfo, Report, UdpDatagram,
    Undelivered, upper_layer, upper_layer_unchecked,
};

/// Bytes of the refused packet that an ICMP error quotes: as many as fit the packet every host
/// accepts (RFC 1812 section 4.3.2.3).
const QUOTE4: usize = MIN_REASSEMBLY - IPV4_HEADER - ICMP_HEADER;
/// The same for ICMPv6 (RFC 4443 section 3: up to the least MTU).
const QUOTE6: usize = IPV6_MIN_MTU - IPV6_HEADER - ICMP_HEADER;

impl<P: Platform> Stack<P> {
    /// Handles the report of `reporter` that the packet beginning with `quote` did not arrive. True
    /// if its protocol accepts it.
    pub(super) fn handle_quote(
        &self,
        outlet: &mut impl Outlet<P>,
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
            // A packet that fits cannot have been too big (RFC 5927 section 7.2).
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
            self.counters.count(CountedEvent::PathNarrowed);
            self.want_poll(outlet);
        }
        true
    }

    /// Passes an error to the protocol of its packet: one arm for each. True if it is accepted; the
    /// caller then stores the path's MTU, if the error reports one.
    pub(super) fn handle_icmp_error(&self, outlet: &mut impl Outlet<P>, error: &IcmpError<'_>) -> bool {
        match error.protocol {
            IpProtocol::UDP => self.handle_udp_error(error),
            IpProtocol::TCP => self.handle_tcp_error(outlet, error),
            _ => false,
        }
    }

    /// Reports an error to the connected socket that sent the datagram; a socket with many peers
    /// could not tell which peer it concerns (RFC 1122 section 4.1.3.3).
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
            // Later datagrams are fragmented to fit, and the hop limit is the sender's choice: the
            // socket gets no error.
            Undelivered::TooBig { .. } | Undelivered::HopLimit => return self.udp.sends_to(local, peer),
        };
        self.udp.post_error(local, peer, error)
    }

    /// Sends an error about a packet to its sender, within the rate limit.
    #[cold]
    pub(super) fn report(
        &self,
        outlet: &mut impl Outlet<P>,
        addresses: &Addresses,
        link: &Link<'_>,
        report: Report,
    ) {
        let Some((source, protocol, quote)) = self.answerable(addresses, link) else { return };
        if !self.icmp_errors.take(addresses.source(), outlet.now()) {
            self.counters.count(CountedEvent::UnreachableLimited);
            return;
        }
        let Some(back) = Addresses::new(source, addresses.source()) else { return };
        let [front, rest] = link.packet;
        let front = &front[..front.len().min(quote)];
        let rest = &rest[..rest.len().min(quote - front.len())];
        let packet = PacketInfo { addresses: back, protocol, hop_limit: DEFAULT_TTL, traffic_class: 0 };
        let header = match back {
            Addresses::V4 { .. } => {
                let Some(header) = IcmpHeader::error(report, [front, rest]) else { return };
                header.to_bytes()
            }
            Addresses::V6 { .. } => Icmpv6Header::error(&back, report, [front, rest]).to_bytes(),
        };
        let parts = [&header, front, rest];
        let (hop, mtu) = (Hop::Station(link.station), self.addressing.mtu());
        match self.transmit_parts(outlet, hop, &packet, parts, mtu, &mut Progress::default()) {
            Ok(()) => self.counters.count(CountedEvent::UnreachableSent),
            Err(_) => self.counters.count(CountedEvent::EgressFull),
        }
    }

    /// Returns source address and protocol of an error about a packet, and how many bytes it
    /// quotes; `None` if no error may be sent.
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

/// Parses a quoted packet; returns it with its length. `None` for a fragment other than the first,
/// which has no transport header.
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
