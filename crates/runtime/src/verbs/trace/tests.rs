//! The steps of a request, as the IOKernel reads them.

use super::*;
use tailwater_shm::layout::{Region, RegionSpec};
use tailwater_shm::memory::Mapping;
use tailwater_shm::trace::TraceReader;
use tailwater_shm::trace::buffer::Read;

const CLIENT: [u8; 4] = [10, 77, 0, 8];
const SERVICE: [u8; 4] = [10, 77, 0, 9];
const PORT: u16 = 5000;

/// Returns a datagram of IPv4 with four bytes of data.
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

/// Both ends of a kthread's buffer of steps.
struct Fixture {
    writer: TraceWriter,
    reader: TraceReader,
}

impl Fixture {
    fn new() -> Self {
        let spec = RegionSpec::new(1, 1 << 15).unwrap();
        let (_, iokernel, file) = Region::create("trace-test", spec, 1_000_000_000).unwrap();
        let (_, ends) = Region::attach(Mapping::new(&file, "trace-test").unwrap()).unwrap();
        let writer = ends.into_iter().next().expect("one kthread").steps;
        let reader = iokernel.into_iter().next().expect("one kthread").steps;
        Self { writer, reader }
    }

    fn log(&self) -> Log<'_> {
        Log(Some(&self.writer))
    }

    /// Returns the steps written since the last call, each with its trace's number.
    fn steps(&mut self) -> Vec<(u32, Step)> {
        let mut steps = Vec::new();
        while let Read::Step(written) = self.reader.read() {
            steps.push((written.id, Step::from_bits(written.kind, written.argument).unwrap()));
        }
        steps
    }

    /// Request `id` from `port` comes out of the ring and is received by `me`.
    fn receive(&self, me: &Uthread, id: u32, port: u16) {
        let request = self.log().taken(id, 0, &request_from(port));
        self.log().turn_to(me, Some(request.expect("it can be answered")));
    }
}

fn thread() -> &'static Uthread {
    Box::leak(Box::new(Uthread::new(0, 0, false)))
}

#[test]
fn a_request_belongs_to_the_flow_it_came_by() {
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
    fixture.log().left(me, false);
    fixture.log().returned(me);
    fixture.log().left(me, true);
    fixture.log().returned(me);
    assert_eq!(fixture.log().replied(me, &reply_to(4000)), (FLAG_TRACED, 7));
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
        assert_eq!(fixture.log().replied(me, &other), (0, 0));
    }
    assert!(me.carried.is_some());
    assert_eq!(fixture.steps().len(), 2, "nothing was sent");
    assert_eq!(fixture.log().replied(me, &reply_to(4000)), (FLAG_TRACED, 7));
}

#[test]
fn a_thread_that_receives_again_ends_what_it_carried() {
    let (mut fixture, me) = (Fixture::new(), thread());
    fixture.receive(me, 7, 4000);
    fixture.receive(me, 8, 4001);
    fixture.log().turn_to(me, None);
    fixture.log().turn_to(me, None);
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
    fixture.log().passed_on(me, child);
    assert!(!me.carried.is_some() && child.carried.is_some());
    fixture.log().returned(child);
    assert_eq!(fixture.log().replied(child, &reply_to(4000)), (FLAG_TRACED, 7));
    let steps = fixture.steps();
    assert_eq!(steps[2..], [(7, Step::Passed), (7, Step::On), (7, Step::Sent)]);
}

#[test]
fn a_frame_that_cannot_be_answered_is_carried_by_no_thread() {
    let mut fixture = Fixture::new();
    let acknowledgment = [&request_from(4000)[..38], &[0, 8, 0, 0]].concat();
    for (id, frame) in [(7, &acknowledgment[..]), (8, &[]), (0, &request_from(4000))] {
        assert_eq!(fixture.log().taken(id, 3, frame), None, "{id}");
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

#[test]
fn a_request_that_waits_in_a_dispatcher_is_that_of_the_thread_which_begins_it() {
    let (mut fixture, receiver, worker) = (Fixture::new(), thread(), thread());
    fixture.receive(receiver, 7, 4000);
    let request = fixture.log().queued(receiver, 3);
    // The receiver goes on with another, which ends nothing.
    fixture.log().turn_to(receiver, None);
    fixture.log().begun(worker, request);
    assert!(!receiver.carried.is_some() && worker.carried.is_some());
    fixture.log().left(worker, true);
    fixture.log().returned(worker);
    assert_eq!(fixture.log().replied(worker, &reply_to(4000)), (FLAG_TRACED, 7));
    let steps = fixture.steps();
    let expected = [Step::Queued { class: 3 }, Step::On, Step::Off { asked: true }, Step::On, Step::Sent]
        .map(|step| (7, step));
    assert_eq!(steps[2..], expected);
}
