//! What the switch refuses, drops and delivers beyond plain IPv4, and what it counts for it.

use std::net::{Ipv4Addr, Ipv6Addr};
use tailwater_ports::memory::{MemoryPeer, pair};
use tailwater_ports::{Attachment, Port};
use tailwater_sched::RuntimeId;
use tailwater_shm::KthreadState;
use tailwater_shm::control::ProgramClass::LatencyCritical;
use tailwater_testkit::frames::{arp, fragment, ipv6, udp};
use tailwater_wire::MacAddr;

use crate::config::Config;
use crate::fixture::Sandbox;

fn ip(id: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, id as u8 + 10)
}

fn mac(id: u32) -> MacAddr {
    MacAddr::derived(ip(id))
}

fn uplink() -> (Box<dyn Port>, MemoryPeer) {
    let (port, peer) = pair("uplink", Attachment::Uplink { gateway: None }).unwrap();
    (Box::new(port), peer)
}

/// Returns `count` runtimes of one kthread each under this configuration; 0 and 1 run.
fn running(count: u32, toml: &str, ports: Vec<Box<dyn Port>>) -> Sandbox {
    let config = Config::from_toml(toml).unwrap();
    let mut sandbox = Sandbox::with_config(2, ports, &config);
    for id in 0..count {
        sandbox.add(id, 1, u16::from(id < 2), LatencyCritical);
    }
    for id in 0..2 {
        sandbox.peer(id).queue(0, 1);
    }
    sandbox.settle();
    sandbox
}

/// Returns a frame between runtimes' link-local addresses.
fn v6(from: u32, to: Ipv6Addr, to_mac: MacAddr, first: u8, hop_limit: u8, rest: &[u8]) -> Vec<u8> {
    let mut frame = ipv6(mac(from).link_local().to_bits(), to.to_bits(), first, hop_limit, rest);
    frame[..6].copy_from_slice(&to_mac.0);
    frame[6..12].copy_from_slice(&mac(from).0);
    frame
}

fn to(from: u32, id: u32, first: u8, rest: &[u8]) -> Vec<u8> {
    v6(from, mac(id).link_local(), mac(id), first, 255, rest)
}

/// Returns a neighbour advertisement of this target and MAC address.
fn advertisement(target: Ipv6Addr, mac: MacAddr) -> Vec<u8> {
    [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &target.octets(), &[2, 1], &mac.0].concat()
}

/// Counters that the drop of a runtime's frame may change.
const COUNTERS: [&str; 12] = [
    "dropped_spoofed",
    "dropped_malformed",
    "dropped_ethertype",
    "dropped_tagged",
    "dropped_refused",
    "dropped_unknown",
    "dropped_denied",
    "dropped_limited",
    "dropped_full",
    "dropped_torn",
    "dropped_port",
    "delivered",
];

/// Returns the nonzero counters of the switch and of a runtime.
fn counted(sandbox: &Sandbox, id: u32) -> Vec<(String, u64)> {
    let document = sandbox.world.stats.to_json();
    let mut moved: Vec<(String, u64)> =
        COUNTERS.iter().map(|&name| (name.to_owned(), document["switch"][name].as_u64().unwrap())).collect();
    let counters = &sandbox.world.runtimes.get(RuntimeId(id)).unwrap().stats.counters;
    moved.extend([
        ("tx_spoofed".to_owned(), counters.tx_spoofed.get()),
        ("tx_malformed".to_owned(), counters.tx_malformed.get()),
        ("tx_refused".to_owned(), counters.tx_refused.get()),
        ("tx_denied".to_owned(), counters.tx_denied.get()),
        ("tx_limited".to_owned(), counters.tx_limited.get()),
    ]);
    moved.retain(|(_, count)| *count != 0);
    moved
}

fn changed(frame: &[u8], at: usize, to: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at] = to;
    frame
}

#[test]
fn every_kind_of_offence_costs_exactly_its_counters() {
    let plain = udp(ip(0), ip(1), (5, 7), 60);
    let who_has = arp(ip(0), ip(1));
    let datagram = to(0, 1, 17, &[0, 5, 0, 7, 0, 8, 0, 0]);
    let own = advertisement(mac(0).link_local(), mac(0));
    let (spoofed, malformed, refused) = ("tx_spoofed", "tx_malformed", "tx_refused");
    let too_big = changed(&changed(&changed(&plain, 23, 1), 34, 3), 35, 4);
    let in_transit = [&[3, 0, 0, 0, 0, 0, 0, 0][..], &to(1, 0, 17, &[0; 8])[14..]].concat();
    let cases: [(&str, Vec<u8>, &str, &str); 22] = [
        ("MAC", changed(&plain, 11, 99), "dropped_spoofed", spoofed),
        ("IPv4 source", changed(&plain, 29, 99), "dropped_spoofed", spoofed),
        (
            "IPv4 source behind options",
            changed(&changed(&plain, 14, 0x46), 29, 99),
            "dropped_spoofed",
            spoofed,
        ),
        ("IPv4 source of ICMP", changed(&changed(&plain, 23, 1), 29, 99), "dropped_spoofed", spoofed),
        ("ARP sender MAC", changed(&who_has, 27, 99), "dropped_spoofed", spoofed),
        ("ARP sender IP", changed(&who_has, 31, 99), "dropped_spoofed", spoofed),
        ("IPv6 source", changed(&datagram, 37, 99), "dropped_spoofed", spoofed),
        ("IPv6 MAC", changed(&datagram, 11, 99), "dropped_spoofed", spoofed),
        ("advertised target", to(0, 1, 58, &changed(&own, 23, 99)), "dropped_spoofed", spoofed),
        ("advertised MAC", to(0, 1, 58, &changed(&own, 31, 99)), "dropped_spoofed", spoofed),
        ("router advertisement", to(0, 1, 58, &changed(&own, 0, 134)), "dropped_refused", refused),
        ("redirect", to(0, 1, 58, &changed(&own, 0, 137)), "dropped_refused", refused),
        (
            "ND in fragments",
            to(0, 1, 44, &[&fragment(58, 0, true)[..], &own].concat()),
            "dropped_refused",
            refused,
        ),
        ("ND through a router", changed(&to(0, 1, 58, &own), 21, 64), "dropped_refused", refused),
        ("ICMP redirect", changed(&changed(&plain, 23, 1), 34, 5), "dropped_refused", refused),
        ("fragmentation needed", too_big, "dropped_refused", refused),
        ("hop limit exceeded", to(0, 1, 58, &in_transit), "dropped_refused", refused),
        ("reverse ARP", changed(&who_has, 21, 3), "dropped_refused", refused),
        ("IPv4 total length", changed(&plain, 17, 99), "dropped_malformed", malformed),
        (
            "extension header too long",
            to(0, 1, 60, &[58, 9, 0, 0, 0, 0, 0, 0]),
            "dropped_malformed",
            malformed,
        ),
        ("VLAN tag", changed(&changed(&plain, 12, 0x81), 13, 0), "dropped_tagged", refused),
        ("LLDP", changed(&changed(&plain, 12, 0x88), 13, 0xcc), "dropped_ethertype", refused),
    ];
    for (what, frame, of_switch, of_runtime) in cases {
        let mut sandbox = running(2, "", Vec::new());
        sandbox.peer(0).send(0, &frame);
        sandbox.pass(100);
        let expected = [(of_switch.to_owned(), 1), (of_runtime.to_owned(), 1)];
        assert_eq!(counted(&sandbox, 0), expected, "{what}");
        assert_eq!(sandbox.peer(1).receive(0), None, "{what}");
        sandbox.peer(0).send(0, &plain);
        sandbox.pass(100);
        assert_eq!(sandbox.peer(1).receive(0).as_deref(), Some(&plain[..]), "after {what}");
    }
}

#[test]
fn honest_ipv6_frames_arrive_whole() {
    let mut sandbox = running(2, "", Vec::new());
    for len in [0, 1, 40, 500, 1400] {
        let payload = [&[0, 5, 0, 7, 0, 8, 0, 0][..], &vec![7; len]].concat();
        let frame = to(0, 1, 17, &payload);
        sandbox.peer(0).send(0, &frame);
        sandbox.pass(100);
        assert_eq!(sandbox.peer(1).receive(0), Some(frame));
    }
    let answer = to(0, 1, 58, &advertisement(mac(0).link_local(), mac(0)));
    sandbox.peer(0).send(0, &answer);
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).receive(0), Some(answer));
    assert_eq!(counted(&sandbox, 0), [("delivered".to_owned(), 6)]);
}

#[test]
fn groups_of_ipv6_reach_those_who_are_meant() {
    let (port, outside) = uplink();
    let mut sandbox = running(4, "[firewall]\nmulticast = \"drop\"", vec![port]);
    let mut receivers = |group: &str| {
        let group: Ipv6Addr = group.parse().unwrap();
        let frame = v6(0, group, MacAddr::of_group(group), 17, 255, &[0, 5, 0, 7, 0, 8, 0, 0]);
        sandbox.peer(0).send(0, &frame);
        sandbox.pass(100);
        assert_eq!(outside.receive(), Some(frame), "the rest of the sandbox gets every group");
        (0..4).filter(|&id| sandbox.peer(id).receive(0).is_some()).collect::<Vec<_>>()
    };
    assert_eq!(receivers("ff02::1"), [1, 2, 3]);
    let [.., a, b, c] = mac(2).0;
    let solicited = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
    assert_eq!(receivers(&solicited.to_string()), [2]);
    assert!(receivers("ff02::1:ff01:203").is_empty(), "no runtime's");
    assert!(receivers("ff02::2").is_empty());
    assert!(receivers("ff02::16").is_empty());
    assert!(receivers("ff02::fb").is_empty());
    sandbox.end(RuntimeId(2));
    sandbox.peer(0).send(0, &v6(0, solicited, MacAddr::of_group(solicited), 17, 255, &[0; 8]));
    sandbox.pass(100);
    assert_eq!(sandbox.ended.len(), 0);
}

#[test]
fn a_configured_ethertype_passes_from_its_owner_only() {
    let mut sandbox = running(2, "[firewall]\nethertypes = [0x88b5]", Vec::new());
    let frame = changed(&changed(&udp(ip(0), ip(1), (5, 7), 60), 12, 0x88), 13, 0xb5);
    sandbox.peer(0).send(0, &frame);
    sandbox.peer(0).send(0, &changed(&frame, 11, 99));
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).receive(0), Some(frame));
    let expected = [("dropped_spoofed", 1), ("delivered", 1), ("tx_spoofed", 1)];
    assert_eq!(counted(&sandbox, 0), expected.map(|(name, count)| (name.to_owned(), count)));
}

pub(in crate::switch) const PORT_7_ONLY: &str = r#"
    [[firewall.rule]]
    name = "seven"
    runtime = "r1"
    direction = "ingress"
    action = "allow"
    protocol = "udp"
    local-port = 7
    [[firewall.rule]]
    runtime = "r1"
    direction = "ingress"
    action = "deny"
    [[firewall.rule]]
    runtime = "r0"
    direction = "egress"
    action = "deny"
    remote = "10.77.0.12"
"#;

#[test]
fn rules_hold_between_runtimes_and_from_ports_and_are_counted_by_rule_and_runtime() {
    let (port, outside) = uplink();
    let mut sandbox = running(3, PORT_7_ONLY, vec![port]);
    for (peer, port) in [(1, 7), (1, 8), (2, 7)] {
        sandbox.peer(0).send(0, &udp(ip(0), ip(peer), (5, port), 60));
    }
    let stranger = Ipv4Addr::new(192, 0, 2, 1);
    for port in [7, 9] {
        assert!(outside.send(&udp(stranger, ip(1), (5, port), 60)));
    }
    sandbox.pass(100);
    let ports: Vec<u8> = std::iter::from_fn(|| sandbox.peer(1).receive(0)).map(|frame| frame[37]).collect();
    assert_eq!(ports, [7, 7]);
    assert_eq!(sandbox.peer(2).receive(0), None);
    let document = sandbox.world.stats.to_json();
    let matched: Vec<u64> = document["firewall"]["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["matched"].as_u64().unwrap())
        .collect();
    assert_eq!(matched, [2, 2, 1]);
    let of = |id| &sandbox.world.runtimes.get(RuntimeId(id)).unwrap().stats.counters;
    assert_eq!((of(0).tx_denied.get(), of(1).rx_denied.get(), of(2).rx_denied.get()), (1, 2, 0));
    assert_eq!(sandbox.world.stats.switch.dropped_denied.get(), 3);
}

#[test]
fn a_denied_frame_wakes_nobody() {
    let mut sandbox = running(2, PORT_7_ONLY, Vec::new());
    sandbox.peer(1).queue(0, 0);
    sandbox.tick();
    sandbox.peer(1).park(0);
    sandbox.settle();
    assert_eq!(sandbox.peer(1).state(0), KthreadState::Parked);
    let grant = sandbox.peer(1).grant(0);
    sandbox.peer(0).send(0, &udp(ip(0), ip(1), (5, 8), 60));
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).grant(0), grant);
    sandbox.peer(0).send(0, &udp(ip(0), ip(1), (5, 7), 60));
    sandbox.pass(100);
    assert_ne!(sandbox.peer(1).grant(0), grant, "one that passes does");
}

#[test]
fn a_rate_limit_drops_what_is_over_it_and_touches_nobody_else() {
    let toml = "[[firewall.limit]]\nruntime = \"r0\"\ndirection = \"egress\"\nframes-per-s = 1000\nburst-frames = 10";
    let mut sandbox = running(3, toml, Vec::new());
    let sent_through = |sandbox: &mut Sandbox, from: u32, count: u16| {
        (0..count).for_each(|port| sandbox.peer(from).send_udp(0, ip(2), port));
        (0..4).for_each(|_| sandbox.pass(100));
        std::iter::from_fn(|| sandbox.peer(2).receive(0)).count()
    };
    assert_eq!(sent_through(&mut sandbox, 0, 40), 10);
    assert_eq!(sent_through(&mut sandbox, 1, 40), 40);
    sandbox.pass(5_000_000);
    assert_eq!(sent_through(&mut sandbox, 0, 40), 5, "5 ms later");
    let counters = &sandbox.world.runtimes.get(RuntimeId(0)).unwrap().stats.counters;
    assert_eq!((counters.tx_limited.get(), counters.tx_frames.get()), (65, 80));
    assert_eq!(sandbox.world.stats.switch.dropped_limited.get(), 65);
}

#[test]
fn an_ingress_limit_counts_frames_from_all_senders_in_bits() {
    let toml = "[[firewall.limit]]\nruntime = \"r1\"\ndirection = \"ingress\"\nbits-per-s = 8000\nburst-bytes = 10000";
    let (port, outside) = uplink();
    let mut sandbox = running(2, toml, vec![port]);
    for _ in 0..6 {
        sandbox.peer(0).send(0, &udp(ip(0), ip(1), (5, 7), 1000));
        assert!(outside.send(&udp(Ipv4Addr::new(192, 0, 2, 1), ip(1), (5, 7), 1000)));
    }
    sandbox.pass(100);
    assert_eq!(std::iter::from_fn(|| sandbox.peer(1).receive(0)).count(), 10);
    assert_eq!(sandbox.world.runtimes.get(RuntimeId(1)).unwrap().stats.counters.rx_limited.get(), 2);
    assert_eq!(counted(&sandbox, 0), [("dropped_limited".to_owned(), 2), ("delivered".to_owned(), 10)]);
}
