//! Frames with UDP datagrams and ICMP messages. ICMP messages are smoltcp's.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as smol;
use tailwater_wire::{Addresses, Fragmenting, IpProtocol, MacAddr, PacketInfo, Stations, UdpHeader};

/// Returns a frame with an IP packet of either family.
pub(super) fn ip(
    macs: (MacAddr, MacAddr),
    ips: (IpAddr, IpAddr),
    (protocol, hop_limit): (IpProtocol, u8),
    payload: &[u8],
) -> Vec<u8> {
    let addresses = Addresses::new(ips.0, ips.1).expect("addresses of one family");
    let packet = PacketInfo { addresses, protocol, hop_limit, traffic_class: 0 };
    let mut frame = vec![0; packet.overhead()];
    let stations = Stations { source: macs.0, destination: macs.1 };
    packet.write_headers(&mut frame, stations, Fragmenting::Forbidden, payload.len());
    frame.extend(payload);
    frame
}

fn datagram(macs: (MacAddr, MacAddr), from: (IpAddr, u16), to: (IpAddr, u16), data: &[u8]) -> Vec<u8> {
    let addresses = Addresses::new(from.0, to.0).expect("addresses of one family");
    let header = UdpHeader::new(&addresses, (from.1, to.1), data);
    ip(macs, (from.0, to.0), (IpProtocol::UDP, 64), &[&header.to_bytes()[..], data].concat())
}

/// Returns a frame with a UDP datagram over IPv4.
pub(super) fn udp(
    macs: (MacAddr, MacAddr),
    from: (Ipv4Addr, u16),
    to: (Ipv4Addr, u16),
    data: &[u8],
) -> Vec<u8> {
    datagram(macs, (from.0.into(), from.1), (to.0.into(), to.1), data)
}

/// Returns a frame with a UDP datagram over IPv6.
pub(super) fn udp6(
    macs: (MacAddr, MacAddr),
    from: (Ipv6Addr, u16),
    to: (Ipv6Addr, u16),
    data: &[u8],
) -> Vec<u8> {
    datagram(macs, (from.0.into(), from.1), (to.0.into(), to.1), data)
}

/// Returns a frame with an ICMP message.
pub(super) fn icmp(
    macs: (MacAddr, MacAddr),
    ips: (Ipv4Addr, Ipv4Addr),
    message: &smol::Icmpv4Repr<'_>,
) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut smol::Icmpv4Packet::new_unchecked(&mut bytes), &ChecksumCapabilities::default());
    ip(macs, (ips.0.into(), ips.1.into()), (IpProtocol::ICMP, 64), &bytes)
}

/// Returns a frame with an ICMPv6 message.
pub(super) fn icmp6(
    macs: (MacAddr, MacAddr),
    ips: (Ipv6Addr, Ipv6Addr),
    hop_limit: u8,
    message: &smol::Icmpv6Repr<'_>,
) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    let mut packet = smol::Icmpv6Packet::new_unchecked(&mut bytes);
    message.emit(&ips.0, &ips.1, &mut packet, &ChecksumCapabilities::default());
    ip(macs, (ips.0.into(), ips.1.into()), (IpProtocol::ICMPV6, hop_limit), &bytes)
}
