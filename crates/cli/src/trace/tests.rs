//! Traces of made-up events, on a clock of 1 GHz: a cycle is a nanosecond.

use proptest::prelude::*;
use serde_json::Value;
use tailwater_shm::Clock;
use tailwater_shm::trace::Written;
use tailwater_shm::trace::{CoreStep, Handoff, Step, TraceEvent, Who};
use tailwater_testbed::core_use::{Moment, Seen, Slice, Use};

use super::collect::Collector;
use super::perfetto;
use super::report::Report;
use super::stages::{Breakdown, Stage};
use super::watch::{Losses, Names};

const SERVICE: Who = Who { runtime: 0, kthread: 0 };
const BATCH: Who = Who { runtime: 1, kthread: 0 };
const NONE: Losses = Losses { events: 0, steps: 0 };

fn names() -> Names {
    let mut names = Names::default();
    names.register(0, 0, "web");
    names.register(1, 0, "batch");
    names
}

fn clock() -> Clock {
    Clock::from_hz(1_000_000_000)
}

/// Events of request 1 of the service.
#[derive(Default)]
struct Story(Collector);

impl Story {
    fn arrives(&mut self, due: u64, at: u64, in_ring: u64) -> &mut Self {
        self.0.push(at, TraceEvent::Arrived { id: 1, port: 0, len: 60, due, polled: due });
        self.0.push(in_ring, TraceEvent::InRing { id: 1, who: SERVICE, unserved: false, lines: 0 });
        self
    }

    fn core(&mut self, at: u64, step: CoreStep, handoff: Handoff, who: Who, from: Option<Who>) -> &mut Self {
        self.0.push(at, TraceEvent::Core { core: 1, step, handoff, who, from });
        self
    }

    fn step(&mut self, at: u64, step: Step) -> &mut Self {
        self.claimed(at, SERVICE, 1, step);
        self
    }

    fn claimed(&mut self, at: u64, who: Who, id: u32, step: Step) {
        let (kind, argument) = step.to_bits();
        self.0.push(at + 5_000, TraceEvent::Claimed { who, written: Written { id, kind, at, argument } });
    }

    fn replied(&mut self, sent: u64, seen: u64, left: u64) -> &mut Self {
        self.step(sent, Step::Sent);
        self.0.push(seen, TraceEvent::Seen { id: 1, who: SERVICE });
        self.0.push(left, TraceEvent::Left { id: 1, who: SERVICE, taken: true });
        self
    }

    fn breakdown(&self) -> Breakdown {
        let breakdown = Breakdown::of(&self.0.requests[&1], &self.0.cores).expect("it was answered");
        check(&breakdown);
        breakdown
    }

    fn reason(&self) -> String {
        let (names, clock) = (names(), clock());
        Report::new(&self.0, &names, &clock, NONE).reason(&self.0.requests[&1], &self.breakdown())
    }
}

/// Checks that stages follow one another and sum to the total.
fn check(breakdown: &Breakdown) {
    let mut at = breakdown.from;
    for span in &breakdown.spans {
        assert_eq!(span.from, at, "a gap or an overlap: {breakdown:?}");
        assert!(span.to > span.from, "an empty stage: {breakdown:?}");
        at = span.to;
    }
    assert_eq!(at, breakdown.to, "{breakdown:?}");
    let sum: u64 = Stage::ALL.into_iter().map(|stage| breakdown.in_stage(stage)).sum();
    assert_eq!(sum, breakdown.total());
}

/// The service has the core all the time.
fn undisturbed() -> Story {
    let mut story = Story::default();
    story.core(0, CoreStep::Running, Handoff::Wake, SERVICE, None);
    story
}

const WOKEN: Step = Step::Delivered { woke: true, ahead: 0, queue: 1 };

/// Checks that the reason of the slowest request has each of these parts.
#[track_caller]
fn names_reason(story: &Story, parts: &[&str]) {
    let reason = story.reason();
    assert!(parts.iter().all(|part| reason.contains(part)), "{reason}");
}

#[test]
fn every_stage_of_a_plain_request_is_distinguished() {
    let mut story = undisturbed();
    story.arrives(1_000, 1_100, 1_300).step(1_400, Step::Taken { ring: 0 }).step(1_500, WOKEN);
    story.step(1_700, Step::Received).replied(11_700, 12_200, 12_400);
    let breakdown = story.breakdown();
    let stages: Vec<_> = breakdown.spans.iter().map(|span| (span.stage, span.to - span.from)).collect();
    assert_eq!(
        stages,
        [
            (Stage::Port, 100),
            (Stage::Switch, 200),
            (Stage::Ring, 100),
            (Stage::Stack, 100),
            (Stage::RunQueue, 200),
            (Stage::Run, 10_000),
            (Stage::Egress, 500),
            (Stage::Out, 200),
        ]
    );
    assert_eq!(story.reason(), "ran for 10.0 us");
}

#[test]
fn a_request_behind_a_long_one_names_the_wait() {
    let mut story = undisturbed();
    story.arrives(0, 0, 100).step(90_000, Step::Taken { ring: 0 }).step(90_100, WOKEN);
    story.step(90_200, Step::Received).replied(91_000, 91_100, 91_200);
    names_reason(&story, &["89.9 us", "ingress ring", "0 bytes", "kthread 0 of web", "something else"]);
    let mut story = undisturbed();
    story.arrives(0, 0, 100).step(200, Step::Taken { ring: 0 });
    story.step(300, Step::Delivered { woke: true, ahead: 0, queue: 8 });
    story.step(90_300, Step::Received).replied(91_000, 91_100, 91_200);
    names_reason(&story, &["90.0 us", "run queue of kthread 0 of web", "7 other threads"]);
    let mut story = undisturbed();
    story.arrives(0, 0, 100).step(200, Step::Taken { ring: 0 });
    story.step(300, Step::Delivered { woke: false, ahead: 3, queue: 0 });
    story.step(90_300, Step::Received).replied(91_000, 91_100, 91_200);
    names_reason(&story, &["90.0 us", "socket", "3 others", "no thread was waiting"]);
}

#[test]
fn the_ports_poll_and_the_rings_bytes_are_reported() {
    let mut story = undisturbed();
    let arrived = TraceEvent::Arrived { id: 1, port: 0, len: 60, due: 10_000, polled: 2_000 };
    story.0.push(60_000, arrived);
    story.0.push(60_100, TraceEvent::InRing { id: 1, who: SERVICE, unserved: false, lines: 30 });
    story.step(60_200, Step::Taken { ring: 0 }).step(60_300, WOKEN).step(60_400, Step::Received);
    story.replied(60_500, 60_600, 60_700);
    names_reason(&story, &["50.0 us", "port", "previous poll", "58.0 us"]);
    let (names, clock) = (names(), clock());
    let text = Report::new(&story.0, &names, &clock, NONE).text(5);
    assert!(text.contains("previous poll: p50 58.0, p99 58.0, max 58.0"), "{text}");
    assert!(text.contains("ingress ring before it: p50 1920, p99 1920, max 1920"), "{text}");
}

#[test]
fn a_poll_before_the_trace_is_ignored() {
    let mut story = Story::default();
    story.core(5_000, CoreStep::Running, Handoff::Wake, SERVICE, None);
    story.0.push(60_000, TraceEvent::Arrived { id: 1, port: 0, len: 60, due: 10_000, polled: 4_999 });
    story.0.push(60_100, TraceEvent::InRing { id: 1, who: SERVICE, unserved: false, lines: 0 });
    story.replied(60_500, 60_600, 60_700);
    names_reason(&story, &["50.0 us", "port"]);
    assert!(!story.reason().contains("previous poll"), "{}", story.reason());
}

#[test]
fn a_request_that_waited_for_a_core_names_the_kthread_that_had_it() {
    let mut story = Story::default();
    story.core(0, CoreStep::Running, Handoff::Wake, BATCH, None).arrives(1_000, 1_000, 1_100);
    story.core(6_100, CoreStep::Decided, Handoff::Polling, SERVICE, Some(BATCH));
    story.core(11_100, CoreStep::Signalled, Handoff::Signal, BATCH, None);
    story.core(31_100, CoreStep::Ceded, Handoff::Signal, BATCH, None);
    story.core(33_100, CoreStep::Running, Handoff::Signal, SERVICE, None);
    story.step(33_300, Step::Taken { ring: 0 }).step(33_400, WOKEN).step(33_500, Step::Received);
    story.replied(34_000, 34_100, 34_200);
    let breakdown = story.breakdown();
    let stages = [Stage::Detection, Stage::Cede, Stage::Start, Stage::Ring].map(|it| breakdown.in_stage(it));
    assert_eq!(stages, [5_000, 25_000, 2_000, 200]);
    names_reason(&story, &["25.0 us", "kthread 0 of batch", "core 1", "preempt signal", "5.00 us"]);
}

#[test]
fn a_preempted_request_names_how_often_and_what_ran_instead() {
    let mut story = undisturbed();
    story.arrives(0, 0, 100).step(200, Step::Taken { ring: 0 }).step(300, WOKEN).step(400, Step::Received);
    story.core(2_000, CoreStep::Decided, Handoff::Polling, BATCH, Some(SERVICE));
    story.step(2_100, Step::Off { asked: true });
    story.core(2_200, CoreStep::Ceded, Handoff::Polling, SERVICE, None);
    story.core(2_300, CoreStep::Running, Handoff::Polling, BATCH, None);
    story.core(50_000, CoreStep::Decided, Handoff::Polling, SERVICE, Some(BATCH));
    story.core(51_000, CoreStep::Ceded, Handoff::Polling, BATCH, None);
    story.core(52_000, CoreStep::Running, Handoff::Polling, SERVICE, None);
    story.step(52_100, Step::On).step(53_000, Step::Off { asked: false }).step(54_000, Step::On);
    story.replied(55_000, 55_100, 55_200);
    let breakdown = story.breakdown();
    assert_eq!(breakdown.in_stage(Stage::Preempted), 50_000);
    assert_eq!(breakdown.in_stage(Stage::Blocked), 1_000);
    assert_eq!(breakdown.in_stage(Stage::Run), 1_700 + 900 + 1_000);
    names_reason(&story, &["preempted once", "50.0 us", "kthread 0 of batch"]);
}

#[test]
fn a_request_whose_time_slice_ended_names_its_own_program() {
    let mut story = Story::default();
    // Earlier the core had been lost to the batch job and had come back.
    story.core(0, CoreStep::Running, Handoff::Wake, SERVICE, None);
    story.core(100, CoreStep::Decided, Handoff::Polling, BATCH, Some(SERVICE));
    story.core(200, CoreStep::Ceded, Handoff::Polling, SERVICE, None);
    story.core(300, CoreStep::Running, Handoff::Polling, BATCH, None);
    story.core(400, CoreStep::Decided, Handoff::Polling, SERVICE, Some(BATCH));
    story.core(500, CoreStep::Ceded, Handoff::Polling, BATCH, None);
    story.core(600, CoreStep::Running, Handoff::Polling, SERVICE, None);
    story.arrives(1_000, 1_000, 1_100).step(1_200, Step::Taken { ring: 0 }).step(1_300, WOKEN);
    story.step(1_400, Step::Received).step(16_400, Step::Off { asked: true }).step(60_400, Step::On);
    story.step(61_000, Step::Off { asked: true }).step(62_000, Step::On);
    story.replied(70_000, 70_100, 70_200);
    names_reason(&story, &["preempted 2 times", "45.0 us", "time slice", "other threads of its program"]);
}

#[test]
fn a_request_that_waited_for_a_dispatcher_names_its_class() {
    let mut story = undisturbed();
    story.arrives(0, 0, 100).step(200, Step::Taken { ring: 0 }).step(300, WOKEN).step(400, Step::Received);
    story.step(500, Step::Queued { class: 2 }).step(20_500, Step::On).step(21_500, Step::Off { asked: true });
    story.step(31_500, Step::On).step(32_000, Step::Sent).replied(32_000, 32_100, 32_200);
    let breakdown = story.breakdown();
    let stages = [Stage::Dispatch, Stage::Run, Stage::Preempted].map(|stage| breakdown.in_stage(stage));
    assert_eq!(stages, [20_000, 100 + 1_000 + 500, 10_000]);
    names_reason(&story, &["20.0 us", "dispatcher", "class 2"]);
}

#[test]
fn impossible_steps_are_counted_and_left_out() {
    let mut story = undisturbed();
    story.arrives(1_000, 1_000, 1_100);
    story.claimed(900, SERVICE, 1, Step::Received);
    story.claimed(1_200, SERVICE, 2, Step::Received);
    story.claimed(1_200, BATCH, 1, Step::Received);
    let future = Written { id: 1, kind: 5, at: 9_000, argument: 0 };
    story.0.push(2_000, TraceEvent::Claimed { who: SERVICE, written: future });
    story.0.push(
        2_000,
        TraceEvent::Claimed { who: SERVICE, written: Written { kind: 77, at: 1_500, ..future } },
    );
    story.0.push(2_000, TraceEvent::Seen { id: 1, who: BATCH });
    story.0.push(2_000, TraceEvent::Left { id: 7, who: SERVICE, taken: true });
    assert_eq!((story.0.untrue, story.0.requests[&1].steps.len()), (7, 0));
}

#[test]
fn missing_events_are_reported() {
    let mut story = undisturbed();
    story.arrives(0, 0, 100).step(200, Step::Taken { ring: 0 }).step(300, Step::Refused);
    let (names, clock) = (names(), clock());
    let losses = Losses { events: 12, steps: 3 };
    let text = Report::new(&story.0, &names, &clock, losses).text(5);
    for part in ["1 requests traced", "0 answered", "1 dropped", "12 events missing", "3 overwritten"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    story.0.push(400, TraceEvent::Lost { who: SERVICE, steps: 5 });
    assert_eq!(story.0.lost_steps, 5);
}

/// Checks what the Trace Event Format requires of each phase, and that slices are complete.
pub(super) fn assert_is_a_trace(document: &Value) {
    let events = document["traceEvents"].as_array().expect("traceEvents");
    assert!(!events.is_empty());
    let mut open: Vec<(u64, String)> = Vec::new();
    for event in events {
        let object = event.as_object().expect("an event is an object");
        let phase = event["ph"].as_str().expect("a phase");
        let needs: &[&str] = match phase {
            "M" => &["name", "args", "pid", "tid"],
            "X" => &["name", "pid", "tid", "ts", "dur"],
            "b" | "e" => &["name", "cat", "id", "pid", "tid", "ts"],
            other => panic!("phase {other}"),
        };
        needs.iter().for_each(|key| assert!(object.contains_key(*key), "{event} has no {key}"));
        for key in ["ts", "dur"] {
            let number = object.get(key).map(|value| value.as_f64().expect("a number"));
            assert!(number.is_none_or(|n| n >= 0.0 && n.is_finite()), "{event}");
        }
        ["pid", "tid"].iter().for_each(|key| assert!(event[key].is_u64(), "{event}"));
        assert!(phase != "M" || event["args"]["name"].is_string(), "{event}");
        let key =
            || (event["id"].as_u64().expect("an id"), event["name"].as_str().expect("a name").to_owned());
        match phase {
            "b" => open.push(key()),
            "e" => assert_eq!(open.pop(), Some(key()), "slices of a request nest"),
            _ => {}
        }
    }
    assert!(open.is_empty(), "never ended: {open:?}");
}

#[test]
fn the_json_is_in_the_trace_event_format() {
    let mut story = Story::default();
    story.core(0, CoreStep::Running, Handoff::Wake, BATCH, None).arrives(1_000, 1_000, 1_100);
    story.core(2_000, CoreStep::Decided, Handoff::Polling, SERVICE, Some(BATCH));
    story.core(3_000, CoreStep::Ceded, Handoff::Polling, BATCH, None);
    story.core(4_000, CoreStep::Running, Handoff::Polling, SERVICE, None);
    story.step(5_000, Step::Taken { ring: 0 }).step(6_000, WOKEN).step(7_000, Step::Received);
    story.replied(8_000, 9_000, 10_000);
    let document = perfetto::document(&story.0, &names(), &clock(), 0, None);
    assert_is_a_trace(&document);
    let events = document["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
    assert_eq!(named("request 1").len(), 3, "beginning, end, and the run on its kthread");
    assert_eq!(named("run")[0]["ts"], 7.0);
    assert_eq!(named("batch kthread 0")[0]["dur"], 3.0);
    assert_eq!(named("to web: cede at a poll point")[0]["dur"], 2.0);
}

#[test]
fn what_linux_did_on_the_cores_is_in_the_same_document() {
    let mut story = undisturbed();
    story.core(9_000, CoreStep::Ceded, Handoff::Idle, SERVICE, None);
    let thread = Use::Thread { command: "stress".to_owned(), pid: 4, tid: 5 };
    let slice = |from_ns, to_ns, used| Slice { core: 1, from_ns, to_ns, used };
    let slices = [slice(500, 1_500, thread), slice(700, 800, Use::Interrupt("local_timer"))].into();
    let (began, now) = (Moment { cycles: 1_000, ns: 0 }, Moment { cycles: 3_000, ns: 2_000 });
    let seen = Seen { slices: &slices, began, now, lost: 0 };
    let document = perfetto::document(&story.0, &names(), &clock(), 0, Some(&seen));
    assert_is_a_trace(&document);
    let events = document["traceEvents"].as_array().unwrap();
    let slice = |name: &str| events.iter().find(|event| event["name"] == name).unwrap();
    assert_eq!((&slice("stress[5]")["ts"], &slice("stress[5]")["dur"]), (&1.5.into(), &1.0.into()));
    assert_eq!(slice("local_timer")["ts"], 1.7);
    assert_ne!(slice("local_timer")["tid"], slice("stress[5]")["tid"]);
}

#[test]
fn an_ended_program_and_its_successor_in_the_same_place_are_two() {
    let mut story = undisturbed();
    story.core(1_000, CoreStep::Ceded, Handoff::Evict, SERVICE, None);
    story.core(5_000, CoreStep::Decided, Handoff::Wake, SERVICE, None);
    story.core(6_000, CoreStep::Running, Handoff::Wake, SERVICE, None);
    let mut names = names();
    names.register(0, 4_000, "next");
    let document = perfetto::document(&story.0, &names, &clock(), 9_000, None);
    assert_is_a_trace(&document);
    let events = document["traceEvents"].as_array().unwrap();
    let slice = |name: &str| events.iter().find(|event| event["name"] == name).unwrap();
    assert_eq!((&slice("web kthread 0")["dur"], &slice("next kthread 0")["dur"]), (&1.0.into(), &3.0.into()));
    let pids: Vec<&Value> =
        events.iter().filter(|event| event["name"] == "process_name").map(|event| &event["pid"]).collect();
    assert_eq!(pids, [1, 2, 100, 101], "cores, requests, and two programs");
}

#[test]
fn a_tenancy_without_an_end_ends_where_the_next_begins() {
    let mut story = Story::default();
    story.core(0, CoreStep::Running, Handoff::Wake, SERVICE, None);
    // The event that the batch job ran is missing.
    story.core(1_000, CoreStep::Decided, Handoff::Idle, BATCH, Some(SERVICE));
    story.core(5_000, CoreStep::Decided, Handoff::Polling, SERVICE, Some(BATCH));
    story.core(6_000, CoreStep::Ceded, Handoff::Polling, BATCH, None);
    story.core(7_000, CoreStep::Running, Handoff::Polling, SERVICE, None);
    story.core(9_000, CoreStep::Ceded, Handoff::Idle, SERVICE, None);
    let document = perfetto::document(&story.0, &names(), &clock(), 0, None);
    assert_is_a_trace(&document);
    let events = document["traceEvents"].as_array().unwrap();
    let slice = |name: &str| events.iter().find(|event| event["name"] == name).unwrap();
    assert_eq!(slice("to batch: taken from an idle kthread")["dur"], 4.0);
    assert_eq!(slice("to web: cede at a poll point")["ts"], 5.0);
    assert_eq!(slice("web kthread 0")["dur"], 5.0, "until the service is granted a core again");
}

/// The service loses its core to the batch job and gets it back; the event of the loss is missing.
fn a_loss_untold(story: &mut Story, batch_seen: bool) {
    story.core(0, CoreStep::Running, Handoff::Wake, SERVICE, None);
    story.core(1_000, CoreStep::Decided, Handoff::Polling, BATCH, Some(SERVICE));
    if batch_seen {
        story.core(2_000, CoreStep::Running, Handoff::Polling, BATCH, None);
    }
    story.core(5_000, CoreStep::Decided, Handoff::Polling, SERVICE, Some(BATCH));
    story.core(6_000, CoreStep::Ceded, Handoff::Polling, BATCH, None);
    story.core(7_000, CoreStep::Running, Handoff::Polling, SERVICE, None);
}

#[test]
fn a_missing_loss_does_not_spoil_later_waits_for_a_core() {
    let mut story = Story::default();
    a_loss_untold(&mut story, false);
    story.core(8_000, CoreStep::Ceded, Handoff::Idle, SERVICE, None).arrives(10_000, 10_000, 10_000);
    story.core(40_000, CoreStep::Decided, Handoff::Idle, SERVICE, None);
    story.core(41_000, CoreStep::Running, Handoff::Idle, SERVICE, None);
    story.step(42_000, Step::Taken { ring: 0 }).step(42_100, WOKEN).step(42_200, Step::Received);
    story.replied(43_000, 43_100, 43_200);
    let breakdown = story.breakdown();
    assert_eq!(breakdown.in_stage(Stage::Detection), 30_000, "{}", story.reason());
    assert_eq!(breakdown.in_stage(Stage::Ring), 1_000);
}

#[test]
fn a_missing_loss_is_inferred_when_another_kthread_runs_on_the_core() {
    let mut story = Story::default();
    story.arrives(0, 0, 2_500);
    a_loss_untold(&mut story, true);
    story.step(7_200, Step::Taken { ring: 0 }).step(7_300, WOKEN).step(7_400, Step::Received);
    story.replied(8_000, 8_100, 8_200);
    let breakdown = story.breakdown();
    let stages = [Stage::Detection, Stage::Cede, Stage::Start, Stage::Ring].map(|it| breakdown.in_stage(it));
    assert_eq!(stages, [2_500, 1_000, 1_000, 200]);
}

#[test]
fn events_of_cores_that_are_not_kept_are_counted_and_reported() {
    let mut story = Story(Collector::keeping(2));
    a_loss_untold(&mut story, true);
    assert_eq!((story.0.cores.len(), story.0.cores_not_kept), (2, 4));
    let (names, clock) = (names(), clock());
    let text = Report::new(&story.0, &names, &clock, NONE).text(5);
    assert!(text.contains("4 more events of cores"), "{text}");
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<u16>().prop_map(|ring| Step::Taken { ring }),
        any::<(bool, u32, u32)>().prop_map(|(woke, ahead, queue)| Step::Delivered { woke, ahead, queue }),
        Just(Step::Received),
        any::<bool>().prop_map(|asked| Step::Off { asked }),
        Just(Step::On),
        Just(Step::Passed),
        any::<u16>().prop_map(|class| Step::Queued { class }),
        Just(Step::Sent),
        Just(Step::Ended),
        Just(Step::Refused),
        Just(Step::Untracked),
    ]
}

fn any_event() -> impl Strategy<Value = TraceEvent> {
    let who = (0..3u32, 0..2u16).prop_map(|(runtime, kthread)| Who { runtime, kthread });
    let step = prop_oneof![
        Just(CoreStep::Decided),
        Just(CoreStep::Signalled),
        Just(CoreStep::Ceded),
        Just(CoreStep::Running)
    ];
    prop_oneof![
        (0..4u32, 0..2000u64).prop_map(|(id, due)| TraceEvent::Arrived {
            id,
            port: 0,
            len: 60,
            due,
            polled: 0
        }),
        (0..4u32, who.clone()).prop_map(|(id, who)| TraceEvent::InRing {
            id,
            who,
            unserved: false,
            lines: 0
        }),
        (0..4u32, who.clone(), any_step(), 0..3000u64).prop_map(|(id, who, step, at)| {
            let (kind, argument) = step.to_bits();
            TraceEvent::Claimed { who, written: Written { id, kind, at, argument } }
        }),
        (0..4u32, who.clone()).prop_map(|(id, who)| TraceEvent::Seen { id, who }),
        (0..4u32, who.clone(), any::<bool>()).prop_map(|(id, who, taken)| TraceEvent::Left {
            id,
            who,
            taken
        }),
        (0..2u16, step, who.clone(), prop::option::of(who)).prop_map(|(core, step, who, from)| {
            TraceEvent::Core { core, step, handoff: Handoff::Polling, who, from }
        }),
    ]
}

proptest! {
    #[test]
    fn for_any_reported_steps_stages_sum_to_the_total_and_the_json_is_complete(
        events in prop::collection::vec((0..3000u64, any_event()), 0..300),
        sorted in any::<bool>(),
    ) {
        let mut events = events;
        if sorted {
            events.sort_by_key(|&(at, _)| at);
        }
        let mut collector = Collector::default();
        collector.push(0, TraceEvent::Core {
            core: 0, step: CoreStep::Running, handoff: Handoff::Wake, who: SERVICE, from: None,
        });
        for (at, event) in events {
            collector.push(at, event);
        }
        for request in collector.requests.values() {
            if let Some(breakdown) = Breakdown::of(request, &collector.cores) {
                check(&breakdown);
            }
        }
        let (names, clock) = (names(), clock());
        let report = Report::new(&collector, &names, &clock, NONE);
        prop_assert!(report.text(100).contains("requests traced"));
        assert_is_a_trace(&perfetto::document(&collector, &names, &clock, 0, None));
    }
}
