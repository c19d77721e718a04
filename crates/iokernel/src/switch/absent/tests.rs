use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tailwater_ports::memory::{MemoryPeer, pair};
use tailwater_ports::{Attachment, Port};
use tailwater_sched::RuntimeId;
use tailwater_shm::Clock;
use tailwater_shm::control::ProgramClass::LatencyCritical;
use tailwater_shm::ring::FLAG_CHECKSUM_OK;
use tailwater_tcp::segment::Options;
use tailwater_tcp::{Flags, Header, Segment, Seq};
use tailwater_testkit::frames::{arp, udp};
use tailwater_wire::{
    Addresses, ArpOperation, ArpPacket, Checksums, DEFAULT_TTL, EtherType, EthernetHeader, Fragmenting,
    IcmpMessage, IpProtocol, Ipv4Packet, Ipv6Packet, MacAddr, PacketInfo, Stations, Sum, Undelivered,
};

use super::answer::departure;
use super::{
    ANSWERS_AT_ONCE, Absent, GRACE_S, KEPT_S, Kept, MOST_KEPT, MOST_REPORTS_TO_ONE, Pending, REPEATS,
    REPORTS_AT_ONCE, RETRY_MS,
};
use crate::config::Config;
use crate::fixture::{HZ, Sandbox};
use crate::switch::tests::firewall::PORT_7_ONLY;
use crate::tenant::Key;

const SECOND: u64 = 1_000_000_000;
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 9);
const NEVER: Ipv4Addr = Ipv4Addr::new(10, 77, 8, 8);

fn ip(id: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, id as u8 + 10)
}

fn uplink() -> (Box<dyn Port>, MemoryPeer) {
    let (port, peer) = pair("uplink", Attachment::Uplink { gateway: None }).unwrap();
    (Box::new(port), peer)
}

/// Returns a sandbox whose runtime 0 runs, with `others` more.
fn sandbox(ports: Vec<Box<dyn Port>>, others: u32) -> Sandbox {
    let mut sandbox = Sandbox::new(2, ports);
    for id in 0..=others {
        sandbox.add(id, 1, 0, LatencyCritical);
    }
    sandbox.peer(0).queue(0, 1);
    sandbox.settle();
    sandbox
}

fn end(sandbox: &mut Sandbox, id: u32) {
    sandbox.end(RuntimeId(id));
}

/// Returns all frames that wait for a runtime, with the flags of their records.
fn received(sandbox: &mut Sandbox, id: u32) -> Vec<(Vec<u8>, u8)> {
    std::iter::from_fn(|| sandbox.peer(id).receive_flagged(0)).collect()
}

/// Returns a segment with a right checksum.
fn segment(from: IpAddr, to: IpAddr, stations: (MacAddr, MacAddr), flags: Flags, payload: &[u8]) -> Vec<u8> {
    let addresses = Addresses::new(from, to).unwrap();
    let packet =
        PacketInfo { addresses, protocol: IpProtocol::TCP, hop_limit: DEFAULT_TTL, traffic_class: 0 };
    let (seq, ack) = (Seq(1_000), Seq(77));
    let header =
        Header { source: 40_000, destination: 80, seq, ack, flags, window: 9, options: Options::default() };
    let front = packet.overhead_of(Fragmenting::Forbidden);
    let mut frame = vec![0; front + header.len() + payload.len()];
    let stations = Stations { source: stations.0, destination: stations.1 };
    let len = frame.len() - front;
    packet.write_headers(&mut frame[..front], stations, Fragmenting::Forbidden, len);
    header.emit(&mut frame[front..]);
    frame[front + header.len()..].copy_from_slice(payload);
    let sum: Sum = addresses.pseudo_header(IpProtocol::TCP, len);
    let sum = sum.bytes(&frame[front..]).finish();
    frame[front + 16..front + 18].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Returns a segment between programs of the IOKernel.
fn local(from: u32, to: Ipv4Addr, flags: Flags, payload: &[u8]) -> Vec<u8> {
    let stations = (MacAddr::derived(ip(from)), MacAddr::derived(to));
    segment(ip(from).into(), to.into(), stations, flags, payload)
}

/// Returns sender, sequence number, acknowledgment and flags of a segment with a right checksum.
fn header_of(frame: &[u8]) -> (IpAddr, u32, u32, Flags) {
    let (ethernet, bytes) = EthernetHeader::parse(frame).unwrap();
    let (addresses, payload) = if ethernet.ethertype == EtherType::IPV4 {
        let packet = Ipv4Packet::parse(bytes, Checksums::Verify).unwrap();
        (packet.header.addresses(), packet.payload)
    } else {
        let packet = Ipv6Packet::parse(bytes).unwrap();
        (packet.header.addresses(), packet.payload)
    };
    assert_eq!(addresses.pseudo_header(IpProtocol::TCP, payload.len()).bytes(payload).finish(), 0);
    let header = Segment::parse(payload).unwrap().header;
    (addresses.source(), header.seq.0, header.ack.0, header.flags)
}

/// Returns why a packet did not arrive, and the bytes that the error in `frame` quotes.
fn error_of(frame: &[u8]) -> (Undelivered, Vec<u8>) {
    let packet = Ipv4Packet::parse(&frame[14..], Checksums::Verify).unwrap();
    match IcmpMessage::parse(packet.payload, Checksums::Verify).unwrap() {
        IcmpMessage::Error { why, quote } => (why, quote.to_vec()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn frames_for_an_ended_program_are_refused_in_its_name() {
    let mut sandbox = sandbox(Vec::new(), 1);
    end(&mut sandbox, 1);
    received(&mut sandbox, 0);
    sandbox.peer(0).send(0, &local(0, ip(1), Flags::SYN, &[]));
    sandbox.peer(0).send(0, &local(0, ip(1), Flags::ACK | Flags::PSH, b"abc"));
    sandbox.peer(0).send(0, &local(0, ip(1), Flags::RST, &[]));
    let datagram = udp(ip(0), ip(1), (5, 7), 60);
    sandbox.peer(0).send(0, &datagram);
    sandbox.pass(100);
    let frames = received(&mut sandbox, 0);
    assert!(frames.iter().all(|(frame, flags)| *flags == FLAG_CHECKSUM_OK
        && frame[..6] == MacAddr::derived(ip(0)).0
        && frame[6..12] == MacAddr::derived(ip(1)).0));
    assert_eq!(frames.len(), 3, "no answer to a reset");
    assert_eq!(header_of(&frames[0].0), (ip(1).into(), 0, 1_001, Flags::RST | Flags::ACK));
    assert_eq!(header_of(&frames[1].0), (ip(1).into(), 77, 0, Flags::RST));
    assert_eq!(error_of(&frames[2].0), (Undelivered::Port, datagram[14..].to_vec()));
    assert_eq!(sandbox.world.stats.switch.answered_absent.get(), 3);
    // Its successor gets them, as before.
    sandbox.add(1, 1, 0, LatencyCritical);
    sandbox.peer(0).send(0, &datagram);
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).receive(0), Some(datagram));
    assert_eq!(received(&mut sandbox, 0), []);
}

#[test]
fn an_ended_programs_address_is_resolved_until_it_is_forgotten() {
    let (port, wire) = uplink();
    let mut sandbox = sandbox(vec![port], 1);
    end(&mut sandbox, 1);
    received(&mut sandbox, 0);
    let ask = arp(ip(0), ip(1));
    sandbox.peer(0).send(0, &ask);
    sandbox.pass(100);
    let answers = received(&mut sandbox, 0);
    let reply = ArpPacket::parse(&answers[0].0[14..]).unwrap();
    assert_eq!((reply.operation, reply.sender_ip), (ArpOperation::Reply, ip(1)));
    assert_eq!((reply.sender_mac, reply.target_ip), (MacAddr::derived(ip(1)), ip(0)));
    assert_eq!(wire.receive(), Some(ask.clone()), "another host may have the address by now");
    // From the wire.
    assert!(wire.send(&arp(OUTSIDE, ip(1))));
    sandbox.pass(100);
    assert_eq!(wire.receive().map(|frame| frame[..6].to_vec()), Some(MacAddr::derived(OUTSIDE).0.to_vec()));
    // A host there announces the address.
    let mut claim = arp(ip(1), ip(1));
    claim[6..12].copy_from_slice(&MacAddr::derived(OUTSIDE).0);
    claim[22..28].copy_from_slice(&MacAddr::derived(OUTSIDE).0);
    assert!(wire.send(&claim));
    sandbox.pass(100);
    received(&mut sandbox, 0);
    sandbox.peer(0).send(0, &ask);
    sandbox.peer(0).send(0, &local(0, ip(1), Flags::SYN, &[]));
    sandbox.pass(100);
    assert_eq!(received(&mut sandbox, 0), []);
    assert_eq!(std::iter::from_fn(|| wire.receive()).count(), 2, "both go to that host");
}

#[test]
fn an_address_is_kept_for_as_long_as_peers_send_again() {
    let mut sandbox = sandbox(vec![uplink().0], 1);
    end(&mut sandbox, 1);
    for (later, answers) in [((KEPT_S - 1) * SECOND, 1), (2 * SECOND, 0)] {
        received(&mut sandbox, 0);
        sandbox.pass(later);
        sandbox.peer(0).send(0, &local(0, ip(1), Flags::SYN, &[]));
        sandbox.pass(100);
        assert_eq!(received(&mut sandbox, 0).len(), answers);
    }
}

#[test]
fn an_answer_leaves_by_the_port_that_its_cause_came_from() {
    let (port, wire) = uplink();
    let mut sandbox = sandbox(vec![port], 1);
    end(&mut sandbox, 1);
    let stations = (MacAddr::derived(OUTSIDE), MacAddr::derived(ip(1)));
    let syn = segment(OUTSIDE.into(), ip(1).into(), stations, Flags::SYN, &[]);
    assert!(wire.send(&syn));
    sandbox.pass(100);
    let answer = wire.receive().expect("an answer");
    assert_eq!(header_of(&answer), (ip(1).into(), 0, 1_001, Flags::RST | Flags::ACK));
    assert_eq!(answer[..6], stations.0.0);
    // A wire may have damaged a frame.
    for at in [24, 50] {
        let mut damaged = syn.clone();
        damaged[at] ^= 1;
        assert!(wire.send(&damaged));
        sandbox.pass(100);
        assert_eq!(wire.receive(), None);
    }
    // Nor is a frame for another host's address answered, or one in the name of a group.
    for (from, to, station) in [
        (OUTSIDE, NEVER, MacAddr::derived(NEVER)),
        (OUTSIDE, NEVER, MacAddr::derived(ip(1))),
        (Ipv4Addr::new(224, 0, 0, 1), ip(1), MacAddr::derived(ip(1))),
    ] {
        assert!(wire.send(&segment(from.into(), to.into(), (stations.0, station), Flags::SYN, &[])));
        sandbox.pass(100);
        assert_eq!(wire.receive(), None, "{from} {to} {station}");
    }
}

#[test]
fn an_ended_program_is_refused_over_ipv6_too() {
    let mut sandbox = sandbox(Vec::new(), 1);
    end(&mut sandbox, 1);
    received(&mut sandbox, 0);
    let near = |ip| IpAddr::V6(MacAddr::derived(ip).link_local());
    let far = |ip| IpAddr::V6(Config::default().ip6_of(ip).unwrap());
    // The runtimes of the sandbox have link-local addresses only.
    let stations = (MacAddr::derived(ip(0)), MacAddr::derived(ip(1)));
    for to in [near(ip(1)), far(ip(1))] {
        sandbox.peer(0).send(0, &segment(near(ip(0)), to, stations, Flags::SYN, &[]));
        sandbox.pass(100);
        let frames = received(&mut sandbox, 0);
        assert_eq!(header_of(&frames[0].0), (to, 0, 1_001, Flags::RST | Flags::ACK));
    }
}

#[test]
fn every_other_program_is_told_of_the_end_even_if_its_ring_is_full_at_first() {
    let mut sandbox = sandbox(Vec::new(), 2);
    let mut sent = 0;
    while sandbox.world.stats.switch.dropped_full.get() == 0 {
        sandbox.peer(0).send_udp(0, ip(2), 5);
        sandbox.pass(100);
        sent += 1;
    }
    while sandbox.world.stats.switch.departures.get() == 0 {
        // As ports may, which have no share.
        let frame = udp(OUTSIDE, ip(2), (5, 7), 60);
        let runtime = sandbox.world.runtimes.get_mut(RuntimeId(2)).unwrap();
        let put = super::Private::own(&frame);
        if super::Source::put(&put, &mut runtime.kthreads[0].ingress, 0, 0).is_err() {
            break;
        }
    }
    assert!(sent > 10);
    end(&mut sandbox, 1);
    let reports = |sandbox: &mut Sandbox, id| {
        let frames = received(sandbox, id)
            .into_iter()
            .filter(|(frame, flags)| *flags == FLAG_CHECKSUM_OK && frame[12..14] == [8, 0] && frame[23] == 1);
        frames.map(|(frame, _)| error_of(&frame)).collect::<Vec<_>>()
    };
    let [(why, quote)] = &reports(&mut sandbox, 0)[..] else { panic!("one report") };
    let (quoted, rest) = Ipv4Packet::parse_quoted(quote).unwrap();
    assert_eq!((*why, rest.len()), (Undelivered::Host, 0));
    assert_eq!(quoted.addresses(), Addresses::V4 { source: ip(0), destination: ip(1) });
    assert_eq!(reports(&mut sandbox, 2), [], "there was no room, and there is now");
    sandbox.pass(RETRY_MS * 1_000_000);
    let Sandbox { switch, world, alloc, now, .. } = &mut sandbox;
    switch.report_ends(world, alloc, *now);
    assert_eq!(reports(&mut sandbox, 2).len(), 1);
    const { assert!(REPORTS_AT_ONCE > 3) }
}

#[test]
fn a_program_that_reads_no_report_loses_its_own_only() {
    let sandbox = sandbox(Vec::new(), 2);
    let Sandbox { mut switch, now, .. } = sandbox;
    let absent = &mut switch.absent;
    let report = |to| Pending {
        to: RuntimeId(to),
        gone: (ip(1).into(), MacAddr::derived(ip(1))),
        until: now + 1,
        of_instance: false,
        due: 0,
        tried: false,
        repeats: 0,
    };
    for _ in 0..2 * MOST_REPORTS_TO_ONE {
        absent.queue(report(0));
    }
    absent.queue(report(2));
    let of = |absent: &Absent, to| absent.reports.iter().filter(|report| report.to == RuntimeId(to)).count();
    assert_eq!((of(absent, 0), of(absent, 2)), (usize::from(MOST_REPORTS_TO_ONE), 1));
    absent.drop_reports(|report| report.to == RuntimeId(0));
    assert_eq!(absent.unread, [(RuntimeId(2), 1)].into());
    // Nor do repeated ones take the room of others.
    for waiting in 1..MOST_REPORTS_TO_ONE {
        absent.queue(report(0));
        let again = absent.is_repeated(&Pending { repeats: 1, ..report(0) });
        assert_eq!(again, waiting <= MOST_REPORTS_TO_ONE / 4, "{waiting}");
        assert!(!absent.is_repeated(&report(0)));
    }
}

#[test]
fn a_program_that_may_come_back_is_neither_reported_nor_refused() {
    let mut sandbox = sandbox(vec![uplink().0], 0);
    sandbox.add_unready(1);
    end(&mut sandbox, 1);
    assert_eq!(received(&mut sandbox, 0), []);
    let syn = local(0, ip(1), Flags::SYN, &[]);
    for (later, answers) in [(100, 0), ((GRACE_S - 1) * SECOND, 0), (2 * SECOND, 1)] {
        sandbox.pass(later);
        sandbox.peer(0).send(0, &syn);
        sandbox.pass(100);
        assert_eq!(received(&mut sandbox, 0).len(), answers, "{later}");
    }
}

#[test]
fn addresses_that_never_had_a_program_are_refused_where_no_other_host_can_have_them() {
    let (uplink, _wire) = uplink();
    let station = Attachment::Station { mac: MacAddr([2, 0, 0, 0, 0, 9]), ip: Some(OUTSIDE) };
    let (port, _peer) = pair("station", station).unwrap();
    for (ports, closed) in [(Vec::new(), true), (vec![uplink], false), (vec![Box::new(port) as _], true)] {
        let has_station = closed && !ports.is_empty();
        let mut sandbox = sandbox(ports, 0);
        for (later, answered) in [(100, false), (GRACE_S * SECOND, closed)] {
            sandbox.pass(later);
            sandbox.peer(0).send(0, &arp(ip(0), NEVER));
            sandbox.peer(0).send(0, &local(0, NEVER, Flags::SYN, &[]));
            sandbox.pass(100);
            assert_eq!(received(&mut sandbox, 0).len(), if answered { 2 } else { 0 }, "{closed} {later}");
        }
        // A station answers for itself, whatever its MAC address.
        if has_station {
            sandbox.peer(0).send(0, &arp(ip(0), OUTSIDE));
            sandbox.pass(100);
            assert_eq!(received(&mut sandbox, 0), []);
        }
    }
}

#[test]
fn who_asks_without_end_takes_no_answer_from_others() {
    let (port, wire) = uplink();
    let mut sandbox = sandbox(vec![port], 2);
    sandbox.peer(1).queue(0, 1);
    sandbox.settle();
    end(&mut sandbox, 2);
    received(&mut sandbox, 1);
    let syn = local(0, ip(2), Flags::SYN, &[]);
    for _ in 0..ANSWERS_AT_ONCE + 100 {
        sandbox.peer(0).send(0, &syn);
        sandbox.pass(1);
        received(&mut sandbox, 0);
    }
    let limited = sandbox.world.stats.switch.absent_limited.get();
    assert!((1..=100).contains(&limited), "{limited}");
    sandbox.peer(1).send(0, &local(1, ip(2), Flags::SYN, &[]));
    let stations = (MacAddr::derived(OUTSIDE), MacAddr::derived(ip(2)));
    assert!(wire.send(&segment(OUTSIDE.into(), ip(2).into(), stations, Flags::SYN, &[])));
    sandbox.pass(1);
    assert_eq!(received(&mut sandbox, 1).len(), 1);
    assert!(wire.receive().is_some());
    // And what it asks is answered again with time.
    sandbox.pass(SECOND);
    sandbox.peer(0).send(0, &syn);
    sandbox.pass(1);
    assert_eq!(received(&mut sandbox, 0).len(), 1);
}

#[test]
fn ends_of_one_user_push_out_no_address_of_another() {
    let mut absent = Absent::new(&Config::default(), Clock::from_hz(HZ), &[]);
    let owner = |user| Some(Key { user: Some(user), grant: Some(0) });
    let mut next = 0;
    let mut enter = |absent: &mut Absent, user| {
        next += 1;
        let ip = Ipv4Addr::from_bits(Ipv4Addr::new(10, 77, 0, 0).to_bits() + next);
        let (mac, owner) = (MacAddr::derived(ip), owner(user));
        if absent.kept.len() >= MOST_KEPT {
            absent.make_room();
        }
        let (guard, rules, from, until) = (None, Arc::default(), 0, next.into());
        absent.kept.insert(mac.key(), Kept { ip, mac, owner, guard, rules, from, until });
    };
    let of = |absent: &Absent, user| absent.kept.values().filter(|kept| kept.owner == owner(user)).count();
    (0..100).for_each(|_| enter(&mut absent, 1));
    (0..5 * MOST_KEPT).for_each(|_| enter(&mut absent, 2));
    assert_eq!((of(&absent, 1), of(&absent, 2)), (100, MOST_KEPT - 100), "the older ones stay");
    (0..5 * MOST_KEPT).for_each(|_| enter(&mut absent, 3));
    assert_eq!(of(&absent, 1), 100, "two others divide the rest");
    assert!(of(&absent, 2).abs_diff(of(&absent, 3)) <= 2);
    // Its own oldest one makes room for one that has as many as it may.
    let oldest = absent.kept.values().filter(|kept| kept.owner == owner(3)).map(|kept| kept.until).min();
    enter(&mut absent, 3);
    enter(&mut absent, 3);
    let later = absent.kept.values().filter(|kept| kept.owner == owner(3)).map(|kept| kept.until).min();
    assert!(later > oldest);
}

#[test]
fn rules_of_an_ended_program_hold_for_what_is_answered_in_its_name() {
    let (port, wire) = uplink();
    let mut sandbox = Sandbox::with_config(2, vec![port], &Config::from_toml(PORT_7_ONLY).unwrap());
    (0..=1).for_each(|id| sandbox.add(id, 1, 0, LatencyCritical));
    sandbox.peer(0).queue(0, 1);
    sandbox.settle();
    end(&mut sandbox, 1);
    received(&mut sandbox, 0);
    sandbox.peer(0).send(0, &local(0, ip(1), Flags::SYN, &[]));
    sandbox.peer(0).send(0, &udp(ip(0), ip(1), (5, 8), 60));
    sandbox.pass(100);
    assert_eq!(received(&mut sandbox, 0), [], "as from the program itself");
    assert_eq!(sandbox.world.stats.switch.dropped_denied.get(), 2);
    sandbox.peer(0).send(0, &udp(ip(0), ip(1), (5, 7), 60));
    sandbox.pass(100);
    assert_eq!(received(&mut sandbox, 0).len(), 1);
    let stations = (MacAddr::derived(OUTSIDE), MacAddr::derived(ip(1)));
    assert!(wire.send(&segment(OUTSIDE.into(), ip(1).into(), stations, Flags::SYN, &[])));
    sandbox.pass(100);
    assert_eq!(wire.receive(), None);
}

#[test]
fn reports_that_are_sent_later_are_charged_with_the_end() {
    for (others, times) in [(1, 1), (21, 1), (22, 2), (64, 3)] {
        let mut sandbox = Sandbox::new(1, Vec::new());
        (0..=others).for_each(|id| sandbox.add(id, 1, 0, LatencyCritical));
        end(&mut sandbox, 0);
        assert_eq!(sandbox.reported, times, "{others}");
    }
}

#[test]
fn the_end_of_an_instance_is_reported_again_although_a_third_one_registers() {
    let mut sandbox = sandbox(Vec::new(), 1);
    sandbox.add_instance(5, 1, false);
    end(&mut sandbox, 1);
    sandbox.add_instance(6, 5, false);
    for _ in 0..=REPEATS {
        let reports = received(&mut sandbox, 0);
        assert_eq!(reports.iter().filter(|(frame, _)| frame[12..14] == [8, 0]).count(), 1);
        sandbox.pass(SECOND);
        let Sandbox { switch, world, alloc, now, .. } = &mut sandbox;
        switch.report_ends(world, alloc, *now);
    }
    assert_eq!(received(&mut sandbox, 0), []);
}

#[test]
fn a_report_that_a_program_sends_is_refused() {
    let near = |id| IpAddr::V6(MacAddr::derived(ip(id)).link_local());
    for of_instance in [false, true] {
        for (own, peer) in [(ip(0).into(), ip(1).into()), (near(0), near(1))] {
            let mut sandbox = sandbox(Vec::new(), 1);
            let stations = [0, 1].map(|id| MacAddr::derived(ip(id)));
            let report = departure(of_instance, (own, stations[0]), (peer, stations[1])).unwrap();
            sandbox.peer(0).send(0, &report);
            sandbox.pass(100);
            let refused = sandbox.world.runtimes.get(RuntimeId(0)).unwrap().stats.counters.tx_refused.get();
            assert_eq!((refused, received(&mut sandbox, 1)), (1, Vec::new()), "{of_instance} {own}");
        }
    }
}

#[test]
fn an_address_that_another_instance_has_is_not_absent() {
    let mut sandbox = sandbox(Vec::new(), 1);
    sandbox.add_instance(5, 1, false);
    end(&mut sandbox, 1);
    // Its peers are to ask the other one, which may not know of the end at first.
    for _ in 0..=REPEATS {
        let reports = received(&mut sandbox, 0);
        let errors = reports.iter().filter(|(frame, _)| frame[12..14] == [8, 0]).map(|(frame, _)| {
            let (why, quote) = error_of(frame);
            (why, Ipv4Packet::parse_quoted(&quote).unwrap().0.protocol())
        });
        assert_eq!(errors.collect::<Vec<_>>(), [(Undelivered::Host, IpProtocol::TCP)]);
        assert_eq!(received(&mut sandbox, 5), [], "it is told by the control thread");
        sandbox.pass(1_000_000_000);
        let Sandbox { switch, world, alloc, now, .. } = &mut sandbox;
        switch.report_ends(world, alloc, *now);
    }
    assert_eq!(received(&mut sandbox, 0), []);
    let syn = local(0, ip(1), Flags::SYN, &[]);
    sandbox.peer(0).send(0, &syn);
    sandbox.pass(100);
    assert_eq!(received(&mut sandbox, 0), []);
    assert_eq!(sandbox.peer(5).receive(0), Some(syn));
}
