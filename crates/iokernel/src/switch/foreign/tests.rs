use std::net::{Ipv4Addr, Ipv6Addr};
use tailwater_ports::memory::{MemoryPeer, pair};
use tailwater_ports::{Attachment, Port};
use tailwater_sched::RuntimeId;
use tailwater_shm::control::ProgramClass::LatencyCritical;
use tailwater_testkit::frames::{arp, ipv6, udp};
use tailwater_wire::{Addresses, ETHERNET_HEADER, IpProtocol, MacAddr, ND_HOP_LIMIT, Neighbour};

use crate::config::Config;
use crate::fixture::Sandbox;

const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 9);

fn ip(id: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, id as u8 + 10)
}

fn near(ip: Ipv4Addr) -> Ipv6Addr {
    MacAddr::derived(ip).link_local()
}

fn far(ip: Ipv4Addr) -> Ipv6Addr {
    Config::default().ip6_of(ip).unwrap()
}

/// Returns a sandbox with programs 0 and 1, and the wire at its uplink.
fn sandbox() -> (Sandbox, MemoryPeer) {
    let (port, wire) = pair("uplink", Attachment::Uplink { gateway: None }).unwrap();
    let mut sandbox = Sandbox::new(2, vec![Box::new(port) as Box<dyn Port>]);
    (0..2).for_each(|id| sandbox.add(id, 1, 0, LatencyCritical));
    sandbox.peer(0).queue(0, 1);
    sandbox.settle();
    (sandbox, wire)
}

/// Returns a frame of station `OUTSIDE` for station `to`, with this ICMPv6 message.
fn discovery(source: Ipv6Addr, to: MacAddr, destination: Ipv6Addr, message: Neighbour) -> Vec<u8> {
    let (bytes, len) = message.encode(&Addresses::V6 { source, destination });
    let (source, destination) = (source.to_bits(), destination.to_bits());
    let mut frame = ipv6(source, destination, IpProtocol::ICMPV6.0, ND_HOP_LIMIT, &bytes[..len]);
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&MacAddr::derived(OUTSIDE).0);
    frame
}

/// Returns a frame as its sender would write it, from station `OUTSIDE`.
fn from_outside(mut frame: Vec<u8>) -> Vec<u8> {
    frame[6..12].copy_from_slice(&MacAddr::derived(OUTSIDE).0);
    if frame[12..ETHERNET_HEADER] == [8, 6] {
        frame[22..28].copy_from_slice(&MacAddr::derived(OUTSIDE).0);
    }
    frame
}

#[test]
fn a_host_on_the_wire_speaks_for_no_program() {
    let (mut sandbox, wire) = sandbox();
    let mut reply = from_outside(arp(ip(0), ip(1)));
    reply[21] = 2;
    reply[..6].copy_from_slice(&MacAddr::derived(ip(1)).0);
    let own_mac = {
        let mut frame = udp(OUTSIDE, ip(1), (5, 7), 60);
        frame[6..12].copy_from_slice(&MacAddr::derived(ip(0)).0);
        frame
    };
    let to = MacAddr::derived(ip(1));
    let advertisement = |target| Neighbour::Advertisement {
        target,
        solicited: true,
        replaces: true,
        mac: Some(MacAddr::derived(OUTSIDE)),
    };
    let solicitation =
        Neighbour::Solicitation { target: far(ip(1)), source: Some(MacAddr::derived(OUTSIDE)) };
    let claims = [
        from_outside(udp(ip(0), ip(1), (5, 7), 60)),
        own_mac,
        from_outside(arp(ip(0), ip(1))),
        from_outside(arp(ip(0), ip(0))),
        reply,
        discovery(far(OUTSIDE), to, far(ip(1)), advertisement(far(ip(0)))),
        discovery(near(OUTSIDE), to, near(ip(1)), advertisement(near(ip(0)))),
        discovery(far(ip(0)), to, far(ip(1)), solicitation),
        discovery(near(ip(0)), to, near(ip(1)), solicitation),
    ];
    for (number, claim) in (1..).zip(&claims) {
        assert!(wire.send(claim));
        sandbox.pass(100);
        assert_eq!(sandbox.peer(1).receive(0), None, "claim {number}");
        assert_eq!(sandbox.peer(0).receive(0), None, "claim {number}");
        assert_eq!(sandbox.world.stats.switch.dropped_foreign.get(), number);
    }
    // For itself it may, and what programs send each other stays here.
    let honest = [
        udp(OUTSIDE, ip(1), (5, 7), 60),
        discovery(far(OUTSIDE), to, far(ip(1)), advertisement(far(OUTSIDE))),
    ];
    for frame in &honest {
        assert!(wire.send(frame));
        sandbox.pass(100);
        assert_eq!(sandbox.peer(1).receive(0).as_ref(), Some(frame));
    }
    sandbox.peer(0).send_udp(0, ip(1), 5);
    sandbox.pass(100);
    assert!(sandbox.peer(1).receive(0).is_some());
    assert_eq!(wire.receive(), None);
}

#[test]
fn a_probe_reaches_the_program_that_has_the_address() {
    let (mut sandbox, wire) = sandbox();
    let mut probe = from_outside(arp(ip(0), ip(1)));
    probe[28..32].fill(0);
    assert!(wire.send(&probe));
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).receive(0), Some(probe));
}

#[test]
fn an_address_is_free_for_others_when_its_program_has_ended() {
    let (mut sandbox, wire) = sandbox();
    sandbox.end(RuntimeId(0));
    while sandbox.peer(1).receive(0).is_some() {}
    let announcement = from_outside(arp(ip(0), ip(0)));
    assert!(wire.send(&announcement));
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).receive(0), Some(announcement));
}
