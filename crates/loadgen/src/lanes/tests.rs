//! Lanes and a generator in virtual time, with a scripted server.

use super::*;
use crate::plan::Plan;
use crate::protocol::{Echo, Protocol, Rocks};
use proptest::prelude::*;
use std::sync::Arc;

const MS: u64 = 1_000_000;

fn plan(schedule: &str) -> Plan {
    let mut plan = Plan::new(schedule.parse().unwrap(), "const:0ns".parse().unwrap());
    plan.arrivals = "const".parse().unwrap();
    plan
}

fn generator(plan: &Plan, protocol: Arc<dyn Protocol>) -> Generator {
    Generator::with_protocol(plan.clone(), protocol, Medium::Stream, 1, 0).unwrap()
}

fn echo() -> Arc<dyn Protocol> {
    Arc::new(Echo::new(40).unwrap())
}

/// Takes all that connection `id` has to send.
fn sent(lanes: &mut Lanes, id: LaneId) -> Vec<u8> {
    let bytes = lanes.to_send(id).to_vec();
    lanes.handle_sent(id, bytes.len());
    bytes
}

#[test]
fn connections_take_turns_and_full_ones_are_passed_over() {
    let mut generator = generator(&plan("1s@1k"), echo());
    let mut lanes = Lanes::new(3, 2, Ids::Order);
    let mut touched = Vec::new();
    lanes.poll_due(&mut generator, MS, 16, |id| touched.push(id));
    assert_eq!(touched, [0; 0], "none is up");
    (0..3).for_each(|id| lanes.handle_up(id));
    lanes.poll_due(&mut generator, 5 * MS, 16, |id| touched.push(id));
    // Due at 0.5 ms, 1.5 ms, ..., 4.5 ms.
    assert_eq!(touched, [0, 1, 2, 0, 1]);
    touched.clear();
    lanes.check();
    lanes.poll_due(&mut generator, 8 * MS, 16, |id| touched.push(id));
    assert_eq!(touched, [2], "two of the three wait for room");
    let echoed = sent(&mut lanes, 1);
    lanes.handle_bytes(1, 9 * MS, &echoed[..40], &mut generator).unwrap();
    touched.clear();
    lanes.poll_due(&mut generator, 8 * MS, 16, |id| touched.push(id));
    assert_eq!(touched, [1], "there is room for one");
    lanes.check();
    let measurement = generator.finish(8 * MS);
    assert_eq!(measurement.oddities.held_back, 1 + 2);
}

#[test]
fn what_waits_beyond_its_timeout_is_lost_and_never_sent() {
    let mut plan = plan("4ms@1k");
    plan.timeout_ns = 2 * MS;
    let mut generator = generator(&plan, echo());
    let mut lanes = Lanes::new(1, 4, Ids::Order);
    lanes.poll_due(&mut generator, 4 * MS, 16, |_| {});
    lanes.poll_due(&mut generator, 5 * MS, 16, |_| {});
    lanes.handle_up(0);
    let mut touched = 0;
    lanes.poll_due(&mut generator, 5 * MS, 16, |_| touched += 1);
    // Due at 0.5, 1.5 and 2.5 ms are over, 3.5 ms is not.
    assert_eq!((touched, sent(&mut lanes, 0).len()), (1, 40));
    lanes.check();
    assert_eq!(generator.finish(5 * MS).summary.counts().lost, 3);
}

#[test]
fn answers_with_ids_may_come_in_any_order_and_others_may_not() {
    let rocks: Arc<dyn Protocol> = Arc::new(Rocks::new(10, 0).unwrap());
    let mut generator = generator(&plan("1s@1k"), rocks);
    let mut lanes = Lanes::new(1, 8, Ids::Long);
    lanes.handle_up(0);
    lanes.poll_due(&mut generator, 3 * MS, 16, |_| {});
    let asked = sent(&mut lanes, 0);
    let mut answers: Vec<Vec<u8>> = asked.chunks(32).map(<[u8]>::to_vec).collect();
    for answer in &mut answers {
        // A GET that found an empty value.
        (answer[5], answer[24]) = (0x81, 1);
    }
    for at in [2, 0, 1] {
        lanes.handle_bytes(0, 3 * MS, &answers[at], &mut generator).unwrap();
    }
    assert_eq!(
        lanes.handle_bytes(0, 3 * MS, &answers[0], &mut generator),
        Err(Malformed),
        "an unsolicited answer"
    );
    let measurement = generator.finish(3 * MS);
    assert_eq!((measurement.summary.counts().completed, measurement.oddities.wrong), (3, 0));
}

#[test]
fn answers_out_of_step_end_the_connection() {
    let mut generator = generator(&plan("1s@1k"), echo());
    let mut lanes = Lanes::new(1, 100, Ids::Order);
    lanes.handle_up(0);
    lanes.poll_due(&mut generator, 10 * MS, 16, |_| {});
    let echoed = sent(&mut lanes, 0);
    // The first one is left out.
    let result = lanes.handle_bytes(0, 10 * MS, &echoed[40..], &mut generator);
    assert_eq!(result, Err(Malformed));
    lanes.handle_down(0, 10 * MS, &mut generator);
    lanes.check();
    let measurement = generator.finish(10 * MS);
    assert_eq!(measurement.oddities.wrong, u64::from(RESYNC));
    assert_eq!(measurement.summary.counts().lost, 10);
}

#[test]
fn a_connection_is_stuck_after_twice_the_timeout() {
    let mut plan = plan("1s@1k");
    plan.timeout_ns = 5 * MS;
    let mut generator = generator(&plan, echo());
    let mut lanes = Lanes::new(1, 1, Ids::Order);
    lanes.handle_up(0);
    lanes.poll_due(&mut generator, MS, 16, |_| {});
    assert!(!lanes.is_stuck(0, 11 * MS, &generator));
    assert!(lanes.is_stuck(0, 11 * MS + 1, &generator));
    let late = sent(&mut lanes, 0);
    lanes.poll_due(&mut generator, 11 * MS, 0, |_| {});
    lanes.handle_bytes(0, 11 * MS, &late, &mut generator).unwrap();
    assert!(!lanes.is_stuck(0, 100 * MS, &generator), "a late answer is one");
}

#[derive(Debug, Clone)]
enum Step {
    Due { ms: u64, budget: usize },
    Send { id: u32, bytes: usize },
    Echo { id: u32, bytes: usize },
    Down { id: u32 },
    Up { id: u32 },
}

fn any_step() -> impl Strategy<Value = Step> {
    let id = 0u32..3;
    prop_oneof![
        4 => (0u64..8, 0usize..20).prop_map(|(ms, budget)| Step::Due { ms, budget }),
        4 => (id.clone(), 0usize..200).prop_map(|(id, bytes)| Step::Send { id, bytes }),
        4 => (id.clone(), 0usize..200).prop_map(|(id, bytes)| Step::Echo { id, bytes }),
        1 => id.clone().prop_map(|id| Step::Down { id }),
        2 => id.prop_map(|id| Step::Up { id }),
    ]
}

proptest! {
    /// Whatever happens to connections, each request ends exactly once, and no answer of an honest
    /// server counts as wrong.
    #[test]
    fn every_request_ends_once_whatever_connections_do(
        steps in prop::collection::vec(any_step(), 1..200),
        pipeline in 1usize..5,
    ) {
        let mut plan = plan("200ms@2k");
        plan.timeout_ns = 30 * MS;
        let mut generator = generator(&plan, echo());
        let mut lanes = Lanes::new(3, pipeline, Ids::Order);
        let (mut now_ns, mut server) = (0, [const { Vec::new() }; 3]);
        let mut up = [false; 3];
        for step in steps {
            match step {
                Step::Due { ms, budget } => {
                    now_ns += ms * MS;
                    lanes.poll_due(&mut generator, now_ns, budget, |_| {});
                }
                Step::Send { id, bytes } => {
                    let out = lanes.to_send(id);
                    let bytes = bytes.min(out.len());
                    server[id as usize].extend_from_slice(&out[..bytes]);
                    lanes.handle_sent(id, bytes);
                }
                Step::Echo { id, bytes } => {
                    let input: &mut Vec<u8> = &mut server[id as usize];
                    let rest = input.split_off(bytes.min(input.len()));
                    let echoed = std::mem::replace(input, rest);
                    prop_assert_eq!(lanes.handle_bytes(id, now_ns, &echoed, &mut generator), Ok(()));
                }
                Step::Down { id } => {
                    lanes.handle_down(id, now_ns, &mut generator);
                    server[id as usize].clear();
                    up[id as usize] = false;
                }
                Step::Up { id } if !up[id as usize] => {
                    lanes.handle_up(id);
                    up[id as usize] = true;
                }
                Step::Up { .. } => {}
            }
            lanes.check();
        }
        // To the end of the schedule and of every timeout.
        for id in 0..3 {
            lanes.handle_down(id, now_ns, &mut generator);
        }
        while !generator.is_done() {
            now_ns += 10 * MS;
            lanes.poll_due(&mut generator, now_ns, 64, |_| {});
        }
        let measurement = generator.finish(now_ns);
        let counts = measurement.summary.counts();
        prop_assert_eq!(counts.offered, 400);
        prop_assert_eq!(counts.completed + counts.lost, 400);
        prop_assert_eq!(measurement.oddities.wrong, 0);
    }
}
