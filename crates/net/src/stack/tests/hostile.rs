//! Hostile frames: whatever arrives, the stack does not panic, sends few answers, and all of them
//! are well-formed.

use super::*;
use proptest::prelude::*;
use smoltcp::wire as smol;

/// Returns a stack with something to find: known neighbours, sockets of every kind, a neighbour
/// being asked for.
fn busy() -> Stack {
    let stack = acquainted6();
    let open = |port| stack.bind_udp(everywhere6(port)).unwrap();
    open(7);
    stack.connect_udp(open(8), at(2, 9)).unwrap();
    stack.connect_udp(open(10), at6(2, 9)).unwrap();
    stack.bind_udp(at(1, 53)).unwrap();
    let waiting = open(9);
    for to in [at(3, 9), at6(3, 9)].repeat(3) {
        stack.send_udp(&mut Catch::at(T0), waiting, everywhere6(9), to, b"waits").unwrap();
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
        frames::udp((mac(2), MacAddr::BROADCAST), (ip(2), 9), (ip(255), 7), b"all"),
        frames::icmp(macs, ips, &echo),
        frames::icmp(macs, ips, &unreachable),
        arp_frame(MacAddr::BROADCAST, question),
        arp_reply(3, 1),
    ]
    .into_iter()
    .chain(seeds6())
    .chain(fragments())
    .collect()
}

fn seeds6() -> [Vec<u8>; 7] {
    let echo = smol::Icmpv6Repr::EchoRequest { ident: 1, seq_no: 2, data: b"ping" };
    let lladdr = Some(smol::EthernetAddress(mac(3).0).into());
    let flags = smol::NdiscNeighborFlags::SOLICITED | smol::NdiscNeighborFlags::OVERRIDE;
    let question = smol::Icmpv6Repr::Ndisc(smol::NdiscRepr::NeighborSolicit { target_addr: ip6(1), lladdr });
    let answer =
        smol::Icmpv6Repr::Ndisc(smol::NdiscRepr::NeighborAdvert { flags, target_addr: ip6(3), lladdr });
    let header = smol::Ipv6Repr {
        src_addr: ip6(1),
        dst_addr: ip6(2),
        next_header: smol::IpProtocol::Udp,
        payload_len: 1400,
        hop_limit: 64,
    };
    let data = &[0, 10, 0, 9, 0, 8, 0, 0][..];
    let too_big = smol::Icmpv6Repr::PktTooBig { mtu: 1300, header, data };
    let macs = (mac(2), mac(1));
    let ips = (ip6(2), ip6(1));
    let extended =
        [&[60, 0, 1, 4, 0, 0, 0, 0][..], &[17, 0, 0x80, 4, 0, 0, 0, 0], &[0, 9, 0, 7, 0, 8, 0, 0]].concat();
    [
        datagram6(7, b"data"),
        datagram6(1, b"closed"),
        frames::icmp6(macs, ips, 64, &echo),
        frames::icmp6(macs, ips, 255, &question),
        frames::icmp6((mac(3), mac(1)), (ip6(3), ip6(1)), 255, &answer),
        frames::icmp6(macs, ips, 64, &too_big),
        frames::ip(macs, (ips.0.into(), ips.1.into()), (IpProtocol::HOP_BY_HOP, 64), &extended),
    ]
}

/// Both pieces of a datagram to an open port, of each family.
fn fragments() -> Vec<Vec<u8>> {
    let sender = Stack::new(config6(2), 2).unwrap();
    let endpoint = sender.bind_udp(everywhere6(9)).unwrap();
    let mut catch = Catch::at(T0);
    for to in [at(1, 7), at6(1, 7)] {
        sender.send_udp(&mut catch, endpoint, everywhere6(9), to, &[7; 1600]).unwrap();
    }
    // Questions for host 1 go, answers release what waits.
    catch.frames.clear();
    sender.input(&mut catch, &arp_reply(1, 2), Verify);
    let flags = smol::NdiscNeighborFlags::SOLICITED | smol::NdiscNeighborFlags::OVERRIDE;
    let lladdr = Some(smol::EthernetAddress(mac(1).0).into());
    let here =
        smol::Icmpv6Repr::Ndisc(smol::NdiscRepr::NeighborAdvert { flags, target_addr: ip6(1), lladdr });
    sender.input(&mut catch, &frames::icmp6((mac(1), mac(2)), (ip6(1), ip6(2)), 255, &here), Verify);
    assert_eq!(catch.frames.len(), 4);
    catch.frames
}

/// Checks that smoltcp finds nothing wrong with a frame that this stack sent.
fn check_answer(frame: &[u8]) {
    let ethernet = smol::EthernetFrame::new_checked(frame).unwrap();
    match ethernet.ethertype() {
        smol::EthernetProtocol::Arp => {
            let packet = smol::ArpPacket::new_checked(ethernet.payload()).unwrap();
            smol::ArpRepr::parse(&packet).unwrap();
        }
        smol::EthernetProtocol::Ipv6 => {
            let ip = smol::Ipv6Packet::new_checked(ethernet.payload()).unwrap();
            let (source, destination) = (ip.src_addr(), ip.dst_addr());
            match ip.next_header() {
                smol::IpProtocol::Icmpv6 => {
                    let icmp = smol::Icmpv6Packet::new_checked(ip.payload()).unwrap();
                    assert!(icmp.verify_checksum(&source, &destination));
                }
                smol::IpProtocol::Udp => assert!(
                    smol::UdpPacket::new_checked(ip.payload())
                        .unwrap()
                        .verify_checksum(&source.into(), &destination.into())
                ),
                smol::IpProtocol::Tcp => {
                    let tcp = smol::TcpPacket::new_checked(ip.payload()).unwrap();
                    assert!(tcp.rst() && tcp.verify_checksum(&source.into(), &destination.into()));
                }
                other => panic!("nothing here is answered with {other}"),
            }
        }
        _ => {
            let ip = smol::Ipv4Packet::new_checked(ethernet.payload()).unwrap();
            assert!(ip.verify_checksum());
            let (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
            match ip.next_header() {
                smol::IpProtocol::Icmp => {
                    assert!(smol::Icmpv4Packet::new_checked(ip.payload()).unwrap().verify_checksum());
                }
                smol::IpProtocol::Tcp => {
                    let tcp = smol::TcpPacket::new_checked(ip.payload()).unwrap();
                    assert!(tcp.rst() && tcp.verify_checksum(&source, &destination));
                }
                _ => assert!(
                    smol::UdpPacket::new_checked(ip.payload())
                        .unwrap()
                        .verify_checksum(&source, &destination)
                ),
            }
        }
    }
}

proptest! {
    #[test]
    fn mutated_frames_do_no_harm(
        which in 0usize..19,
        changes in prop::collection::vec((0usize..130, prop_oneof![any::<u8>(), Just(0), Just(0xff), Just(0x45), Just(44), Just(60)]), 0..5),
        grow in 0usize..50,
        keep in prop_oneof![0usize..150, Just(2000)],
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
        stack.input(&mut catch, &frame, if trust { Trust } else { Verify });
        // One answer, and the three datagrams that may have waited for an answer to a question.
        prop_assert!(catch.frames.len() <= 4);
        catch.frames.iter().for_each(|frame| check_answer(frame));
    }

    #[test]
    fn streams_of_arbitrary_frames_do_no_harm(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..50), ethertype in 0u8..4,
    ) {
        let stack = busy();
        for (i, mut frame) in frames.into_iter().enumerate() {
            if frame.len() > 34 && ethertype > 0 {
                frame[..6].copy_from_slice(&mac(1).0);
                frame[12..15].copy_from_slice([&[8, 0, 0x45], &[8, 6, 0], &[0x86, 0xdd, 0x60]][usize::from(ethertype) - 1]);
                if ethertype == 3 {
                    // Addresses and lengths that let the deeper parsers be reached.
                    let len = (frame.len() - 54.min(frame.len())) as u16;
                    frame[18..20].copy_from_slice(&len.to_be_bytes());
                    frame.resize(frame.len().max(54), 0);
                    frame[22..38].copy_from_slice(&ip6(2).octets());
                    frame[38..54].copy_from_slice(&ip6(1).octets());
                }
            }
            let mut catch = Catch::at(T0 + Duration::from_millis(100) * i as u32);
            stack.input(&mut catch, &frame, Trust);
            stack.poll_timers(&mut catch);
            catch.frames.iter().for_each(|frame| check_answer(frame));
        }
    }
}
