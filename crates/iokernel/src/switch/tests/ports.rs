//! How long ports are read, whose time that is, and who is served through them.

use tailwater_ports::fault::FaultPort;
use tailwater_sched::RuntimeId;
use tailwater_shm::Cycles;
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
use tailwater_testkit::frames::udp;
use tailwater_wire::MacAddr;

use super::{ELSEWHERE, TURN_FRAMES, ip, station, two_running};
use crate::fixture::{INGRESS_TAIL, Sandbox, measure_as};
use crate::runtime::EndReason;

/// A station's address, and a frame of it for this runtime.
fn from_station(id: u32) -> (MacAddr, Vec<u8>) {
    let mac = MacAddr([2, 0, 0, 0, 0, 0x99]);
    (mac, from(mac, id))
}

/// A frame of the station with this address for this runtime.
fn from(mac: MacAddr, id: u32) -> Vec<u8> {
    let mut frame = udp(ip(0), ip(id), (5, 7), 60);
    frame[6..12].copy_from_slice(&mac.0);
    frame[26..30].copy_from_slice(&ELSEWHERE.octets());
    frame
}

#[test]
fn a_port_is_read_for_as_long_as_all_turns_of_an_iteration() {
    let (mac, frame) = from_station(0);
    let (port, wire) = station(mac, Some(ELSEWHERE));
    let mut sandbox = two_running(vec![port]);
    let time = sandbox.switch.timing.iteration;
    let mut read = |time: Cycles| {
        while wire.send(&frame) {}
        measure_as(time);
        let before = sandbox.world.stats.ports()[0].injected.get();
        sandbox.pass(1_000);
        measure_as(0);
        while sandbox.peer(0).receive(0).is_some() {}
        sandbox.world.stats.ports()[0].injected.get() - before
    };
    // From one reading of the clock to the next, which are eight frames apart.
    assert_eq!([time / 8, time / 2, time, 4 * time].map(&mut read), [32, 16, 8, 8]);
    // One slow poll has no effect on the next.
    assert_eq!(read(time / 8), 32);
}

#[test]
fn a_port_is_read_no_further_after_a_frame_that_took_long() {
    // One for a program that sleeps, which is woken for it, and one for all.
    let (mac, frame) = from_station(0);
    let mut to_all = frame.clone();
    to_all[..6].fill(0xff);
    for frame in [frame, to_all] {
        let (port, wire) = station(mac, Some(ELSEWHERE));
        let mut sandbox = Sandbox::new(1, vec![port]);
        sandbox.add(0, 1, 0, LatencyCritical);
        (0..4).for_each(|_| assert!(wire.send(&frame)));
        measure_as(sandbox.switch.timing.iteration);
        sandbox.pass(100);
        measure_as(0);
        assert_eq!(sandbox.world.stats.ports()[0].injected.get(), 1);
        sandbox.pass(100);
        assert_eq!(sandbox.world.stats.ports()[0].injected.get(), 4);
    }
}

/// Runtimes 0 and 1 send without end, and a station sends this frame so many times in each
/// iteration. Each reading of the clock takes 2 us: a turn has two, reading the station one and one
/// more for eight frames. Returns how many frames each runtime has sent.
fn sent_beside_a_station(frame: &[u8], times: u32) -> [u64; 2] {
    let (mac, _) = from_station(0);
    let (port, wire) = station(mac, Some(ELSEWHERE));
    let mut sandbox = two_running(vec![port]);
    let moved = |sandbox: &Sandbox, id| {
        sandbox.world.runtimes.get(RuntimeId(id)).unwrap().stats.counters.tx_frames.get()
    };
    let mut queued = [0; 2];
    measure_as(sandbox.switch.timing.turn);
    for _ in 0..1_000 {
        for _ in 0..times {
            wire.send(frame);
        }
        for id in 0..2 {
            let queued = &mut queued[id as usize];
            while *queued < moved(&sandbox, id) + TURN_FRAMES as u64 {
                sandbox.peer(id).send_udp(0, ELSEWHERE, 5);
                *queued += 1;
            }
        }
        sandbox.pass(1_000);
        while sandbox.peer(0).receive(0).is_some() {}
        while wire.receive().is_some() {}
    }
    measure_as(0);
    [0, 1].map(|id| moved(&sandbox, id))
}

#[test]
fn a_program_pays_with_its_turns_for_what_is_read_from_a_port_for_it() {
    let (_, frame) = from_station(0);
    let [flooded, other] = sent_beside_a_station(&frame, 0);
    assert_eq!(flooded, other);
    // A turn takes 4 us, and there is one in each iteration. Of those the flooded program has a
    // quarter if 2 us are read for it in each. It pays with three quarters of its turns at most,
    // so it has a fifth if 4 us are read for it, or more.
    for (times, part) in [(1, 3), (8, 4), (32, 4)] {
        let [flooded, other] = sent_beside_a_station(&frame, times);
        assert!((flooded * part).abs_diff(other) < other / 20, "{times}: {flooded} and {other}");
    }
}

#[test]
fn no_program_pays_for_what_is_read_from_a_port_for_all() {
    let (_, mut frame) = from_station(0);
    frame[..6].fill(0xff);
    let [one, other] = sent_beside_a_station(&frame, 1);
    assert!(one.abs_diff(other) < other / 20, "{one} and {other}");
}

/// Time from one reading of the clock to the next, where the time charged is compared.
const STEP: Cycles = 60;

/// Runs an iteration in which each reading of the clock is [`STEP`] later; returns for how long
/// ports were read for runtimes 0 and 1, as their tenants have to pay it. For one that has ended it
/// is 0.
fn charged(sandbox: &mut Sandbox) -> [Cycles; 2] {
    measure_as(STEP);
    sandbox.pass(1_000);
    measure_as(0);
    let turn = sandbox.switch.timing.longest_turn;
    [0, 1].map(|id| {
        let Some(tenant) = sandbox.world.runtimes.get(RuntimeId(id)).map(|runtime| runtime.tenant) else {
            return 0;
        };
        sandbox.world.runtimes.tenants.get_mut(tenant).cost_of_turn(turn) - turn
    })
}

#[test]
fn what_falls_to_frames_for_all_is_charged_to_no_program_that_was_sent_others() {
    let (mac, frame) = from_station(0);
    let mut to_all = frame.clone();
    to_all[..6].fill(0xff);
    let (port, wire) = station(mac, Some(ELSEWHERE));
    let mut sandbox = two_running(vec![port]);
    for frame in [&frame, &to_all, &to_all] {
        assert!(wire.send(frame));
    }
    // After each of the two that go to all the clock is read, and once at the end: a third of three
    // steps.
    assert_eq!(charged(&mut sandbox), [STEP, 0]);
}

#[test]
fn each_port_is_paid_by_those_who_are_sent_its_frames() {
    let [one, other] = [0x98, 0x99].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
    let (first, wire) = station(one, None);
    let (second, other_wire) = station(other, Some(ELSEWHERE));
    let mut sandbox = two_running(vec![first, second]);
    for _ in 0..3 {
        assert!(wire.send(&from(one, 0)));
    }
    assert!(other_wire.send(&from(other, 1)));
    assert_eq!(charged(&mut sandbox), [STEP, STEP]);
    assert!(other_wire.send(&from(other, 1)));
    assert_eq!(charged(&mut sandbox), [0, STEP], "nothing of the first port is left");
}

#[test]
fn a_program_that_ends_while_a_port_is_read_pays_its_part_and_leaves_none_to_others() {
    let (mac, frame) = from_station(0);
    let (port, wire) = station(mac, Some(ELSEWHERE));
    let mut sandbox = two_running(vec![port]);
    sandbox.peer(1).scribble(INGRESS_TAIL, u64::MAX);
    let to_ended = from(mac, 1);
    let tenant = |sandbox: &Sandbox| sandbox.world.runtimes.get(RuntimeId(1)).unwrap().tenant;
    let number = tenant(&sandbox);
    // Its position is read once its ring seems full.
    for _ in 0..600 {
        for frame in [&to_ended, &to_ended, &frame, &frame] {
            assert!(wire.send(frame));
        }
        let [paid, of_ended] = charged(&mut sandbox);
        assert_eq!(paid, STEP / 2);
        while sandbox.peer(0).receive(0).is_some() {}
        if !sandbox.ended.is_empty() {
            assert_eq!(of_ended, 0);
            break;
        }
        assert_eq!(of_ended, STEP / 2);
    }
    assert!(
        matches!(sandbox.ended[..], [(RuntimeId(1), EndReason::IngressLie { kthread: 0, .. })]),
        "{:?}",
        sandbox.ended
    );
    sandbox.add(1, 1, 1, LatencyCritical);
    assert_eq!(tenant(&sandbox), number, "it has the number of the ended one");
    assert_eq!(charged(&mut sandbox), [0, 0]);
}

#[test]
fn a_port_that_counts_more_than_it_injects_charges_each_frame_its_part_of_what_it_counts() {
    // A bad network counts the frames that it takes, and those that arrive.
    for (spec, part) in [("in.duplicate=100%", STEP * 2 / 3), ("in.loss=100%", 0)] {
        let (mac, frame) = from_station(0);
        let (port, wire) = station(mac, Some(ELSEWHERE));
        let mut sandbox = two_running(vec![Box::new(FaultPort::new(port, spec.parse().unwrap()))]);
        assert!(wire.send(&frame));
        assert_eq!(charged(&mut sandbox), [part, 0], "{spec}");
    }
}

#[test]
fn services_that_others_than_local_peers_send_to_are_known_for_a_while() {
    let [local, other] = [0x98, 0x99].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
    let (first, local_wire) = station(local, None);
    let (second, wire) = station(other, Some(ELSEWHERE));
    let mut sandbox = Sandbox::new(3, vec![first, second]);
    for (id, class) in [(0, LatencyCritical), (1, LatencyCritical), (2, BestEffort)] {
        sandbox.add(id, 1, 1, class);
        sandbox.peer(id).queue(0, 1);
    }
    sandbox.settle();
    let only = |sandbox: &Sandbox| sandbox.switch.serves_local_peers_only(sandbox.now);
    assert!(!only(&sandbox), "no port has a peer on this machine");
    sandbox.switch.ports[0].local = true;
    let mut to_all = from(other, 0);
    to_all[..6].fill(0xff);
    assert!(local_wire.send(&from(local, 0)) && wire.send(&from(other, 2)) && wire.send(&to_all));
    sandbox.peer(2).send_udp(0, ip(0), 5);
    sandbox.peer(1).send_udp(0, ip(1), 5);
    sandbox.pass(100);
    assert_eq!(sandbox.world.stats.switch.delivered.get(), 7);
    assert!(only(&sandbox), "a peer, a batch job, the service itself, and frames to a batch job and to all");
    let lasts = sandbox.switch.timing.others_served;
    assert!(wire.send(&from(other, 0)));
    sandbox.pass(100);
    assert!(!only(&sandbox), "from a station that is elsewhere");
    sandbox.pass(lasts - 100);
    assert!(!only(&sandbox));
    sandbox.pass(100);
    assert!(only(&sandbox));
    sandbox.peer(1).send_udp(0, ip(0), 5);
    sandbox.pass(100);
    assert!(!only(&sandbox), "from another service");
}
