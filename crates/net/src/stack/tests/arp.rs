//! ARP as RFC 826, RFC 1122 section 2.3.2 and RFC 5227 require it.

use super::*;

fn request(sender: (MacAddr, Ipv4Addr), target: Ipv4Addr) -> ArpPacket {
    ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: sender.0,
        sender_ip: sender.1,
        target_mac: MacAddr::ZERO,
        target_ip: target,
    }
}

fn reply(sender: (MacAddr, Ipv4Addr), target: Ipv4Addr) -> ArpPacket {
    ArpPacket { operation: ArpOperation::Reply, target_mac: mac(1), ..request(sender, target) }
}

/// Returns where host 1 sends what is for `to`; `None` if it has to ask.
fn station_of(stack: &Stack, to: SocketAddr) -> Option<MacAddr> {
    let endpoint = stack.bind_udp(everywhere(0)).unwrap();
    let mut catch = Catch::at(T0);
    stack.send_udp(&mut catch, endpoint, everywhere(7), to, b"?").unwrap();
    stack.close_udp(endpoint);
    let frame = catch.only();
    let (header, _) = EthernetHeader::parse(&frame).unwrap();
    (header.ethertype == EtherType::IPV4).then_some(header.destination)
}

#[test]
fn what_is_believed_and_what_is_answered() {
    let stranger = mac(0x33);
    let gratuitous = |operation| ArpPacket { operation, ..request((stranger, ip(2)), ip(2)) };
    // Packet; whether host 1 knew host 2 (at station 2) before; answered?; where it believes host 2
    // to be then.
    for (what, packet, known, answered, believed) in [
        ("a request for us", request((stranger, ip(2)), ip(1)), false, true, Some(stranger)),
        ("a request for another", request((stranger, ip(2)), ip(3)), false, false, None),
        ("a reply without a request", reply((stranger, ip(2)), ip(1)), false, false, None),
        ("an announcement", gratuitous(ArpOperation::Request), false, false, None),
        ("an announcement by reply", gratuitous(ArpOperation::Reply), false, false, None),
        ("an announcement of a neighbour", gratuitous(ArpOperation::Request), true, false, Some(stranger)),
        ("a neighbour's request", request((stranger, ip(2)), ip(3)), true, false, Some(stranger)),
        ("a neighbour's reply", reply((stranger, ip(2)), ip(1)), true, false, Some(stranger)),
        ("a probe for our address", request((stranger, Ipv4Addr::UNSPECIFIED), ip(1)), false, true, None),
        ("a probe for another", request((stranger, Ipv4Addr::UNSPECIFIED), ip(2)), true, false, Some(mac(2))),
        ("a group as sender", request((MacAddr([3; 6]), ip(2)), ip(1)), true, false, Some(mac(2))),
        ("no station as sender", request((MacAddr::ZERO, ip(2)), ip(1)), true, false, Some(mac(2))),
    ] {
        let stack = if known { acquainted() } else { host(1) };
        // Later than the settling time, so that a neighbour may move.
        let mut catch = Catch::at(T0 + Duration::from_secs(5));
        let _ = stack.handle_arp(&mut catch, &packet);
        if answered {
            let (to, answer) = parse_arp(&catch.only());
            assert_eq!(to, packet.sender_mac, "{what}");
            let expected = reply((mac(1), ip(1)), packet.sender_ip);
            assert_eq!(answer, ArpPacket { target_mac: packet.sender_mac, ..expected }, "{what}");
        }
        assert!(catch.is_empty(), "{what}");
        assert_eq!(station_of(&stack, at(2, 9)), believed, "{what}");
    }
}

#[test]
fn senders_that_cannot_be_neighbours_are_refused() {
    let stack = host(1);
    for sender in ["192.0.2.1", "255.255.255.255", "10.0.0.255", "224.0.0.1", "127.0.0.1"] {
        let packet = request((mac(2), sender.parse().unwrap()), ip(1));
        let mut catch = Catch::at(T0);
        stack.input(&mut catch, &arp_frame(MacAddr::BROADCAST, packet), Verify);
        assert!(catch.is_empty(), "{sender}");
    }
    assert_eq!(stack.counters().arp_foreign, 5);
}

#[test]
fn a_claim_to_our_own_address_is_counted_and_changes_nothing() {
    let stack = host(1);
    let mut catch = Catch::at(T0);
    stack.input(&mut catch, &arp_frame(mac(1), reply((mac(9), ip(1)), ip(1))), Verify);
    stack.input(&mut catch, &arp_frame(mac(1), request((mac(9), ip(1)), ip(1))), Verify);
    assert!(catch.is_empty());
    assert_eq!(stack.counters().arp_conflicts, 2);
}

#[test]
fn two_stations_that_fight_for_an_address_move_it_at_most_once_a_second() {
    let stack = acquainted();
    let mut moves = 0;
    let mut last = mac(2);
    // Ten seconds, a claim every 10 ms from either side in turn.
    for i in 1..=1000u32 {
        let claimant = if i % 2 == 0 { mac(2) } else { mac(3) };
        let mut catch = Catch::at(T0 + Duration::from_millis(10) * i);
        stack.input(&mut catch, &arp_frame(MacAddr::BROADCAST, reply((claimant, ip(2)), ip(2))), Verify);
        let now = station_of(&stack, at(2, 9)).unwrap();
        moves += u32::from(now != last);
        last = now;
    }
    assert!((5..=10).contains(&moves), "{moves} moves in ten seconds");
    assert!(stack.counters().arp_ignored > 400);
}

#[test]
fn a_flood_of_strangers_pushes_out_nobody_and_stays_within_bounds() {
    let config = NetConfig { prefix: 8, gateway: None, ..config(1) };
    let stack = Stack::new(config, 1).unwrap();
    let introduce = |ip: Ipv4Addr| {
        let mut catch = Catch::at(T0);
        stack.input(&mut catch, &arp_frame(MacAddr::BROADCAST, request((mac(2), ip), self::ip(1))), Verify);
    };
    introduce(ip(2));
    for i in 0..100_000u32 {
        introduce(Ipv4Addr::from(0x0a01_0000 + i));
    }
    assert_eq!(stack.counters().arp_ignored, 100_001 - crate::neighbour::CAPACITY as u64);
    assert_eq!(station_of(&stack, at(2, 9)), Some(mac(2)));
}

#[test]
fn an_unresolved_neighbour_is_asked_for_and_gets_what_waited() {
    let stack = host(1);
    let endpoint = stack.bind_udp(everywhere(7)).unwrap();
    let mut catch = Catch::at(T0);
    for i in 0..13 {
        stack.send_udp(&mut catch, endpoint, everywhere(7), at(2, 9), &[i; 1400]).unwrap();
    }
    let (to, question) = parse_arp(&catch.only());
    assert_eq!((to, question), (MacAddr::BROADCAST, request((mac(1), ip(1)), ip(2))));
    assert_eq!(catch.poll_by, Some(T0 + Duration::from_secs(1)));
    assert_eq!(stack.counters().pending_dropped, 2, "eleven packets wait, the oldest give way");
    stack.input(&mut catch, &arp_reply(2, 1), Verify);
    let sent: Vec<_> = catch.frames.iter().map(|frame| frame[frame.len() - 1]).collect();
    assert_eq!(sent, (2..13).collect::<Vec<_>>());
    for frame in &catch.frames {
        assert_eq!(EthernetHeader::parse(frame).unwrap().0.destination, mac(2));
    }
}

#[test]
fn a_host_announces_itself_twice() {
    let stack = Stack::new(config(1), 1).unwrap();
    let announcement = request((mac(1), ip(1)), ip(1));
    assert_eq!(stack.deadline(), Some(Duration::ZERO));
    for i in 0..2 {
        let mut catch = Catch::at(T0 + Duration::from_secs(2 * i));
        stack.poll_timers(&mut catch);
        assert_eq!(parse_arp(&catch.only()), (MacAddr::BROADCAST, announcement));
    }
    assert_eq!(stack.deadline(), None);
}
