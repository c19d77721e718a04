//! ICMP: answering echoes, refusing datagrams for closed ports, hearing that ours were refused (RFC 792, RFC 1122 section 3.2.2).
//!
//! An answer goes to the station its cause came from, which needs no neighbour: so a flood of forged sources cannot make this host
//! ask for them all.

use super::{Event, Outlet, Stack};
use crate::net::udp::SocketError;
use crate::net::wire::{
    DEFAULT_TTL, ETHERNET_HEADER, EtherType, EthernetHeader, ICMP_HEADER, IPV4_HEADER, IcmpHeader,
    IcmpMessage, IpProtocol, Ipv4Header, Ipv4Packet, MIN_REASSEMBLY, MacAddr, UdpDatagram,
};
use core::net::{Ipv4Addr, SocketAddrV4};
use zerocopy::IntoBytes;

/// Bytes of the refused packet that an error quotes: as many as fit the packet every host accepts (RFC 1812 section 4.3.2.3).
const QUOTE: usize = MIN_REASSEMBLY - IPV4_HEADER - ICMP_HEADER;

impl Stack {
    /// A message from `source`, which came from station `mac`.
    pub(super) fn handle_icmp(
        &self,
        outlet: &mut impl Outlet,
        mac: MacAddr,
        source: Ipv4Addr,
        message: &IcmpMessage<'_>,
    ) -> Result<(), Event> {
        match *message {
            // Longer than the link allows, so it did not come from a host that keeps to it.
            IcmpMessage::EchoRequest { data, .. }
                if IPV4_HEADER + ICMP_HEADER + data.len() > self.addressing.mtu() =>
            {
                Err(Event::IcmpIgnored)
            }
            IcmpMessage::EchoRequest { identity, data } => {
                let header = IcmpHeader::echo_reply(identity, data);
                if self.transmit_icmp(outlet, mac, source, header, data) {
                    self.counters.count(Event::EchoAnswered);
                }
                Ok(())
            }
            IcmpMessage::PortUnreachable { quote } => {
                // Only the host that got the datagram can say that its port is closed (RFC 5927 section 4 on forged errors).
                let from_peer =
                    Ipv4Packet::parse_quoted(quote).is_ok_and(|(header, _)| header.destination() == source);
                if from_peer && self.handle_undelivered(quote, SocketError::Refused) {
                    return Ok(());
                }
                Err(Event::IcmpIgnored)
            }
            IcmpMessage::Other { .. } => Err(Event::IcmpIgnored),
        }
    }

    /// A packet of ours, quoted from its IP header on, did not arrive. Tells the socket that sent it if it is connected; a socket
    /// with many peers would not know whom the error concerns (RFC 1122 section 4.1.3.3).
    pub(super) fn handle_undelivered(&self, quote: &[u8], error: SocketError) -> bool {
        let Ok((header, payload)) = Ipv4Packet::parse_quoted(quote) else { return false };
        if header.protocol() != IpProtocol::UDP || header.fragment_offset() != 0 {
            return false;
        }
        let Ok(udp) = UdpDatagram::header(payload) else { return false };
        let local = SocketAddrV4::new(header.source(), udp.source_port());
        let peer = SocketAddrV4::new(header.destination(), udp.destination_port());
        self.udp.post_error(local, peer, error)
    }

    /// Tells the sender of `packet` that nobody listens at its port. The packet came to this host alone, from one host
    /// alone (RFC 1122 section 3.2.2), and is no fragment.
    #[cold]
    pub(super) fn refuse(&self, outlet: &mut impl Outlet, mac: MacAddr, packet: &Ipv4Packet<'_>) {
        if !self.icmp_errors.lock().take(outlet.now()) {
            self.counters.count(Event::UnreachableLimited);
            return;
        }
        let quote = &packet.bytes[..packet.bytes.len().min(QUOTE)];
        let header = IcmpHeader::port_unreachable(quote);
        if self.transmit_icmp(outlet, mac, packet.header.source(), header, quote) {
            self.counters.count(Event::UnreachableSent);
        }
    }

    fn transmit_icmp(
        &self,
        outlet: &mut impl Outlet,
        mac: MacAddr,
        to: Ipv4Addr,
        header: IcmpHeader,
        data: &[u8],
    ) -> bool {
        let ethernet =
            EthernetHeader { destination: mac, source: self.addressing.mac(), ethertype: EtherType::IPV4 };
        let len = ICMP_HEADER + data.len();
        let ip = Ipv4Header::new(self.addressing.ip(), to, IpProtocol::ICMP, DEFAULT_TTL, len);
        self.answer(outlet, ETHERNET_HEADER + IPV4_HEADER + len, |out| {
            let (front, rest) = out.split_at_mut(ETHERNET_HEADER + IPV4_HEADER);
            front[..ETHERNET_HEADER].copy_from_slice(ethernet.as_bytes());
            front[ETHERNET_HEADER..].copy_from_slice(ip.as_bytes());
            rest[..ICMP_HEADER].copy_from_slice(header.as_bytes());
            rest[ICMP_HEADER..].copy_from_slice(data);
        })
    }
}
