//! What senders that never end leave to the others, as a table.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tailwater_sched::RuntimeId;
use tailwater_shm::Cycles;
use tailwater_shm::control::Class::{BestEffort, LatencyCritical};

use super::super::PARTY_BATCH;
use super::{EGRESS_BATCH, ELSEWHERE, ip, two_running};
use crate::fixture::{Sandbox, measure_as};
use crate::port::{Attachment, Context, Inject, Port, PortError, SendQueue};

/// Frames that the receiver reads in each iteration.
const READ: u32 = 16;
/// Iterations.
const ROUNDS: u32 = 9_000;

/// Frames that came of those that were sent, in percent.
struct Outcome {
    honest: f64,
    greedy: Vec<f64>,
}

/// An honest program sends nine tenths of an equal share of what the receiver reads, and greedy
/// ones, of one user or of root, as much as an iteration takes. All send to the receiver, the last
/// runtime.
fn flood(greedy: u32, user: Option<u32>) -> Outcome {
    let receiver = greedy + 1;
    let mut sandbox = Sandbox::new(receiver as u16 + 1, Vec::new());
    for id in 0..=receiver {
        let user = user.filter(|_| (1..=greedy).contains(&id));
        sandbox.add_of(user, id, 1, 1, LatencyCritical);
        sandbox.peer(id).queue(0, 1);
    }
    sandbox.settle();
    let shares = if user.is_some() { 2 } else { greedy + 1 };
    let (mut sent, mut due) = (0_u32, 0.0);
    let mut came = vec![0_u32; receiver as usize];
    for _ in 0..ROUNDS {
        for id in 1..=greedy {
            (0..EGRESS_BATCH).for_each(|_| sandbox.peer(id).send_udp(0, ip(receiver), 5));
        }
        due += f64::from(READ) / f64::from(shares) * 0.9;
        while f64::from(sent) + 1.0 <= due {
            sandbox.peer(0).send_udp(0, ip(receiver), 5);
            sent += 1;
        }
        sandbox.pass(1_000);
        for _ in 0..READ {
            let Some(frame) = sandbox.peer(receiver).receive(0) else { break };
            // The last byte of the sender's IPv4 address (RFC 791 section 3.1).
            came[usize::from(frame[29] - 10)] += 1;
        }
    }
    let all = f64::from(ROUNDS * READ);
    let greedy = came[1..].iter().map(|&frames| f64::from(frames) / all * 100.0).collect();
    // Some of the last ones are still in the ring.
    Outcome { honest: (f64::from(came[0]) / f64::from(sent) * 100.0).round(), greedy }
}

#[test]
fn an_honest_sender_beside_greedy_ones_loses_nothing_of_its_share() {
    let mut table =
        "greedy | honest sender's frames that came | each greedy one's part of the ring\n".to_owned();
    for greedy in [1, 2, 4, 8] {
        let outcome = flood(greedy, None);
        let least = outcome.greedy.iter().copied().fold(f64::MAX, f64::min);
        let most = outcome.greedy.iter().copied().fold(0.0, f64::max);
        writeln!(table, "{greedy} | {} % | {least:.0} to {most:.0} %", outcome.honest).unwrap();
    }
    let expected = "greedy | honest sender's frames that came | each greedy one's part of the ring\n\
                    1 | 100 % | 55 to 55 %\n\
                    2 | 100 % | 35 to 35 %\n\
                    4 | 100 % | 20 to 21 %\n\
                    8 | 100 % | 11 to 11 %\n";
    assert_eq!(table, expected);
}

#[test]
fn the_programs_of_one_user_have_one_share_of_a_ring() {
    let outcome = flood(2, Some(7));
    assert_eq!(outcome.honest, 100.0);
    let theirs: f64 = outcome.greedy.iter().sum();
    assert!((54.0..57.0).contains(&theirs), "{theirs} % of the ring");
}

#[test]
fn a_program_within_its_part_of_the_share_of_its_user_loses_nothing_beside_a_greedy_one() {
    const PROGRAMS: u32 = 4;
    let mut sandbox = Sandbox::new(PROGRAMS as u16 + 1, Vec::new());
    for id in 0..=PROGRAMS {
        sandbox.add_of((id < PROGRAMS).then_some(7), id, 1, 1, LatencyCritical);
        sandbox.peer(id).queue(0, 1);
    }
    sandbox.settle();
    let (mut sent, mut due) = (0, 0);
    let mut came = [0_u32; PROGRAMS as usize];
    for round in 0..3_200 {
        if round < 3_000 {
            (0..EGRESS_BATCH).for_each(|_| sandbox.peer(0).send_udp(0, ip(PROGRAMS), 5));
            // Nine tenths of an equal part.
            due += READ * 9;
            while due >= 10 * PROGRAMS {
                (1..PROGRAMS).for_each(|id| sandbox.peer(id).send_udp(0, ip(PROGRAMS), 5));
                due -= 10 * PROGRAMS;
                sent += 1;
            }
        }
        sandbox.pass(1_000);
        for _ in 0..READ {
            let Some(frame) = sandbox.peer(PROGRAMS).receive(0) else { break };
            came[usize::from(frame[29] - 10)] += 1;
        }
    }
    for came in &came[1..] {
        // Some are lost before the parts of all are reserved.
        assert!(sent - came <= 16, "{came} of {sent}");
    }
}

#[test]
fn the_programs_of_one_user_are_served_two_batches_in_an_iteration() {
    const PROGRAMS: u32 = 16;
    let mut sandbox = Sandbox::new(PROGRAMS as u16 + 1, Vec::new());
    for id in 0..=PROGRAMS {
        let user = (id > 0).then_some(7);
        sandbox.add_of(user, id, 1, 1, LatencyCritical);
        sandbox.peer(id).queue(0, 1);
    }
    sandbox.settle();
    for id in 0..=PROGRAMS {
        (0..EGRESS_BATCH).for_each(|_| sandbox.peer(id).send_udp(0, ip(id), 5));
    }
    let sent = |sandbox: &Sandbox, id| {
        sandbox.world.runtimes.get(RuntimeId(id)).unwrap().stats.counters.tx_frames.get() as usize
    };
    for round in 1..=PROGRAMS as usize / 2 {
        sandbox.pass(100);
        assert_eq!(sent(&sandbox, 0), EGRESS_BATCH);
        let theirs: usize = (1..=PROGRAMS).map(|id| sent(&sandbox, id)).sum();
        assert_eq!(theirs, round * PARTY_BATCH);
    }
}

/// A best-effort program sends without end, to the service or elsewhere, in iterations of a
/// microsecond; each of its batches takes one. Another service sends the service a frame in each of
/// them, if it is served. Returns how many of the program's frames were moved.
fn moved_of_best_effort(to: Ipv4Addr, is_served: bool) -> u64 {
    measure_as(1_000);
    let mut sandbox = Sandbox::new(3, Vec::new());
    for (id, class) in [(0, LatencyCritical), (1, BestEffort), (2, LatencyCritical)] {
        sandbox.add(id, 1, 1, class);
        sandbox.peer(id).queue(0, 1);
    }
    sandbox.settle();
    let moved =
        |sandbox: &Sandbox| sandbox.world.runtimes.get(RuntimeId(1)).unwrap().stats.counters.tx_frames.get();
    let mut sent = 0;
    for _ in 0..ROUNDS {
        // A batch waits at any time.
        while sent < moved(&sandbox) + EGRESS_BATCH as u64 {
            sandbox.peer(1).send_udp(0, to, 5);
            sent += 1;
        }
        if is_served {
            sandbox.peer(2).send_udp(0, ip(0), 5);
        }
        sandbox.pass(1_000);
        while sandbox.peer(0).receive(0).is_some() {}
    }
    moved(&sandbox)
}

#[test]
fn a_best_effort_program_that_sends_without_end_rests_while_a_service_is_served() {
    let all = u64::from(ROUNDS) * EGRESS_BATCH as u64;
    assert_eq!(moved_of_best_effort(ip(0), false), all);
    let batches = |rest: u32, batch: u32| {
        let frames = u64::from(ROUNDS / rest * batch);
        frames..=frames + EGRESS_BATCH as u64
    };
    // A microsecond for the batch, and one for the ports.
    let elsewhere = moved_of_best_effort(ELSEWHERE, true);
    assert!(batches(4 * 2, EGRESS_BATCH as u32).contains(&elsewhere), "{elsewhere} of {all}");
    // And half of one for each of four frames.
    let to_service = moved_of_best_effort(ip(0), true);
    assert!(batches(4 * 4, 4).contains(&to_service), "{to_service} of {all}");
}

/// An uplink that sends so many frames in each iteration, and drops what its queue has no room for.
struct Slow {
    per_poll: u32,
    size: u32,
    sent: u64,
    waiting: u32,
    /// `waiting` as last counted, and the frames taken since.
    counted: u32,
    /// Times that it was counted.
    counts: Arc<AtomicU32>,
    /// Frames by sender.
    came: Arc<[AtomicU32; 2]>,
    weight: usize,
}

impl Port for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn attachment(&self) -> Attachment {
        Attachment::Uplink { gateway: None }
    }
    fn start(&mut self, _: &Context) -> Result<(), PortError> {
        Ok(())
    }
    fn poll(&mut self, _: Cycles, _: usize, _: &mut dyn Inject) -> Result<usize, PortError> {
        self.waiting = self.waiting.saturating_sub(self.per_poll);
        Ok(0)
    }
    fn transmit(&mut self, _: Cycles, frame: &[u8]) -> bool {
        let takes = self.waiting < self.size;
        if takes {
            self.waiting += 1;
            self.counted += 1;
            self.sent += 1;
            self.came[usize::from(frame[29] - 10)].fetch_add(1, Ordering::Relaxed);
        }
        takes
    }
    fn weight(&self) -> usize {
        self.weight
    }
    fn queue(&self, _: &[u8]) -> Option<SendQueue> {
        let Self { sent, counted, size, .. } = *self;
        Some(SendQueue { number: 0, sent, waiting: counted, size })
    }
    fn recount(&mut self, _: usize) -> Option<SendQueue> {
        self.counts.fetch_add(1, Ordering::Relaxed);
        self.counted = self.waiting;
        self.queue(&[])
    }
    fn flush(&mut self) {
        self.counted = self.waiting;
    }
}

/// An uplink that takes so many frames in each iteration, and its counter of frames.
fn uplink(per_poll: u32, weight: usize) -> (Slow, Arc<[AtomicU32; 2]>) {
    let came = Arc::new([0, 0].map(AtomicU32::new));
    let (sent, waiting, counted, counts) = (0, 0, 0, Arc::default());
    let slow = Slow { per_poll, size: 256, sent, waiting, counted, counts, came: Arc::clone(&came), weight };
    (slow, came)
}

/// Runtimes 0 and 1, and an uplink; returns the counters of their frames that it took.
fn beside_uplink(per_poll: u32, weight: usize) -> (Sandbox, Arc<[AtomicU32; 2]>) {
    let (slow, came) = uplink(per_poll, weight);
    (two_running(vec![Box::new(slow)]), came)
}

#[test]
fn an_honest_sender_beside_a_greedy_one_loses_nothing_at_an_uplink_that_is_full() {
    let (mut sandbox, came) = beside_uplink(8, 0);
    for _ in 0..ROUNDS {
        (0..EGRESS_BATCH).for_each(|_| sandbox.peer(1).send_udp(0, ELSEWHERE, 5));
        (0..3).for_each(|_| sandbox.peer(0).send_udp(0, ELSEWHERE, 5));
        sandbox.pass(1_000);
    }
    let came: Vec<u32> = came.iter().map(|frames| frames.load(Ordering::Relaxed)).collect();
    assert_eq!(came[0], 3 * ROUNDS);
    assert!(came[1] >= 5 * ROUNDS, "{} frames, for which there was room", came[1]);
}

#[test]
fn what_a_port_holds_is_counted_once_an_epoch_while_no_frame_is_refused() {
    let (slow, came) = uplink(8, 0);
    let counts = Arc::clone(&slow.counts);
    let mut sandbox = two_running(vec![Box::new(slow)]);
    for _ in 0..4 {
        (0..EGRESS_BATCH).for_each(|_| sandbox.peer(0).send_udp(0, ELSEWHERE, 5));
        sandbox.pass(1_000);
    }
    for _ in 0..ROUNDS {
        (0..8).for_each(|_| sandbox.peer(0).send_udp(0, ELSEWHERE, 5));
        sandbox.pass(1_000);
    }
    let (came, counts) = (came[0].load(Ordering::Relaxed), counts.load(Ordering::Relaxed));
    assert_eq!(came, 8 * ROUNDS + 4 * EGRESS_BATCH as u32);
    assert!((1..=came / 64).contains(&counts), "{counts} times for {came} frames");
}

#[test]
fn a_frame_to_a_port_that_takes_long_counts_as_several() {
    let (mut sandbox, came) = beside_uplink(32, 7);
    (0..EGRESS_BATCH).for_each(|_| sandbox.peer(0).send_udp(0, ELSEWHERE, 5));
    for round in 1..=4 {
        sandbox.pass(100);
        assert_eq!(came[0].load(Ordering::Relaxed), 4 * round, "eight units each, of 32");
    }
}
