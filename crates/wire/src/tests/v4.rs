//! IPv4, ARP, ICMP and UDP.

use super::built_by_smoltcp;
use crate::*;
use core::net::Ipv4Addr;
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as smol;

const ADDRESSES: Addresses =
    Addresses::V4 { source: Ipv4Addr::new(10, 0, 0, 1), destination: Ipv4Addr::new(10, 0, 0, 2) };

fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr)
}

fn ip() -> impl Strategy<Value = Ipv4Addr> {
    any::<u32>().prop_map(Ipv4Addr::from)
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

/// Everything the parsers make of a frame, to see that they come to an end.
fn parse_all(frame: &[u8], checksums: Checksums) -> Result<usize, WireError> {
    let (ethernet, payload) = EthernetHeader::parse(frame)?;
    if ethernet.ethertype == EtherType::ARP {
        return ArpPacket::parse(payload).map(|_| ARP_PACKET);
    }
    let packet = Ipv4Packet::parse(payload, checksums)?;
    let addresses = packet.header.addresses();
    match packet.header.protocol() {
        IpProtocol::ICMP => match IcmpMessage::parse(packet.payload, checksums)? {
            IcmpMessage::EchoRequest { data, .. } => Ok(data.len()),
            IcmpMessage::Error { quote, .. } => {
                let (_, rest) = Ipv4Packet::parse_quoted(quote)?;
                UdpDatagram::header(rest).map(|_| rest.len())
            }
            IcmpMessage::Other { .. } => Ok(0),
        },
        _ => UdpDatagram::parse(packet.payload, &addresses, checksums).map(|udp| udp.payload.len()),
    }
}

/// Returns what smoltcp makes of a frame taken for UDP over IPv4: ports and data.
fn smoltcp_udp(frame: &[u8]) -> Option<(u16, u16, Vec<u8>)> {
    let ethernet = smol::EthernetFrame::new_checked(frame).ok()?;
    let ip = smol::Ipv4Packet::new_checked(ethernet.payload()).ok()?;
    let fragment = ip.more_frags() || ip.frag_offset() != 0;
    if ip.version() != 4 || ip.header_len() < 20 || !ip.verify_checksum() || fragment {
        return None;
    }
    let udp = smol::UdpPacket::new_checked(ip.payload()).ok()?;
    if !udp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()) || udp.dst_port() == 0 {
        return None;
    }
    Some((udp.src_port(), udp.dst_port(), udp.payload().to_vec()))
}

fn ours_udp(frame: &[u8]) -> Option<(u16, u16, Vec<u8>)> {
    let (_, payload) = EthernetHeader::parse(frame).ok()?;
    let packet = Ipv4Packet::parse(payload, Checksums::Verify).ok()?;
    if packet.header.is_fragment() {
        return None;
    }
    let udp = UdpDatagram::parse(packet.payload, &packet.header.addresses(), Checksums::Verify).ok()?;
    Some((udp.header.source_port(), udp.header.destination_port(), udp.payload.to_vec()))
}

proptest! {
    #[test]
    fn smoltcp_reads_the_datagrams_built_here(
        macs in (mac(), mac()), a in (ip(), any::<u16>()), b in (ip(), 1u16..), ttl in 1u8.., data in data(),
    ) {
        let addresses = Addresses::V4 { source: a.0, destination: b.0 };
        let packet = PacketInfo { addresses, protocol: IpProtocol::UDP, hop_limit: ttl, traffic_class: 0 };
        let mut headers = [0xa5; ETHERNET_HEADER + IPV4_HEADER];
        let stations = Stations { source: macs.0, destination: macs.1 };
        packet.write_headers(&mut headers, stations, Fragmenting::Forbidden, UDP_HEADER + data.len());
        let udp = UdpHeader::new(&addresses, (a.1, b.1), &data);
        let frame = [&headers[..], &udp.to_bytes(), &data].concat();
        let ethernet = smol::EthernetFrame::new_checked(&frame[..]).unwrap();
        prop_assert_eq!(ethernet.src_addr().0, macs.0.0);
        prop_assert_eq!(ethernet.dst_addr().0, macs.1.0);
        let ip = smol::Ipv4Packet::new_checked(ethernet.payload()).unwrap();
        prop_assert_eq!((ip.src_addr(), ip.dst_addr(), ip.hop_limit()), (a.0, b.0, ttl));
        prop_assert!(ip.dont_frag());
        prop_assert_eq!(smoltcp_udp(&frame), Some((a.1, b.1, data)));
    }

    #[test]
    fn datagrams_built_by_smoltcp_are_read_here(
        macs in (mac(), mac()), a in (ip(), 1u16..), b in (ip(), 1u16..), data in data(), padding in 0usize..40,
    ) {
        let mut frame = built_by_smoltcp::udp(macs, a, b, &data);
        frame.resize(frame.len() + padding, 0xee);
        let (ethernet, payload) = EthernetHeader::parse(&frame).unwrap();
        prop_assert_eq!((ethernet.source, ethernet.destination), macs);
        let packet = Ipv4Packet::parse(payload, Checksums::Verify).unwrap();
        prop_assert_eq!((packet.header.source(), packet.header.destination()), (a.0, b.0));
        prop_assert_eq!(packet.header.ttl(), 64);
        prop_assert_eq!(ours_udp(&frame), Some((a.1, b.1, data)));
    }

    #[test]
    fn arp_packets_read_back_here_and_in_smoltcp(macs in (mac(), mac()), ips in (ip(), ip()), reply: bool) {
        let packet = ArpPacket {
            operation: if reply { ArpOperation::Reply } else { ArpOperation::Request },
            sender_mac: macs.0, sender_ip: ips.0, target_mac: macs.1, target_ip: ips.1,
        };
        let bytes = packet.encode();
        prop_assert_eq!(ArpPacket::parse(&bytes), Ok(packet));
        let smol::ArpRepr::EthernetIpv4 { operation, source_hardware_addr, source_protocol_addr, target_hardware_addr,
            target_protocol_addr } = smol::ArpRepr::parse(&smol::ArpPacket::new_checked(&bytes[..]).unwrap()).unwrap()
            else { panic!("smoltcp knows other ARP packets now") };
        prop_assert_eq!(operation == smol::ArpOperation::Reply, reply);
        prop_assert_eq!((source_hardware_addr.0, target_hardware_addr.0), (macs.0.0, macs.1.0));
        prop_assert_eq!((source_protocol_addr, target_protocol_addr), ips);
    }

    #[test]
    fn echoes_agree_with_smoltcp(ident: u16, seq_no: u16, data in data()) {
        let capabilities = ChecksumCapabilities::default();
        let request = smol::Icmpv4Repr::EchoRequest { ident, seq_no, data: &data };
        let mut bytes = vec![0; request.buffer_len()];
        request.emit(&mut smol::Icmpv4Packet::new_unchecked(&mut bytes), &capabilities);
        let IcmpMessage::EchoRequest { identity, data: echoed } = IcmpMessage::parse(&bytes, Checksums::Verify).unwrap()
            else { panic!("an echo request was taken for something else") };
        let reply = [&IcmpHeader::echo_reply(identity, echoed).to_bytes()[..], echoed].concat();
        let reply = smol::Icmpv4Packet::new_checked(&reply[..]).unwrap();
        prop_assert_eq!(
            smol::Icmpv4Repr::parse(&reply, &capabilities).unwrap(),
            smol::Icmpv4Repr::EchoReply { ident, seq_no, data: &data }
        );
    }

    #[test]
    fn a_mutated_datagram_is_accepted_exactly_when_smoltcp_accepts_it(
        data in data(), changes in prop::collection::vec((0usize..80, any::<u8>()), 0..4), repair: bool, keep in 0usize..300,
    ) {
        let macs = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let ips = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let mut frame = built_by_smoltcp::udp(macs, (ips.0, 7), (ips.1, 9), &data);
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        if repair {
            // A right header checksum lets wrong lengths and flags through to the checks behind it.
            let header = smol::Ipv4Packet::new_unchecked(&frame[ETHERNET_HEADER..]).header_len() as usize;
            if (IPV4_HEADER..=frame.len() - ETHERNET_HEADER).contains(&header) {
                smol::Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]).fill_checksum();
            }
        }
        frame.truncate(keep.max(ETHERNET_HEADER));
        prop_assert_eq!(ours_udp(&frame), smoltcp_udp(&frame));
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read_within_bounds(
        mut frame in prop::collection::vec(any::<u8>(), 0..200), shape in 0u8..6, trust: bool,
    ) {
        // Enough of a header that the deeper parsers are reached.
        if shape > 0 && frame.len() > 34 {
            frame[12..14].copy_from_slice(if shape == 1 { &[8, 6] } else { &[8, 0] });
            if shape > 1 {
                frame[14] = 0x45;
                frame[20..22].fill(0);
                frame[23] = if shape < 4 { 17 } else { 1 };
            }
            if shape == 5 {
                frame[34] = 3;
                if let Some(code) = frame.get_mut(35) {
                    *code = 3;
                }
            }
        }
        let checksums = if trust { Checksums::Trust } else { Checksums::Verify };
        if let Ok(read) = parse_all(&frame, checksums) {
            prop_assert!(read <= frame.len());
        }
    }
}

#[test]
fn a_frame_cut_short_anywhere_is_refused() {
    let macs = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let ips = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let frame = built_by_smoltcp::udp(macs, (ips.0, 7), (ips.1, 9), b"twelve bytes");
    assert_eq!(parse_all(&frame, Checksums::Verify), Ok(12));
    for len in 0..frame.len() {
        let error = parse_all(&frame[..len], Checksums::Verify).unwrap_err();
        assert!(matches!(error, WireError::Truncated { have, .. } if have <= len), "{len}: {error}");
    }
}

#[test]
fn a_datagram_without_a_checksum_is_accepted_and_one_with_a_wrong_checksum_is_not() {
    let addresses = ADDRESSES;
    let header = UdpHeader::new(&addresses, (7, 9), b"data");
    let mut bytes = [&header.to_bytes()[..], b"data"].concat();
    let parse = |bytes: &[u8], checksums| UdpDatagram::parse(bytes, &addresses, checksums).map(|_| ());
    assert_eq!(parse(&bytes, Checksums::Verify), Ok(()));
    bytes[7] ^= 1;
    assert_eq!(parse(&bytes, Checksums::Verify), Err(WireError::Checksum { layer: Layer::Udp }));
    assert_eq!(parse(&bytes, Checksums::Trust), Ok(()));
    bytes[6..8].fill(0);
    assert_eq!(parse(&bytes, Checksums::Verify), Ok(()));
}

#[test]
fn a_checksum_that_comes_out_as_zero_is_sent_as_ones() {
    let addresses = ADDRESSES;
    let plain = UdpHeader::new(&addresses, (7, 9), &[0, 0]);
    // Data equal to the checksum of the rest makes the sum all ones and its complement zero.
    let checksum = &plain.to_bytes()[6..8];
    let header = UdpHeader::new(&addresses, (7, 9), checksum);
    assert_eq!(&header.to_bytes()[6..8], &[0xff, 0xff]);
    let bytes = [&header.to_bytes()[..], checksum].concat();
    assert!(UdpDatagram::parse(&bytes, &addresses, Checksums::Verify).is_ok());
}

#[test]
fn a_packet_whose_source_route_leads_on_is_refused() {
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let parse = |options: [u8; 8]| {
        let mut bytes = vec![0x47, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0];
        bytes.extend(source.octets());
        bytes.extend(destination.octets());
        bytes.extend(options);
        bytes.extend(*b"ab");
        Ipv4Packet::parse(&bytes, Checksums::Trust).map(|packet| packet.payload.len())
    };
    for route in [131, 137] {
        assert!(parse([route, 7, 4, 10, 0, 0, 3, 0]).is_err(), "an address is left");
        assert!(parse([1, route, 7, 4, 10, 0, 0, 3]).is_err(), "behind another option");
        assert!(parse([148, 4, 0, 0, route, 3, 2, 0]).is_err(), "no address, and not behind the end");
        assert_eq!(parse([route, 7, 8, 10, 0, 0, 3, 0]), Ok(2), "it has ended");
        assert_eq!(parse([0, route, 7, 4, 10, 0, 0, 3]), Ok(2), "behind the end of the options");
    }
    // A recorded route, and options that make no sense.
    for options in [[7, 7, 4, 0, 0, 0, 0, 0], [148, 0, 0, 0, 131, 7, 4, 0], [148, 99, 0, 0, 0, 0, 0, 0]] {
        assert_eq!(parse(options), Ok(2), "{options:?}");
    }
}

#[test]
fn options_are_stepped_over_and_fragments_told_apart() {
    let ips = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let mut bytes = vec![0x46, 0, 0, 30, 0, 0, 0x40, 0, 64, 17, 0, 0];
    bytes.extend(ips.0.octets());
    bytes.extend(ips.1.octets());
    bytes.extend([1, 1, 1, 0]);
    bytes.extend(*b"abcdef and padding");
    let packet = Ipv4Packet::parse(&bytes, Checksums::Trust).unwrap();
    assert_eq!((packet.payload, packet.bytes.len()), (&b"abcdef"[..], 30));
    for (flags, offset) in [(0x20, 0), (0, 1), (0x1f, 0xff), (0x3f, 0xff)] {
        bytes[6..8].copy_from_slice(&[flags, offset as u8]);
        let header = Ipv4Packet::parse(&bytes, Checksums::Trust).unwrap().header;
        assert!(header.is_fragment());
        assert_eq!(header.more_fragments(), flags & 0x20 != 0);
        assert_eq!(header.fragment_offset(), (usize::from(flags & 0x1f) << 8 | offset) * 8);
    }
}
