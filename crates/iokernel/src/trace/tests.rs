use core::sync::atomic::Ordering;
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
use crate::fixture::World;
use crate::frame::Mac;
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
    region: Region,
}

impl Reader {
    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(record) = self.ring.peek().unwrap() {
            events.push(Event::decode(self.ring.copy_frame(&record, &mut self.buffer)).unwrap());
            self.ring.advance(&record);
        }
        self.ring.publish();
        events
    }
}

fn request(every: u32) -> TraceRequest {
    TraceRequest { every, runtime: None, ring_bytes: 1 << 15 }
}

/// A service that runs, a station at a port, and a trace of one frame of `every`.
fn traced(request: &TraceRequest) -> (World, MemoryPeer, Reader) {
    let attachment = Attachment::Station { mac: Mac::derived(STATION), ip: Some(STATION) };
    let (port, station) = pair("station", attachment).unwrap();
    let mut world = World::new(2, vec![Box::new(port) as Box<dyn Port>]);
    world.add(0, 1, 1, LatencyCritical);
    world.peer(0).queue(0, 1);
    world.settle();
    let (tracer, file) = Tracer::new(7, request, &Clock::from_hz(1_000_000_000)).unwrap();
    let region = Region::attach(Mapping::new(&file, "trace").unwrap()).unwrap();
    let now = world.now;
    world.alloc.begin_trace(tracer, now);
    let reader = Reader { ring: Consumer::new(region.ingress(0)), buffer: FrameBuffer::new(), region };
    (world, station, reader)
}

fn send(station: &MemoryPeer, port: u16) {
    assert!(station.send(&udp(STATION, ip(0), (port, 7), 60)));
}

/// Numbers of the frames that were put into a ring.
fn put(events: &[Event]) -> Vec<u32> {
    let number = |event: &Event| match event {
        Event::InRing { id, .. } => Some(*id),
        _ => None,
    };
    events.iter().filter_map(number).collect()
}

#[test]
fn one_frame_of_so_many_is_chosen_and_carries_its_number_there_and_back() {
    let (mut world, station, mut reader) = traced(&request(4));
    for port in 0..12 {
        send(&station, port);
    }
    world.pass(100);
    let (mut numbers, peer) = (Vec::new(), world.peer(0));
    let own = &mut peer.kthreads[0];
    for _ in 0..12 {
        let record = own.ingress.peek().unwrap().unwrap();
        if record.flags & FLAG_TRACED != 0 {
            numbers.push(record.hash);
        }
        own.ingress.advance(&record);
    }
    assert_eq!(numbers, [1, 2, 3]);
    let frame = udp(ip(0), STATION, (7, 3), 60);
    let mut slot = own.egress.reserve(frame.len()).unwrap();
    slot.write(0, &frame);
    slot.commit(2, FLAG_TRACED, 0);
    world.pass(100);
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
    let (mut world, station, mut reader) = traced(&request(2));
    reader.events();
    for port in 0..8 {
        assert!(station.send(&udp(STATION, ip(0), (port, 7), 42)), "no data");
        send(&station, port);
    }
    world.pass(100);
    assert_eq!(put(&reader.events()), [1, 2, 3, 4]);
}

#[test]
fn a_look_reads_a_bounded_number_of_steps_and_only_of_the_program_that_is_traced() {
    let (mut world, _station, mut reader) = traced(&request(1));
    world.add(1, 8, 0, BestEffort);
    let writers: Vec<_> = (0..8).map(|k| world.peer(1).region.trace_writer(k)).collect();
    for id in 0..100 {
        writers.iter().for_each(|writer| writer.write(id, Step::Received, 99));
    }
    let own = world.peer(0).region.trace_writer(0);
    own.write(7, Step::Received, 99);
    reader.events();
    let alleged = |events: &[Event], runtime: u32| {
        let of = |event: &&Event| matches!(event, Event::Alleged { who, .. } if who.runtime == runtime);
        events.iter().filter(of).count()
    };
    let (mut others, mut looks) = (0, 0);
    while others < 800 {
        world.alloc.collect_trace();
        let events = reader.events();
        assert!(events.len() <= 64, "{} events of one look", events.len());
        others += alleged(&events, 1);
        looks += 1;
        assert!(looks < 100, "{others} of 800 steps in {looks} looks");
    }
    // Whoever writes without end does not keep others from being read.
    own.write(8, Step::Received, 99);
    let mut seen = 0;
    for _ in 0..8 {
        for id in 0..100 {
            writers.iter().for_each(|writer| writer.write(id, Step::Received, 99));
        }
        world.alloc.collect_trace();
        seen += alleged(&reader.events(), 0);
    }
    assert_eq!(seen, 1);

    let named = TraceRequest { runtime: Some("r1".to_owned()), ..request(1) };
    let (mut world, _station, mut reader) = traced(&named);
    world.add(1, 1, 0, BestEffort);
    world.alloc.trace.handle_attached("r1", RuntimeId(1));
    world.peer(0).region.trace_writer(0).write(7, Step::Received, 99);
    world.peer(1).region.trace_writer(0).write(8, Step::Received, 99);
    world.alloc.collect_trace();
    let events = reader.events();
    assert_eq!((alleged(&events, 0), alleged(&events, 1)), (0, 1));
}

#[test]
fn frames_without_data_and_of_other_programs_are_not_chosen() {
    let (mut world, station, mut reader) =
        traced(&TraceRequest { runtime: Some("r1".to_owned()), ..request(1) });
    send(&station, 1);
    world.pass(100);
    assert!(put(&reader.events()).is_empty());
    world.add(1, 1, 0, BestEffort);
    world.alloc.trace.handle_attached("r1", RuntimeId(1));
    assert!(station.send(&arp(STATION, ip(1))));
    assert!(station.send(&udp(STATION, ip(1), (1, 7), 42)), "no data");
    assert!(station.send(&udp(STATION, ip(1), (1, 7), 60)));
    send(&station, 1);
    world.pass(100);
    assert_eq!(put(&reader.events()), [1]);
    world.alloc.trace.handle_detached(RuntimeId(1));
    assert!(station.send(&udp(STATION, ip(1), (1, 7), 60)));
    world.pass(100);
    assert!(put(&reader.events()).is_empty());
}

#[test]
fn hand_offs_are_told_in_the_order_in_which_they_happen() {
    let (mut world, station, mut reader) = traced(&request(1));
    reader.events();
    world.peer(0).queue(0, 0);
    world.peer(0).park(0);
    world.pass(100);
    send(&station, 1);
    world.pass(100);
    world.obey();
    world.pass(100);
    let step = |event: &Event| match event {
        Event::Core { step, who: SERVICE, .. } => Some(*step),
        _ => None,
    };
    let steps: Vec<_> = reader.events().iter().filter_map(step).collect();
    assert_eq!(steps, [CoreStep::Ceded, CoreStep::Decided, CoreStep::Running]);
}

#[test]
fn what_kthreads_write_is_passed_on_with_their_true_names_and_losses_are_counted() {
    let (mut world, _station, mut reader) = traced(&request(1));
    reader.events();
    let writer = world.peer(0).region.trace_writer(0);
    writer.write(5, Step::Received, 99);
    world.alloc.collect_trace();
    let events = reader.events();
    let [Event::Alleged { who: SERVICE, written }] = events[..] else { panic!("{events:?}") };
    assert_eq!((written.id, written.at), (5, 99));
    for id in 0..1000 {
        writer.write(id, Step::Received, 99);
    }
    for _ in 0..10 {
        world.alloc.collect_trace();
    }
    let events = reader.events();
    assert!(matches!(events[0], Event::Lost { who: SERVICE, steps: 872 }), "{:?}", events[0]);
    assert_eq!(events.len(), 129);
    // Garbage in the words of the buffer costs nothing but itself.
    for word in [u64::MAX, 0, 1 << 63, 17] {
        world.peer(0).region.kthread(0).trace_head.0.store(word, Ordering::Relaxed);
        world.alloc.collect_trace();
    }
    world.check();
}

#[test]
fn a_slow_tracer_loses_events_and_a_lying_one_its_trace() {
    let (mut world, station, mut reader) = traced(&request(1));
    for _ in 0..40 {
        for port in 0..30 {
            send(&station, port);
        }
        world.pass(100);
        while world.peer(0).receive(0).is_some() {}
    }
    let trace = world.alloc.trace.end(7).expect("it goes on");
    assert_eq!(trace.stats.sampled.get(), 1200);
    assert!(trace.stats.dropped.get() > 1000, "{}", trace.stats.dropped.get());
    assert_eq!(reader.events().len() as u64, trace.stats.events.get());
    assert!(!world.alloc.trace.is_on());

    let (mut world, station, reader) = traced(&request(1));
    reader.region.kthread(0).ingress_tail.0.store(u64::MAX / 2, Ordering::Relaxed);
    for _ in 0..40 {
        for port in 0..30 {
            send(&station, port);
        }
        world.pass(100);
        while world.peer(0).receive(0).is_some() {}
    }
    assert_eq!(world.alloc.trace.take_broken().map(|tracer| tracer.id), Some(7));
    assert!(!world.alloc.trace.is_on());
}

#[test]
fn one_of_zero_is_refused() {
    let clock = Clock::from_hz(1_000_000_000);
    assert!(Tracer::new(1, &request(0), &clock).is_err());
    assert!(Tracer::new(1, &TraceRequest { ring_bytes: 1000, ..request(1) }, &clock).is_err());
}
