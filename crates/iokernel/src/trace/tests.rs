use rustix::fd::OwnedFd;
use std::net::Ipv4Addr;
use tailwater_sched::RuntimeId;
use tailwater_shm::Clock;
use tailwater_shm::control::Class::{BestEffort, LatencyCritical};
use tailwater_shm::control::TraceRequest;
use tailwater_shm::layout::Region;
use tailwater_shm::memory::Mapping;
use tailwater_shm::ring::{Consumer, FrameBuffer};
use tailwater_shm::trace::{CoreStep, Event, FLAG_TRACED, Step, Who};

use super::Tracer;
use crate::fixture::{INGRESS_TAIL, Sandbox, TRACE_HEAD, scribble};
use crate::frame::MacAddr;
use crate::port::memory::{MemoryPeer, pair};
use crate::port::{Attachment, Port};
use crate::switch::check::tests::{arp, udp};

const STATION: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
const SERVICE: Who = Who { runtime: 0, kthread: 0 };

fn ip(id: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, id as u8 + 10)
}

/// The tracer's side of a ring.
struct Reader {
    ring: Consumer,
    buffer: FrameBuffer,
    file: OwnedFd,
}

impl Reader {
    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(record) = self.ring.peek().unwrap() {
            events.push(Event::decode(record.copy_frame(&mut self.buffer)).unwrap());
            record.advance();
        }
        self.ring.publish();
        events
    }
}

fn request(every: u32) -> TraceRequest {
    TraceRequest { every, runtime: None, ring_bytes: 1 << 15 }
}

/// Returns a service that runs, a station at a port, and a trace of one frame of `every`.
fn traced(request: &TraceRequest) -> (Sandbox, MemoryPeer, Reader) {
    let attachment = Attachment::Station { mac: MacAddr::derived(STATION), ip: Some(STATION) };
    let (port, station) = pair("station", attachment).unwrap();
    let mut sandbox = Sandbox::new(2, vec![Box::new(port) as Box<dyn Port>]);
    sandbox.add(0, 1, 1, LatencyCritical);
    sandbox.peer(0).queue(0, 1);
    sandbox.settle();
    let (tracer, file) = Tracer::new(7, request, &Clock::from_hz(1_000_000_000)).unwrap();
    let (_, ends) = Region::attach(Mapping::new(&file, "trace").unwrap()).unwrap();
    let now = sandbox.now;
    sandbox.alloc.begin_trace(&mut sandbox.world, tracer, now);
    let ring = ends.into_iter().next().unwrap().ingress;
    let reader = Reader { ring, buffer: FrameBuffer::new(), file };
    (sandbox, station, reader)
}

fn send(station: &MemoryPeer, port: u16) {
    assert!(station.send(&udp(STATION, ip(0), (port, 7), 60)));
}

/// Returns the numbers of the frames that were put into a ring.
fn put(events: &[Event]) -> Vec<u32> {
    let number = |event: &Event| match event {
        Event::InRing { id, .. } => Some(*id),
        _ => None,
    };
    events.iter().filter_map(number).collect()
}

#[test]
fn one_frame_of_so_many_is_chosen_and_carries_its_number_there_and_back() {
    let (mut sandbox, station, mut reader) = traced(&request(4));
    for port in 0..12 {
        send(&station, port);
    }
    sandbox.pass(100);
    let (mut numbers, peer) = (Vec::new(), sandbox.peer(0));
    let own = &mut peer.kthreads[0];
    for _ in 0..12 {
        let record = own.ingress.peek().unwrap().unwrap();
        if record.flags() & FLAG_TRACED != 0 {
            numbers.push(record.hash());
        }
        record.advance();
    }
    assert_eq!(numbers, [1, 2, 3]);
    let frame = udp(ip(0), STATION, (7, 3), 60);
    let mut slot = own.egress.reserve(frame.len()).unwrap();
    slot.write(0, &frame);
    slot.commit(2, FLAG_TRACED, 0);
    sandbox.pass(100);
    assert_eq!(station.receive().as_deref(), Some(&frame[..]));
    let events = reader.events();
    assert_eq!(put(&events), [1, 2, 3]);
    assert!(matches!(events[0], Event::Core { step: CoreStep::Running, who: SERVICE, .. }), "{events:?}");
    assert!(matches!(events[1], Event::Arrived { id: 1, port: 0, len: 60, .. }), "{events:?}");
    assert_eq!(
        events[events.len() - 2..],
        [Event::Seen { id: 2, who: SERVICE }, Event::Left { id: 2, who: SERVICE, taken: true }]
    );
}

#[test]
fn frames_without_data_do_not_count_for_the_choice() {
    let (mut sandbox, station, mut reader) = traced(&request(2));
    reader.events();
    for port in 0..8 {
        assert!(station.send(&udp(STATION, ip(0), (port, 7), 42)), "no data");
        send(&station, port);
    }
    sandbox.pass(100);
    assert_eq!(put(&reader.events()), [1, 2, 3, 4]);
}

#[test]
fn a_look_reads_a_bounded_number_of_steps_and_only_of_the_program_that_is_traced() {
    let (mut sandbox, _station, mut reader) = traced(&request(1));
    sandbox.add(1, 8, 0, BestEffort);
    let write_all = |sandbox: &mut Sandbox| {
        for id in 0..100 {
            sandbox.peer(1).kthreads.iter().for_each(|own| own.steps.write(id, Step::Received, 99));
        }
    };
    write_all(&mut sandbox);
    sandbox.peer(0).kthreads[0].steps.write(7, Step::Received, 99);
    reader.events();
    let claimed = |events: &[Event], runtime: u32| {
        let of = |event: &&Event| matches!(event, Event::Claimed { who, .. } if who.runtime == runtime);
        events.iter().filter(of).count()
    };
    let (mut others, mut looks) = (0, 0);
    while others < 800 {
        sandbox.world.collect_trace();
        let events = reader.events();
        assert!(events.len() <= 64, "{} events of one look", events.len());
        others += claimed(&events, 1);
        looks += 1;
        assert!(looks < 100, "{others} of 800 steps in {looks} looks");
    }
    // A kthread that writes without end does not keep others from being read.
    sandbox.peer(0).kthreads[0].steps.write(8, Step::Received, 99);
    let mut seen = 0;
    for _ in 0..8 {
        write_all(&mut sandbox);
        sandbox.world.collect_trace();
        seen += claimed(&reader.events(), 0);
    }
    assert_eq!(seen, 1);

    let named = TraceRequest { runtime: Some("r1".to_owned()), ..request(1) };
    let (mut sandbox, _station, mut reader) = traced(&named);
    sandbox.add(1, 1, 0, BestEffort);
    sandbox.world.trace.handle_attached("r1", RuntimeId(1));
    sandbox.peer(0).kthreads[0].steps.write(7, Step::Received, 99);
    sandbox.peer(1).kthreads[0].steps.write(8, Step::Received, 99);
    sandbox.world.collect_trace();
    let events = reader.events();
    assert_eq!((claimed(&events, 0), claimed(&events, 1)), (0, 1));
}

#[test]
fn frames_without_data_and_of_other_programs_are_not_chosen() {
    let (mut sandbox, station, mut reader) =
        traced(&TraceRequest { runtime: Some("r1".to_owned()), ..request(1) });
    send(&station, 1);
    sandbox.pass(100);
    assert!(put(&reader.events()).is_empty());
    sandbox.add(1, 1, 0, BestEffort);
    sandbox.world.trace.handle_attached("r1", RuntimeId(1));
    assert!(station.send(&arp(STATION, ip(1))));
    assert!(station.send(&udp(STATION, ip(1), (1, 7), 42)), "no data");
    assert!(station.send(&udp(STATION, ip(1), (1, 7), 60)));
    send(&station, 1);
    sandbox.pass(100);
    assert_eq!(put(&reader.events()), [1]);
    sandbox.world.trace.handle_detached(RuntimeId(1));
    assert!(station.send(&udp(STATION, ip(1), (1, 7), 60)));
    sandbox.pass(100);
    assert!(put(&reader.events()).is_empty());
}

#[test]
fn hand_offs_are_told_in_the_order_in_which_they_happen() {
    let (mut sandbox, station, mut reader) = traced(&request(1));
    reader.events();
    sandbox.peer(0).queue(0, 0);
    sandbox.peer(0).park(0);
    sandbox.pass(100);
    send(&station, 1);
    sandbox.pass(100);
    sandbox.obey();
    sandbox.pass(100);
    let step = |event: &Event| match event {
        Event::Core { step, who: SERVICE, .. } => Some(*step),
        _ => None,
    };
    let steps: Vec<_> = reader.events().iter().filter_map(step).collect();
    assert_eq!(steps, [CoreStep::Ceded, CoreStep::Decided, CoreStep::Running]);
}

#[test]
fn what_kthreads_write_is_passed_on_with_their_true_names_and_losses_are_counted() {
    let (mut sandbox, _station, mut reader) = traced(&request(1));
    reader.events();
    sandbox.peer(0).kthreads[0].steps.write(5, Step::Received, 99);
    sandbox.world.collect_trace();
    let events = reader.events();
    let [Event::Claimed { who: SERVICE, written }] = events[..] else { panic!("{events:?}") };
    assert_eq!((written.id, written.at), (5, 99));
    for id in 0..1000 {
        sandbox.peer(0).kthreads[0].steps.write(id, Step::Received, 99);
    }
    for _ in 0..10 {
        sandbox.world.collect_trace();
    }
    let events = reader.events();
    assert!(matches!(events[0], Event::Lost { who: SERVICE, steps: 872 }), "{:?}", events[0]);
    assert_eq!(events.len(), 129);
    // Garbage in the words of the buffer costs nothing but itself.
    for word in [u64::MAX, 0, 1 << 63, 17] {
        sandbox.peer(0).scribble(TRACE_HEAD, word);
        sandbox.world.collect_trace();
    }
    sandbox.check();
}

#[test]
fn a_slow_tracer_loses_events_and_a_lying_one_its_trace() {
    let (mut sandbox, station, mut reader) = traced(&request(1));
    for _ in 0..40 {
        for port in 0..30 {
            send(&station, port);
        }
        sandbox.pass(100);
        while sandbox.peer(0).receive(0).is_some() {}
    }
    let trace = sandbox.world.trace.end(7).expect("it goes on");
    assert_eq!(trace.stats.sampled.get(), 1200);
    assert!(trace.stats.dropped.get() > 1000, "{}", trace.stats.dropped.get());
    assert_eq!(reader.events().len() as u64, trace.stats.events.get());
    assert!(!sandbox.world.trace.is_on());

    let (mut sandbox, station, reader) = traced(&request(1));
    scribble(&reader.file, INGRESS_TAIL, u64::MAX / 2);
    for _ in 0..40 {
        for port in 0..30 {
            send(&station, port);
        }
        sandbox.pass(100);
        while sandbox.peer(0).receive(0).is_some() {}
    }
    assert_eq!(sandbox.world.trace.take_broken().map(|tracer| tracer.id), Some(7));
    assert!(!sandbox.world.trace.is_on());
}

#[test]
fn one_of_zero_is_refused() {
    let clock = Clock::from_hz(1_000_000_000);
    assert!(Tracer::new(1, &request(0), &clock).is_err());
    assert!(Tracer::new(1, &TraceRequest { ring_bytes: 1000, ..request(1) }, &clock).is_err());
}
