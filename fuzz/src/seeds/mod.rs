//! The first inputs of every target, built by code: one valid example of each kind, which a fuzzer
//! mutates.

mod dialogue;

use crate::receive::{MAC, ip, ip6};
use std::net::Ipv6Addr;
use tailwater_iokernel::fuzzing::{HONEST, HOSTILE, STATION};
use tailwater_iokernel_testing::wire::{self, Endpoint};
use tailwater_shm::control::{
    ClientMessage, CoreRequest, Instance, Ipv6Place, ProgramClass, Register, ServerMessage, Welcome,
};
use tailwater_shm::layout::VERSION;
use tailwater_tcp::Seq;
use tailwater_tcp::fuzzing::fast_open_cookie;
use tailwater_tcp::segment::{FastOpen, Flags, Header, Options, SackBlock, Timestamps};
use tailwater_wire::MacAddr;
use tailwater_workload::spin::{Reply, Request};

/// Returns the seeds of a target: name of the file, contents.
///
/// # Panics
/// If there is no such target.
pub fn of(target: &str) -> Vec<(&'static str, Vec<u8>)> {
    match target {
        "receive" => receive(),
        "egress" => egress(),
        "firewall" => firewall(),
        "control" => control(),
        "spin" => spin(),
        "kv_stream" => kv_stream(),
        "kv_datagram" => kv_datagram(),
        "tcp_segment" => tcp_segment(),
        "tcp_operations" => tcp_operations(),
        "dns_query" => dns_query(),
        "dns_zone" => vec![("everything", crate::dns::ZONE.into()), ("include", b"$INCLUDE a b\n".to_vec())],
        other => panic!("there is no fuzz target {other}"),
    }
}

fn dns_query() -> Vec<(&'static str, Vec<u8>)> {
    let query = |transport: u8, name: &[u8], rtype: u8, edns: &[u8]| {
        let mut message = vec![transport, 0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(!edns.is_empty())];
        message.extend(name);
        message.extend([0, rtype, 0, 1]);
        message.extend(edns);
        message
    };
    let opt = [0, 0, 41, 0x10, 0, 0, 0, 0x80, 0, 0, 0];
    vec![
        ("address", query(0, b"\x03ns1\x07example\0", 1, &opt)),
        ("alias", query(0, b"\x03wWw\x07eXample\0", 28, &[])),
        ("loop", query(1, b"\x04loop\x07example\0", 1, &opt)),
        ("wildcard", query(0, b"\x01x\x04wild\x07example\0", 16, &opt)),
        ("referral", query(1, b"\x01x\x03sub\x07example\0", 1, &[])),
        ("missing", query(0, b"\x02no\x07example\0", 15, &opt)),
        ("any", query(1, b"\x07example\0", 255, &opt)),
        ("transfer", query(1, b"\x07example\0", 252, &[])),
        ("elsewhere", query(0, b"\0", 2, &opt)),
        ("version", query(0, b"\x07example\0", 6, &[0, 0, 41, 2, 0, 0, 1, 0, 0, 0, 0])),
    ]
}

/// Returns what a client sends over a stream, preceded by the size of the pieces.
fn kv_stream() -> Vec<(&'static str, Vec<u8>)> {
    let script = |piece: u8, text: &str| [&[piece], text.as_bytes()].concat();
    let large = "x".repeat(20_000);
    vec![
        (
            "text",
            script(
                5,
                "set a 1 0 2\r\nhi\r\nget a b\r\ngets a\r\ncas a 0 0 1 1\r\nx\r\ndelete a 0 noreply\r\nversion\r\n",
            ),
        ),
        (
            "numbers",
            script(
                1,
                "set n 0 0 2\r\n99\r\nincr n 1\r\ndecr n 500\r\nget n\r\ntouch n 5\r\ngat 7 n\r\nflush_all 1\r\n",
            ),
        ),
        (
            "meta",
            script(
                3,
                "ms YQ== 2 b k T30\r\nhi\r\nmg YQ== b k v t f O1\r\nmd a I\r\nmg a v\r\nma n N0 J5 v\r\nme a\r\nmn\r\n",
            ),
        ),
        (
            "large",
            script(
                255,
                &format!(
                    "set a 0 0 20000\r\n{large}\r\nappend a 0 0 1\r\nb\r\nget a a a\r\nms a 20000 MP\r\n{large}\r\n"
                ),
            ),
        ),
        (
            "refused",
            script(
                40,
                &format!(
                    "set a 0 0 40000\r\n{large}{large}\r\nset a 0 0 2\r\nbcd\r\nget {}\r\n",
                    "k".repeat(251)
                ),
            ),
        ),
        (
            "stats",
            script(
                9,
                "stats\r\nstats items\r\nstats slabs\r\nstats sizes\r\nstats settings\r\nstats conns\r\nstats reset\r\nquit\r\n",
            ),
        ),
        ("packets", [&[7][..], &packets()].concat()),
        ("brimful", [&[255][..], &brimful()].concat()),
    ]
}

/// Returns a packet of the binary protocol.
fn kv_packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = (extras.len() + key.len() + value.len()) as u32;
    let mut bytes = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    bytes.extend(body.to_be_bytes());
    bytes.extend([0; 12]);
    [&bytes, extras, key, value].concat()
}

fn packets() -> Vec<u8> {
    let counter = [&[0; 7][..], &[1], &[0; 7], &[9], &[0; 4]].concat();
    [
        kv_packet(1, &[0; 8], b"a", b"value"),
        kv_packet(0, &[], b"a", b""),
        kv_packet(0x0d, &[], b"a", b""),
        kv_packet(0x0e, &[], b"a", b"more"),
        kv_packet(5, &counter, b"n", b""),
        kv_packet(0x1d, &[0; 4], b"a", b""),
        kv_packet(1, &[0; 8], b"large", &[7; 20_000]),
        kv_packet(0x0c, &[], b"large", b""),
        kv_packet(4, &[], b"a", b""),
        kv_packet(0x55, &[], b"a", b"unknown"),
        kv_packet(0x0a, &[], b"", b""),
        kv_packet(7, &[], b"", b""),
    ]
    .concat()
}

/// Returns a line and its block that are one byte longer than the input buffer of a connection,
/// after two requests that make the buffer grow and move the line to its beginning.
fn brimful() -> Vec<u8> {
    let set = |spaces: usize, len: usize| {
        [format!("set{}k 0 0 {len}\r\n", " ".repeat(spaces)).as_bytes(), &vec![b'x'; len], b"\r\n"].concat()
    };
    [set(1, 8190), set(1, 7000), set(8178, 8190)].concat()
}

fn kv_datagram() -> Vec<(&'static str, Vec<u8>)> {
    let datagram = |total: u8, bytes: &[u8]| [&[1, 2, 0, 0, 0, total, 0, 0], bytes].concat();
    let large = [b"set a 0 0 5000\r\n".as_slice(), &[b'x'; 5000], b"\r\nget a a\r\n"].concat();
    vec![
        ("get", datagram(1, b"set a 0 0 1\r\nb\r\nget a\r\n")),
        ("long-answer", datagram(1, &large)),
        ("packet", datagram(1, &packets())),
        ("several", datagram(2, b"get a\r\n")),
        ("incomplete", datagram(1, b"set a 0 0 5000\r\nb")),
        ("brimful", datagram(1, &brimful())),
    ]
}

fn tcp_segment() -> Vec<(&'static str, Vec<u8>)> {
    let sack = [SackBlock { start: Seq(300), end: Seq(400) }; 3].into_iter().collect();
    let timestamps = Some(Timestamps { value: 1000, echo: 0 });
    let syn = Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps,
        ..Options::default()
    };
    let bytes = |flags, options, payload: &[u8]| {
        let header = Header {
            source: 2,
            destination: 1,
            seq: Seq(77),
            ack: Seq(u32::MAX - 4999),
            flags,
            window: 500,
            options,
        };
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes);
        [&bytes, payload].concat()
    };
    vec![
        ("syn", bytes(Flags::SYN, syn, &[])),
        ("syn-ack", bytes(Flags::SYN | Flags::ACK, syn, &[])),
        ("data", bytes(Flags::ACK | Flags::PSH, Options { timestamps, ..Options::default() }, b"hello")),
        ("sack", bytes(Flags::ACK, Options { timestamps, sack, ..Options::default() }, &[])),
        ("fin", bytes(Flags::ACK | Flags::FIN, Options::default(), &[])),
        ("reset", bytes(Flags::RST, Options::default(), &[])),
        ("fast-open-request", bytes(Flags::SYN, Options { fast_open: FastOpen::Request, ..syn }, &[])),
        ("fast-open", bytes(Flags::SYN, Options { fast_open: fast_open_cookie(), ..syn }, b"request")),
    ]
}

/// As in the table of operations in `tailwater_tcp::fuzzing`.
fn tcp_operations() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("transfer", vec![0, 0, 200, 65, 65, 33, 255, 64, 1, 100, 64, 32, 255]),
        ("loss", vec![0, 0, 255, 0, 255, 97, 0, 65, 65, 65, 64, 128, 41, 65, 33, 255]),
        ("closed-window", vec![2, 0, 255, 0, 255, 0, 255, 65, 65, 65, 64, 128, 35, 65, 64, 33, 200, 64]),
        ("half-close", vec![16, 0, 50, 176, 65, 65, 64, 1, 99, 64, 177, 64, 65, 128, 40]),
        ("both-close", vec![1, 176, 177, 64, 65, 64, 65, 128, 41]),
        ("abort", vec![0, 0, 10, 184, 65, 65]),
        ("crossing", vec![64, 0, 10, 1, 10, 64, 65, 64, 65]),
        ("congested", vec![8, 0, 255, 0, 255, 97, 2, 65, 65, 64, 64]),
        ("forged-reset", vec![0, 0, 20, 188, 0, 0, 4, 1, 0, 0, 0, 0]),
        ("fast-open", vec![192, 0, 20, 65, 33, 100, 1, 200, 64, 64, 65, 32, 255, 64, 65, 176, 177]),
        ("fast-open-loss", vec![208, 0, 20, 96, 0, 1, 200, 96, 0, 129, 41, 64, 97, 0, 128, 41, 65, 64]),
        ("fast-open-forged", vec![224, 1, 20, 189, 1, 0, 4, 0, 50, 0, 0, 0, 189, 0, 0, 4, 0, 50, 0, 0, 0]),
        ("false-fast-open", vec![128, 0, 20, 65, 64, 33, 255, 64]),
        ("forged-data", vec![0, 0, 20, 189, 1, 0, 16, 128, 50, 0, 90, 9, 65, 64]),
    ]
}

fn control() -> Vec<(&'static str, Vec<u8>)> {
    let register = Register {
        version: VERSION,
        name: "kv".to_owned(),
        kthreads: 2,
        guaranteed: 1,
        class: ProgramClass::BestEffort,
        ring_bytes: 1 << 18,
        ip: Some(HONEST),
        returns: true,
        instance: Instance::Replaces,
        listen: vec!["tcp:6379".parse().expect("a port")],
    };
    let welcome = Welcome {
        ip: HONEST,
        prefix_len: 16,
        gateway: Some(HOSTILE),
        ipv6: Some(Ipv6Place { ip: Ipv6Addr::LOCALHOST, prefix_len: 64, gateway: None }),
        mac: STATION.0,
        mtu: 1500,
        managed_cores: vec![1],
        raise: false,
        place: Some(64),
        outgoing: Some((61_000, 61_566)),
    };
    let cores = CoreRequest { runtime: "kv".to_owned(), cores: [1, 0, 0, 0, 0, 0, 0, 2] };
    let bytes = |value: serde_json::Result<Vec<u8>>| value.expect("control messages have string keys only");
    vec![
        ("register", bytes(serde_json::to_vec(&ClientMessage::Register(register)))),
        ("kthreads", bytes(serde_json::to_vec(&ClientMessage::Kthreads { tids: vec![1, -1] }))),
        ("stats", bytes(serde_json::to_vec(&ClientMessage::Stats))),
        ("rights", bytes(serde_json::to_vec(&ClientMessage::Rights))),
        ("request-cores", bytes(serde_json::to_vec(&ClientMessage::RequestCores(cores)))),
        ("cores-requested", bytes(serde_json::to_vec(&ServerMessage::CoresRequested { limit: 2 }))),
        ("welcome", bytes(serde_json::to_vec(&ServerMessage::Welcome(welcome)))),
        ("refused", bytes(serde_json::to_vec(&ServerMessage::Refused { why: "no".to_owned() }))),
        ("ready", bytes(serde_json::to_vec(&ServerMessage::Ready))),
    ]
}

fn spin() -> Vec<(&'static str, Vec<u8>)> {
    let request = Request { id: 7, work_ns: 10_000, sent_ns: 99 };
    vec![
        ("request", request.encode().to_vec()),
        ("reply", Reply { request, served_ns: 10_100 }.encode().to_vec()),
    ]
}

/// Returns a step of [`crate::receive`] in which `frame` arrives.
fn arrives(frame: &[u8], vouched: bool) -> Vec<u8> {
    let mut step = vec![u8::from(vouched)];
    step.extend((frame.len() as u16).to_le_bytes());
    step.extend(frame);
    step
}

fn arp(operation: u8, n: u8) -> Vec<u8> {
    let mut frame = if operation == 1 { vec![0xff; 6] } else { MAC.to_vec() };
    frame.extend([2, 0, 0, 0, 0, n, 8, 6, 0, 1, 8, 0, 6, 4, 0, operation, 2, 0, 0, 0, 0, n]);
    frame.extend(ip(n).octets());
    frame.extend(if operation == 1 { [0; 6] } else { MAC });
    frame.extend(ip(1).octets());
    frame
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    tailwater_wire::checksum(bytes).to_be_bytes()
}

/// Returns an IPv4 packet from host 2 to host 1 in its frame.
fn packet(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend((20 + payload.len() as u16).to_be_bytes());
    header.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    header.extend(ip(2).octets());
    header.extend(ip(1).octets());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum);
    [&MAC[..], &[2, 0, 0, 0, 0, 2, 8, 0], &header, payload].concat()
}

fn icmp(kind: u8, code: u8, rest: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0], rest].concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    packet(1, &message)
}

fn udp(port: u16, data: &[u8]) -> Vec<u8> {
    let mut datagram = 9u16.to_be_bytes().to_vec();
    datagram.extend(port.to_be_bytes());
    datagram.extend((8 + data.len() as u16).to_be_bytes());
    // No checksum (RFC 768).
    datagram.extend([0, 0]);
    datagram.extend(data);
    packet(17, &datagram)
}

/// Returns an IPv6 packet from host 2 to host 1 in its frame.
fn packet6(next_header: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend((payload.len() as u16).to_be_bytes());
    header.extend([next_header, hop_limit]);
    header.extend(ip6(2).octets());
    header.extend(ip6(1).octets());
    [&MAC[..], &[2, 0, 0, 0, 0, 2, 0x86, 0xdd], &header, payload].concat()
}

/// Returns an ICMPv6 message; the step that delivers it marks its checksum as verified.
fn icmp6(hop_limit: u8, kind: u8, rest: &[u8]) -> Vec<u8> {
    packet6(58, hop_limit, &[&[kind, 0, 0, 0], rest].concat())
}

/// Returns host 2's neighbour solicitation for host 1, with its own address.
fn solicitation() -> Vec<u8> {
    let link = [1, 1, 2, 0, 0, 0, 0, 2];
    icmp6(255, 135, &[&[0; 4][..], &ip6(1).octets(), &link].concat())
}

fn ipv6() -> Vec<(&'static str, Vec<u8>)> {
    let advertisement =
        icmp6(255, 136, &[&[0x60, 0, 0, 0][..], &ip6(2).octets(), &[2, 1, 2, 0, 0, 0, 0, 2]].concat());
    let datagram = |port: u8| [0, 9, 0, port, 0, 12, 0, 1, b'd', b'a', b't', b'a'];
    let mut quoted = packet6(17, 64, &datagram(9))[14..].to_vec();
    // The quoted packet is one of ours, from port 7 of host 1 to host 2, and was longer than 1300
    // bytes.
    quoted[4..6].copy_from_slice(&1400u16.to_be_bytes());
    quoted[8..24].copy_from_slice(&ip6(1).octets());
    quoted[24..40].copy_from_slice(&ip6(2).octets());
    quoted[40..44].copy_from_slice(&[0, 7, 0, 9]);
    let too_big = icmp6(64, 2, &[&1300u32.to_be_bytes()[..], &quoted].concat());
    let options = [&[60, 0, 1, 4, 0, 0, 0, 0][..], &[17, 0, 0x80, 4, 0, 0, 0, 0], &datagram(7)].concat();
    let pieces = [
        arrives(&packet6(44, 64, &[&[17, 0, 0, 1, 0, 0, 0, 7][..], &datagram(7)[..8]].concat()), true),
        arrives(&packet6(44, 64, &[&[17, 0, 0, 8, 0, 0, 0, 7][..], &datagram(7)[8..]].concat()), true),
    ];
    vec![
        ("nd-solicitation", arrives(&solicitation(), true)),
        ("nd-question", [&[193][..], &arrives(&advertisement, true), &[193, 140, 221, 223]].concat()),
        ("echo6", arrives(&icmp6(64, 128, b"\0\x01\0\x02ping"), true)),
        (
            "udp6",
            [arrives(&packet6(17, 64, &datagram(7)), true), arrives(&packet6(17, 64, &datagram(1)), true)]
                .concat(),
        ),
        ("too-big", [arrives(&advertisement, true), arrives(&too_big, true), vec![221]].concat()),
        ("options6", arrives(&packet6(0, 64, &options), true)),
        ("pieces6", pieces.concat()),
    ]
}

/// Returns both fragments of a datagram to port 7, the second first.
fn pieces() -> Vec<u8> {
    let whole = udp(7, &[7; 32]);
    let piece = |from: usize, to: usize, flags: [u8; 2]| {
        let mut frame = [&whole[..34], &whole[34 + from..34 + to]].concat();
        frame[16..18].copy_from_slice(&((20 + to - from) as u16).to_be_bytes());
        frame[20..22].copy_from_slice(&flags);
        arrives(&frame, true)
    };
    [piece(16, 40, [0, 2]), piece(0, 16, [0x20, 0])].concat()
}

fn receive() -> Vec<(&'static str, Vec<u8>)> {
    let quoted = &packet(17, &[0, 8, 0, 9, 0, 8, 0, 0])[14..];
    let mut returned = quoted.to_vec();
    // The quoted packet is one of ours: from host 1 to host 2.
    returned[12..16].copy_from_slice(&ip(1).octets());
    returned[16..20].copy_from_slice(&ip(2).octets());
    let unreachable = icmp(3, 3, &[&[0; 4], &returned[..]].concat());
    let mut acquaintance = arrives(&arp(1, 2), false);
    acquaintance.push(192);
    acquaintance.extend(arrives(&udp(7, b"data"), true));
    acquaintance.extend([224, 225, 226]);
    let mut question = vec![195, 195, 195, 195, 140];
    question.extend(arrives(&arp(2, 5), false));
    question.extend([150, 160, 191]);
    let ipv4 = vec![
        ("arp-request", arrives(&arp(1, 4), false)),
        ("echo", arrives(&icmp(8, 0, b"\0\x01\0\x02ping"), false)),
        ("unreachable", arrives(&unreachable, false)),
        ("closed-port", [arrives(&arp(1, 2), false), arrives(&udp(1, b"x"), true)].concat()),
        ("acquaintance", acquaintance),
        ("question", question),
        ("pieces", pieces()),
    ];
    ipv4.into_iter().chain(ipv6()).chain(dialogue::seeds()).collect()
}

/// Returns a step of [`crate::egress`] in which kthread 0 sends `frame`.
fn sends(frame: &[u8]) -> Vec<u8> {
    [&[96, frame.len() as u8], frame].concat()
}

/// Returns a neighbour advertisement by the hostile runtime to all nodes, of this target.
fn advertisement(target: Ipv6Addr) -> Vec<u8> {
    let (own, nodes) = (MacAddr::derived(HOSTILE), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    let mut frame =
        [&MacAddr::of_group(nodes).0[..], &own.0, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]].concat();
    frame.extend(own.link_local().octets());
    frame.extend(nodes.octets());
    frame.extend([136, 0, 0, 0, 0x20, 0, 0, 0]);
    frame.extend(target.octets());
    frame.extend([2, 1]);
    frame.extend(own.0);
    frame
}

/// Returns steps of the firewall's model: a default, rules of each kind, packets of each family and
/// direction.
fn firewall() -> Vec<(&'static str, Vec<u8>)> {
    let packets: Vec<u8> = (0..16u8).flat_map(|kind| [72 + kind, kind, 0, 1, 0, 7, 3, 0x10, 0, 0]).collect();
    let rule = |kind: u8| [kind, kind, 0x15, 4, 0, 1, 12, 0, 3, 3, 7];
    let rules: Vec<u8> = (0..6).flat_map(rule).collect();
    vec![
        ("packets", packets.clone()),
        ("deny-all", [&[64, 3][..], &packets].concat()),
        ("rules", [&[64, 3][..], &rules, &packets].concat()),
        ("bytes", [&rules[..], &[240, 20], &[0x45; 20], &[241, 40], &[0x60; 40]].concat()),
    ]
}

fn egress() -> Vec<(&'static str, Vec<u8>)> {
    let end = |ip, mac| Endpoint { mac, ip, port: 7 };
    let me = end(HOSTILE, MacAddr::derived(HOSTILE));
    let you = end(HONEST, MacAddr::derived(HONEST));
    let frame = wire::udp(me, you, b"frame");
    let forged = wire::udp(you, me, b"forged");
    let flood = wire::udp(you, me, &[0; 200]);
    // Twice 128 frames of 5 lines, for the kthread that serves the flow: more than the 512 lines of
    // a ring for one of them.
    let floods = [&[231, flood.len() as u8], &flood[..]].concat().repeat(2);
    let loops = [161, 100, 0, 161, 100, 0];
    // Work shows in the run queue (tail 1), so that a core is granted; then Running, Idle and
    // Parked of generation 1.
    let work = [&[64 + 2 * 4][..], &(1u64 << 32).to_le_bytes(), &loops].concat();
    let state = |state: u64| [&[64 + 4][..], &(1u64 << 32 | state).to_le_bytes(), &loops].concat();
    // Both kthreads claim to have read frames that were never sent.
    let tail = |kthread: u8| [&[64 + 5 * 4 + kthread][..], &u64::MAX.to_le_bytes()].concat();
    let tails = [tail(0), tail(1)].concat();
    vec![
        ("frame", [work.clone(), state(1), sends(&frame), loops.to_vec()].concat()),
        ("forged", [work.clone(), state(1), sends(&forged), loops.to_vec()].concat()),
        (
            "advertisement",
            [
                work.clone(),
                state(1),
                sends(&advertisement(MacAddr::derived(HOSTILE).link_local())),
                loops.to_vec(),
            ]
            .concat(),
        ),
        (
            "forged-advertisement",
            [
                work.clone(),
                state(1),
                sends(&advertisement(MacAddr::derived(HONEST).link_local())),
                loops.to_vec(),
            ]
            .concat(),
        ),
        ("life", [work.clone(), state(1), state(2), state(0)].concat()),
        ("wild-tail", [work.clone(), tails, floods, loops.to_vec()].concat()),
        ("wild-word", [work, vec![0, 0, 0xa0, 0, 0], vec![0xff; 8], loops.to_vec()].concat()),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_seed_passes_its_target() {
        for (name, target) in crate::TARGETS {
            for (_, bytes) in super::of(name) {
                target(&bytes);
            }
        }
    }
}
