//! Frames as another implementation builds them.

use crate::*;
use core::net::{Ipv4Addr, Ipv6Addr};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as smol;

/// Returns a frame with `payload_len` bytes of IPv4 payload, filled in by `emit`.
pub fn ipv4(
    macs: (MacAddr, MacAddr),
    ips: (Ipv4Addr, Ipv4Addr),
    protocol: smol::IpProtocol,
    payload_len: usize,
    emit: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let ip = smol::Ipv4Repr {
        src_addr: ips.0,
        dst_addr: ips.1,
        next_header: protocol,
        payload_len,
        hop_limit: 64,
    };
    let mut frame = vec![0; ETHERNET_HEADER + ip.buffer_len() + payload_len];
    let mut ethernet = smol::EthernetFrame::new_unchecked(&mut frame);
    smol::EthernetRepr {
        src_addr: smol::EthernetAddress(macs.0.0),
        dst_addr: smol::EthernetAddress(macs.1.0),
        ethertype: smol::EthernetProtocol::Ipv4,
    }
    .emit(&mut ethernet);
    let mut packet = smol::Ipv4Packet::new_unchecked(ethernet.payload_mut());
    ip.emit(&mut packet, &ChecksumCapabilities::default());
    emit(packet.payload_mut());
    frame
}

/// Returns a UDP datagram in a frame.
pub fn udp(
    macs: (MacAddr, MacAddr),
    source: (Ipv4Addr, u16),
    destination: (Ipv4Addr, u16),
    data: &[u8],
) -> Vec<u8> {
    let repr = smol::UdpRepr { src_port: source.1, dst_port: destination.1 };
    let ips = (source.0, destination.0);
    ipv4(macs, ips, smol::IpProtocol::Udp, UDP_HEADER + data.len(), |out| {
        repr.emit(
            &mut smol::UdpPacket::new_unchecked(out),
            &ips.0.into(),
            &ips.1.into(),
            data.len(),
            |to| to.copy_from_slice(data),
            &ChecksumCapabilities::default(),
        );
    })
}

/// Returns a frame with `payload_len` bytes of IPv6 payload, filled in by `emit`.
pub fn ipv6(
    macs: (MacAddr, MacAddr),
    ips: (Ipv6Addr, Ipv6Addr),
    (protocol, hop_limit): (smol::IpProtocol, u8),
    payload_len: usize,
    emit: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let ip =
        smol::Ipv6Repr { src_addr: ips.0, dst_addr: ips.1, next_header: protocol, payload_len, hop_limit };
    let mut frame = vec![0; ETHERNET_HEADER + ip.buffer_len() + payload_len];
    let mut ethernet = smol::EthernetFrame::new_unchecked(&mut frame);
    smol::EthernetRepr {
        src_addr: smol::EthernetAddress(macs.0.0),
        dst_addr: smol::EthernetAddress(macs.1.0),
        ethertype: smol::EthernetProtocol::Ipv6,
    }
    .emit(&mut ethernet);
    let mut packet = smol::Ipv6Packet::new_unchecked(ethernet.payload_mut());
    ip.emit(&mut packet);
    emit(packet.payload_mut());
    frame
}

/// Returns a UDP datagram over IPv6 in a frame.
pub fn udp6(
    macs: (MacAddr, MacAddr),
    source: (Ipv6Addr, u16),
    destination: (Ipv6Addr, u16),
    data: &[u8],
) -> Vec<u8> {
    let repr = smol::UdpRepr { src_port: source.1, dst_port: destination.1 };
    let ips = (source.0, destination.0);
    ipv6(macs, ips, (smol::IpProtocol::Udp, 64), UDP_HEADER + data.len(), |out| {
        repr.emit(
            &mut smol::UdpPacket::new_unchecked(out),
            &ips.0.into(),
            &ips.1.into(),
            data.len(),
            |to| to.copy_from_slice(data),
            &ChecksumCapabilities::default(),
        );
    })
}

/// Returns an ICMPv6 message in a frame.
pub fn icmp6(
    macs: (MacAddr, MacAddr),
    ips: (Ipv6Addr, Ipv6Addr),
    hop_limit: u8,
    message: &smol::Icmpv6Repr<'_>,
) -> Vec<u8> {
    ipv6(macs, ips, (smol::IpProtocol::Icmpv6, hop_limit), message.buffer_len(), |out| {
        let mut packet = smol::Icmpv6Packet::new_unchecked(out);
        message.emit(&ips.0, &ips.1, &mut packet, &ChecksumCapabilities::default());
    })
}
