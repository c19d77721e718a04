//! Flow groups that move while frames of theirs wait: order within each flow, and losses nowhere.

use proptest::prelude::*;
use tailwater_sched::RuntimeId;
use tailwater_shm::control::Class::{BestEffort, LatencyCritical};

use crate::fixture::{INGRESS_TAIL, Sandbox};
use crate::switch::check::tests::udp;
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

fn send(sandbox: &mut Sandbox, flow: u16, number: u8) {
    let (from, to) = (sandbox.peers[&CLIENT].ip, sandbox.peers[&SERVICE].ip);
    let mut frame = udp(from, to, (5_000 + flow, 7), 60);
    frame[59] = number;
    sandbox.peer(CLIENT).send(0, &frame);
    sandbox.pass(100);
}

/// Returns flow and number of the next frame in the ring of kthread `k`, if no fence holds it.
fn receive(sandbox: &mut Sandbox, k: u16) -> Option<(u16, u8)> {
    let frame = sandbox.peer(SERVICE).receive(k)?;
    Some((u16::from_be_bytes([frame[34], frame[35]]) - 5_000, frame[59]))
}

fn counters(sandbox: &Sandbox) -> (u64, u64) {
    let switch = &sandbox.world.stats.switch;
    (switch.moved_groups.get(), switch.fenced_groups.get())
}

#[derive(Debug, Clone)]
enum Operation {
    Send(u16),
    Gain(u16),
    Lose(u16),
    Read(u16),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        6 => (0..FLOWS).prop_map(Operation::Send),
        2 => (0..KTHREADS).prop_map(Operation::Gain),
        2 => (0..KTHREADS).prop_map(Operation::Lose),
        3 => (0..KTHREADS).prop_map(Operation::Read),
    ];
    prop::collection::vec(operation, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn flows_stay_in_order_and_whole_wherever_they_move(operations in operations()) {
        let mut sandbox = sandbox();
        let (mut sent, mut received) = ([0u8; FLOWS as usize], [0u8; FLOWS as usize]);
        let mut take = |sandbox: &mut Sandbox, k| {
            let Some((flow, number)) = receive(sandbox, k) else { return Ok(false) };
            let expected = &mut received[usize::from(flow)];
            prop_assert_eq!(number, *expected, "flow {} out of order", flow);
            *expected += 1;
            Ok(true)
        };
        for operation in operations {
            match operation {
                Operation::Send(flow) => {
                    let number = &mut sent[usize::from(flow)];
                    send(&mut sandbox, flow, *number);
                    *number += 1;
                }
                Operation::Gain(k) => groups(&mut sandbox).gain(k),
                Operation::Lose(k) => groups(&mut sandbox).lose(k),
                Operation::Read(k) => {
                    take(&mut sandbox, k)?;
                }
            }
        }
        // Some ring can always be read on.
        let mut progress = true;
        while progress {
            progress = false;
            for k in 0..KTHREADS {
                progress |= take(&mut sandbox, k)?;
            }
        }
        prop_assert_eq!(received, sent);
    }
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
