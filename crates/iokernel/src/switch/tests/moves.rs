//! Flow groups that move while frames of theirs wait: order within each flow, and losses nowhere.

use proptest::prelude::*;
use tailwater_sched::RuntimeId;
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
use tailwater_testkit::frames::udp;

use crate::fixture::{INGRESS_TAIL, Sandbox};
use crate::switch::flow::FlowGroups;

const CLIENT: u32 = 0;
const SERVICE: u32 = 1;
const KTHREADS: u16 = 4;
const FLOWS: u16 = 6;

/// A client on a core of its own, and a service of four kthreads of which number 0 serves.
fn sandbox() -> Sandbox {
    let mut sandbox = Sandbox::new(2, Vec::new());
    sandbox.add(CLIENT, 1, 1, BestEffort);
    sandbox.add(SERVICE, KTHREADS, 0, LatencyCritical);
    sandbox.peer(CLIENT).queue(0, 1);
    sandbox.settle();
    groups(&mut sandbox).gain(0);
    sandbox
}

fn groups(sandbox: &mut Sandbox) -> &mut FlowGroups {
    &mut sandbox.world.runtimes.get_mut(RuntimeId(SERVICE)).expect("it is registered").groups
}

/// Moves all flows from the kthread that serves to `to`.
fn move_all(sandbox: &mut Sandbox, to: u16) {
    let groups = groups(sandbox);
    groups.gain(to);
    (0..KTHREADS).filter(|&k| k != to).for_each(|k| groups.lose(k));
}

/// Fills kthread 1's ring and sends a frame of flow 0 there, which finds no room and is dropped.
/// Ring 0 has been read beyond all that ring 1 has ever had.
fn drop_the_first_frame_in_a_full_ring(sandbox: &mut Sandbox) {
    for number in 0..2_000 {
        send_within(sandbox, 0, number, 0);
        assert!(receive(sandbox, 0).is_some());
    }
    move_all(sandbox, 1);
    let full = |sandbox: &Sandbox| sandbox.world.stats.switch.dropped_full.get();
    while full(sandbox) == 0 {
        send_within(sandbox, 1, 0, 0);
    }
    send_within(sandbox, 0, 1, 0);
    assert_eq!((full(sandbox), sandbox.ended.len()), (2, 0));
}

fn send(sandbox: &mut Sandbox, flow: u16, number: u16) {
    send_within(sandbox, flow, number, 100);
}

fn send_within(sandbox: &mut Sandbox, flow: u16, number: u16, ns: u64) {
    let (from, to) = (sandbox.peers[&CLIENT].ip, sandbox.peers[&SERVICE].ip);
    let mut frame = udp(from, to, (5_000 + flow, 7), 60);
    frame[58..].copy_from_slice(&number.to_be_bytes());
    sandbox.peer(CLIENT).send(0, &frame);
    sandbox.pass(ns);
}

/// Returns flow and number of the next frame in the ring of kthread `k`, if no fence holds it.
fn receive(sandbox: &mut Sandbox, k: u16) -> Option<(u16, u16)> {
    let frame = sandbox.peer(SERVICE).receive(k)?;
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    Some((word(34) - 5_000, word(58)))
}

fn counters(sandbox: &Sandbox) -> (u64, u64) {
    let switch = &sandbox.world.stats.switch;
    (switch.moved_groups.get(), switch.fenced_groups.get())
}

#[derive(Debug, Clone)]
enum Operation {
    Send(u16),
    /// More frames than a ring has room for.
    Burst(u16),
    /// Frames that are read at once: the rings get to different positions.
    Serve(u16),
    Gain(u16),
    Lose(u16),
    Read(u16),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        6 => (0..FLOWS).prop_map(Operation::Send),
        1 => (0..FLOWS).prop_map(Operation::Burst),
        1 => (0..FLOWS).prop_map(Operation::Serve),
        2 => (0..KTHREADS).prop_map(Operation::Gain),
        2 => (0..KTHREADS).prop_map(Operation::Lose),
        3 => (0..KTHREADS).prop_map(Operation::Read),
    ];
    prop::collection::vec(operation, 1..120)
}

/// What was sent of each flow, and what comes next at the earliest.
#[derive(Debug, Default)]
struct Flows {
    sent: [u16; FLOWS as usize],
    expected: [u16; FLOWS as usize],
    received: u64,
}

impl Flows {
    fn send(&mut self, sandbox: &mut Sandbox, flow: u16) {
        let number = &mut self.sent[usize::from(flow)];
        // No time passes in which a kthread would have to answer the allocator.
        send_within(sandbox, flow, *number, 0);
        *number += 1;
    }

    /// Reads a frame from the ring of kthread `k`. Returns whether there was one.
    fn take(&mut self, sandbox: &mut Sandbox, k: u16) -> Result<bool, TestCaseError> {
        let Some((flow, number)) = receive(sandbox, k) else { return Ok(false) };
        let expected = &mut self.expected[usize::from(flow)];
        prop_assert!(number >= *expected, "flow {} out of order", flow);
        *expected = number + 1;
        self.received += 1;
        Ok(true)
    }

    /// Reads all rings; some ring can always be read on.
    fn drain(&mut self, sandbox: &mut Sandbox) -> Result<(), TestCaseError> {
        // A fence whose frame found no room is passed without a frame: rounds without any, one for
        // each ring that may wait for the next, are the end.
        let mut quiet = 0;
        while quiet <= KTHREADS {
            quiet += 1;
            for k in 0..KTHREADS {
                if self.take(sandbox, k)? {
                    quiet = 0;
                }
            }
        }
        let full = sandbox.world.stats.switch.dropped_full.get();
        let sent: u64 = self.sent.iter().copied().map(u64::from).sum();
        prop_assert_eq!(self.received + full, sent);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn flows_stay_in_order_and_are_whole_but_for_full_rings_wherever_they_move(operations in operations()) {
        let mut sandbox = sandbox();
        let mut flows = Flows::default();
        for operation in operations {
            match operation {
                Operation::Send(flow) => flows.send(&mut sandbox, flow),
                Operation::Burst(flow) => (0..300).for_each(|_| flows.send(&mut sandbox, flow)),
                Operation::Serve(flow) => {
                    for _ in 0..300 {
                        flows.send(&mut sandbox, flow);
                        for k in 0..KTHREADS {
                            flows.take(&mut sandbox, k)?;
                        }
                    }
                }
                Operation::Gain(k) => groups(&mut sandbox).gain(k),
                Operation::Lose(k) => groups(&mut sandbox).lose(k),
                Operation::Read(k) => {
                    flows.take(&mut sandbox, k)?;
                }
            }
        }
        flows.drain(&mut sandbox)?;
    }
}

#[test]
fn a_frame_that_a_full_ring_drops_leaves_no_fence_for_the_next_ring() {
    let mut sandbox = sandbox();
    drop_the_first_frame_in_a_full_ring(&mut sandbox);
    move_all(&mut sandbox, 2);
    send(&mut sandbox, 0, 2);
    assert_eq!(counters(&sandbox), (1, 0), "flow 1 was new, and flow 0 moved once");
    assert_eq!(receive(&mut sandbox, 2), Some((0, 2)), "it waits for nothing");
}

#[test]
fn the_measurements_hold_few_fences_of_one_program_and_none_for_long() {
    let mut sandbox = sandbox();
    for flow in 0..60 {
        send(&mut sandbox, flow, 0);
    }
    move_all(&mut sandbox, 1);
    for flow in 0..60 {
        send(&mut sandbox, flow, 1);
    }
    assert!(counters(&sandbox).1 > 20);
    assert_eq!(sandbox.switch.moves.measured(), 8);
    sandbox.pass(1_100_000_000);
    assert_eq!(sandbox.switch.moves.measured(), 0);
    assert!(sandbox.world.stats.fence.snapshot().is_empty());
}

#[test]
fn a_flow_that_moves_waits_for_what_it_left_behind() {
    let mut sandbox = sandbox();
    send(&mut sandbox, 0, 0);
    send(&mut sandbox, 0, 1);
    move_all(&mut sandbox, 2);
    send(&mut sandbox, 0, 2);
    assert_eq!(counters(&sandbox), (1, 1));
    assert_eq!(receive(&mut sandbox, 2), None, "it overtook the frames in ring 0");
    assert_eq!(sandbox.peer(SERVICE).held_by(2), Some(0));
    assert_eq!(receive(&mut sandbox, 0), Some((0, 0)));
    assert_eq!(receive(&mut sandbox, 2), None);
    sandbox.pass(700);
    assert!(sandbox.world.stats.fence.snapshot().is_empty());
    assert_eq!(receive(&mut sandbox, 0), Some((0, 1)));
    assert_eq!(receive(&mut sandbox, 2), Some((0, 2)));
    sandbox.pass(300);
    let held = sandbox.world.stats.fence.snapshot();
    assert_eq!(held.len(), 1);
    assert!((950..=1_050).contains(&held.max()), "held for {} ns", held.max());
}

#[test]
fn a_flow_whose_frames_were_read_moves_without_a_fence_and_so_does_one_that_comes_back() {
    let mut sandbox = sandbox();
    send(&mut sandbox, 0, 0);
    assert!(receive(&mut sandbox, 0).is_some());
    move_all(&mut sandbox, 1);
    send(&mut sandbox, 0, 1);
    assert_eq!(counters(&sandbox), (1, 0));
    move_all(&mut sandbox, 3);
    move_all(&mut sandbox, 1);
    send(&mut sandbox, 0, 2);
    assert_eq!(counters(&sandbox), (1, 0));
    assert_eq!(receive(&mut sandbox, 1), Some((0, 1)));
    assert_eq!(receive(&mut sandbox, 1), Some((0, 2)));
}

#[test]
fn a_program_that_never_reads_the_older_ring_loses_its_own_frames_only() {
    let mut sandbox = sandbox();
    send(&mut sandbox, 0, 0);
    move_all(&mut sandbox, 1);
    (0..=255).for_each(|number| send(&mut sandbox, 0, number));
    (0..=255).for_each(|number| send(&mut sandbox, 0, number));
    assert!(sandbox.world.stats.switch.dropped_full.get() > 0);
    assert_eq!(receive(&mut sandbox, 1), None);
    assert!(sandbox.ended.is_empty());
    assert_eq!(receive(&mut sandbox, 0), Some((0, 0)));
    // No fence for each frame that did not fit.
    assert_eq!(counters(&sandbox), (1, 1));
    assert_eq!(receive(&mut sandbox, 1), Some((0, 0)));
}

#[test]
fn a_position_that_cannot_be_costs_the_registration_no_later_than_the_next_frame_there() {
    let mut sandbox = sandbox();
    send(&mut sandbox, 0, 0);
    sandbox.peer(SERVICE).scribble(INGRESS_TAIL, u64::MAX);
    move_all(&mut sandbox, 1);
    send(&mut sandbox, 0, 1);
    assert_eq!(counters(&sandbox), (1, 0), "it claims to have read everything");
    assert_eq!(receive(&mut sandbox, 1), Some((0, 1)));
    move_all(&mut sandbox, 0);
    for number in 0..=255 {
        if sandbox.ended.is_empty() {
            send(&mut sandbox, 0, number);
        }
    }
    assert_eq!(sandbox.ended.len(), 1);
}
