//! Whatever a wire sends to a program, what the program's network stack answers is no offence.
//!
//! The stack is the runtime's own, with sockets of every kind. Frames are made of fields that reach
//! all of its branches, and their checksums count as right.

use core::time::Duration;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use tailwater_net::{Ipv6Config, Mode, NetConfig, Outlet, OutletError, Single, Stack};
use tailwater_shm::ring::FIRST_LINE_FRAME;
use tailwater_wire::frame::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use tailwater_wire::{Checksums, MacAddr};

use super::super::{inspect, solicited_node};
use crate::config::Config;
use crate::switch::check::{Identity, Offence, Verdict, check};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 10);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 9);
/// Frames to all hosts in a second, whatever arrives: 20 programs and ports take a copy of each
/// within `broadcast-copies`.
const TO_ALL: usize = 1_000;

/// Catches what the stack sends, at a time.
#[derive(Default)]
struct Wire {
    now: Duration,
    sent: Vec<Vec<u8>>,
}

impl Outlet<Single> for Wire {
    fn transmit(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        let mut frame = vec![0; len];
        fill(&mut frame);
        self.sent.push(frame);
        Ok(())
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn poll_by(&mut self, _: Duration) {}

    fn poll_loopback(&mut self) {}
}

/// Returns a program with a listener at port 80 and a socket at port 7, and its identity.
fn program() -> (Stack<Single>, Identity) {
    let (mac, ip6) = (MacAddr::derived(OWN), Config::default().ip6_of(OWN).unwrap());
    let ipv6 = Ipv6Config { ip: ip6, prefix: 64, gateway: None };
    let config = NetConfig {
        ipv6: Some(ipv6),
        mac: mac.0,
        prefix: 16,
        mode: Mode::Attached,
        ..NetConfig::standalone(OWN)
    };
    let stack = Stack::new(config, 1).unwrap();
    let everywhere = |port| (Ipv6Addr::UNSPECIFIED, port).into();
    stack.listen_tcp(everywhere(80), 8, Default::default()).unwrap();
    stack.bind_udp(everywhere(7)).unwrap();
    (stack, Identity::new(mac, OWN, Some(ip6)))
}

/// Rules on a frame as the switch does.
fn judge(frame: &[u8], identity: &Identity) -> Result<(), Offence> {
    let mut head = [0; FIRST_LINE_FRAME];
    let shown = frame.len().min(FIRST_LINE_FRAME);
    head[..shown].copy_from_slice(&frame[..shown]);
    match check(&head, frame.len(), identity) {
        Verdict::Pass(_) => Ok(()),
        Verdict::Inspect => inspect(frame, identity).map(|_| ()),
        Verdict::Offence(offence) => Err(offence),
    }
}

fn stations() -> impl Strategy<Value = MacAddr> {
    let stranger =
        any::<u16>().prop_map(|n| MacAddr::derived(Ipv4Addr::from_bits(0x0a4d_0000 + u32::from(n))));
    let known = vec![MacAddr::derived(OWN), MacAddr::BROADCAST, MacAddr([0x33, 0x33, 0, 0, 0, 1])];
    prop_oneof![4 => stranger, 1 => prop::sample::select(known)]
}

fn addresses4() -> impl Strategy<Value = Ipv4Addr> {
    let near = any::<u16>().prop_map(|n| Ipv4Addr::from_bits(0x0a4d_0000 + u32::from(n)));
    let special = [[0; 4], [255; 4], [127, 0, 0, 1], [224, 0, 0, 1], [10, 77, 255, 255], [169, 254, 1, 1]];
    let special = prop::sample::select(special.map(Ipv4Addr::from).to_vec());
    prop_oneof![3 => near, 2 => Just(OWN), 1 => any::<u32>().prop_map(Ipv4Addr::from_bits), 1 => special]
}

fn addresses6() -> impl Strategy<Value = Ipv6Addr> {
    let mac = MacAddr::derived(OWN);
    let ip6 = Config::default().ip6_of(OWN).unwrap();
    let solicited = Ipv6Addr::from_bits(solicited_node(ip6.to_bits()));
    let special = vec![Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, "ff02::1".parse().unwrap(), solicited];
    let near = any::<u16>().prop_map(move |n| Ipv6Addr::from_bits(ip6.to_bits() & !0xffff | u128::from(n)));
    let own = prop::sample::select(vec![ip6, mac.link_local()]);
    prop_oneof![3 => near, 3 => own, 2 => prop::sample::select(special), 1 => any::<u128>().prop_map(Ipv6Addr::from_bits)]
}

/// Returns the payload of a packet: of ICMP, a segment, a datagram, or anything.
fn payloads() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let rest = || prop::collection::vec(any::<u8>(), 0..80);
    let ports = || prop::sample::select(vec![7u16, 80, 9, 0]);
    let icmp = (0..20u8, 0..16u8, rest())
        .prop_map(|(kind, code, rest)| (1, [vec![kind, code, 0, 0], rest].concat()));
    let kinds = prop_oneof![Just(128u8), 1..5u8, 129..160u8];
    let icmp6 = (kinds, 0..5u8, addresses6(), rest()).prop_map(|(kind, code, target, rest)| {
        (58, [&[kind, code, 0, 0, 0, 0, 0, 0][..], &target.octets(), &rest].concat())
    });
    let discovery = (135..137u8, addresses6(), any::<bool>(), stations(), 0..3u8);
    let discovery = discovery.prop_map(|(kind, target, has_option, mac, option)| {
        let option = if has_option { [&[option, 1][..], &mac.0].concat() } else { Vec::new() };
        (58, [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), &option].concat())
    });
    let tcp = (any::<u16>(), ports(), any::<u64>(), 0..64u8, rest()).prop_map(
        |(from, to, numbers, flags, rest)| {
            let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
            (6, [&ports[..], &numbers.to_be_bytes(), &[5 << 4, flags, 1, 0, 0, 0, 0, 0], &rest].concat())
        },
    );
    let udp = (any::<u16>(), ports(), rest()).prop_map(|(from, to, rest)| {
        let len = (8 + rest.len()) as u16;
        let header = [from, to, len, 0].map(u16::to_be_bytes).concat();
        (17, [header, rest].concat())
    });
    prop_oneof![icmp, icmp6, discovery, tcp, udp, (any::<u8>(), rest())]
}

fn packets4() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let fields = (addresses4(), addresses4(), payloads(), any::<u8>(), 0..4u16);
    fields.prop_map(|(source, destination, (protocol, payload), ttl, fragment)| {
        let len = (20 + payload.len()) as u16;
        let fragment = [0, 0, 0x2000, 0x0002][usize::from(fragment)];
        let words = [0x4500, len, 7, fragment, u16::from(ttl) << 8 | u16::from(protocol), 0];
        let header = words.map(u16::to_be_bytes).concat();
        (ETHERTYPE_IPV4, [&header[..], &source.octets(), &destination.octets(), &payload].concat())
    })
}

fn packets6() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let hops = prop_oneof![3 => Just(255u8), 1 => any::<u8>()];
    (addresses6(), addresses6(), payloads(), hops).prop_map(|(source, destination, (next, payload), hops)| {
        let [a, b] = (payload.len() as u16).to_be_bytes();
        let header = [0x60, 0, 0, 0, a, b, next, hops];
        (ETHERTYPE_IPV6, [&header[..], &source.octets(), &destination.octets(), &payload].concat())
    })
}

fn arps() -> impl Strategy<Value = (u16, Vec<u8>)> {
    (1..3u8, stations(), addresses4(), stations(), addresses4()).prop_map(
        |(operation, mac, ip, to_mac, to)| {
            let fixed = [0, 1, 8, 0, 6, 4, 0, operation];
            (ETHERTYPE_ARP, [&fixed[..], &mac.0, &ip.octets(), &to_mac.0, &to.octets()].concat())
        },
    )
}

/// Returns a frame from a wire, some bytes of which were changed.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let packet = prop_oneof![3 => packets4(), 4 => packets6(), 1 => arps()];
    let to = prop_oneof![3 => Just(MacAddr::derived(OWN)), 1 => stations()];
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    (to, stations(), packet, damage).prop_map(|(to, from, (ethertype, packet), damage)| {
        let mut frame = [&to.0[..], &from.0, &ethertype.to_be_bytes(), &packet].concat();
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        frame
    })
}

fn is_to_all(frame: &[u8]) -> bool {
    frame[0] & 1 != 0
}

proptest! {
    #[test]
    fn whatever_a_stack_answers_to_a_wire_is_no_offence(frames in prop::collection::vec(frames(), 1..60)) {
        let (stack, identity) = program();
        let mut wire = Wire { now: Duration::from_secs(100), sent: Vec::new() };
        for frame in frames {
            stack.input(&mut wire, &frame, Checksums::Trust);
            for answer in wire.sent.drain(..) {
                prop_assert_eq!(judge(&answer, &identity), Ok(()), "{:02x?} to {:02x?}", answer, frame);
            }
            wire.now += Duration::from_millis(400);
            stack.poll_timers(&mut wire);
        }
    }
}

/// Returns frame number n of a flood.
type Flood<'a> = &'a dyn Fn(u32) -> Vec<u8>;

/// Returns how many frames to all hosts a stack sends within a second of these.
fn to_all_within_a_second(frame: Flood<'_>) -> usize {
    const FRAMES: u32 = 20_000;
    let (stack, _) = program();
    let mut wire = Wire { now: Duration::from_secs(100), sent: Vec::new() };
    // It announces itself first.
    for _ in 0..3 {
        stack.poll_timers(&mut wire);
        wire.now += Duration::from_secs(1);
    }
    wire.sent.clear();
    for number in 0..FRAMES {
        stack.input(&mut wire, &frame(number), Checksums::Trust);
        wire.now += Duration::from_secs(1) / FRAMES;
        if number.is_multiple_of(100) {
            stack.poll_timers(&mut wire);
        }
    }
    wire.sent.iter().filter(|frame| is_to_all(frame)).count()
}

#[test]
fn no_flood_from_a_wire_makes_a_program_send_many_frames_to_all_hosts() {
    let own = MacAddr::derived(OWN);
    let stranger = |number: u32| Ipv4Addr::from_bits(0x0a4d_0100 + number);
    let ethernet = |from: MacAddr, ethertype: u16| [&own.0[..], &from.0, &ethertype.to_be_bytes()].concat();
    let ip6 = Config::default().ip6_of(OWN).unwrap();
    let v4 = |number: u32, protocol: u8, payload: &[u8]| {
        let source = stranger(number);
        let words = [0x4500, 20 + payload.len() as u16, 7, 0, 64 << 8 | u16::from(protocol), 0];
        let header = words.map(u16::to_be_bytes).concat();
        let front = ethernet(MacAddr::derived(source), ETHERTYPE_IPV4);
        [&front[..], &header, &source.octets(), &OWN.octets(), payload].concat()
    };
    let v6 = |source: Ipv6Addr, next: u8, destination: Ipv6Addr, payload: &[u8]| {
        let [a, b] = (payload.len() as u16).to_be_bytes();
        let front = ethernet(MacAddr::derived(OUTSIDE), ETHERTYPE_IPV6);
        let header = [0x60, 0, 0, 0, a, b, next, 255];
        [&front[..], &header, &source.octets(), &destination.octets(), payload].concat()
    };
    let near6 =
        |number: u32| Ipv6Addr::from_bits(ip6.to_bits() & !0xffff_ffff | u128::from(number) | 1 << 31);
    let syn = [0, 9, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, 2, 1, 0, 0, 0, 0, 0];
    // From port 9 to port 10, of no data.
    let closed = [0, 9, 0, 10, 0, 8, 0, 0];
    let echo = [8, 0, 0, 0, 0, 1, 0, 1];
    let probe = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &ip6.octets()].concat();
    let solicited = Ipv6Addr::from_bits(solicited_node(ip6.to_bits()));
    let floods: [(&str, Flood<'_>); 8] = [
        ("SYNs", &|number| v4(number, 6, &syn)),
        ("SYNs over IPv6", &|number| v6(near6(number), 6, ip6, &syn)),
        ("datagrams to a closed port", &|number| v4(number, 17, &closed)),
        ("datagrams over IPv6", &|number| v6(near6(number), 17, ip6, &closed)),
        ("echo requests", &|number| v4(number, 1, &echo)),
        ("an unknown protocol", &|number| v4(number, 99, &echo)),
        ("probes", &|_| v6(Ipv6Addr::UNSPECIFIED, 58, solicited, &probe)),
        ("echo requests to all", &|number| {
            v6(near6(number), 58, "ff02::1".parse().unwrap(), &[128, 0, 0, 0, 0, 1, 0, 1])
        }),
    ];
    for (flood, frame) in floods {
        let sent = to_all_within_a_second(frame);
        assert!(sent <= TO_ALL, "{flood}: {sent}");
    }
}
