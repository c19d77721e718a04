//! Datagrams through one stack.

use super::*;
use crate::udp::{GroupError, MAX_GROUPS};
use core::sync::atomic::Ordering::Relaxed;
use tailwater_wire::{Checksums, Ipv4Packet, UdpDatagram};

fn receive(stack: &Stack, frame: &[u8]) {
    let mut catch = Catch::at(T0);
    stack.input(&mut catch, frame, Verify);
    assert!(catch.is_empty(), "{:02x?}", catch.frames);
}

#[test]
fn a_datagram_reaches_the_socket_of_its_port_with_its_sender() {
    let stack = host(1);
    let (a, b) = (stack.bind_udp(everywhere(7)).unwrap(), stack.bind_udp(at(1, 8)).unwrap());
    let mut padded = datagram(7, b"seven");
    padded.resize(60, 0);
    receive(&stack, &padded);
    receive(&stack, &datagram(8, b""));
    assert_eq!(recv(a), Ok(Some((b"seven".to_vec(), at(2, 9)))));
    assert_eq!(recv(b), Ok(Some((Vec::new(), at(2, 9)))));
    assert_eq!((recv(a), recv(b)), (Ok(None), Ok(None)));
    let counters = stack.counters();
    assert_eq!((counters.udp_received, counters.udp_received_bytes, counters.udp_sockets), (2, 5, 2));
}

#[test]
fn a_full_socket_drops_and_counts_and_keeps_what_it_has() {
    let stack = host(1);
    let endpoint = stack.bind_udp(everywhere(7)).unwrap();
    for i in 0..100u8 {
        receive(&stack, &datagram(7, &[i; 1000]));
    }
    // 16 KiB hold sixteen records of 1008 bytes.
    assert_eq!(stack.counters().udp_overflows, 84);
    for i in 0..16 {
        assert_eq!(recv(endpoint), Ok(Some((vec![i; 1000], at(2, 9)))));
    }
    assert_eq!(recv(endpoint), Ok(None));
    receive(&stack, &datagram(7, b"room again"));
    assert_eq!(recv(endpoint), Ok(Some((b"room again".to_vec(), at(2, 9)))));
}

#[test]
fn a_connected_socket_hears_its_peer_only() {
    let stack = host(1);
    let endpoint = stack.bind_udp(everywhere(7)).unwrap();
    receive(&stack, &datagram(7, b"before"));
    stack.connect_udp(endpoint, at(2, 10)).unwrap();
    assert_eq!(endpoint.binding().local, at(1, 7));
    assert_eq!(recv(endpoint), Ok(Some((b"before".to_vec(), at(2, 9)))), "what waited stays");
    let mut catch = Catch::at(T0);
    stack.input(&mut catch, &datagram(7, b"from port 9"), Verify);
    assert_eq!(catch.frames.len(), 1, "the port is closed to others");
    let frame = frames::udp((mac(2), mac(1)), (ip(2), 10), (ip(1), 7), b"from port 10");
    receive(&stack, &frame);
    assert_eq!(recv(endpoint), Ok(Some((b"from port 10".to_vec(), at(2, 10)))));
}

#[test]
fn datagrams_to_all_reach_sockets_bound_to_all() {
    let stack = host(1);
    let (all, one) = (stack.bind_udp(everywhere(7)).unwrap(), stack.bind_udp(at(1, 8)).unwrap());
    for to in [Ipv4Addr::BROADCAST, ip(255)] {
        for port in [7, 8] {
            let macs = (mac(2), MacAddr::BROADCAST);
            receive(&stack, &frames::udp(macs, (ip(2), 9), (to, port), b"all"));
        }
        assert_eq!(recv(all), Ok(Some((b"all".to_vec(), at(2, 9)))));
        assert_eq!(recv(one), Ok(None));
    }
}

#[test]
fn packets_that_are_not_for_us_or_from_nobody_are_counted_by_reason() {
    let stack = host(1);
    let endpoint = stack.bind_udp(everywhere(7)).unwrap();
    let frame = |to_mac, from: &str, to: Ipv4Addr| {
        frames::udp((mac(2), to_mac), (from.parse().unwrap(), 9), (to, 7), b"?")
    };
    receive(&stack, &frame(mac(3), "10.0.0.2", ip(1)));
    receive(&stack, &frame(MacAddr([1, 0, 0x5e, 0, 0, 1]), "10.0.0.2", Ipv4Addr::new(224, 0, 0, 1)));
    assert_eq!(stack.counters().foreign_macs, 2);
    receive(&stack, &frame(mac(1), "10.0.0.2", ip(3)));
    receive(&stack, &frame(mac(1), "10.0.0.2", Ipv4Addr::LOCALHOST));
    receive(&stack, &frame(MacAddr::BROADCAST, "10.0.0.2", ip(1)));
    assert_eq!(stack.counters().foreign_addresses, 3);
    for martian in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "10.0.0.255", "10.0.0.1"] {
        receive(&stack, &frame(mac(1), martian, ip(1)));
    }
    assert_eq!(stack.counters().martian_sources, 6);
    let mut sctp = datagram(7, b"?");
    sctp[23] = 132;
    let mut vlan = datagram(7, b"?");
    vlan[12..14].copy_from_slice(&[0x81, 0]);
    let mut fragment = datagram(7, b"?");
    fragment[20] |= 0x20;
    let trusting = |frame: &[u8]| stack.input(&mut Catch::at(T0), frame, Trust);
    trusting(&sctp);
    trusting(&vlan);
    trusting(&fragment);
    let counters = stack.counters();
    assert_eq!((counters.unknown_protocols, counters.unknown_ethertypes, counters.fragments), (1, 1, 1));
    assert_eq!(recv(endpoint), Ok(None));
}

#[test]
fn checksums_are_verified_unless_they_are_vouched_for() {
    let stack = host(1);
    let endpoint = stack.bind_udp(everywhere(7)).unwrap();
    let mut frame = datagram(7, b"data");
    *frame.last_mut().unwrap() = b'A';
    receive(&stack, &frame);
    assert_eq!((recv(endpoint), stack.counters().bad_checksums), (Ok(None), 1));
    stack.input(&mut Catch::at(T0), &frame, Trust);
    assert_eq!(recv(endpoint), Ok(Some((b"datA".to_vec(), at(2, 9)))));
}

#[test]
fn what_is_sent_is_a_datagram_to_the_neighbour_or_the_gateway() {
    let stack = acquainted();
    stack.input(&mut Catch::at(T0), &arp_reply(254, 1), Verify);
    let endpoint = stack.bind_udp(everywhere(7)).unwrap();
    endpoint.ttl.store(9, Relaxed);
    let far = SocketAddr::new([192, 0, 2, 1].into(), 80);
    for (to, station) in [(at(2, 9), mac(2)), (far, mac(254))] {
        let IpAddr::V4(to_ip) = to.ip() else { panic!("{to} is no IPv4 address") };
        let mut catch = Catch::at(T0);
        stack.send_udp(&mut catch, endpoint, everywhere(7), to, b"data").unwrap();
        if station == mac(254) {
            assert_eq!(
                parse_arp(&catch.only()).1.target_ip,
                ip(254),
                "the gateway is asked for, not the far host"
            );
            stack.input(&mut catch, &arp_reply(254, 1), Verify);
        }
        let frame = catch.only();
        let (header, packet) = EthernetHeader::parse(&frame).unwrap();
        assert_eq!((header.source, header.destination), (mac(1), station));
        let packet = Ipv4Packet::parse(packet, Checksums::Verify).unwrap();
        assert_eq!((packet.header.source(), packet.header.destination()), (ip(1), to_ip));
        assert_eq!(packet.header.ttl(), 9);
        let addresses = packet.header.addresses();
        let udp = UdpDatagram::parse(packet.payload, &addresses, Checksums::Verify).unwrap();
        assert_eq!((udp.header.source_port(), udp.header.destination_port()), (7, to.port()));
        assert_eq!(udp.payload, b"data");
    }
    assert_eq!(stack.counters().udp_sent, 2);
}

#[test]
fn what_cannot_be_sent_is_refused_with_the_reason() {
    let stack = acquainted();
    let endpoint = stack.bind_udp(everywhere(7)).unwrap();
    let send = |local: SocketAddr, to: SocketAddr, len: usize| {
        stack.send_udp(&mut Catch::at(T0), endpoint, local, to, &vec![0; len])
    };
    let loopback = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 7);
    assert_eq!(send(everywhere(7), at(2, 9), 1472), Ok(()));
    assert_eq!(send(everywhere(7), at(2, 9), 65_508), Err(SendError::TooLong { len: 65_508, limit: 65_507 }));
    assert_eq!(send(everywhere(7), at(1, 9), 65_508), Err(SendError::TooLong { len: 65_508, limit: 65_507 }));
    assert_eq!(send(everywhere(7), at(2, 0), 1), Err(SendError::NoPort));
    assert_eq!(send(everywhere(7), at(255, 9), 1), Err(SendError::BroadcastForbidden));
    assert_eq!(send(loopback, at(2, 9), 1), Err(SendError::LoopbackSource));
    assert_eq!(stack.counters().udp_sent, 1);
    endpoint.broadcast.store(true, Relaxed);
    let mut catch = Catch::at(T0);
    stack.send_udp(&mut catch, endpoint, everywhere(7), at(255, 9), b"all").unwrap();
    assert_eq!(EthernetHeader::parse(&catch.only()).unwrap().0.destination, MacAddr::BROADCAST);
    stack.set_link_down(&mut Catch::at(T0));
    assert_eq!(send(everywhere(7), at(2, 9), 1), Err(SendError::Down));
    assert_eq!(send(everywhere(7), at(1, 7), 1), Ok(()), "this host can still be reached");
}

#[test]
fn a_full_outlet_pushes_back_and_nothing_is_lost_or_counted() {
    let stack = acquainted();
    let endpoint = stack.bind_udp(everywhere(7)).unwrap();
    let mut full = Catch { room: 0, ..Catch::at(T0) };
    assert_eq!(stack.send_udp(&mut full, endpoint, everywhere(7), at(2, 9), b"data"), Err(SendError::Full));
    assert_eq!(stack.counters().udp_sent, 0);
    stack.input(&mut full, &datagram(53, b"refused if there were room"), Verify);
    assert_eq!((stack.counters().egress_full, stack.counters().unreachables_sent), (1, 0));
}

#[test]
fn datagrams_to_this_host_need_no_frame() {
    let stack = host(1);
    let (a, b) = (stack.bind_udp(everywhere(7)).unwrap(), stack.bind_udp(at(1, 8)).unwrap());
    let mut catch = Catch { room: 0, ..Catch::at(T0) };
    stack.send_udp(&mut catch, a, everywhere(7), at(1, 8), b"by address").unwrap();
    assert_eq!(recv(b), Ok(Some((b"by address".to_vec(), at(1, 7)))));
    stack
        .send_udp(&mut catch, b, at(1, 8), SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 7), b"by loopback")
        .unwrap();
    assert_eq!(recv(a), Ok(Some((b"by loopback".to_vec(), at(1, 8)))));
    stack.send_udp(&mut catch, a, everywhere(7), everywhere(7), b"to itself").unwrap();
    let me = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 7);
    assert_eq!(recv(a), Ok(Some((b"to itself".to_vec(), me))));
}

#[test]
fn a_closed_port_of_this_host_refuses_the_connected_sender() {
    let stack = host(1);
    let endpoint = stack.bind_udp(everywhere(7)).unwrap();
    let mut catch = Catch::at(T0);
    stack.send_udp(&mut catch, endpoint, everywhere(7), at(1, 8), b"?").unwrap();
    assert_eq!(recv(endpoint), Ok(None));
    stack.connect_udp(endpoint, at(1, 8)).unwrap();
    stack.send_udp(&mut catch, endpoint, at(1, 7), at(1, 8), b"?").unwrap();
    assert_eq!(recv(endpoint), Err(SocketError::Refused));
    assert_eq!(stack.counters().udp_no_socket, 2);
    assert!(catch.is_empty());
}

#[test]
fn a_host_that_does_not_answer_is_reported_to_who_can_tell() {
    let stack = host(1);
    let (connected, other) = (stack.bind_udp(everywhere(7)).unwrap(), stack.bind_udp(everywhere(8)).unwrap());
    stack.connect_udp(connected, at(2, 9)).unwrap();
    let mut catch = Catch::at(T0);
    stack.send_udp(&mut catch, connected, at(1, 7), at(2, 9), b"?").unwrap();
    stack.send_udp(&mut catch, other, everywhere(8), at(2, 9), b"?").unwrap();
    for second in 1..=3 {
        assert_eq!(recv(connected), Ok(None));
        catch.now = T0 + Duration::from_secs(second);
        stack.poll_timers(&mut catch);
    }
    assert_eq!(catch.frames.len(), 3, "one question a second");
    assert_eq!(recv(connected), Err(SocketError::HostUnreachable));
    assert_eq!(recv(other), Ok(None), "a socket with many peers is not disturbed by one");
    let send = |catch: &mut Catch| stack.send_udp(catch, other, everywhere(8), at(2, 9), b"?");
    assert_eq!(send(&mut catch), Err(SendError::HostUnreachable));
    let counters = stack.counters();
    assert_eq!((counters.neighbours_failed, counters.pending_dropped), (1, 2));
    stack.input(&mut catch, &arp_reply(2, 1), Verify);
    assert_eq!(send(&mut catch), Ok(()), "it answers after all");
}

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 129, 2, 3);
/// RFC 1112 section 6.4: the last 23 bits.
const GROUP_MAC: MacAddr = MacAddr([0x01, 0x00, 0x5e, 0x01, 2, 3]);

#[test]
fn datagrams_to_a_group_reach_the_sockets_that_have_joined_it() {
    let stack = host6(1);
    let frame = |port| frames::udp((mac(2), GROUP_MAC), (ip(2), 9), (GROUP, port), b"all");
    let (member, other) = (stack.bind_udp(everywhere(7)).unwrap(), stack.bind_udp(everywhere(8)).unwrap());
    receive(&stack, &frame(7));
    assert_eq!((recv(member), stack.counters().foreign_macs), (Ok(None), 1), "no socket has joined");
    stack.join_udp(member, GROUP.into()).unwrap();
    for port in [7, 8] {
        receive(&stack, &frame(port));
    }
    assert_eq!(recv(member), Ok(Some((b"all".to_vec(), at(2, 9)))));
    assert_eq!(recv(other), Ok(None), "another socket is in the group, not this one");
    // Two groups in one MAC address: the host hears both, the socket has joined one.
    let twin = Ipv4Addr::new(224, 1, 2, 3);
    receive(&stack, &frames::udp((mac(2), GROUP_MAC), (ip(2), 9), (twin, 7), b"twin"));
    assert_eq!(recv(member), Ok(None));
    stack.leave_udp(member, GROUP.into()).unwrap();
    receive(&stack, &frame(7));
    assert_eq!(recv(member), Ok(None));
    // A socket that is closed leaves its groups.
    stack.join_udp(other, GROUP.into()).unwrap();
    stack.close_udp(other);
    let heard = stack.counters().foreign_macs;
    receive(&stack, &frame(8));
    assert_eq!(stack.counters().foreign_macs, heard + 1);
    let six = stack.bind_udp(everywhere6(9)).unwrap();
    let group = "ff02::fb".parse().unwrap();
    stack.join_udp(six, IpAddr::V6(group)).unwrap();
    receive(&stack, &frames::udp6((mac(2), MacAddr::of_group(group)), (ip6(2), 9), (group, 9), b"six"));
    assert_eq!(recv(six), Ok(Some((b"six".to_vec(), at6(2, 9)))));
}

#[test]
fn a_group_is_joined_once_and_by_sockets_that_can_receive_from_it() {
    let stack = host(1);
    let (member, bound) = (stack.bind_udp(everywhere(7)).unwrap(), stack.bind_udp(at(1, 8)).unwrap());
    let group = IpAddr::from(GROUP);
    assert_eq!(stack.join_udp(member, ip(2).into()), Err(GroupError::NoGroup(ip(2).into())));
    assert_eq!(stack.join_udp(bound, group), Err(GroupError::Bound(group)));
    assert_eq!(stack.leave_udp(member, group), Err(GroupError::NotJoined(group)));
    assert_eq!(stack.join_udp(member, group), Ok(()));
    assert_eq!(stack.join_udp(member, group), Err(GroupError::Joined(group)));
    let groups = (1..MAX_GROUPS as u8).map(|n| IpAddr::from([239, 0, 0, n]));
    groups.for_each(|group| stack.join_udp(member, group).unwrap());
    assert_eq!(stack.join_udp(member, [239, 0, 1, 0].into()), Err(GroupError::TooMany));
}

#[test]
fn a_datagram_to_a_group_leaves_with_a_time_to_live_of_its_own_and_is_heard_here() {
    let stack = host(1);
    let endpoint = stack.bind_udp(everywhere(7)).unwrap();
    let send = |room| {
        let mut catch = Catch { room, ..Catch::at(T0) };
        let sent =
            stack.send_udp(&mut catch, endpoint, everywhere(7), SocketAddr::new(GROUP.into(), 7), b"all");
        (sent, catch)
    };
    let (sent, mut catch) = send(1);
    sent.unwrap();
    let frame = catch.only();
    let (ethernet, payload) = EthernetHeader::parse(&frame).unwrap();
    let header = Ipv4Packet::parse(payload, Verify).unwrap().header;
    assert_eq!((ethernet.destination, header.destination(), header.ttl()), (GROUP_MAC, GROUP, 1));
    assert_eq!(recv(endpoint), Ok(None), "it has not joined");
    stack.join_udp(endpoint, GROUP.into()).unwrap();
    assert_eq!(send(0).0, Err(SendError::Full));
    assert_eq!(recv(endpoint), Ok(None), "it is sent once there is room");
    send(1).0.unwrap();
    assert_eq!(recv(endpoint), Ok(Some((b"all".to_vec(), at(1, 7)))));
    endpoint.multicast_loop.store(false, Relaxed);
    endpoint.multicast_ttl.store(0, Relaxed);
    let (sent, catch) = send(1);
    assert_eq!((sent, catch.is_empty(), recv(endpoint)), (Ok(()), true, Ok(None)));
}
