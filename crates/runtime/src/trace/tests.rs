//! A kthread that nobody runs, and what it writes down for the IOKernel.

use super::*;
use tailwater_shm::layout::{KthreadShared, Region, RegionSpec};
use tailwater_shm::lot::Slot;
use tailwater_shm::memory::{self, Mapping};
use tailwater_shm::ring::{Consumer, Producer};
use tailwater_shm::trace::TraceReader;
use tailwater_shm::trace::buffer::Read;

const CLIENT: [u8; 4] = [10, 77, 0, 8];
const SERVICE: [u8; 4] = [10, 77, 0, 9];
const PORT: u16 = 5000;

/// A datagram of IPv4 with four bytes of data.
fn frame(from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend([from.0, to.0].concat());
    frame.extend([from.1.to_be_bytes(), to.1.to_be_bytes(), [0, 12], [0, 0]].concat());
    frame.extend([1, 2, 3, 4]);
    frame
}

fn request_from(port: u16) -> Vec<u8> {
    frame((CLIENT, port), (SERVICE, PORT))
}

fn reply_to(port: u16) -> Vec<u8> {
    frame((SERVICE, PORT), (CLIENT, port))
}

/// A kthread with rings and a buffer of steps in a region, and the IOKernel's end of that buffer.
struct Fixture {
    kthread: Kthread,
    reader: TraceReader,
}

impl Fixture {
    fn new() -> Self {
        let spec = RegionSpec::new(1, 1 << 15).unwrap();
        let file = memory::create("trace-test", spec.region_len()).unwrap();
        let region = Region::create(Mapping::new(&file, "trace-test").unwrap(), spec, 1_000_000_000).unwrap();
        // The kthread's words live as long as the process.
        let region: &'static Region = Box::leak(Box::new(region));
        let ends =
            (Producer::new(region.egress(0)), Consumer::new(region.ingress(0)), region.trace_writer(0));
        let shared = Box::leak(Box::new(KthreadShared::new()));
        let slot = Box::leak(Box::new(Slot::new()));
        let kthread = Kthread::new(0, shared, slot, Some(ends), true);
        Self { kthread, reader: region.trace_reader(0) }
    }

    /// What was written down since the last call, with the trace's number.
    fn steps(&mut self) -> Vec<(u32, Step)> {
        let mut steps = Vec::new();
        while let Read::Step(written) = self.reader.read() {
            steps.push((written.id, Step::from_bits(written.kind, written.argument).unwrap()));
        }
        steps
    }

    /// Request `id` from `port` comes out of the ring and is received by `me`.
    fn receive(&self, me: &Uthread, id: u32, port: u16) {
        let request = taken_by(&self.kthread, id, 0, &request_from(port));
        turn_to(&self.kthread, me, Some(request.expect("it can be answered")));
    }
}

fn thread() -> &'static Uthread {
    Box::leak(Box::new(Uthread::new(0, 0)))
}

#[test]
fn who_wants_more_of_a_stream_has_no_reply_for_its_request_but_one_that_asks_elsewhere_has() {
    let (fixture, me) = (Fixture::new(), thread());
    let back = |port| FlowKeys::of(&request_from(port)).expect("it has data").back;
    assert!(!carries_of(me, back(4000)));
    fixture.receive(me, 7, 4000);
    assert!(carries_of(me, back(4000)));
    assert!(!carries_of(me, back(4001)), "another connection");
}

#[test]
fn a_request_leaves_every_step_and_its_reply_carries_its_number() {
    let (mut fixture, me) = (Fixture::new(), thread());
    fixture.receive(me, 7, 4000);
    leaves(&fixture.kthread, me, false);
    runs_on(&fixture.kthread, me);
    leaves(&fixture.kthread, me, true);
    runs_on(&fixture.kthread, me);
    assert_eq!(reply(&fixture.kthread, me, &reply_to(4000)), (FLAG_TRACED, 7));
    assert!(!me.carried.is_some(), "the next frame of the flow is no reply to it");
    let expected = [
        Step::Taken { ring: 0 },
        Step::Received,
        Step::Off { asked: false },
        Step::On,
        Step::Off { asked: true },
        Step::On,
        Step::Sent,
    ];
    assert_eq!(fixture.steps(), expected.map(|step| (7, step)));
}

#[test]
fn a_frame_of_another_flow_is_no_reply() {
    let (mut fixture, me) = (Fixture::new(), thread());
    fixture.receive(me, 7, 4000);
    for other in [reply_to(4001), request_from(4000), frame((SERVICE, 53), (CLIENT, 4000)), vec![0; 60]] {
        assert_eq!(reply(&fixture.kthread, me, &other), (0, 0));
    }
    assert!(me.carried.is_some());
    assert_eq!(fixture.steps().len(), 2, "nothing was sent");
    assert_eq!(reply(&fixture.kthread, me, &reply_to(4000)), (FLAG_TRACED, 7));
}

#[test]
fn a_thread_that_receives_again_ends_what_it_carried() {
    let (mut fixture, me) = (Fixture::new(), thread());
    fixture.receive(me, 7, 4000);
    fixture.receive(me, 8, 4001);
    turn_to(&fixture.kthread, me, None);
    turn_to(&fixture.kthread, me, None);
    let taken = Step::Taken { ring: 0 };
    let expected = [
        (7, taken),
        (7, Step::Received),
        (8, taken),
        (7, Step::Ended),
        (8, Step::Received),
        (8, Step::Ended),
    ];
    assert_eq!(fixture.steps(), expected);
    assert!(!me.carried.is_some());
}

#[test]
fn a_started_thread_takes_the_request_over() {
    let (mut fixture, me, child) = (Fixture::new(), thread(), thread());
    fixture.receive(me, 7, 4000);
    pass_on(&fixture.kthread, me, child);
    assert!(!me.carried.is_some() && child.carried.is_some());
    runs_on(&fixture.kthread, child);
    assert_eq!(reply(&fixture.kthread, child, &reply_to(4000)), (FLAG_TRACED, 7));
    let steps = fixture.steps();
    assert_eq!(steps[2..], [(7, Step::Passed), (7, Step::On), (7, Step::Sent)]);
}

#[test]
fn a_frame_that_cannot_be_answered_is_carried_by_nobody() {
    let mut fixture = Fixture::new();
    let acknowledgment = [&request_from(4000)[..38], &[0, 8, 0, 0]].concat();
    for (id, frame) in [(7, &acknowledgment[..]), (8, &[]), (0, &request_from(4000))] {
        assert_eq!(taken_by(&fixture.kthread, id, 3, frame), None, "{id}");
    }
    let taken = Step::Taken { ring: 3 };
    assert_eq!(fixture.steps(), [(7, taken), (8, taken), (0, taken)]);
}

#[test]
fn ordinary_threads_write_nothing_down_and_carry_nothing() {
    let me = thread();
    assert_eq!(taken(7, 0, &request_from(4000)), None);
    received(Some(Request { id: 7, back: 1 }));
    delivered(Request { id: 7, back: 1 }, Outcome::Refused);
    drop_request(me);
    assert!(!me.carried.is_some());
}
