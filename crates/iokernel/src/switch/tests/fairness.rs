//! What senders that never end leave to the others, as a table.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tailwater_ports::{Attachment, Context, Inject, Port, PortError, SendQueue};
use tailwater_sched::RuntimeId;
use tailwater_shm::Cycles;
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
use tailwater_testkit::frames::udp;

use super::{ELSEWHERE, TURN_FRAMES, ip, two_running};
use crate::fixture::{Sandbox, let_pass, measure_as};

/// Frames that the receiver reads in each iteration.
const READ: u32 = 16;
/// Frames of a burst that the uplink has room for.
const BURST: usize = 32;
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
            (0..TURN_FRAMES).for_each(|_| sandbox.peer(id).send_udp(0, ip(receiver), 5));
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

/// A best-effort program sends without end, to the service or elsewhere, in iterations of a
/// microsecond. Another service sends the service a frame in each of them, if it is served. Returns
/// how many of the program's frames were moved in each second.
fn moved_of_best_effort(to: Ipv4Addr, is_served: bool) -> u64 {
    let mut sandbox = Sandbox::new(3, Vec::new());
    for (id, class) in [(0, LatencyCritical), (1, BestEffort), (2, LatencyCritical)] {
        sandbox.add(id, 1, 1, class);
        sandbox.peer(id).queue(0, 1);
    }
    sandbox.settle();
    let moved =
        |sandbox: &Sandbox| sandbox.world.runtimes.get(RuntimeId(1)).unwrap().stats.counters.tx_frames.get();
    let (mut sent, mut before) = (0, 0);
    for ms in 0..60 {
        // Not those that come at once.
        before = if ms == 40 { moved(&sandbox) } else { before };
        for _ in 0..1_000 {
            // A turn waits at any time.
            while sent < moved(&sandbox) + TURN_FRAMES as u64 {
                sandbox.peer(1).send_udp(0, to, 5);
                sent += 1;
            }
            if is_served {
                sandbox.peer(2).send_udp(0, ip(0), 5);
            }
            sandbox.pass(1_000);
            while sandbox.peer(0).receive(0).is_some() {}
        }
    }
    (moved(&sandbox) - before) * 50
}

#[test]
fn frames_of_a_best_effort_program_take_a_sixteenth_of_the_core_of_a_service_that_is_served() {
    let all = 1_000_000 * TURN_FRAMES as u64;
    assert_eq!(moved_of_best_effort(ip(0), false), all);
    assert_eq!(moved_of_best_effort(ELSEWHERE, true), all, "they take none of a service's time");
    let to_service = moved_of_best_effort(ip(0), true);
    // 125 ns each.
    assert!(to_service.abs_diff(500_000) < 10_000, "{to_service} a second");
}

#[test]
fn an_iteration_ends_after_a_few_turns_and_the_next_one_begins_with_other_tenants() {
    const PROGRAMS: u32 = 8;
    let mut sandbox = Sandbox::new(PROGRAMS as u16, Vec::new());
    for id in 0..PROGRAMS {
        sandbox.add(id, 1, 1, LatencyCritical);
        sandbox.peer(id).queue(0, 1);
    }
    sandbox.settle();
    // Each reading of the clock is half a turn later, and one is due after eight frames.
    measure_as(sandbox.switch.timing.turn / 2);
    let sent = |sandbox: &Sandbox, id| {
        sandbox.world.runtimes.get(RuntimeId(id)).unwrap().stats.counters.tx_frames.get()
    };
    for round in 1..=4 {
        for id in 0..PROGRAMS {
            (0..TURN_FRAMES / 2).for_each(|_| sandbox.peer(id).send_udp(0, ip(id), 5));
        }
        for _ in 0..PROGRAMS {
            sandbox.pass(100);
            (0..PROGRAMS).for_each(|id| while sandbox.peer(id).receive(0).is_some() {});
        }
        let all: Vec<u64> = (0..PROGRAMS).map(|id| sent(&sandbox, id)).collect();
        assert!(all.iter().all(|&frames| frames == all[0] && frames > 0), "round {round}: {all:?}");
    }
    measure_as(0);
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
fn uplink(per_poll: u32) -> (Slow, Arc<[AtomicU32; 2]>) {
    let came = Arc::new([0, 0].map(AtomicU32::new));
    let (sent, waiting, counted, counts) = (0, 0, 0, Arc::default());
    let slow = Slow { per_poll, size: 256, sent, waiting, counted, counts, came: Arc::clone(&came) };
    (slow, came)
}

/// Runtimes 0 and 1, and an uplink; returns the counters of their frames that it took.
fn beside_uplink(per_poll: u32) -> (Sandbox, Arc<[AtomicU32; 2]>) {
    let (slow, came) = uplink(per_poll);
    (two_running(vec![Box::new(slow)]), came)
}

#[test]
fn an_honest_sender_beside_a_greedy_one_loses_nothing_at_an_uplink_that_is_full() {
    let (mut sandbox, came) = beside_uplink(8);
    for _ in 0..ROUNDS {
        (0..TURN_FRAMES).for_each(|_| sandbox.peer(1).send_udp(0, ELSEWHERE, 5));
        (0..3).for_each(|_| sandbox.peer(0).send_udp(0, ELSEWHERE, 5));
        sandbox.pass(1_000);
    }
    let came: Vec<u32> = came.iter().map(|frames| frames.load(Ordering::Relaxed)).collect();
    assert_eq!(came[0], 3 * ROUNDS);
    assert!(came[1] >= 5 * ROUNDS, "{} frames, for which there was room", came[1]);
}

#[test]
fn what_a_port_holds_is_counted_once_an_epoch_while_no_frame_is_refused() {
    let (slow, came) = uplink(8);
    let counts = Arc::clone(&slow.counts);
    let mut sandbox = two_running(vec![Box::new(slow)]);
    for _ in 0..4 {
        (0..BURST).for_each(|_| sandbox.peer(0).send_udp(0, ELSEWHERE, 5));
        sandbox.pass(1_000);
    }
    for _ in 0..ROUNDS {
        (0..8).for_each(|_| sandbox.peer(0).send_udp(0, ELSEWHERE, 5));
        sandbox.pass(1_000);
    }
    let (came, counts) = (came[0].load(Ordering::Relaxed), counts.load(Ordering::Relaxed));
    assert_eq!(came, 8 * ROUNDS + 4 * BURST as u32);
    assert!((1..=came / 64).contains(&counts), "{counts} times for {came} frames");
}

#[test]
fn a_turn_ends_with_the_frame_to_a_port_that_takes_as_long() {
    let (mut sandbox, came) = beside_uplink(32);
    (0..TURN_FRAMES).for_each(|_| sandbox.peer(0).send_udp(0, ELSEWHERE, 5));
    // From one reading of the clock to the next a turn passes.
    measure_as(sandbox.switch.timing.turn);
    for round in 1..=4 {
        sandbox.pass(100);
        assert_eq!(came[0].load(Ordering::Relaxed), round);
    }
    measure_as(0);
}

/// An uplink that holds back the frames that it takes, and counts how often it sent them.
#[derive(Default)]
struct Holding {
    holds: bool,
    sent: Arc<AtomicU32>,
}

/// Time that it takes to send them: more than is charged of one call.
const SENDING: Cycles = 200_000;

impl Port for Holding {
    fn name(&self) -> &'static str {
        "holding"
    }
    fn attachment(&self) -> Attachment {
        Attachment::Uplink { gateway: None }
    }
    fn start(&mut self, _: &Context) -> Result<(), PortError> {
        Ok(())
    }
    fn poll(&mut self, _: Cycles, _: usize, _: &mut dyn Inject) -> Result<usize, PortError> {
        Ok(0)
    }
    fn transmit(&mut self, _: Cycles, _: &[u8]) -> bool {
        self.holds = true;
        true
    }
    fn awaits_more(&self) -> bool {
        self.holds
    }
    fn flush(&mut self) {
        if core::mem::take(&mut self.holds) {
            let_pass(SENDING);
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Two runtimes beside such an uplink, and how often it sent what it held.
fn beside_holding() -> (Sandbox, Arc<AtomicU32>) {
    let port = Holding::default();
    let sent = Arc::clone(&port.sent);
    (two_running(vec![Box::new(port)]), sent)
}

#[test]
fn what_a_port_holds_waits_for_more_of_its_sender_and_leaves_when_none_comes() {
    let (mut sandbox, sent) = beside_holding();
    let hold = sandbox.switch.timing.hold;
    for _ in 0..10 {
        sandbox.peer(0).send_udp(0, ELSEWHERE, 5);
        sandbox.pass(hold - 1);
        // Frames of others that are not for the port change nothing.
        sandbox.peer(1).send_udp(0, ip(1), 5);
        sandbox.pass(1);
        assert_eq!(sent.load(Ordering::Relaxed), 0);
    }
    // The loop does not rest meanwhile.
    let poll =
        |sandbox: &mut Sandbox, now| sandbox.switch.poll_egress(&mut sandbox.world, &mut sandbox.alloc, now);
    let last = sandbox.now - 1;
    assert_eq!((poll(&mut sandbox, last + hold - 1), sent.load(Ordering::Relaxed)), (1, 0));
    assert_eq!((poll(&mut sandbox, last + hold), sent.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn the_sender_pays_for_what_a_port_held_of_it_whoever_makes_it_leave() {
    let (mut sandbox, sent) = beside_holding();
    let tag = |sandbox: &Sandbox, id| {
        let tenant = sandbox.world.runtimes.get(RuntimeId(id)).unwrap().tenant;
        sandbox.world.runtimes.tenants.get(tenant).tag
    };
    let before = [0, 1].map(|id| tag(&sandbox, id));
    sandbox.peer(0).send_udp(0, ELSEWHERE, 5);
    sandbox.pass(100);
    (0..2).for_each(|_| sandbox.peer(1).send_udp(0, ELSEWHERE, 5));
    sandbox.pass(100);
    assert_eq!(sent.load(Ordering::Relaxed), 1, "frames of two senders are not held together");
    assert!(tag(&sandbox, 0) > before[0]);
    assert_eq!(tag(&sandbox, 1), before[1]);
    assert!(!sandbox.switch.has_egress_of(RuntimeId(1)), "the call ends no turn of the other");
    // Nor does it pay for its own before that is sent.
    sandbox.pass(sandbox.switch.timing.hold);
    assert_eq!(sent.load(Ordering::Relaxed), 2);
    assert!(tag(&sandbox, 1) > before[1]);
}

#[test]
fn what_a_port_holds_leaves_before_an_end_and_its_tenant_pays_the_reading_with_the_call() {
    let (mut sandbox, sent) = beside_holding();
    let tenant = sandbox.world.runtimes.get(RuntimeId(0)).unwrap().tenant;
    let longest = sandbox.switch.timing.longest_turn;
    sandbox.peer(0).send_udp(0, ELSEWHERE, 5);
    sandbox.pass(100);
    sandbox.world.runtimes.tenants.get_mut(tenant).charge_port_time(longest, longest);
    sandbox.switch.detach(RuntimeId(0), &mut sandbox.world);
    assert_eq!(sent.load(Ordering::Relaxed), 1);
    assert_eq!(sandbox.world.runtimes.tenants.get_mut(tenant).cost_of_turn(1), 1, "nothing is owed");
}

#[test]
fn looks_at_the_rings_of_many_kthreads_without_a_core_are_charged() {
    for (kthreads, charged) in [(20, true), (10, false)] {
        let mut sandbox = Sandbox::new(1, Vec::new());
        sandbox.add(0, kthreads, 0, BestEffort);
        let runtime = sandbox.world.runtimes.get_mut(RuntimeId(0)).unwrap();
        let rings: Vec<_> = runtime.kthreads.iter_mut().filter_map(|kthread| kthread.egress.take()).collect();
        sandbox.world.arriving.extend(rings);
        let frame = udp(ip(0), ip(0), (5, 7), 60);
        measure_as(sandbox.switch.timing.turn);
        // A look costs ten times the 2 us that it takes, and 200 ms may be unpaid.
        for _ in 0..12_000 {
            for kthread in &mut sandbox.peer(0).kthreads {
                if let Ok(mut slot) = kthread.egress.reserve(frame.len()) {
                    slot.write(0, &frame);
                    slot.commit(0, 0, 0);
                }
            }
            sandbox.pass(1_000);
        }
        measure_as(0);
        let counters = &sandbox.world.runtimes.get(RuntimeId(0)).unwrap().stats.counters;
        assert_eq!(counters.throttled.get() > 0, charged, "{kthreads} rings");
    }
}
