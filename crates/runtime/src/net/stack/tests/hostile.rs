//! Frames nobody should send: whatever comes in, the stack stands, answers little, and answers well-formed.

use super::*;
use proptest::prelude::*;
use smoltcp::wire as smol;

/// A stack with something to find: known neighbours, sockets of every kind, a neighbour being asked for.
fn busy() -> Stack {
    let stack = acquainted();
    let open = |port| stack.bind_udp(everywhere(port)).unwrap();
    open(7);
    stack.connect_udp(open(8), at(2, 9)).unwrap();
    stack.bind_udp(at(1, 53)).unwrap();
    let waiting = open(9);
    for _ in 0..3 {
        stack.send_udp(&mut Catch::at(T0), waiting, everywhere(9), at(3, 9), b"waits").unwrap();
    }
    stack
}

/// Frames that reach every branch when a few bytes of them change.
fn seeds() -> Vec<Vec<u8>> {
    let echo = smol::Icmpv4Repr::EchoRequest { ident: 1, seq_no: 2, data: b"ping" };
    let unreachable = smol::Icmpv4Repr::DstUnreachable {
        reason: smol::Icmpv4DstUnreachable::PortUnreachable,
        header: smol::Ipv4Repr {
            src_addr: ip(1),
            dst_addr: ip(2),
            next_header: smol::IpProtocol::Udp,
            payload_len: 8,
            hop_limit: 64,
        },
        data: &[0, 8, 0, 9, 0, 8, 0, 0],
    };
    let ips = (ip(2), ip(1));
    let macs = (mac(2), mac(1));
    let question = ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: mac(4),
        sender_ip: ip(4),
        target_mac: MacAddr::ZERO,
        target_ip: ip(1),
    };
    vec![
        datagram(7, b"data"),
        datagram(8, b"data"),
        datagram(1, b"closed"),
        built_by_smoltcp::udp((mac(2), MacAddr::BROADCAST), (ip(2), 9), (ip(255), 7), b"all"),
        built_by_smoltcp::icmp(macs, ips, &echo),
        built_by_smoltcp::icmp(macs, ips, &unreachable),
        arp_frame(MacAddr::BROADCAST, question),
        arp_reply(3, 1),
    ]
}

/// Whether smoltcp finds nothing wrong with a frame this stack sent.
fn check_answer(frame: &[u8]) {
    let ethernet = smol::EthernetFrame::new_checked(frame).unwrap();
    match ethernet.ethertype() {
        smol::EthernetProtocol::Arp => {
            let packet = smol::ArpPacket::new_checked(ethernet.payload()).unwrap();
            smol::ArpRepr::parse(&packet).unwrap();
        }
        _ => {
            let ip = smol::Ipv4Packet::new_checked(ethernet.payload()).unwrap();
            assert!(ip.verify_checksum());
            match ip.next_header() {
                smol::IpProtocol::Icmp => {
                    assert!(smol::Icmpv4Packet::new_checked(ip.payload()).unwrap().verify_checksum());
                }
                _ => assert!(
                    smol::UdpPacket::new_checked(ip.payload())
                        .unwrap()
                        .verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into())
                ),
            }
        }
    }
}

proptest! {
    #[test]
    fn mutated_frames_do_no_harm(
        which in 0usize..8,
        changes in prop::collection::vec((0usize..100, prop_oneof![any::<u8>(), Just(0), Just(0xff), Just(0x45)]), 0..5),
        grow in 0usize..50,
        keep in 0usize..120,
        trust: bool,
    ) {
        let stack = busy();
        let mut frame = seeds().swap_remove(which);
        frame.resize(frame.len() + grow, 0x5a);
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(keep.max(1));
        let mut catch = Catch::at(T0);
        stack.input(&mut catch, &frame, trust.into());
        // One answer, and the three datagrams that may have waited for an answer to a question.
        prop_assert!(catch.frames.len() <= 4);
        catch.frames.iter().for_each(|frame| check_answer(frame));
    }

    #[test]
    fn streams_of_arbitrary_frames_do_no_harm(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..50), ethertype in 0u8..3,
    ) {
        let stack = busy();
        for (i, mut frame) in frames.into_iter().enumerate() {
            if frame.len() > 34 && ethertype > 0 {
                frame[..6].copy_from_slice(&mac(1).0);
                frame[12..15].copy_from_slice(if ethertype == 1 { &[8, 0, 0x45] } else { &[8, 6, 0] });
            }
            let mut catch = Catch::at(T0 + Duration::from_millis(100) * i as u32);
            stack.input(&mut catch, &frame, 1);
            stack.poll_timers(&mut catch);
            catch.frames.iter().for_each(|frame| check_answer(frame));
        }
    }
}
