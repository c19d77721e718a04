//! Packets longer than a link or a path, and packets of any protocol.

use super::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as smol;
use tailwater_wire::{Addresses, PacketInfo};

/// Two hosts that know each other, on a link of `mtu` bytes.
pub(super) fn pair(mtu: u16) -> (Stack, Stack) {
    let make =
        |n: u8| Stack::new(NetConfig { mtu, udp_receive_bytes: 1 << 20, ..config6(n) }, n.into()).unwrap();
    let (one, two) = (make(1), make(2));
    let mut to_two = Catch::at(T0);
    for to in [at(2, 9), at6(2, 9)] {
        let endpoint = one.bind_udp(everywhere6(0)).unwrap();
        one.send_udp(&mut to_two, endpoint, everywhere6(1), to, b"").unwrap();
        one.close_udp(endpoint);
    }
    let mut to_one = Catch::at(T0);
    to_two.frames.iter().for_each(|frame| two.input(&mut to_one, frame, Verify));
    to_one.frames.iter().for_each(|frame| one.input(&mut Catch::at(T0), frame, Verify));
    (one, two)
}

/// Sends a datagram from host 1 to host 2 in frames, which `disturb` may reorder, and gives what
/// arrives and how many frames it took.
fn cross(
    mtu: u16,
    to: SocketAddr,
    data: &[u8],
    disturb: impl FnOnce(&mut Vec<Vec<u8>>),
) -> (Option<Vec<u8>>, usize) {
    let (one, two) = pair(mtu);
    let (sender, receiver) = (one.bind_udp(everywhere6(7)).unwrap(), two.bind_udp(everywhere6(9)).unwrap());
    let mut wire = Catch::at(T0);
    one.send_udp(&mut wire, sender, everywhere6(7), to, data).unwrap();
    let frames = wire.frames.len();
    assert!(wire.frames.iter().all(|frame| frame.len() <= 14 + usize::from(mtu)));
    disturb(&mut wire.frames);
    let mut back = Catch::at(T0);
    wire.frames.iter().for_each(|frame| two.input(&mut back, frame, Trust));
    assert!(back.is_empty(), "{:02x?}", back.frames);
    (recv(receiver).unwrap().map(|(data, _)| data), frames)
}

#[test]
fn long_datagrams_cross_in_pieces_and_long_links_need_none() {
    let data: Vec<u8> = (0..MAX_DATAGRAM).map(|i| (i * 31) as u8).collect();
    // Link, data bytes, frames over IPv4 and over IPv6.
    for (mtu, len, frames) in [
        (1500, 1452, [1, 1]),
        (1500, 1472, [1, 2]),
        (1500, 1473, [2, 2]),
        (1280, 4000, [4, 4]),
        (1500, MAX_DATAGRAM, [45, 46]),
        (9000, 8952, [1, 1]),
        (9000, 8972, [1, 2]),
        (9000, MAX_DATAGRAM, [8, 8]),
    ] {
        for (to, expected) in [at(2, 9), at6(2, 9)].into_iter().zip(frames) {
            let (received, sent) = cross(mtu, to, &data[..len], |frames| frames.reverse());
            assert_eq!(sent, expected, "{len} bytes to {to} over {mtu}");
            assert!(received.as_deref() == Some(&data[..len]), "{len} bytes to {to} over {mtu}");
        }
    }
}

#[test]
fn a_missing_piece_loses_the_datagram_and_its_sender_is_told_after_30_s() {
    for to in [at(2, 9), at6(2, 9)] {
        let (one, two) = pair(1500);
        let sender = one.bind_udp(everywhere6(7)).unwrap();
        let mut wire = Catch::at(T0);
        one.send_udp(&mut wire, sender, everywhere6(7), to, &[7; 4000]).unwrap();
        wire.frames.pop();
        let mut back = Catch::at(T0);
        wire.frames.iter().for_each(|frame| two.input(&mut back, frame, Verify));
        back.now = T0 + Duration::from_secs(29);
        two.poll_timers(&mut back);
        back.frames.retain(|frame| frame[12..14] != [8, 6] && frame[20] != 58);
        assert!(back.is_empty());
        back.now = T0 + Duration::from_secs(30);
        assert_eq!(two.deadline(), Some(back.now));
        two.poll_timers(&mut back);
        let frame = back.only();
        let (kind, code) = if to.is_ipv4() { (frame[34], frame[35]) } else { (frame[54], frame[55]) };
        assert_eq!((kind, code), if to.is_ipv4() { (11, 1) } else { (3, 1) }, "time exceeded in reassembly");
        assert_eq!(two.counters().reassemblies_failed, 1);
    }
}

#[test]
fn a_long_echo_comes_in_pieces_and_its_answer_goes_in_pieces() {
    let data: Vec<u8> = (0..4000u32).map(|i| i as u8).collect();
    let (one, two) = pair(1500);
    let request = smol::Icmpv4Repr::EchoRequest { ident: 1, seq_no: 2, data: &data };
    let whole = frames::icmp((mac(1), mac(2)), (ip(1), ip(2)), &request);
    let mut wire = Catch::at(T0);
    for offset in (0..4008).step_by(1480) {
        let end = (offset + 1480).min(4008);
        let mut frame = [&whole[..34], &whole[34 + offset..34 + end]].concat();
        frame[16..18].copy_from_slice(&((20 + end - offset) as u16).to_be_bytes());
        let more = if end < 4008 { 0x2000 } else { 0 };
        frame[18..22].copy_from_slice(&((7 << 16) | more | (offset as u32 / 8)).to_be_bytes());
        two.input(&mut wire, &frame, Trust);
    }
    assert_eq!(wire.frames.len(), 3);
    let mut nothing = Catch::at(T0);
    wire.frames.iter().for_each(|frame| one.input(&mut nothing, frame, Verify));
    assert!(nothing.is_empty());
    let counters = one.counters();
    assert_eq!(
        (counters.reassembled, counters.icmp_ignored, counters.bad_checksums),
        (1, 1, 0),
        "a reply, and whole"
    );
}

#[test]
fn a_datagram_that_finds_no_room_half_way_goes_on_where_it_stopped() {
    let (one, two) = pair(1500);
    let (sender, receiver) = (one.bind_udp(everywhere(7)).unwrap(), two.bind_udp(everywhere(9)).unwrap());
    let mut wire = Catch { room: 1, ..Catch::at(T0) };
    let mut progress = Progress::default();
    let data = vec![7; 4000];
    let mut tries = 1;
    while one.send_udp_from(&mut wire, sender, everywhere(7), at(2, 9), &data, &mut progress).is_err() {
        wire.room += 1;
        tries += 1;
    }
    assert_eq!((tries, wire.frames.len()), (3, 3), "no piece is sent twice");
    wire.frames.iter().for_each(|frame| two.input(&mut Catch::at(T0), frame, Verify));
    assert_eq!(recv(receiver).unwrap().unwrap().0, data);
    assert_eq!(one.counters().udp_sent, 2 + 1);
}

/// A router (at host 3's station) says that `frame`, which host 1 sent to host 2, was too big.
fn too_big(frame: &[u8], mtu: u32) -> Vec<u8> {
    let capabilities = ChecksumCapabilities::default();
    if frame[12..14] == [8, 0] {
        // smoltcp's own errors do not carry the MTU: its "port unreachable" with other numbers.
        let quoted = smol::Ipv4Packet::new_unchecked(&frame[14..]);
        let header = smol::Ipv4Repr::parse(&quoted, &capabilities).unwrap();
        let reason = smol::Icmpv4DstUnreachable::FragRequired;
        let message = smol::Icmpv4Repr::DstUnreachable { reason, header, data: &frame[34..42] };
        let mut error = frames::icmp((mac(3), mac(1)), (ip(3), ip(1)), &message);
        error[38..42].copy_from_slice(&mtu.to_be_bytes());
        smol::Icmpv4Packet::new_unchecked(&mut error[34..]).fill_checksum();
        return error;
    }
    let quoted = smol::Ipv6Packet::new_unchecked(&frame[14..]);
    let header = smol::Ipv6Repr::parse(&quoted).unwrap();
    let message = smol::Icmpv6Repr::PktTooBig { mtu, header, data: &frame[54..62] };
    frames::icmp6((mac(3), mac(1)), (ip6(3), ip6(1)), 64, &message)
}

#[test]
fn a_narrow_path_is_learnt_from_a_router_and_forgotten_after_ten_minutes() {
    for (to, mtu) in [(at(2, 9), 1000), (at6(2, 9), 1300)] {
        let (one, _) = pair(1500);
        let endpoint = one.bind_udp(everywhere6(7)).unwrap();
        let mut wire = Catch::at(T0);
        one.send_udp(&mut wire, endpoint, everywhere6(7), to, &[7; 1400]).unwrap();
        let frame = wire.only();
        assert_eq!(one.path_mtu(to.ip()), 1500);
        one.input(&mut wire, &too_big(&frame, mtu), Verify);
        assert_eq!(u32::from(one.path_mtu(to.ip())), mtu, "{to}");
        assert_eq!((one.counters().paths_narrowed, recv(endpoint)), (1, Ok(None)), "no error for the socket");
        one.send_udp(&mut wire, endpoint, everywhere6(7), to, &[7; 1400]).unwrap();
        assert!(wire.frames.len() == 2 && wire.frames.iter().all(|frame| frame.len() <= 14 + mtu as usize));
        wire.now = T0 + Duration::from_secs(600);
        one.poll_timers(&mut wire);
        assert_eq!(one.path_mtu(to.ip()), 1500);
    }
}

#[test]
fn reports_of_narrow_paths_that_cannot_be_are_ignored_or_believed_down_to_the_floor() {
    for (to, floor) in [(at(2, 9), 576), (at6(2, 9), 1280)] {
        let (one, _) = pair(1500);
        let endpoint = one.bind_udp(everywhere6(7)).unwrap();
        let mut wire = Catch::at(T0);
        one.send_udp(&mut wire, endpoint, everywhere6(7), to, &[7; 1400]).unwrap();
        let frame = wire.only();
        // What would have fitted; then one from a socket that is not open.
        one.input(&mut wire, &too_big(&frame, 1450), Verify);
        one.close_udp(endpoint);
        one.input(&mut wire, &too_big(&frame, 1300), Verify);
        assert_eq!((one.path_mtu(to.ip()), one.counters().icmp_ignored), (1500, 2), "{to}");
        let endpoint = one.bind_udp(everywhere6(7)).unwrap();
        one.input(&mut wire, &too_big(&frame, 100), Verify);
        assert_eq!(one.path_mtu(to.ip()), floor);
        let mut wire = Catch::at(T0);
        one.send_udp(&mut wire, endpoint, everywhere6(7), to, b"short").unwrap();
        if to.is_ipv4() {
            assert_eq!(
                wire.only()[20] & 0x40,
                0,
                "routers may break up what goes through a path below the floor"
            );
        }
    }
    // A router that does not say (RFC 1191 section 5): the next plateau below 1428 bytes.
    let (one, _) = pair(1500);
    let endpoint = one.bind_udp(everywhere6(7)).unwrap();
    let mut wire = Catch::at(T0);
    one.send_udp(&mut wire, endpoint, everywhere6(7), at(2, 9), &[7; 1400]).unwrap();
    let frame = wire.only();
    one.input(&mut wire, &too_big(&frame, 0), Verify);
    assert_eq!(one.path_mtu(ip(2).into()), 1006);
}

fn tcp(source: IpAddr, destination: IpAddr) -> PacketInfo {
    let addresses = Addresses::new(source, destination).unwrap();
    PacketInfo { addresses, protocol: IpProtocol::TCP, hop_limit: 33, traffic_class: 0xb8 }
}

/// Writes a segment whose checksum smoltcp can verify.
fn fill_segment(data: &[u8]) -> impl FnOnce(&mut [u8], Sum) {
    move |out, sum| {
        out[..20].copy_from_slice(&[0, 7, 0, 9, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        out[20..].copy_from_slice(data);
        let checksum = sum.bytes(out).finish();
        out[16..18].copy_from_slice(&checksum.to_be_bytes());
    }
}

#[test]
fn packets_of_any_protocol_leave_with_a_pseudo_header_that_fits() {
    let (one, _) = pair(1500);
    for (from, to) in [(ip(1).into(), IpAddr::from(ip(2))), (ip6(1).into(), ip6(2).into())] {
        let mut wire = Catch::at(T0);
        one.transmit_ip(&mut wire, &tcp(from, to), 25, fill_segment(b"bytes")).unwrap();
        let frame = wire.only();
        assert_eq!(frame[..6], mac(2).0);
        let (from, to, hop_limit, class, payload) = if to.is_ipv4() {
            let packet = smol::Ipv4Packet::new_checked(&frame[14..]).unwrap();
            assert!(packet.verify_checksum() && packet.dont_frag());
            (
                smol::IpAddress::from(packet.src_addr()),
                packet.dst_addr().into(),
                packet.hop_limit(),
                packet.dscp() << 2,
                &frame[34..],
            )
        } else {
            let packet = smol::Ipv6Packet::new_checked(&frame[14..]).unwrap();
            (
                smol::IpAddress::from(packet.src_addr()),
                packet.dst_addr().into(),
                packet.hop_limit(),
                packet.traffic_class(),
                &frame[54..],
            )
        };
        assert_eq!((hop_limit, class), (33, 0xb8));
        // Protocol 6, from and to: what smoltcp sums is what the closure was given.
        let sum = checksum_with_pseudo_header(&from, &to, payload);
        assert_eq!(sum, 0);
        let too_long = SendError::TooLong { len: 8981, limit: 8980 };
        let unsent = |_: &mut [u8], _: Sum| panic!("nothing is to be written");
        if to.version() == smol::IpVersion::Ipv4 {
            assert_eq!(
                one.transmit_ip(&mut wire, &tcp(ip(1).into(), ip(2).into()), 8981, unsent),
                Err(too_long)
            );
        }
    }
    let mut full = Catch { room: 0, ..Catch::at(T0) };
    let packet = tcp(ip6(1).into(), ip6(2).into());
    assert_eq!(one.transmit_ip(&mut full, &packet, 25, |_, _| ()), Err(SendError::Full));
    let stranger = tcp(ip6(1).into(), ip6(77).into());
    let mut wire = Catch::at(T0);
    one.transmit_ip(&mut wire, &stranger, 25, fill_segment(b"waits")).unwrap();
    assert_eq!(wire.frames.len(), 1, "a question");
    one.set_link_down(&mut Catch::at(T0));
    assert_eq!(one.transmit_ip(&mut wire, &packet, 25, |_, _| ()), Err(SendError::Down));
}

/// Returns the sum over pseudo-header and payload by the book (RFC 1071 section 4.1).
fn checksum_with_pseudo_header(from: &smol::IpAddress, to: &smol::IpAddress, payload: &[u8]) -> u16 {
    let octets = |ip: &smol::IpAddress| match ip {
        smol::IpAddress::Ipv4(ip) => ip.octets().to_vec(),
        smol::IpAddress::Ipv6(ip) => ip.octets().to_vec(),
    };
    let len = payload.len() as u16;
    let mut bytes =
        [octets(from), octets(to), vec![0, 6], len.to_be_bytes().to_vec(), payload.to_vec()].concat();
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    let mut sum: u32 = bytes.as_chunks::<2>().0.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[test]
fn packets_to_this_host_wait_in_the_loopback_queue() {
    let stack = host6(1);
    let mut wire = Catch::at(T0);
    let (sender, receiver) =
        (stack.bind_udp(everywhere6(7)).unwrap(), stack.bind_udp(everywhere6(9)).unwrap());
    let addresses = Addresses::new(Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()).unwrap();
    let udp = PacketInfo { addresses, protocol: IpProtocol::UDP, hop_limit: 64, traffic_class: 0 };
    for _ in 0..3 {
        // Never zero: without a checksum, over IPv6.
        let fill = |out: &mut [u8], _| out.copy_from_slice(&[0, 7, 0, 9, 0, 10, 0, 0, b'h', b'i']);
        stack.transmit_ip(&mut wire, &udp, 10, fill).unwrap();
    }
    assert_eq!((wire.loopback_polls, recv(receiver)), (1, Ok(None)), "told once, processed later");
    let mut batch = LoopbackBatch::default();
    assert!(!stack.is_loopback_empty() && stack.take_loopback(&mut batch));
    batch.packets().for_each(|packet| stack.input_local(&mut wire, &packet));
    let me = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 7);
    for _ in 0..3 {
        assert_eq!(recv(receiver), Ok(Some((b"hi".to_vec(), me))));
    }
    stack.close_udp(sender);
    let unknown = PacketInfo { protocol: IpProtocol(99), ..udp };
    stack.transmit_ip(&mut wire, &unknown, 4, |out, _| out.fill(0)).unwrap();
    assert!(stack.take_loopback(&mut batch));
    batch.packets().for_each(|packet| stack.input_local(&mut wire, &packet));
    assert_eq!(stack.counters().unknown_protocols, 1);
    assert!(wire.is_empty() && !stack.take_loopback(&mut batch));
}
