//! ICMP against packets that smoltcp builds and reads.

use super::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as smol;

/// What smoltcp reads from a frame of host 1 to host 2, checksums verified.
fn with_icmp(frame: &[u8], read: impl FnOnce(smol::Icmpv4Packet<&[u8]>)) {
    let capabilities = ChecksumCapabilities::default();
    let ethernet = smol::EthernetFrame::new_checked(frame).unwrap();
    assert_eq!((ethernet.src_addr().0, ethernet.dst_addr().0), (mac(1).0, mac(2).0));
    let ip = smol::Ipv4Packet::new_checked(ethernet.payload()).unwrap();
    let header = smol::Ipv4Repr::parse(&ip, &capabilities).unwrap();
    assert_eq!((header.src_addr, header.dst_addr), (self::ip(1), self::ip(2)));
    let icmp = smol::Icmpv4Packet::new_checked(ip.payload()).unwrap();
    assert!(icmp.verify_checksum());
    read(icmp);
}

fn ping(to: (MacAddr, Ipv4Addr), data: &[u8]) -> Vec<u8> {
    let message = smol::Icmpv4Repr::EchoRequest { ident: 0x1234, seq_no: 7, data };
    frames::icmp((mac(2), to.0), (ip(2), to.1), &message)
}

#[test]
fn an_echo_request_gets_its_data_back_and_nothing_else() {
    let stack = host(1);
    for len in [0, 1, 56, 1472] {
        let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let mut frame = ping((mac(1), ip(1)), &data);
        frame.resize(frame.len().max(60), 0xee);
        let mut catch = Catch::at(T0);
        stack.input(&mut catch, &frame, Verify);
        with_icmp(&catch.only(), |icmp| {
            let reply = smol::Icmpv4Repr::parse(&icmp, &ChecksumCapabilities::default()).unwrap();
            assert_eq!(reply, smol::Icmpv4Repr::EchoReply { ident: 0x1234, seq_no: 7, data: &data });
        });
    }
    assert_eq!(stack.counters().echoes_answered, 4);
}

#[test]
fn echo_requests_to_all_or_damaged_are_not_answered() {
    let stack = host(1);
    let mut catch = Catch::at(T0);
    stack.input(&mut catch, &ping((MacAddr::BROADCAST, ip(255)), b"smurf"), Verify);
    assert_eq!(stack.counters().icmp_ignored, 1);
    let mut damaged = ping((mac(1), ip(1)), b"data");
    *damaged.last_mut().unwrap() ^= 1;
    stack.input(&mut catch, &damaged, Verify);
    assert_eq!(stack.counters().bad_checksums, 1);
    assert!(catch.is_empty());
}

#[test]
fn a_datagram_for_a_closed_port_is_refused_with_its_beginning() {
    let stack = host(1);
    for len in [0, 10, 520, 521, 1472] {
        let frame = datagram(53, &vec![7; len]);
        let mut catch = Catch::at(T0);
        stack.input(&mut catch, &frame, Verify);
        let answer = catch.only();
        assert!(answer.len() <= 14 + 576, "an error fits the packet that every host accepts");
        with_icmp(&answer, |icmp| {
            assert_eq!(icmp.msg_type(), smol::Icmpv4Message::DstUnreachable);
            assert_eq!(icmp.msg_code(), u8::from(smol::Icmpv4DstUnreachable::PortUnreachable));
            let quoted = (20 + 8 + len).min(576 - 20 - 8);
            assert_eq!(icmp.data(), &frame[14..14 + quoted]);
        });
    }
    assert_eq!(stack.counters().udp_no_socket, 5);
}

#[test]
fn refusals_are_limited_and_recover() {
    let stack = host(1);
    let mut catch = Catch::at(T0);
    for _ in 0..1000 {
        stack.input(&mut catch, &datagram(53, b"scan"), Verify);
    }
    assert_eq!(catch.frames.len(), ICMP_ERRORS_BURST as usize);
    assert_eq!(stack.counters().unreachables_limited, 1000 - u64::from(ICMP_ERRORS_BURST));
    catch = Catch::at(T0 + Duration::from_millis(10));
    for _ in 0..1000 {
        stack.input(&mut catch, &datagram(53, b"scan"), Verify);
    }
    assert_eq!(catch.frames.len(), 10);
}

#[test]
fn nobody_is_refused_who_spoke_to_all() {
    let stack = host(1);
    let mut catch = Catch::at(T0);
    for to in [Ipv4Addr::BROADCAST, ip(255)] {
        let frame = frames::udp((mac(2), MacAddr::BROADCAST), (ip(2), 9), (to, 53), b"all");
        stack.input(&mut catch, &frame, Verify);
    }
    assert_eq!(stack.counters().udp_no_socket, 2);
    assert!(catch.is_empty());
}

/// Host `from` says that port 9 of host 2 is closed, on behalf of a datagram from host 1, port
/// `port`.
fn refusal(from: u8, port: u16) -> Vec<u8> {
    let ours = frames::udp((mac(1), mac(2)), (ip(1), port), (ip(2), 9), b"hello");
    let quoted = smol::Ipv4Packet::new_unchecked(&ours[14..]);
    let message = smol::Icmpv4Repr::DstUnreachable {
        reason: smol::Icmpv4DstUnreachable::PortUnreachable,
        header: smol::Ipv4Repr::parse(&quoted, &ChecksumCapabilities::default()).unwrap(),
        data: &ours[34..42],
    };
    frames::icmp((mac(from), mac(1)), (ip(from), ip(1)), &message)
}

#[test]
fn a_refusal_reaches_the_connected_socket_it_concerns_once() {
    let stack = acquainted();
    let endpoint = stack.bind_udp(everywhere(7)).unwrap();
    stack.connect_udp(endpoint, at(2, 9)).unwrap();
    stack.input(&mut Catch::at(T0), &refusal(2, 7), Verify);
    assert_eq!(recv(endpoint), Err(SocketError::Refused));
    assert_eq!(recv(endpoint), Ok(None));
    stack.input(&mut Catch::at(T0), &refusal(2, 7), Verify);
    assert_eq!(endpoint.take_error(), Some(SocketError::Refused));
    assert_eq!(endpoint.take_error(), None);
    assert_eq!(stack.counters().icmp_ignored, 0);
}

#[test]
fn refusals_that_concern_nobody_are_ignored() {
    let stack = acquainted();
    let unconnected = stack.bind_udp(everywhere(7)).unwrap();
    let elsewhere = stack.bind_udp(everywhere(8)).unwrap();
    stack.connect_udp(elsewhere, at(2, 10)).unwrap();
    let connected = stack.bind_udp(everywhere(6)).unwrap();
    stack.connect_udp(connected, at(2, 9)).unwrap();
    for frame in [refusal(2, 7), refusal(2, 8), refusal(2, 5), refusal(3, 6)] {
        stack.input(&mut Catch::at(T0), &frame, Verify);
    }
    assert_eq!(stack.counters().icmp_ignored, 4);
    for endpoint in [unconnected, elsewhere, connected] {
        assert_eq!(recv(endpoint), Ok(None));
    }
}
