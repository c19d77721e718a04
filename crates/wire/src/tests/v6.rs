//! IPv6, ICMPv6 and neighbour discovery.

use super::built_by_smoltcp;
use crate::*;
use core::net::Ipv6Addr;
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as smol;

const MACS: (MacAddr, MacAddr) = (MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]));

fn ip() -> impl Strategy<Value = Ipv6Addr> {
    any::<u128>().prop_map(Ipv6Addr::from_bits)
}

fn unicast() -> impl Strategy<Value = Ipv6Addr> {
    // smoltcp refuses other sources and targets.
    any::<u128>().prop_map(|bits| Ipv6Addr::from_bits(bits >> 3 | 1 << 125))
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

/// Returns a UDP datagram as read here: ports and data.
fn ours_udp(frame: &[u8]) -> Option<(u16, u16, Vec<u8>)> {
    let (_, payload) = EthernetHeader::parse(frame).ok()?;
    let packet = Ipv6Packet::parse(payload).ok()?;
    let udp = UdpDatagram::parse(packet.payload, &packet.header.addresses(), Checksums::Verify).ok()?;
    Some((udp.header.source_port(), udp.header.destination_port(), udp.payload.to_vec()))
}

fn smoltcp_udp(frame: &[u8]) -> Option<(u16, u16, Vec<u8>)> {
    let ethernet = smol::EthernetFrame::new_checked(frame).ok()?;
    let ip = smol::Ipv6Packet::new_checked(ethernet.payload()).ok()?;
    let udp = smol::UdpPacket::new_checked(ip.payload()).ok()?;
    let verified = udp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into());
    // smoltcp takes zero for "none" in both families; RFC 8200 section 8.1 forbids it here.
    if ip.version() != 6 || !verified || udp.dst_port() == 0 || udp.checksum() == 0 {
        return None;
    }
    Some((udp.src_port(), udp.dst_port(), udp.payload().to_vec()))
}

/// Everything the parsers make of the payload of a frame, to see that they come to an end.
fn parse_all(bytes: &[u8], checksums: Checksums) -> Option<usize> {
    let packet = Ipv6Packet::parse(bytes).ok()?;
    let upper = upper_layer(packet.header.next_header(), packet.payload).ok()?;
    let rest = &packet.payload[upper.at..];
    let addresses = packet.header.addresses();
    match upper.protocol {
        IpProtocol::ICMPV6 => match Icmpv6Message::parse(rest, &addresses, checksums).ok()? {
            Icmpv6Message::EchoRequest { data, .. } => Some(data.len()),
            Icmpv6Message::Error { quote, .. } => parse_all(quote, checksums),
            _ => Some(0),
        },
        _ => UdpDatagram::parse(rest, &addresses, checksums).map(|udp| udp.payload.len()).ok(),
    }
}

proptest! {
    #[test]
    fn smoltcp_reads_the_datagrams_built_here(
        a in (ip(), any::<u16>()), b in (ip(), 1u16..), hop_limit in 1u8.., traffic_class: u8, data in data(),
    ) {
        let addresses = Addresses::V6 { source: a.0, destination: b.0 };
        let packet = PacketInfo { addresses, protocol: IpProtocol::UDP, hop_limit, traffic_class };
        let mut headers = [0xa5; ETHERNET_HEADER + IPV6_HEADER];
        let stations = Stations { source: MACS.0, destination: MACS.1 };
        packet.write_headers(&mut headers, stations, Fragmenting::Forbidden, UDP_HEADER + data.len());
        let udp = UdpHeader::new(&addresses, (a.1, b.1), &data);
        let frame = [&headers[..], &udp.to_bytes(), &data].concat();
        let ethernet = smol::EthernetFrame::new_checked(&frame[..]).unwrap();
        prop_assert_eq!((ethernet.src_addr().0, ethernet.dst_addr().0), (MACS.0.0, MACS.1.0));
        prop_assert_eq!(ethernet.ethertype(), smol::EthernetProtocol::Ipv6);
        let ip = smol::Ipv6Packet::new_checked(ethernet.payload()).unwrap();
        prop_assert_eq!((ip.src_addr(), ip.dst_addr(), ip.hop_limit()), (a.0, b.0, hop_limit));
        prop_assert_eq!((ip.traffic_class(), ip.flow_label()), (traffic_class, 0));
        prop_assert_eq!(smoltcp_udp(&frame), Some((a.1, b.1, data)));
    }

    #[test]
    fn datagrams_built_by_smoltcp_are_read_here(
        a in (ip(), 1u16..), b in (ip(), 1u16..), data in data(), padding in 0usize..40,
    ) {
        let mut frame = built_by_smoltcp::udp6(MACS, a, b, &data);
        frame.resize(frame.len() + padding, 0xee);
        prop_assert_eq!(ours_udp(&frame), Some((a.1, b.1, data)));
    }

    #[test]
    fn a_mutated_datagram_is_accepted_exactly_when_smoltcp_accepts_it(
        data in data(), changes in prop::collection::vec((0usize..100, any::<u8>()), 0..4), keep in 0usize..300,
    ) {
        let ips = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let mut frame = built_by_smoltcp::udp6(MACS, (ips.0, 7), (ips.1, 9), &data);
        for (at, value) in changes {
            // Who the frame is for and what it carries are not UDP's.
            if let Some(byte) = frame.get_mut(at).filter(|_| at != 20 && !(12..14).contains(&at)) {
                *byte = value;
            }
        }
        frame.truncate(keep.max(ETHERNET_HEADER));
        prop_assert_eq!(ours_udp(&frame), smoltcp_udp(&frame));
    }

    #[test]
    fn fragments_built_here_are_read_by_smoltcp(
        identification: u32, unit in 0usize..8191, more: bool, len in 0usize..100, a in ip(), b in ip(),
    ) {
        let addresses = Addresses::V6 { source: a, destination: b };
        let packet = PacketInfo { addresses, protocol: IpProtocol::UDP, hop_limit: 64, traffic_class: 0 };
        let piece = Fragmenting::Piece { identification, offset: unit * 8, more };
        let mut frame = vec![0; packet.overhead_of(piece) + len];
        let overhead = packet.overhead_of(piece);
        packet.write_headers(&mut frame[..overhead], Stations { source: MACS.0, destination: MACS.1 }, piece, len);
        let ip = smol::Ipv6Packet::new_checked(&frame[ETHERNET_HEADER..]).unwrap();
        prop_assert_eq!(ip.next_header(), smol::IpProtocol::Ipv6Frag);
        let extension = smol::Ipv6ExtHeader::new_checked(ip.payload()).unwrap();
        prop_assert_eq!(extension.next_header(), smol::IpProtocol::Udp);
        let header = smol::Ipv6FragmentHeader::new_checked(&ip.payload()[2..]).unwrap();
        prop_assert_eq!(usize::from(header.frag_offset()), unit);
        prop_assert_eq!((header.more_frags(), header.ident()), (more, identification));
        let ours = Ipv6Packet::parse(&frame[ETHERNET_HEADER..]).unwrap();
        let upper = upper_layer(ours.header.next_header(), ours.payload).unwrap();
        let fragment = upper.fragment.unwrap();
        prop_assert_eq!((fragment.offset(), fragment.more(), fragment.identification()), (unit * 8, more, identification));
        prop_assert_eq!((upper.protocol, upper.at), (IpProtocol::UDP, FRAGMENT_HEADER));
    }

    #[test]
    fn neighbour_discovery_reads_the_same_here_and_in_smoltcp(
        a in unicast(), b in unicast(), target in unicast(), mac: [u8; 6], solicitation: bool, with_mac: bool, s: bool, o: bool,
    ) {
        let addresses = Addresses::V6 { source: a, destination: b };
        let mac = with_mac.then_some(MacAddr(mac));
        let message = if solicitation {
            Neighbour::Solicitation { target, source: mac }
        } else {
            Neighbour::Advertisement { target, solicited: s, replaces: o, mac }
        };
        let (bytes, len) = message.encode(&addresses);
        let bytes = &bytes[..len];
        let parsed = Icmpv6Message::parse(bytes, &addresses, Checksums::Verify);
        prop_assert_eq!(parsed, Ok(Icmpv6Message::Neighbour(message)));
        let packet = smol::Icmpv6Packet::new_checked(bytes).unwrap();
        let lladdr = mac.map(|mac| smol::EthernetAddress(mac.0).into());
        let mut flags = smol::NdiscNeighborFlags::empty();
        flags.set(smol::NdiscNeighborFlags::SOLICITED, s);
        flags.set(smol::NdiscNeighborFlags::OVERRIDE, o);
        let expected = if solicitation {
            smol::NdiscRepr::NeighborSolicit { target_addr: target, lladdr }
        } else {
            smol::NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr }
        };
        let repr = smol::Icmpv6Repr::parse(&a, &b, &packet, &ChecksumCapabilities::default()).unwrap();
        prop_assert_eq!(repr, smol::Icmpv6Repr::Ndisc(expected));
    }

    #[test]
    fn echoes_agree_with_smoltcp(a in unicast(), b in unicast(), ident: u16, seq_no: u16, data in data()) {
        let request = smol::Icmpv6Repr::EchoRequest { ident, seq_no, data: &data };
        let frame = built_by_smoltcp::icmp6(MACS, (a, b), 64, &request);
        let packet = Ipv6Packet::parse(&frame[ETHERNET_HEADER..]).unwrap();
        let addresses = packet.header.addresses();
        let message = Icmpv6Message::parse(packet.payload, &addresses, Checksums::Verify).unwrap();
        let Icmpv6Message::EchoRequest { identity, data: echoed } = message
            else { panic!("an echo request was taken for something else") };
        let back = addresses.reversed();
        let reply = [&Icmpv6Header::echo_reply(&back, identity, echoed).to_bytes()[..], echoed].concat();
        let reply = smol::Icmpv6Packet::new_checked(&reply[..]).unwrap();
        prop_assert_eq!(
            smol::Icmpv6Repr::parse(&b, &a, &reply, &ChecksumCapabilities::default()).unwrap(),
            smol::Icmpv6Repr::EchoReply { ident, seq_no, data: &data }
        );
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read_within_bounds(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300), next in prop_oneof![Just(0u8), Just(17), Just(43), Just(44), Just(58), Just(60)],
        kind in prop_oneof![Just(1u8), Just(2), Just(128), Just(135), Just(136)], trust: bool,
    ) {
        if bytes.len() > IPV6_HEADER {
            let len = (bytes.len() - IPV6_HEADER) as u16;
            bytes[0] = 0x60 | (bytes[0] & 0xf);
            bytes[4..6].copy_from_slice(&len.to_be_bytes());
            bytes[6] = next;
            if next == 58 {
                bytes[40] = kind;
            } else if len > 2 {
                // Chains of short extensions.
                bytes[40] = [0, 43, 60, 17, 58][usize::from(bytes[40]) % 5];
                bytes[41] %= 4;
            }
        }
        let checksums = if trust { Checksums::Trust } else { Checksums::Verify };
        if let Some(read) = parse_all(&bytes, checksums) {
            prop_assert!(read <= bytes.len());
        }
    }
}

/// Returns an extension header of eight bytes whose options are `options`.
fn extension(next: u8, options: [u8; 6]) -> Vec<u8> {
    [&[next, 0][..], &options].concat()
}

#[test]
fn extensions_are_stepped_over_or_refused_as_their_rules_say() {
    const HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const OPTIONS: u8 = 60;
    let padding = [1, 4, 0, 0, 0, 0];
    let problem =
        |code, pointer, answers_group| Err(ExtensionError::Problem { code, pointer, answers_group });
    let at = |at, named_at| Ok((IpProtocol::UDP, at, named_at));
    for (what, first, bytes, expected) in [
        ("none", 17, vec![], at(0, 6)),
        ("hop-by-hop padding", HOP, extension(17, padding), at(8, 40)),
        ("single bytes of padding", HOP, extension(17, [0; 6]), at(8, 40)),
        ("two in a row", HOP, [extension(OPTIONS, padding), extension(17, padding)].concat(), at(16, 48)),
        ("an option to skip", OPTIONS, extension(17, [0x3e, 4, 9, 9, 9, 9]), at(8, 40)),
        ("an option to drop for", OPTIONS, extension(17, [0x7e, 4, 9, 9, 9, 9]), Err(ExtensionError::Silent)),
        ("an option to tell of", OPTIONS, extension(17, [0x80, 4, 9, 9, 9, 9]), problem(2, 42, true)),
        (
            "an option to tell of, not in groups",
            OPTIONS,
            extension(17, [0, 0xc0, 3, 9, 9, 9]),
            problem(2, 43, false),
        ),
        (
            "hop-by-hop in second place",
            OPTIONS,
            [extension(HOP, padding), extension(17, padding)].concat(),
            problem(1, 40, false),
        ),
        ("routing that has arrived", ROUTING, extension(17, [0; 6]), at(8, 40)),
        ("routing that has not", ROUTING, extension(17, [4, 1, 0, 0, 0, 0]), problem(0, 42, false)),
    ] {
        let found =
            upper_layer(IpProtocol(first), &bytes).map(|upper| (upper.protocol, upper.at, upper.named_at));
        assert_eq!(found, expected, "{what}");
    }
    let endless: Vec<u8> = (0..20).flat_map(|_| extension(OPTIONS, padding)).collect();
    assert!(matches!(
        upper_layer(IpProtocol(OPTIONS), &endless),
        Err(ExtensionError::Wire(WireError::Field { .. }))
    ));
    for short in [
        vec![],
        vec![17],
        vec![17, 0, 0],
        extension(17, [1, 5, 0, 0, 0, 0]),
        extension(17, [0, 0, 0, 0, 0, 1]),
    ] {
        assert!(
            matches!(upper_layer(IpProtocol(OPTIONS), &short), Err(ExtensionError::Wire(_))),
            "{short:?}"
        );
    }
}

#[test]
fn neighbour_discovery_with_impossible_options_is_refused() {
    let addresses =
        Addresses::V6 { source: "fe80::1".parse().unwrap(), destination: "fe80::2".parse().unwrap() };
    let target = "fe80::2".parse().unwrap();
    let (whole, _) = Neighbour::Solicitation { target, source: Some(MACS.0) }.encode(&addresses);
    let parse = |bytes: &[u8]| match Icmpv6Message::parse(bytes, &addresses, Checksums::Trust) {
        Ok(Icmpv6Message::Neighbour(neighbour)) => Ok(neighbour),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    };
    assert!(parse(&whole).is_ok());
    let changed = |at: usize, value: u8| {
        let mut bytes = whole;
        bytes[at] = value;
        bytes
    };
    assert!(parse(&changed(25, 0)).is_err(), "an option of length zero");
    assert!(parse(&changed(25, 2)).is_err(), "an option longer than the message");
    assert!(parse(&changed(1, 1)).is_err(), "a code");
    assert!(parse(&changed(8, 0xff)).is_err(), "a group as target");
    assert!(parse(&whole[..23]).is_err(), "a target cut short");
    assert!(parse(&whole[..25]).is_err(), "an option cut short");
    // Options of other kinds are stepped over, up to a bound.
    let nonce = [&whole[..24], &[14, 1, 0, 0, 0, 0, 0, 0], &whole[24..]].concat();
    let expected = Neighbour::Solicitation { target, source: Some(MACS.0) };
    assert_eq!(parse(&nonce), Ok(expected));
    let many = [&whole[..24], &[14, 1, 0, 0, 0, 0, 0, 0].repeat(100)].concat();
    assert!(parse(&many).is_err());
}
