mod fairness;
pub(super) mod firewall;
mod instances;
mod lone;
mod moves;
mod ports;

use std::net::Ipv4Addr;
use tailwater_ports::memory::{MemoryPeer, pair};
use tailwater_ports::{Attachment, Context, Delivery, Inject, Port, PortError};
use tailwater_sched::RuntimeId;
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
use tailwater_shm::ring::{FLAG_CHECKSUM_OK, FLAG_CHECKSUM_OWED, FLAG_PASSED_ON, RingLie};
use tailwater_shm::{Cycles, Grant, KthreadState};
use tailwater_testkit::frames::{arp, udp};
use tailwater_wire::MacAddr;

use super::egress::TURN_FRAMES;
use crate::config::Config;
use crate::fixture::{EGRESS, INGRESS_TAIL, RING_BYTES, Sandbox, measure_as};
use crate::runtime::EndReason;

const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 9);

fn ip(id: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, id as u8 + 10)
}

/// Runtimes 0 and 1 of one kthread each, both running on cores of their own.
fn two_running(ports: Vec<Box<dyn Port>>) -> Sandbox {
    let mut sandbox = Sandbox::new(2, ports);
    for id in 0..2 {
        sandbox.add(id, 1, 1, LatencyCritical);
        sandbox.peer(id).queue(0, 1);
    }
    sandbox.settle();
    assert!((0..2).all(|id| sandbox.peer(id).state(0) == KthreadState::Running));
    sandbox
}

fn station(mac: MacAddr, ip: Option<Ipv4Addr>) -> (Box<dyn Port>, MemoryPeer) {
    let (port, peer) = pair(&format!("station {mac}"), Attachment::Station { mac, ip }).unwrap();
    (Box::new(port), peer)
}

fn uplink() -> (Box<dyn Port>, MemoryPeer) {
    let (port, peer) = pair("uplink", Attachment::Uplink { gateway: None }).unwrap();
    (Box::new(port), peer)
}

#[test]
fn a_frame_reaches_the_runtime_it_is_addressed_to_and_nobody_else() {
    let mut sandbox = two_running(Vec::new());
    sandbox.add(2, 1, 0, BestEffort);
    let frame = udp(ip(0), ip(1), (5, 7), 1400);
    sandbox.peer(0).send(0, &frame);
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).receive(0).as_deref(), Some(&frame[..]));
    assert_eq!(sandbox.peer(0).receive(0), None);
    assert_eq!(sandbox.peer(2).receive(0), None);
    assert_eq!(sandbox.world.stats.switch.delivered.get(), 1);
}

#[test]
fn checksums_are_vouched_for_between_runtimes_and_filled_in_where_a_frame_leaves() {
    let mac = MacAddr([2, 0, 0, 0, 0, 0x99]);
    let (port, wire) = station(mac, Some(ELSEWHERE));
    let mut sandbox = two_running(vec![port]);
    let mut inside = udp(ip(0), ip(1), (5, 7), 1400);
    // TCP, with and without its checksum.
    inside[23] = 6;
    let mut outside = inside.clone();
    outside[..6].copy_from_slice(&mac.0);
    outside[30..34].copy_from_slice(&ELSEWHERE.octets());
    let mut filled = outside.clone();
    super::offload::fill_checksum(&mut filled);
    assert_ne!(filled, outside);
    for flags in [0, FLAG_CHECKSUM_OK, FLAG_CHECKSUM_OWED, !FLAG_PASSED_ON] {
        sandbox.peer(0).send_flagged(0, &inside, flags);
        sandbox.peer(0).send_flagged(0, &outside, flags);
        sandbox.pass(100);
        // Whatever the sender claims: only the IOKernel's own flag counts.
        assert_eq!(sandbox.peer(1).receive_flagged(0), Some((inside.clone(), FLAG_CHECKSUM_OK)));
        let left = wire.receive().expect("it leaves");
        assert!(left == if flags & FLAG_CHECKSUM_OWED != 0 { &filled[..] } else { &outside[..] });
    }
    let mut incoming = inside.clone();
    incoming[6..12].copy_from_slice(&mac.0);
    incoming[26..30].copy_from_slice(&ELSEWHERE.octets());
    assert!(wire.send(&incoming));
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).receive_flagged(0), Some((incoming, 0)), "a wire may have damaged it");
}

#[test]
fn frames_of_one_flow_stay_in_order_through_more_than_a_batch() {
    let mut sandbox = two_running(Vec::new());
    for number in 0..100u8 {
        let mut frame = udp(ip(0), ip(1), (5, 7), 60);
        frame[59] = number;
        sandbox.peer(0).send(0, &frame);
    }
    for _ in 0..4 {
        sandbox.pass(100);
    }
    let received: Vec<u8> =
        std::iter::from_fn(|| sandbox.peer(1).receive(0)).map(|frame| frame[59]).collect();
    assert_eq!(received, (0..100).collect::<Vec<_>>());
}

#[test]
fn spoofed_malformed_and_foreign_frames_are_dropped_and_counted() {
    let mut sandbox = two_running(Vec::new());
    let mut other_type = udp(ip(0), ip(1), (5, 7), 60);
    other_type[12] = 0x88;
    let mut malformed = udp(ip(0), ip(1), (5, 7), 60);
    malformed[14] = 0x41;
    for frame in [
        udp(ip(1), ip(0), (5, 7), 60),
        arp(ip(1), ip(0)),
        malformed,
        other_type,
        udp(ip(0), ELSEWHERE, (1, 1), 60),
    ] {
        sandbox.peer(0).send(0, &frame);
    }
    sandbox.peer(0).send(0, &udp(ip(0), ip(1), (1, 1), 9015));
    sandbox.pass(100);
    let switch = &sandbox.world.stats.switch;
    assert_eq!(switch.dropped_spoofed.get(), 2);
    assert_eq!(switch.dropped_malformed.get(), 2, "a bad header and a frame that is too long");
    assert_eq!(switch.dropped_ethertype.get(), 1);
    assert_eq!(switch.dropped_unknown.get(), 1);
    assert_eq!(switch.delivered.get(), 0);
    let counters = &sandbox.world.runtimes.get(RuntimeId(0)).unwrap().stats.counters;
    assert_eq!((counters.tx_spoofed.get(), counters.tx_malformed.get(), counters.tx_frames.get()), (2, 2, 6));
}

#[test]
fn a_frame_longer_than_the_mtu_reaches_programs_and_no_port() {
    let (port, outside) = uplink();
    let mut sandbox = two_running(vec![port]);
    for (to, len) in [(ip(1), 9014), (ELSEWHERE, 1514), (ELSEWHERE, 1515), (ELSEWHERE, 9014)] {
        sandbox.peer(0).send(0, &udp(ip(0), to, (5, 7), len));
    }
    assert!(outside.send(&udp(ELSEWHERE, ip(1), (5, 7), 1515)));
    sandbox.pass(100);
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).receive(0), Some(udp(ip(0), ip(1), (5, 7), 9014)));
    assert_eq!(sandbox.peer(1).receive(0), None, "a port brings none");
    assert_eq!(outside.receive().map(|frame| frame.len()), Some(1514));
    assert_eq!(outside.receive(), None);
    let stats = &sandbox.world.stats;
    assert_eq!((stats.switch.dropped_port.get(), stats.switch.dropped_malformed.get()), (2, 1));
    assert_eq!((stats.ports()[0].transmitted.get(), stats.ports()[0].refused.get()), (1, 2));
    let counters = &sandbox.world.runtimes.get(RuntimeId(0)).unwrap().stats.counters;
    assert_eq!(counters.tx_malformed.get(), 0, "a sender cannot know where a peer has gone");
}

#[test]
fn a_frame_for_a_group_is_not_longer_than_the_mtu() {
    let mut sandbox = two_running(Vec::new());
    for len in [1514, 1515, 9014] {
        let mut frame = udp(ip(0), ip(1), (5, 7), len);
        frame[..6].fill(0xff);
        sandbox.peer(0).send(0, &frame);
    }
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).receive(0).map(|frame| frame.len()), Some(1514));
    assert_eq!(sandbox.peer(1).receive(0), None);
    assert_eq!(sandbox.world.stats.switch.dropped_malformed.get(), 2);
}

#[test]
fn a_broadcast_reaches_everybody_but_the_sender() {
    let (port, outside) = uplink();
    let (other, beside) = station(MacAddr([2, 0, 0, 0, 0, 1]), None);
    let mut sandbox = two_running(vec![port, other]);
    let request = arp(ip(0), ip(1));
    sandbox.peer(0).send(0, &request);
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).receive(0).as_deref(), Some(&request[..]));
    assert_eq!(sandbox.peer(0).receive(0), None);
    assert_eq!(outside.receive().as_deref(), Some(&request[..]));
    assert_eq!(beside.receive().as_deref(), Some(&request[..]));
    let from_outside = arp(ELSEWHERE, ip(1));
    assert!(outside.send(&from_outside));
    sandbox.pass(100);
    assert_eq!(outside.receive(), None, "a broadcast came back to the port it came from");
    assert_eq!(beside.receive().as_deref(), Some(&from_outside[..]));
    assert!(sandbox.peer(0).receive(0).is_some() && sandbox.peer(1).receive(0).is_some());
}

#[test]
fn a_storm_of_broadcasts_is_taken_in_small_portions() {
    let mut sandbox = Sandbox::new(2, Vec::new());
    for id in 0..20 {
        sandbox.add(id, 1, 0, LatencyCritical);
    }
    sandbox.peer(0).queue(0, 1);
    sandbox.settle();
    let request = arp(ip(0), ip(1));
    (0..10).for_each(|_| sandbox.peer(0).send(0, &request));
    // Each takes half a turn, or more where a runtime is woken for it.
    measure_as(sandbox.switch.timing.turn / 2);
    sandbox.pass(100);
    let flooded = sandbox.world.stats.switch.flooded.get();
    assert!((1..=2).contains(&flooded), "{flooded}");
    (0..9).for_each(|_| sandbox.pass(100));
    measure_as(0);
    assert_eq!(sandbox.world.stats.switch.flooded.get(), 10);
    assert_eq!(sandbox.world.stats.switch.delivered.get(), 190);
}

/// Returns a sandbox in which `greedy` runtimes of four kthreads each, numbered from 1, and runtime
/// 0 of one kthread run on cores of their own.
fn one_among(greedy: u32) -> Sandbox {
    let mut sandbox = Sandbox::new(1 + 4 * greedy as u16, Vec::new());
    for id in 0..=greedy {
        let kthreads = if id == 0 { 1 } else { 4 };
        sandbox.add(id, kthreads, kthreads, LatencyCritical);
        (0..kthreads).for_each(|k| sandbox.peer(id).queue(k, 1));
    }
    sandbox.settle();
    sandbox
}

#[test]
fn an_honest_sender_has_its_part_of_the_turns_beside_greedy_ones_with_many_rings() {
    for greedy in [1, 2, 4, 8] {
        let mut sandbox = one_among(greedy);
        for id in 1..=greedy {
            // Unicast from the first two kthreads, frames of a ring's maximum from the others.
            for _ in 0..64 {
                (0..2).for_each(|k| sandbox.peer(id).send_udp(k, ip(id), 5));
            }
            let large = udp(ip(id), ip(id), (5, 7), 1_400);
            (2..4).for_each(|k| (0..8).for_each(|_| sandbox.peer(id).send(k, &large)));
        }
        (0..64).for_each(|_| sandbox.peer(0).send_udp(0, ip(1), 5));
        let taken = |sandbox: &Sandbox, id| {
            sandbox.world.runtimes.get(RuntimeId(id)).unwrap().stats.counters.tx_frames.get()
        };
        // Eight frames take a quarter of a turn.
        measure_as(sandbox.switch.timing.turn / 4);
        let mut passes = 0;
        while taken(&sandbox, 0) < 64 {
            sandbox.pass(100);
            passes += 1;
            assert!(passes <= greedy + 3, "{} frames, {greedy} greedy senders", taken(&sandbox, 0));
        }
        // What exceeded the turns is taken later, from all rings.
        (0..100).for_each(|_| sandbox.pass(100));
        measure_as(0);
        assert!((1..=greedy).all(|id| taken(&sandbox, id) == 2 * 64 + 2 * 8));
    }
}

#[test]
fn a_broadcast_counts_against_all_rings_of_its_sender() {
    let mut sandbox = one_among(8);
    let request = arp(ip(1), ip(0));
    (0..4).for_each(|k| (0..40).for_each(|_| sandbox.peer(1).send(k, &request)));
    sandbox.peer(0).send_udp(0, ip(2), 5);
    // Each takes half a turn.
    measure_as(sandbox.switch.timing.turn / 2);
    sandbox.pass(100);
    measure_as(0);
    assert_eq!(sandbox.world.stats.switch.flooded.get(), 2);
    let honest = sandbox.world.runtimes.get(RuntimeId(0)).unwrap();
    assert_eq!(honest.stats.counters.tx_frames.get(), 1);
}

#[test]
fn broadcasts_beyond_the_limit_are_dropped_counted_and_charged() {
    let config = Config { broadcast_copies: 100, ..Config::default() };
    let mut sandbox = Sandbox::with_config(2, Vec::new(), &config);
    for id in 0..3 {
        sandbox.add(id, 1, 0, LatencyCritical);
    }
    sandbox.peer(0).queue(0, 1);
    sandbox.settle();
    let request = arp(ip(0), ip(1));
    measure_as(100);
    for _ in 0..40 {
        sandbox.peer(0).send(0, &request);
        sandbox.pass(100);
    }
    measure_as(0);
    // Each counts for all three.
    assert_eq!(sandbox.world.stats.switch.flooded.get(), 33);
    assert_eq!(sandbox.world.stats.switch.dropped_broadcast.get(), 7);
    let counters = &sandbox.world.runtimes.get(RuntimeId(0)).unwrap().stats.counters;
    assert_eq!(counters.tx_broadcast.get(), 7);
    assert!(counters.offence_ns.get() > 0);
    // To one receiver it sends as before, and others to all.
    sandbox.peer(0).send_udp(0, ip(1), 5);
    sandbox.peer(1).queue(0, 1);
    sandbox.settle();
    sandbox.peer(1).send(0, &arp(ip(1), ip(0)));
    sandbox.pass(100);
    assert_eq!(sandbox.world.stats.switch.flooded.get(), 34);
    sandbox.pass(1_000_000_000);
    sandbox.peer(0).send(0, &request);
    sandbox.pass(100);
    assert_eq!(sandbox.world.stats.switch.flooded.get(), 35, "a second later");
}

#[test]
fn frames_to_groups_leave_half_of_a_ring_to_unicast() {
    let mut sandbox = two_running(Vec::new());
    let lines = RING_BYTES as usize / 64;
    let request = arp(ip(0), ip(1));
    for _ in 0..lines {
        sandbox.peer(0).send(0, &request);
        sandbox.pass(100);
    }
    let broadcasts = sandbox.world.stats.switch.delivered.get() as usize;
    assert!((lines / 4..=lines / 2 + 1).contains(&broadcasts), "{broadcasts} of {lines} lines");
    for _ in 0..lines / 16 {
        sandbox.peer(0).send_udp(0, ip(1), 5);
        sandbox.pass(100);
    }
    assert_eq!(sandbox.world.stats.switch.delivered.get() as usize, broadcasts + lines / 16);
}

#[test]
fn records_written_once_are_sent_once_and_end_the_registration() {
    let mut sandbox = two_running(Vec::new());
    // One frame fills each line of the ring; the switch reads it in laps.
    let lines = u64::from(RING_BYTES) / 64;
    for line in 0..lines {
        sandbox.peer(0).scribble(EGRESS + 64 * line, 40 | 1 << 16);
    }
    for _ in 0..2 * lines as usize / TURN_FRAMES {
        sandbox.pass(100);
    }
    let ended = core::mem::take(&mut sandbox.ended);
    assert!(
        matches!(&ended[..], [(RuntimeId(0), EndReason::EgressLie { lie: RingLie::Lap { .. }, .. })]),
        "{ended:?}"
    );
    assert_eq!(sandbox.world.stats.switch.from_runtimes.get(), lines);
}

#[test]
fn unknown_destinations_go_to_the_uplink_and_do_not_come_back() {
    let (port, outside) = uplink();
    let mut sandbox = two_running(vec![port]);
    sandbox.peer(0).send_udp(0, ELSEWHERE, 5);
    sandbox.pass(100);
    let frame = outside.receive().expect("the uplink gets frames for unknown addresses");
    // As it was sent, from an address of a program, and as another host sends one.
    assert!(outside.send(&frame));
    assert!(outside.send(&udp(Ipv4Addr::new(10, 77, 9, 8), ELSEWHERE, (5, 7), 60)));
    sandbox.pass(100);
    assert_eq!(outside.receive(), None);
    let switch = &sandbox.world.stats.switch;
    assert_eq!((switch.dropped_foreign.get(), switch.dropped_unknown.get()), (1, 1));
}

#[test]
fn a_station_gets_what_is_sent_to_its_address_and_reaches_runtimes() {
    let (port, station) = station(MacAddr::derived(ELSEWHERE), Some(ELSEWHERE));
    let mut sandbox = two_running(vec![port]);
    sandbox.peer(0).send_udp(0, ELSEWHERE, 5);
    sandbox.pass(100);
    assert_eq!(station.receive(), Some(udp(ip(0), ELSEWHERE, (5, 7), 60)));
    let answer = udp(ELSEWHERE, ip(1), (7, 5), 60);
    assert!(station.send(&answer));
    assert!(station.send(&[0; 13]), "handed over, to be refused by the switch");
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).receive(0), Some(answer));
    assert_eq!(sandbox.world.stats.switch.dropped_malformed.get(), 1);
    assert_eq!(sandbox.world.stats.ports()[0].transmitted.get(), 1);
}

#[test]
fn a_full_ingress_ring_drops_and_counts_and_loses_nothing_else() {
    let mut sandbox = two_running(Vec::new());
    // Rings have 512 lines; a record of 1400 bytes takes 23 of them.
    for _ in 0..5 {
        for _ in 0..16 {
            sandbox.peer(0).send(0, &udp(ip(0), ip(1), (5, 7), 1400));
        }
        sandbox.pass(100);
    }
    let switch = &sandbox.world.stats.switch;
    let (delivered, full) = (switch.delivered.get(), switch.dropped_full.get());
    assert!(full > 0 && delivered + full == 80, "{delivered} delivered, {full} dropped");
    assert_eq!(std::iter::from_fn(|| sandbox.peer(1).receive(0)).count() as u64, delivered);
    assert_eq!(sandbox.world.runtimes.get(RuntimeId(1)).unwrap().stats.counters.rx_full.get(), full);
}

#[test]
fn an_impossible_egress_record_ends_the_senders_registration_only() {
    let mut sandbox = two_running(Vec::new());
    sandbox.peer(0).send_udp(0, ip(1), 5);
    sandbox.pass(100);
    // Where the next header is expected, after a record of two lines.
    sandbox.peer(0).scribble(EGRESS + 128, u64::MAX);
    sandbox.pass(100);
    assert!(
        matches!(sandbox.ended[..], [(RuntimeId(0), EndReason::EgressLie { kthread: 0, .. })]),
        "{:?}",
        sandbox.ended
    );
    sandbox.add(3, 1, 0, LatencyCritical);
    sandbox.peer(1).send_udp(0, ip(3), 5);
    sandbox.pass(100);
    assert!(sandbox.peer(3).receive(0).is_some());
}

#[test]
fn an_impossible_ingress_position_ends_the_receivers_registration_only() {
    let mut sandbox = two_running(Vec::new());
    sandbox.peer(1).scribble(INGRESS_TAIL, u64::MAX);
    for _ in 0..600 {
        sandbox.peer(0).send_udp(0, ip(1), 5);
        sandbox.pass(100);
        if !sandbox.ended.is_empty() {
            break;
        }
    }
    assert!(
        matches!(sandbox.ended[..], [(RuntimeId(1), EndReason::IngressLie { kthread: 0, .. })]),
        "{:?}",
        sandbox.ended
    );
    assert!(sandbox.peers.contains_key(&0));
}

#[test]
fn flows_follow_the_kthreads_that_have_cores() {
    let mut sandbox = Sandbox::new(3, Vec::new());
    sandbox.add(0, 1, 1, LatencyCritical);
    sandbox.add(1, 2, 0, LatencyCritical);
    sandbox.peer(0).queue(0, 1);
    sandbox.peer(1).queue(0, 4);
    sandbox.peer(1).queue(1, 4);
    for _ in 0..10 {
        sandbox.settle();
    }
    assert!((0..2).all(|k| sandbox.peer(1).state(k) == KthreadState::Running), "both have cores");
    let burst = |sandbox: &mut Sandbox| {
        for port in 0..64 {
            sandbox.peer(0).send_udp(0, ip(1), port);
        }
        (0..3).for_each(|_| sandbox.pass(100));
        [0, 1].map(|k| std::iter::from_fn(|| sandbox.peer(1).receive(k)).count())
    };
    let shares = burst(&mut sandbox);
    assert!(shares[0] + shares[1] == 64 && shares.iter().all(|&n| n > 10), "{shares:?}");
    (0..2).for_each(|k| sandbox.peer(1).queue(k, 0));
    sandbox.tick();
    sandbox.peer(1).park(1);
    sandbox.pass(100);
    assert_eq!(burst(&mut sandbox), [64, 0]);
}

#[test]
fn a_frame_for_a_runtime_without_a_core_wakes_it_and_waits_for_the_kthread_that_wakes() {
    let mut sandbox = Sandbox::new(2, Vec::new());
    sandbox.add(0, 1, 0, LatencyCritical);
    sandbox.add(1, 2, 0, LatencyCritical);
    sandbox.peer(0).queue(0, 1);
    sandbox.settle();
    // Its kthread 1 ran on core 1 last, so that is the one the policy wakes there.
    sandbox.peer(1).queue(1, 1);
    sandbox.settle();
    let woken = (0..2).find(|&k| sandbox.peer(1).state(k) == KthreadState::Running).unwrap();
    sandbox.peer(1).queue(1, 0);
    sandbox.peer(1).park(woken);
    sandbox.settle();
    sandbox.peer(0).send_udp(0, ip(1), 5);
    sandbox.pass(100);
    assert!(matches!(sandbox.peer(1).grant(woken).0, Grant::Run { .. }));
    assert!(sandbox.peer(1).receive(woken).is_some(), "the frame lies with a kthread that sleeps");
}

#[test]
fn what_a_kthread_sent_before_it_parked_is_still_sent() {
    let mut sandbox = two_running(Vec::new());
    sandbox.peer(0).queue(0, 0);
    sandbox.tick();
    for port in 0..50 {
        sandbox.peer(0).send_udp(0, ip(1), port);
    }
    sandbox.peer(0).park(0);
    for _ in 0..4 {
        sandbox.pass(100);
    }
    assert_eq!(std::iter::from_fn(|| sandbox.peer(1).receive(0)).count(), 50);
    assert!(sandbox.world.runtimes.get(RuntimeId(0)).unwrap().kthreads[0].egress.is_some(), "still polled");
}

#[test]
fn a_ring_that_is_refilled_without_a_core_is_served_in_the_turns_of_its_program() {
    let mut sandbox = two_running(Vec::new());
    sandbox.peer(0).queue(0, 0);
    sandbox.tick();
    let refill = |sandbox: &mut Sandbox| {
        // As ordinary threads of the program can.
        (0..TURN_FRAMES).for_each(|_| sandbox.peer(0).send_udp(0, ip(1), 5));
    };
    refill(&mut sandbox);
    sandbox.peer(0).park(0);
    for round in 1..100 {
        // A ring that is never found empty is not put aside.
        refill(&mut sandbox);
        sandbox.pass(100);
        let runtime = sandbox.world.runtimes.get(RuntimeId(0)).unwrap();
        assert_eq!(runtime.stats.counters.tx_frames.get(), round * TURN_FRAMES as u64);
    }
}

/// An uplink without frames of its own.
struct Fake {
    mac: Option<MacAddr>,
    fails: bool,
}

impl Port for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }
    fn attachment(&self) -> Attachment {
        Attachment::Uplink { gateway: None }
    }
    fn mac(&self) -> Option<MacAddr> {
        self.mac
    }
    fn start(&mut self, _: &Context) -> Result<(), PortError> {
        Ok(())
    }
    fn poll(&mut self, _: Cycles, _: usize, switch: &mut dyn Inject) -> Result<usize, PortError> {
        if self.fails {
            return Err(PortError { port: "fake".into(), why: "unplugged".into() });
        }
        let Some(mac) = self.mac else { return Ok(0) };
        let mut frame = udp(ELSEWHERE, ip(1), (1, 1), 60);
        frame[..6].copy_from_slice(&mac.0);
        assert_eq!(switch.inject(&frame), Delivery::Unknown, "nothing goes back where it came from");
        Ok(1)
    }
    fn transmit(&mut self, _: Cycles, _: &[u8]) -> bool {
        true
    }
}

#[test]
fn frames_for_an_uplinks_own_address_reach_it_whatever_address_a_runtime_has() {
    let mac = Some(MacAddr::derived(ip(1)));
    let mut sandbox = two_running(vec![Box::new(Fake { mac, fails: false })]);
    sandbox.peer(0).send_udp(0, ip(1), 5);
    sandbox.pass(100);
    assert_eq!(sandbox.peer(1).receive(0), None);
    assert_eq!(sandbox.world.stats.ports()[0].transmitted.get(), 1);
}

/// An uplink that has got another interface.
struct Renewed;

const BEFORE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const AFTER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

impl Port for Renewed {
    fn name(&self) -> &'static str {
        "renewed"
    }
    fn attachment(&self) -> Attachment {
        Attachment::Uplink { gateway: None }
    }
    fn mac(&self) -> Option<MacAddr> {
        Some(BEFORE)
    }
    fn start(&mut self, _: &Context) -> Result<(), PortError> {
        Ok(())
    }
    fn poll(&mut self, _: Cycles, _: usize, switch: &mut dyn Inject) -> Result<usize, PortError> {
        switch.renewed(Some(AFTER), true);
        Ok(0)
    }
    fn transmit(&mut self, _: Cycles, _: &[u8]) -> bool {
        true
    }
}

#[test]
fn an_uplink_with_another_interface_has_the_address_and_peer_of_that_one() {
    let mut sandbox = Sandbox::new(1, vec![Box::new(Renewed)]);
    let has = |sandbox: &Sandbox, mac: MacAddr| sandbox.switch.macs.find(mac.key()).is_some();
    assert!(has(&sandbox, BEFORE) && !has(&sandbox, AFTER) && !sandbox.switch.has_local_peer());
    sandbox.pass(100);
    assert!(!has(&sandbox, BEFORE) && has(&sandbox, AFTER) && sandbox.switch.has_local_peer());
}

#[test]
fn a_failed_port_is_detached_and_the_rest_goes_on() {
    let mut sandbox = two_running(vec![Box::new(Fake { mac: None, fails: true })]);
    assert_eq!(sandbox.world.stats.ports()[0].failed.get(), 1);
    sandbox.peer(0).send_udp(0, ip(1), 5);
    sandbox.pass(100);
    assert!(sandbox.peer(1).receive(0).is_some());
}
