use std::net::Ipv4Addr;
use tailwater_ports::memory::{MemoryPeer, pair};
use tailwater_ports::{Attachment, Port};
use tailwater_sched::RuntimeId;
use tailwater_shm::Clock;
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
use tailwater_shm::control::TraceRequest;
use tailwater_shm::trace::{CoreStep, FLAG_TRACED, Played, Recording, Step, TraceEvent, Who};
use tailwater_testkit::frames::{arp, udp};
use tailwater_wire::MacAddr;

use super::{BACKGROUND, CLAIMS, LOOKS, MOST_CLAIMS, READINGS, Trace, Tracer};
use crate::fixture::{Sandbox, TRACE_HEAD};

const STATION: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
const SERVICE: Who = Who { runtime: 0, kthread: 0 };

fn ip(id: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, id as u8 + 10)
}

/// The tracer's side of the record.
struct Reader(Recording);

impl Reader {
    fn events(&mut self) -> Vec<TraceEvent> {
        let mut events = Vec::new();
        loop {
            match self.0.next_event() {
                Played::Event(_, event) => events.push(event),
                Played::Nothing => return events,
                other => panic!("{other:?}"),
            }
        }
    }
}

fn request(every: u32) -> TraceRequest {
    TraceRequest { every, runtime: None }
}

/// Returns a service that runs, a station at a port, and the record.
fn recorded() -> (Sandbox, MemoryPeer, Reader) {
    let attachment = Attachment::Station { mac: MacAddr::derived(STATION), ip: Some(STATION) };
    let (port, station) = pair("station", attachment).unwrap();
    let mut sandbox = Sandbox::new(2, vec![Box::new(port) as Box<dyn Port>]);
    let (trace, file) = Trace::start(1 << 14, Clock::from_hz(1_000_000_000)).unwrap();
    sandbox.world.trace = trace;
    sandbox.add(0, 1, 1, LatencyCritical);
    sandbox.peer(0).queue(0, 1);
    sandbox.settle();
    (sandbox, station, Reader(Recording::attach(&file).unwrap()))
}

/// The same with a trace of one frame of `every`, whose events are not read yet.
fn traced(request: &TraceRequest) -> (Sandbox, MemoryPeer, Reader) {
    let (mut sandbox, station, mut reader) = recorded();
    reader.events();
    let tracer = Tracer::new(7, request).unwrap();
    let now = sandbox.now;
    sandbox.alloc.begin_trace(&mut sandbox.world, tracer, now);
    (sandbox, station, reader)
}

fn send(station: &MemoryPeer, port: u16) {
    assert!(station.send(&udp(STATION, ip(0), (port, 7), 60)));
}

/// Returns the numbers of the frames that were put into a ring.
fn put(events: &[TraceEvent]) -> Vec<u32> {
    let number = |event: &TraceEvent| match event {
        TraceEvent::InRing { id, .. } => Some(*id),
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
    assert!(
        matches!(events[0], TraceEvent::Core { step: CoreStep::Running, who: SERVICE, .. }),
        "{events:?}"
    );
    assert!(matches!(events[1], TraceEvent::Arrived { id: 1, port: 0, len: 60, .. }), "{events:?}");
    assert_eq!(
        events[events.len() - 2..],
        [TraceEvent::Seen { id: 2, who: SERVICE }, TraceEvent::Left { id: 2, who: SERVICE, taken: true }]
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
    let claimed = |events: &[TraceEvent], runtime: u32| {
        let of =
            |event: &&TraceEvent| matches!(event, TraceEvent::Claimed { who, .. } if who.runtime == runtime);
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
    let step = |event: &TraceEvent| match event {
        TraceEvent::Core { step, who: SERVICE, .. } => Some(*step),
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
    let [TraceEvent::Claimed { who: SERVICE, written }] = events[..] else { panic!("{events:?}") };
    assert_eq!((written.id, written.at), (5, 99));
    for id in 0..1000 {
        sandbox.peer(0).kthreads[0].steps.write(id, Step::Received, 99);
    }
    for _ in 0..10 {
        sandbox.world.collect_trace();
    }
    let events = reader.events();
    assert!(matches!(events[0], TraceEvent::Lost { who: SERVICE, steps: 872 }), "{:?}", events[0]);
    assert_eq!(events.len(), 129);
    // Garbage in the words of the buffer costs nothing but itself.
    for word in [u64::MAX, 0, 1 << 63, 17] {
        sandbox.peer(0).scribble(TRACE_HEAD, word);
        sandbox.world.collect_trace();
    }
    sandbox.check();
}

/// Sends frames with data and has the service read them all.
fn serve(sandbox: &mut Sandbox, station: &MemoryPeer, frames: u32) {
    for batch in 0..frames.div_ceil(30) {
        (0..30.min(frames - batch * 30)).for_each(|port| send(station, port as u16));
        sandbox.pass(100);
        while sandbox.peer(0).receive(0).is_some() {}
    }
}

#[test]
fn cores_and_one_of_many_requests_are_recorded_without_a_tracer() {
    let (mut sandbox, station, mut reader) = recorded();
    let events = reader.events();
    let has = |step: CoreStep| {
        events
            .iter()
            .any(|it| matches!(it, TraceEvent::Core { step: found, who: SERVICE, .. } if *found == step))
    };
    assert!(has(CoreStep::Decided) && has(CoreStep::Running), "{events:?}");
    serve(&mut sandbox, &station, BACKGROUND - 1);
    assert!(put(&reader.events()).is_empty());
    // A frame without data is passed over.
    assert!(station.send(&udp(STATION, ip(0), (1, 7), 42)));
    serve(&mut sandbox, &station, BACKGROUND);
    assert_eq!(put(&reader.events()), [1]);
    sandbox.peer(0).kthreads[0].steps.write(1, Step::Received, 99);
    (0..LOOKS).for_each(|_| sandbox.world.collect_trace());
    let events = reader.events();
    assert!(matches!(events[..], [TraceEvent::Claimed { who: SERVICE, .. }]), "{events:?}");
    // Long after the last chosen frame nothing is read.
    (0..LOOKS * READINGS).for_each(|_| sandbox.world.collect_trace());
    sandbox.peer(0).kthreads[0].steps.write(1, Step::Received, 99);
    (0..LOOKS * 2).for_each(|_| sandbox.world.collect_trace());
    assert_eq!(reader.events(), []);
}

#[test]
fn what_a_program_claims_without_a_tracer_is_bounded_by_what_was_chosen() {
    let (mut sandbox, station, mut reader) = recorded();
    let flood = |sandbox: &mut Sandbox| {
        let frame = udp(ip(0), STATION, (7, 3), 60);
        for id in 0..60 {
            let mut slot = sandbox.peer(0).kthreads[0].egress.reserve(frame.len()).unwrap();
            slot.write(0, &frame);
            slot.commit(id, FLAG_TRACED, 0);
            sandbox.peer(0).kthreads[0].steps.write(id, Step::Received, 99);
            sandbox.pass(100);
            while station.receive().is_some() {}
            (0..LOOKS).for_each(|_| sandbox.world.collect_trace());
        }
    };
    let claims = |events: &[TraceEvent]| {
        let is_claim =
            |event: &&TraceEvent| matches!(event, TraceEvent::Claimed { .. } | TraceEvent::Seen { .. });
        events.iter().filter(is_claim).count() as u32
    };
    flood(&mut sandbox);
    assert_eq!(claims(&reader.events()), 0);
    serve(&mut sandbox, &station, BACKGROUND);
    flood(&mut sandbox);
    assert_eq!(claims(&reader.events()), CLAIMS);
    // What is left of them adds up to a bound.
    serve(&mut sandbox, &station, BACKGROUND * (MOST_CLAIMS / CLAIMS + 20));
    let mut claimed = 0;
    for _ in 0..MOST_CLAIMS / 60 {
        flood(&mut sandbox);
        claimed += claims(&reader.events());
    }
    assert_eq!(claimed, MOST_CLAIMS);
}

#[test]
fn a_program_that_claims_without_end_takes_nothing_from_others_and_is_not_read() {
    let (mut sandbox, station, mut reader) = recorded();
    sandbox.add(1, 1, 0, BestEffort);
    serve(&mut sandbox, &station, BACKGROUND);
    reader.events();
    for id in 0..100 {
        sandbox.peer(1).kthreads[0].steps.write(id, Step::Received, 99);
    }
    let takes = |sandbox: &mut Sandbox, id| {
        let world = &mut sandbox.world;
        world.trace.takes_claim(&mut world.runtimes, RuntimeId(id))
    };
    assert!((0..MOST_CLAIMS).all(|_| !takes(&mut sandbox, 1)), "no frame to it was chosen");
    sandbox.peer(0).kthreads[0].steps.write(1, Step::Received, 99);
    (0..LOOKS * 4).for_each(|_| sandbox.world.collect_trace());
    let events = reader.events();
    assert!(matches!(events[..], [TraceEvent::Claimed { who: SERVICE, .. }]), "{events:?}");
    assert!(takes(&mut sandbox, 0));
    // A tracer reads all of it.
    let (tracer, now) = (Tracer::new(7, &request(1)).unwrap(), sandbox.now);
    sandbox.alloc.begin_trace(&mut sandbox.world, tracer, now);
    assert!(takes(&mut sandbox, 1));
}

#[test]
fn a_tracer_that_reads_nothing_costs_nothing_and_its_end_ends_its_choice() {
    let (mut sandbox, station, mut reader) = traced(&request(1));
    serve(&mut sandbox, &station, 1_200);
    let trace = sandbox.world.trace.end(7).expect("it goes on");
    assert_eq!(trace.stats.sampled.get(), 1_200);
    assert!(!sandbox.world.trace.is_traced() && sandbox.world.trace.end(7).is_none());
    assert_eq!(put(&reader.events()).len(), 1_200);
    serve(&mut sandbox, &station, BACKGROUND - 1);
    assert!(put(&reader.events()).is_empty());
}

#[test]
fn one_of_zero_is_refused() {
    assert!(Tracer::new(1, &request(0)).is_err());
}
