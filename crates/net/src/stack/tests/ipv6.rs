//! IPv6 through one stack: neighbour discovery as RFC 4861 requires it, ICMPv6, UDP.

use super::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as smol;
use tailwater_wire::Neighbour;

/// Returns the group in which host `n`'s assigned address is asked for, and its MAC address.
fn group(n: u8) -> (Ipv6Addr, MacAddr) {
    let ip = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, n.into());
    (ip, MacAddr([0x33, 0x33, 0xff, 0, 0, n]))
}

const ALL_NODES: (Ipv6Addr, MacAddr) =
    (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), MacAddr([0x33, 0x33, 0, 0, 0, 1]));

fn solicitation(from: u8, target: Ipv6Addr) -> smol::Icmpv6Repr<'static> {
    let lladdr = Some(smol::EthernetAddress(mac(from).0).into());
    smol::Icmpv6Repr::Ndisc(smol::NdiscRepr::NeighborSolicit { target_addr: target, lladdr })
}

fn advertisement(
    station: MacAddr,
    target: Ipv6Addr,
    flags: smol::NdiscNeighborFlags,
) -> smol::Icmpv6Repr<'static> {
    let lladdr = Some(smol::EthernetAddress(station.0).into());
    smol::Icmpv6Repr::Ndisc(smol::NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr })
}

const SOLICITED: smol::NdiscNeighborFlags = smol::NdiscNeighborFlags::SOLICITED;
const OVERRIDE: smol::NdiscNeighborFlags = smol::NdiscNeighborFlags::OVERRIDE;

/// Returns the neighbour discovery message in a frame of host 1: to which station, addresses,
/// message.
fn parse_nd(frame: &[u8]) -> (MacAddr, (Ipv6Addr, Ipv6Addr), Neighbour) {
    let (ethernet, packet) = EthernetHeader::parse(frame).unwrap();
    let packet = Ipv6Packet::parse(packet).unwrap();
    assert_eq!(packet.header.hop_limit(), 255);
    let addresses = packet.header.addresses();
    let message = Icmpv6Message::parse(packet.payload, &addresses, Checksums::Verify).unwrap();
    let Icmpv6Message::Neighbour(neighbour) = message else { panic!("{message:?}") };
    (ethernet.destination, (packet.header.source(), packet.header.destination()), neighbour)
}

/// Returns where host 1 sends what is for host 2; `None` if it has to ask.
fn station_of_2(stack: &Stack) -> Option<MacAddr> {
    let endpoint = stack.bind_udp(everywhere6(0)).unwrap();
    let mut catch = Catch::at(T0);
    stack.send_udp(&mut catch, endpoint, everywhere6(7), at6(2, 9), b"?").unwrap();
    stack.close_udp(endpoint);
    let frame = catch.only();
    let (header, packet) = EthernetHeader::parse(&frame).unwrap();
    let packet = Ipv6Packet::parse(packet).unwrap();
    (packet.header.next_header() == IpProtocol::UDP).then_some(header.destination)
}

#[test]
fn a_solicitation_is_answered_and_its_sender_known() {
    let stack = host6(1);
    for (to, to_mac) in [group(1), (ip6(1), mac(1))] {
        let mut catch = Catch::at(T0);
        let frame = frames::icmp6((mac(2), to_mac), (ip6(2), to), 255, &solicitation(2, ip6(1)));
        stack.input(&mut catch, &frame, Verify);
        let (station, addresses, answer) = parse_nd(&catch.only());
        assert_eq!((station, addresses), (mac(2), (ip6(1), ip6(2))));
        let mac = Some(mac(1));
        let expected = Neighbour::Advertisement { target: ip6(1), solicited: true, replaces: true, mac };
        assert_eq!(answer, expected);
        assert_eq!(station_of_2(&stack), Some(self::mac(2)));
    }
    assert_eq!(stack.counters().nd_answered, 2);
    let mut catch = Catch::at(T0);
    let frame = frames::icmp6((mac(2), ALL_NODES.1), (ip6(2), ALL_NODES.0), 255, &solicitation(2, ip6(3)));
    stack.input(&mut catch, &frame, Verify);
    assert!(catch.is_empty(), "others are asked for");
}

#[test]
fn the_link_local_address_is_answered_for_too() {
    let stack = host6(1);
    let link_local: Ipv6Addr = "fe80::ff:fe00:1".parse().unwrap();
    let mut catch = Catch::at(T0);
    let from: Ipv6Addr = "fe80::2".parse().unwrap();
    let frame = frames::icmp6((mac(2), group(1).1), (from, group(1).0), 255, &solicitation(2, link_local));
    stack.input(&mut catch, &frame, Verify);
    assert_eq!(parse_nd(&catch.only()).1, (link_local, from));
}

#[test]
fn a_probe_for_duplicates_is_told_to_everybody_that_the_address_is_taken() {
    let stack = host6(1);
    let probe = |target| {
        smol::Icmpv6Repr::Ndisc(smol::NdiscRepr::NeighborSolicit { target_addr: target, lladdr: None })
    };
    let unspecified = Ipv6Addr::UNSPECIFIED;
    let mut catch = Catch::at(T0);
    stack.input(
        &mut catch,
        &frames::icmp6((mac(2), group(1).1), (unspecified, group(1).0), 255, &probe(ip6(1))),
        Verify,
    );
    let (station, addresses, answer) = parse_nd(&catch.only());
    assert_eq!((station, addresses), (ALL_NODES.1, (ip6(1), ALL_NODES.0)));
    let mac = Some(self::mac(1));
    assert_eq!(answer, Neighbour::Advertisement { target: ip6(1), solicited: false, replaces: true, mac });
    // One that says where it is, or asks all nodes, breaks the rules.
    for (to, message) in [(group(1), solicitation(2, ip6(1))), (ALL_NODES, probe(ip6(1)))] {
        stack.input(
            &mut catch,
            &frames::icmp6((self::mac(2), to.1), (unspecified, to.0), 255, &message),
            Verify,
        );
    }
    assert_eq!(stack.counters().nd_invalid, 2);
    assert!(catch.is_empty());
}

#[test]
fn an_unresolved_neighbour_is_asked_for_in_its_group_and_gets_what_waited() {
    let stack = host6(1);
    let endpoint = stack.bind_udp(everywhere6(7)).unwrap();
    let mut catch = Catch::at(T0);
    for data in [b"one", b"two"] {
        stack.send_udp(&mut catch, endpoint, everywhere6(7), at6(2, 9), data).unwrap();
    }
    let (station, addresses, question) = parse_nd(&catch.only());
    assert_eq!((station, addresses), (group(2).1, (ip6(1), group(2).0)));
    assert_eq!(question, Neighbour::Solicitation { target: ip6(2), source: Some(mac(1)) });
    assert_eq!(catch.poll_by, Some(T0 + Duration::from_secs(1)));
    let answer = advertisement(mac(2), ip6(2), SOLICITED | OVERRIDE);
    stack.input(&mut catch, &frames::icmp6((mac(2), mac(1)), (ip6(2), ip6(1)), 255, &answer), Verify);
    let sent: Vec<_> = catch.frames.iter().map(|frame| frame[frame.len() - 3..].to_vec()).collect();
    assert_eq!(sent, [b"one", b"two"]);
    assert!(catch.frames.iter().all(|frame| frame[..6] == mac(2).0));
}

#[test]
fn a_neighbour_that_does_not_answer_is_reported_and_one_in_another_network_asked_of_the_gateway() {
    let stack = host6(1);
    let endpoint = stack.bind_udp(everywhere6(7)).unwrap();
    stack.connect_udp(endpoint, at6(2, 9)).unwrap();
    let mut catch = Catch::at(T0);
    stack.send_udp(&mut catch, endpoint, at6(1, 7), at6(2, 9), b"?").unwrap();
    for second in 1..=3 {
        assert_eq!(recv(endpoint), Ok(None));
        catch.now = T0 + Duration::from_secs(second);
        stack.poll_timers(&mut catch);
    }
    assert_eq!(catch.frames.len(), 3, "one question a second");
    assert_eq!(recv(endpoint), Err(SocketError::HostUnreachable));
    let far = SocketAddr::new("2001:db8::1".parse().unwrap(), 9);
    let mut catch = Catch::at(catch.now);
    let other = stack.bind_udp(everywhere6(8)).unwrap();
    stack.send_udp(&mut catch, other, everywhere6(8), far, b"?").unwrap();
    let (_, _, question) = parse_nd(&catch.only());
    assert_eq!(question, Neighbour::Solicitation { target: ip6(254), source: Some(mac(1)) });
}

#[test]
fn what_was_routed_or_breaks_the_rules_teaches_nothing() {
    let stack = host6(1);
    let mut catch = Catch::at(T0);
    let macs = (mac(9), mac(1));
    let unicast = (ip6(2), ip6(1));
    let to_all = ((mac(9), ALL_NODES.1), (ip6(2), ALL_NODES.0));
    let asked = advertisement(mac(9), ip6(2), SOLICITED | OVERRIDE);
    let far = "2001:db8::2".parse().unwrap();
    let mut fragmented = frames::icmp6(macs, unicast, 255, &solicitation(9, ip6(1)));
    // An atomic fragment (RFC 6946) around it: RFC 6980.
    let len = u16::from_be_bytes([fragmented[18], fragmented[19]]) + 8;
    fragmented[18..20].copy_from_slice(&len.to_be_bytes());
    fragmented[20] = 44;
    fragmented.splice(54..54, [58, 0, 0, 0, 0, 0, 0, 1]);
    for frame in [
        frames::icmp6(macs, unicast, 254, &solicitation(9, ip6(1))),
        frames::icmp6(macs, unicast, 254, &asked),
        frames::icmp6(to_all.0, to_all.1, 255, &asked),
        frames::icmp6(macs, (far, ip6(1)), 255, &solicitation(9, ip6(1))),
        frames::icmp6(macs, unicast, 255, &advertisement(mac(9), far, OVERRIDE)),
        fragmented,
    ] {
        stack.input(&mut catch, &frame, Verify);
    }
    assert_eq!(stack.counters().nd_invalid, 6, "{:?}", stack.counters());
    assert!(catch.is_empty());
    assert_eq!(station_of_2(&stack), None);
}

#[test]
fn an_advertisement_moves_a_neighbour_only_if_it_says_so_and_never_introduces_one() {
    let later = T0 + Duration::from_secs(5);
    let all = ((mac(9), ALL_NODES.1), (ip6(2), ALL_NODES.0));
    for (flags, known, believed) in [
        (OVERRIDE, true, Some(mac(9))),
        (smol::NdiscNeighborFlags::empty(), true, Some(mac(2))),
        (OVERRIDE, false, None),
    ] {
        let stack = if known { acquainted6() } else { host6(1) };
        let frame = frames::icmp6(all.0, all.1, 255, &advertisement(mac(9), ip6(2), flags));
        stack.input(&mut Catch::at(later), &frame, Verify);
        assert_eq!(station_of_2(&stack), believed, "{flags:?}");
    }
    let stack = host6(1);
    let frame = frames::icmp6(all.0, all.1, 255, &advertisement(mac(9), ip6(1), OVERRIDE));
    stack.input(&mut Catch::at(T0), &frame, Verify);
    assert_eq!(stack.counters().nd_conflicts, 1, "a claim to our own address");
}

#[test]
fn a_host_announces_both_its_ipv6_addresses() {
    let stack = Stack::new(config6(1), 1).unwrap();
    let mut catch = Catch::at(T0);
    stack.poll_timers(&mut catch);
    let arp = catch.frames.remove(0);
    assert_eq!(parse_arp(&arp).1.target_ip, ip(1));
    let targets: Vec<_> = catch.frames.iter().map(|frame| (parse_nd(frame).0, parse_nd(frame).1)).collect();
    let link_local = "fe80::ff:fe00:1".parse().unwrap();
    assert_eq!(targets, [ip6(1), link_local].map(|own| (ALL_NODES.1, (own, ALL_NODES.0))));
}

/// What smoltcp reads from an ICMPv6 message of host 1 to host 2.
fn with_icmp6(frame: &[u8], read: impl FnOnce(smol::Icmpv6Packet<&[u8]>)) {
    let ethernet = smol::EthernetFrame::new_checked(frame).unwrap();
    assert_eq!((ethernet.src_addr().0, ethernet.dst_addr().0), (mac(1).0, mac(2).0));
    let packet = smol::Ipv6Packet::new_checked(ethernet.payload()).unwrap();
    assert_eq!((packet.src_addr(), packet.dst_addr()), (ip6(1), ip6(2)));
    let icmp = smol::Icmpv6Packet::new_checked(packet.payload()).unwrap();
    assert!(icmp.verify_checksum(&packet.src_addr(), &packet.dst_addr()));
    read(icmp);
}

#[test]
fn an_echo_request_gets_its_data_back_to_a_group_within_the_limit_of_errors() {
    let stack = host6(1);
    let data: Vec<u8> = (0..1452u32).map(|i| i as u8).collect();
    let request = smol::Icmpv6Repr::EchoRequest { ident: 0x1234, seq_no: 7, data: &data };
    let mut catch = Catch::at(T0);
    for (to, to_mac) in [(ip6(1), mac(1)), ALL_NODES] {
        stack.input(&mut catch, &frames::icmp6((mac(2), to_mac), (ip6(2), to), 64, &request), Verify);
        with_icmp6(&catch.only(), |icmp| {
            let capabilities = ChecksumCapabilities::default();
            let reply = smol::Icmpv6Repr::parse(&ip6(1), &ip6(2), &icmp, &capabilities).unwrap();
            assert_eq!(reply, smol::Icmpv6Repr::EchoReply { ident: 0x1234, seq_no: 7, data: &data });
        });
    }
    let to_all = frames::icmp6((mac(2), ALL_NODES.1), (ip6(2), ALL_NODES.0), 64, &request);
    for _ in 0..1000 {
        stack.input(&mut catch, &to_all, Verify);
    }
    assert_eq!(catch.frames.len(), ICMP_ERRORS_BURST as usize - 1);
}

#[test]
fn a_datagram_for_a_closed_port_is_refused_with_its_beginning() {
    let stack = host6(1);
    for len in [0, 10, 1184, 1185, 1452] {
        let frame = datagram6(53, &vec![7; len]);
        let mut catch = Catch::at(T0);
        stack.input(&mut catch, &frame, Verify);
        let answer = catch.only();
        assert!(answer.len() <= 14 + 1280, "an error fits every link");
        with_icmp6(&answer, |icmp| {
            assert_eq!(icmp.msg_type(), smol::Icmpv6Message::DstUnreachable);
            assert_eq!(icmp.msg_code(), u8::from(smol::Icmpv6DstUnreachable::PortUnreachable));
            assert_eq!(icmp.payload(), &frame[14..14 + (48 + len).min(1280 - 48)]);
        });
    }
    let mut catch = Catch::at(T0);
    let to_all = frames::udp6((mac(2), ALL_NODES.1), (ip6(2), 9), (ALL_NODES.0, 53), b"all");
    stack.input(&mut catch, &to_all, Verify);
    assert!(catch.is_empty(), "a datagram to a group is not refused");
}

#[test]
fn what_is_not_understood_is_answered_with_the_place_of_the_trouble() {
    let stack = host6(1);
    let ips = (ip6(2), ip6(1));
    let frame = |to: ((MacAddr, MacAddr), (Ipv6Addr, Ipv6Addr)), next: u8, payload: &[u8]| {
        let (source, destination) = to.1;
        frames::ip(to.0, (source.into(), destination.into()), (IpProtocol(next), 64), payload)
    };
    let one = ((mac(2), mac(1)), ips);
    let all = ((mac(2), ALL_NODES.1), (ip6(2), ALL_NODES.0));
    let option = |kind: u8| [17, 0, kind, 4, 0, 0, 0, 0];
    for (what, frame, expected) in [
        ("an unknown protocol", frame(one, 99, b"?"), Some((1, 6))),
        ("one behind an extension", frame(one, 60, &[99, 0, 1, 4, 0, 0, 0, 0]), Some((1, 40))),
        ("an option to tell of", frame(one, 60, &option(0x80)), Some((2, 42))),
        ("an option to drop for", frame(one, 60, &option(0x40)), None),
        ("an option to tell of, to all", frame(all, 60, &option(0x80)), Some((2, 42))),
        ("an option not to tell all of", frame(all, 60, &option(0xc0)), None),
        ("an unknown protocol, to all", frame(all, 99, b"?"), None),
        ("nothing", frame(one, 59, b""), None),
    ] {
        let mut catch = Catch::at(T0);
        stack.input(&mut catch, &frame, Verify);
        let Some((code, pointer)) = expected else {
            assert!(catch.is_empty(), "{what}");
            continue;
        };
        with_icmp6(&catch.only(), |icmp| {
            assert_eq!(icmp.msg_type(), smol::Icmpv6Message::ParamProblem, "{what}");
            assert_eq!((icmp.msg_code(), icmp.param_problem_ptr()), (code, pointer), "{what}");
        });
    }
}

#[test]
fn no_error_answers_an_error_or_somebody_without_an_address() {
    let stack = host6(1);
    // An ICMPv6 error with an option that must be told of in front of it.
    let error = [&[58, 0, 0x80, 4, 0, 0, 0, 0][..], &[1, 4, 0, 0, 0, 0, 0, 0]].concat();
    let request = [&[58, 0, 0x80, 4, 0, 0, 0, 0][..], &[128, 0, 0, 0, 0, 0, 0, 0]].concat();
    let mut catch = Catch::at(T0);
    for (source, payload, answers) in
        [(ip6(2), &error, 0), (ip6(2), &request, 1), (Ipv6Addr::UNSPECIFIED, &request, 0)]
    {
        let macs = (mac(2), mac(1));
        let ips = (source.into(), ip6(1).into());
        let frame = frames::ip(macs, ips, (IpProtocol::DESTINATION_OPTIONS, 64), payload);
        stack.input(&mut catch, &frame, Verify);
        assert_eq!(core::mem::take(&mut catch.frames).len(), answers);
    }
}

#[test]
fn datagrams_go_both_ways_and_need_a_checksum() {
    let stack = acquainted6();
    let endpoint = stack.bind_udp(everywhere6(7)).unwrap();
    let mut catch = Catch::at(T0);
    stack.input(&mut catch, &datagram6(7, b"hello"), Verify);
    assert_eq!(recv(endpoint), Ok(Some((b"hello".to_vec(), at6(2, 9)))));
    stack.send_udp(&mut catch, endpoint, everywhere6(7), at6(2, 9), b"hello yourself").unwrap();
    let frame = catch.only();
    let packet = Ipv6Packet::parse(&frame[14..]).unwrap();
    let udp = UdpDatagram::parse(packet.payload, &packet.header.addresses(), Checksums::Verify).unwrap();
    assert_eq!((packet.header.source(), packet.header.destination()), (ip6(1), ip6(2)));
    assert_eq!(
        (udp.header.source_port(), udp.header.destination_port(), udp.payload),
        (7, 9, &b"hello yourself"[..])
    );
    let mut bare = datagram6(7, b"no checksum");
    bare[60..62].fill(0);
    stack.input(&mut catch, &bare, Verify);
    assert_eq!((recv(endpoint), stack.counters().bad_checksums), (Ok(None), 1));
}

#[test]
fn packets_that_are_not_for_us_or_from_nobody_are_counted_by_reason() {
    let stack = host6(1);
    let mut catch = Catch::at(T0);
    let mut send = |macs, source: &str, destination: Ipv6Addr| {
        let frame = frames::udp6(macs, (source.parse().unwrap(), 9), (destination, 7), b"?");
        stack.input(&mut catch, &frame, Verify);
    };
    let macs = (mac(2), mac(1));
    send(macs, "fd00::2", ip6(3));
    send(macs, "fd00::2", Ipv6Addr::LOCALHOST);
    send(macs, "fd00::2", "ff02::2".parse().unwrap());
    send((mac(2), ALL_NODES.1), "fd00::2", ip6(1));
    for martian in ["::", "::1", "ff02::1", "fd00::1", "fe80::ff:fe00:1", "::ffff:10.0.0.2"] {
        send(macs, martian, ip6(1));
    }
    send((mac(2), group(3).1), "fd00::2", group(3).0);
    assert!(catch.is_empty());
    let counters = stack.counters();
    assert_eq!((counters.foreign_addresses, counters.martian_sources, counters.foreign_macs), (4, 6, 1));
    host(1).input(&mut catch, &datagram6(7, b"?"), Verify);
    assert!(catch.is_empty(), "a host without IPv6 is silent");
}

#[test]
fn a_socket_at_the_unspecified_address_is_for_both_families() {
    let stack = acquainted6();
    let (both, four) = (stack.bind_udp(everywhere6(7)).unwrap(), stack.bind_udp(everywhere(8)).unwrap());
    let mut catch = Catch::at(T0);
    stack.input(&mut catch, &datagram(7, b"four"), Verify);
    stack.input(&mut catch, &datagram6(7, b"six"), Verify);
    assert_eq!(recv(both), Ok(Some((b"four".to_vec(), at(2, 9)))));
    assert_eq!(recv(both), Ok(Some((b"six".to_vec(), at6(2, 9)))));
    stack.input(&mut catch, &datagram6(8, b"six"), Verify);
    assert_eq!(recv(four), Ok(None));
    let mut catch = Catch::at(T0);
    let me = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 7);
    stack.send_udp(&mut catch, both, everywhere6(7), me, b"::1").unwrap();
    assert_eq!(recv(both), Ok(Some((b"::1".to_vec(), me))));
    stack.send_udp(&mut catch, both, everywhere6(7), at(1, 8), b"four").unwrap();
    assert_eq!(recv(four), Ok(Some((b"four".to_vec(), at(1, 7)))));
    assert_eq!(stack.send_udp(&mut catch, four, everywhere(8), me, b"?"), Err(SendError::Family));
    assert_eq!(stack.connect_udp(four, at6(2, 9)), Err(SendError::Family));
    assert_eq!(stack.send_udp(&mut catch, four, at(1, 8), at6(2, 9), b"?"), Err(SendError::Family));
    stack.connect_udp(both, at(2, 9)).unwrap();
    assert_eq!(both.binding().local, at(1, 7));
    assert!(catch.is_empty());
}
