//! A client and a listener of `tailwater-tcp`, frames handed from one to the other in virtual time.

use super::*;
use crate::protocol::{Echo, Ids, Malformed, Medium, Protocol, Request, Verdict};
use crate::station::wire::put_u16;
use crate::tcp::Order;
use crate::tcp::open_loop::{OpenLoop, TcpLoad};
use crate::tcp::preload::Preload;
use crate::tcp::task::Task;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tailwater_tcp::listen::{Arrival, ListenConfig};
use tailwater_tcp::{Answer, Listener, Payload, State};
use tailwater_wire::frame::IPV4_FRAME;

const CLIENT: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 77, 0, 250));
const SERVER: Peer = Peer { mac: MacAddr([2, 0, 0, 0, 0, 2]), ip: Ipv4Addr::new(10, 77, 0, 2), port: 7 };

/// Frames on the way; a full one takes nothing.
#[derive(Default)]
struct Wire {
    frames: VecDeque<Vec<u8>>,
    room: usize,
}

impl Inject for Wire {
    fn inject(&mut self, frame: &[u8]) -> Delivery {
        if self.frames.len() >= self.room {
            return Delivery::Full;
        }
        self.frames.push_back(frame.to_vec());
        Delivery::Delivered
    }

    fn resolve(&self, _ip: Ipv4Addr) -> Option<MacAddr> {
        Some(SERVER.mac)
    }
}

/// An echo server for any number of ports and connections.
struct Server {
    /// How often it sends back what it has received.
    times: usize,
    listener: Listener,
    connections: HashMap<Flow, Box<Connection>>,
    template: Template,
}

impl Server {
    fn new() -> Self {
        let own = Host { mac: SERVER.mac, ip: SERVER.ip };
        let peer = Peer { mac: CLIENT.0, ip: CLIENT.1, port: 0 };
        Self {
            times: 1,
            listener: Listener::new(ListenConfig::default(), Secret([9; 16])),
            connections: HashMap::new(),
            template: Template::new(own, &peer, 1500),
        }
    }

    /// Handles a frame: answers with an echo of its data, and closes when the client did.
    fn handle(&mut self, frame: &[u8], now: Instant, out: &mut Vec<Vec<u8>>) {
        let own = Host { mac: SERVER.mac, ip: SERVER.ip };
        let peer = Peer { mac: CLIENT.0, ip: CLIENT.1, port: 0 };
        let (bytes, ecn) = decode(frame, own, &peer).expect("for the server");
        let segment = Segment::parse(bytes).expect("a segment");
        let flow = Flow {
            local: SERVER.ip.into(),
            remote: CLIENT.1.into(),
            local_port: segment.header.destination,
            remote_port: segment.header.source,
        };
        if !self.connections.contains_key(&flow) {
            let arrival = Arrival { flow, segment, ecn, path_mss: 1460, room: true, iss: None };
            match self.listener.handle_segment(now, &arrival) {
                Answer::Ignore => {}
                Answer::Reply(header) => {
                    let ecn = EcnCodepoint::NotEct;
                    let segment =
                        Outgoing { header, payload: Payload::default(), ecn, purpose: Purpose::Open };
                    out.push(self.template.fill(&segment).to_vec());
                }
                Answer::Accept(connection, _) => drop(self.connections.insert(flow, connection)),
            }
            return;
        }
        let connection = self.connections.get_mut(&flow).expect("looked up");
        let _ = connection.handle_segment(now, &segment, ecn);
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = connection.recv(&mut buffer) {
            for _ in 0..self.times {
                assert_eq!(connection.send(&buffer[..len]), Ok(len), "the echo fits");
            }
        }
        if connection.state().peer_closed() {
            let _ = connection.close();
        }
        while connection.poll_transmit(now, |s| {
            out.push(self.template.fill(s).to_vec());
            Ok(())
        }) == Transmit::Sent
        {}
        if connection.is_closed() {
            self.connections.remove(&flow);
        }
    }
}

impl Server {
    /// Runs the server's timers; returns the frames sent.
    fn poll(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        for connection in self.connections.values_mut() {
            let _ = connection.handle_timeout(now);
            while connection.poll_transmit(now, |s| {
                out.push(self.template.fill(s).to_vec());
                Ok(())
            }) == Transmit::Sent
            {}
        }
        out
    }
}

/// Runs both until nothing moves, at most `steps` times; returns the events of connections.
fn run(client: &mut Client, server: &mut Server, now: Instant, steps: usize) -> Vec<(ConnectionId, Events)> {
    let (mut wire, mut changed) = (Wire { room: 64, ..Wire::default() }, Vec::new());
    for _ in 0..steps {
        if client.poll_transmit(now, 32, &mut wire) == 0 {
            return changed;
        }
        let mut answers = Vec::new();
        for frame in wire.frames.drain(..) {
            server.handle(&frame, now, &mut answers);
        }
        for answer in answers {
            changed.extend(client.handle_frame(now, &answer));
        }
    }
    panic!("still talking after {steps} steps");
}

fn client() -> Client {
    Client::new(CLIENT, SERVER, Config { nodelay: true, ..Config::default() }, [7; 16], 1500)
}

#[test]
fn many_connections_open_echo_and_close() {
    let (mut client, mut server) = (client(), Server::new());
    // Of the first and of the second remote port.
    let ids: Vec<u32> = (0..50).chain(PORTS..PORTS + 50).collect();
    ids.iter().for_each(|&id| client.connect(id, Instant(0)));
    let changed = run(&mut client, &mut server, Instant(1_000), 1_000);
    let opened: HashSet<u32> =
        changed.iter().filter(|(_, e)| e.contains(Events::ESTABLISHED)).map(|&(id, _)| id).collect();
    assert_eq!(opened, ids.iter().copied().collect());
    assert!(server.connections.keys().any(|flow| flow.local_port == 8));
    for &id in &ids {
        assert_eq!(client.send(id, &id.to_le_bytes()), Ok(4));
    }
    run(&mut client, &mut server, Instant(2_000), 1_000);
    let mut buffer = [0; 16];
    for &id in &ids {
        assert_eq!(client.recv(id, &mut buffer), Ok(4), "connection {id}");
        assert_eq!(buffer[..4], id.to_le_bytes());
        let _ = client.close(id);
    }
    run(&mut client, &mut server, Instant(3_000), 1_000);
    assert!(ids.iter().all(|&id| client.connection(id).is_some_and(|c| c.state() == State::TimeWait)));
    assert!(server.connections.is_empty());
}

#[test]
fn a_lost_syn_is_sent_again_by_its_timer() {
    let (mut client, mut server) = (client(), Server::new());
    client.connect(3, Instant(0));
    let mut wire = Wire { room: 1, ..Wire::default() };
    assert_eq!(client.poll_transmit(Instant(0), 32, &mut wire), 1);
    let at = client.next_event().expect("a timer runs");
    assert!(at > Instant(0));
    client.handle_timeouts(at, 8, |_, _| {});
    let changed = run(&mut client, &mut server, at, 100);
    assert!(changed.iter().any(|&(id, events)| id == 3 && events.contains(Events::ESTABLISHED)));
}

#[test]
fn a_full_ring_delays_and_loses_nothing() {
    let (mut client, mut server) = (client(), Server::new());
    client.connect(0, Instant(0));
    run(&mut client, &mut server, Instant(0), 100);
    client.send(0, &[1; 1000]).expect("room");
    let mut full = Wire::default();
    assert_eq!(client.poll_transmit(Instant(1_000), 32, &mut full), 0);
    assert_eq!(client.next_event(), Some(Instant(0)), "it wants to be polled again");
    run(&mut client, &mut server, Instant(2_000), 100);
    assert_eq!(client.connection(0).map(Connection::readable_bytes), Some(1000));
    assert_eq!(client.connection(0).map(|c| c.stats().retransmissions), Some(0));
}

#[test]
fn segments_of_unknown_connections_are_answered_with_a_reset() {
    let mut client = client();
    client.connect(0, Instant(0));
    let mut wire = Wire { room: 8, ..Wire::default() };
    client.poll_transmit(Instant(0), 8, &mut wire);
    let (mut answers, mut server) = (Vec::new(), Server::new());
    server.handle(&wire.frames[0], Instant(0), &mut answers);
    for (at, port) in [(IPV4_FRAME, 6), (IPV4_FRAME, 8), (IPV4_FRAME + 2, 9_999), (IPV4_FRAME + 2, 60_001)] {
        let mut frame = answers[0].clone();
        put_u16(&mut frame, at, port);
        assert_eq!(client.handle_frame(Instant(0), &frame), None, "{port} at {at}");
    }
    wire.frames.clear();
    assert_eq!(client.poll_transmit(Instant(0), 32, &mut wire), 4);
    for frame in &wire.frames {
        assert_eq!(frame[IPV4_FRAME + 13] & 4, 4, "a reset");
    }
    assert!(client.handle_frame(Instant(0), &answers[0]).is_some());
}

/// Sends 100 KB to the echo server, through the losses of `seed`, until all of it is back. The
/// frames that were lost, and the virtual time that it took.
fn echo_with_losses(seed: u64) -> (u64, Instant) {
    const BYTES: usize = 100_000;
    let (mut client, mut server) = (client(), Server::new());
    // The handshake is not what is tested: a timer of seconds decides how long a lost one takes.
    client.connect(0, Instant(0));
    run(&mut client, &mut server, Instant(0), 100);
    client.loss.state = seed;
    client.set_loss(200_000);
    let (mut now, mut sent, mut received, mut buffer) = (Instant(0), 0, 0, [0; 4096]);
    for _ in 0..50_000 {
        while let Ok(len @ 1..) = client.recv(0, &mut buffer) {
            received += len;
        }
        if received == BYTES {
            return (client.lost(), now);
        }
        let rest = BYTES - sent;
        if rest > 0 {
            sent += client.send(0, &[7; 1000][..rest.min(1000)]).unwrap_or(0);
        }
        run(&mut client, &mut server, now, 1_000);
        for frame in server.poll(now) {
            client.handle_frame(now, &frame);
        }
        // To whatever either side does next, 100 us at least.
        let timers = server.connections.values().filter_map(|c| c.next_timeout()).chain(client.next_event());
        let at = timers.min().unwrap_or(now);
        now = at.max(Instant(now.0 + 100_000));
        client.handle_timeouts(now, 8, |_, _| {});
    }
    panic!("seed {seed}: {received} of {BYTES} bytes came back by {now:?}: {:?}", client.connection(0));
}

#[test]
fn what_is_lost_on_purpose_is_sent_again() {
    for seed in 1..=64 {
        let (lost, at) = echo_with_losses(seed);
        // 100 KB are 70 full segments each way; a fifth of them, less what chance takes off.
        assert!((10..10_000).contains(&lost), "seed {seed}: {lost} frames were lost");
        assert!(at < Instant(3_600_000_000_000), "seed {seed}: it took until {at:?}");
    }
}

#[test]
fn nothing_is_lost_while_nothing_is_sent() {
    let (mut client, mut server) = (client(), Server::new());
    client.connect(0, Instant(0));
    run(&mut client, &mut server, Instant(0), 100);
    client.set_loss(1_000_000);
    let mut wire = Wire { room: 8, ..Wire::default() };
    for _ in 0..100 {
        // A look at what can be read marks the connection as one that may have something to send.
        let _ = client.recv(0, &mut [0; 16]);
        assert_eq!(client.poll_transmit(Instant(1_000), 32, &mut wire), 0);
    }
    assert_eq!(client.lost(), 0);
    client.send(0, &[1; 1000]).expect("room");
    assert_eq!(client.poll_transmit(Instant(1_000), 32, &mut wire), 1);
    assert_eq!((client.lost(), wire.frames.len()), (1, 0));
}

/// Runs an open loop against the echo server in virtual time; `disturb` may change the server
/// before each step.
fn load(mut disturb: impl FnMut(&mut Server, u64)) -> crate::Measurement {
    const CONNECTIONS: u32 = 5;
    let (mut client, mut server) = (client(), Server::new());
    (0..CONNECTIONS).for_each(|id| client.connect(id, Instant(0)));
    run(&mut client, &mut server, Instant(0), 100);
    let mut plan = crate::Plan::new("100ms@5k".parse().unwrap(), "const:0ns".parse().unwrap());
    plan.timeout_ns = 200_000_000;
    let protocol = std::sync::Arc::new(Echo::new(100).unwrap());
    let load = TcpLoad { plan, protocol, seed: 1, pipeline: 4 };
    let mut open_loop = OpenLoop::new(load, &client, CONNECTIONS, Instant(1_000)).unwrap();
    // 50 us a step; the schedule, the timeout and some more.
    for step in 0..10_000 {
        let now = Instant(2_000 + 50_000 * step);
        disturb(&mut server, step);
        let mut expired = Vec::new();
        client.handle_timeouts(now, 64, |id, events| expired.push((id, events)));
        for (id, events) in expired {
            open_loop.on_events(&mut client, id, events, now);
        }
        if open_loop.poll(&mut client, now, 32) {
            return open_loop.finish(now);
        }
        assert!(open_loop.next_event() <= Instant(now.0 + 250_000_000));
        let mut changed = run(&mut client, &mut server, now, 100);
        for frame in server.poll(now) {
            changed.extend(client.handle_frame(now, &frame));
        }
        for (id, events) in changed {
            open_loop.on_events(&mut client, id, events, now);
        }
    }
    panic!("the run does not end");
}

#[test]
fn an_open_loop_run_asks_and_checks_over_all_connections() {
    let measurement = load(|_, _| {});
    let counts = measurement.summary.counts();
    assert!((400..600).contains(&counts.offered), "{counts:?}");
    assert_eq!((counts.completed, counts.lost), (counts.offered, 0));
    assert_eq!((measurement.oddities.wrong, measurement.oddities.reconnects), (0, 0));
}

#[test]
fn an_open_loop_run_opens_connections_again_that_the_server_has_forgotten() {
    // Segments of connections that are not there are answered with resets.
    let measurement = load(|server, step| {
        if step == 600 {
            server.connections.clear();
        }
    });
    let (counts, oddities) = (measurement.summary.counts(), measurement.oddities);
    assert_eq!(counts.completed + counts.lost, counts.offered);
    assert_eq!(oddities.reconnects, 5, "{oddities:?}");
    // 20 ms of 100 without a connection, and what was in flight.
    assert!(counts.lost >= 1 && counts.completed > counts.offered * 6 / 10, "{counts:?}");
    assert_eq!(oddities.wrong, 0);
}

/// Carries out an echo for `steps`. The connections in `dead` accept nothing from the start; those
/// in `reset` are reset once the first requests are out. Returns how often each connection was
/// asked, and the order's outcome.
fn echo_in_turn(
    connections: u32,
    outstanding: u32,
    dead: &[ConnectionId],
    reset: &[ConnectionId],
    steps: u64,
) -> (Vec<u32>, crate::tcp::Outcome) {
    let (mut client, mut server) = (client(), Server::new());
    (0..connections).for_each(|id| client.connect(id, Instant(0)));
    run(&mut client, &mut server, Instant(0), 100);
    for &id in dead {
        let _ = client.abort(id);
    }
    let lasts = Duration::from_micros(50 * steps);
    let order = Order::Echo { bytes: 64, outstanding, warm_up: Duration::ZERO, lasts };
    let mut task = Task::new(order, connections, Instant(0));
    let mut asked = vec![0; connections as usize];
    let mut step = 0;
    loop {
        step += 1;
        let now = Instant(50_000 * step);
        if task.poll(&mut client, now, 64, &mut || now) {
            return (asked, task.outcome(&mut client, now));
        }
        for &id in reset.iter().filter(|_| step == 1) {
            let _ = client.abort(id);
            task.on_events(&mut client, id, Events::ERROR, now);
        }
        let changed = run(&mut client, &mut server, now, 100);
        let answered: Vec<_> = changed.iter().filter(|(_, e)| e.contains(Events::READABLE)).collect();
        assert!(answered.len() as u32 <= outstanding, "{} at a time", answered.len());
        answered.iter().for_each(|&&(id, _)| asked[id as usize] += 1);
        changed.into_iter().for_each(|(id, events)| task.on_events(&mut client, id, events, now));
        assert!(step < 10_000, "the order does not end");
    }
}

#[test]
fn so_many_requests_wait_at_a_time_and_all_connections_get_their_turn() {
    let (asked, outcome) = echo_in_turn(20, 3, &[], &[], 100);
    // Three a step, one connection after the other.
    assert_eq!((outcome.failed, asked.iter().sum::<u32>()), (0, 300));
    assert!(asked.iter().all(|&times| times == 15), "{asked:?}");
    let (asked, _) = echo_in_turn(2, 3, &[], &[], 10);
    assert_eq!(asked, [10, 10], "one on each connection");
}

#[test]
fn a_connection_that_accepts_no_request_fails_once_and_delays_no_other() {
    let (asked, outcome) = echo_in_turn(6, 2, &[1, 2, 5], &[], 100);
    assert_eq!(outcome.failed, 3);
    assert_eq!([asked[1], asked[2], asked[5]], [0; 3]);
    assert_eq!(asked.iter().sum::<u32>(), 200);
    assert!([0, 3, 4].iter().all(|&id| asked[id] >= 40), "{asked:?}");
}

#[test]
fn a_connection_that_fails_before_its_first_request_is_counted_once_and_never_asked() {
    // 0 and 1 are asked first; 1 fails under way, 4 and 5 before their turn.
    let (asked, outcome) = echo_in_turn(6, 2, &[], &[1, 4, 5], 100);
    assert_eq!(outcome.failed, 3);
    assert_eq!([asked[1], asked[4], asked[5]], [0; 3]);
    // Two at a time in each step but the first, in which one of two fails.
    assert_eq!(asked.iter().sum::<u32>(), 199);
}

/// Carries out an order beside so many open connections, and returns its outcome.
fn carry_out(client: &mut Client, order: Order, open: u32) -> crate::tcp::Outcome {
    carry_out_with(Server::new(), client, order, open)
}

fn carry_out_with(mut server: Server, client: &mut Client, order: Order, open: u32) -> crate::tcp::Outcome {
    (0..open).for_each(|id| client.connect(id, Instant(0)));
    run(client, &mut server, Instant(0), 100);
    let mut task = Task::new(order, open, Instant(0));
    for step in 1..10_000 {
        let now = Instant(50_000 * step);
        if task.poll(client, now, 64, &mut || now) {
            return task.outcome(client, now);
        }
        let changed = run(client, &mut server, now, 1_000);
        changed.into_iter().for_each(|(id, events)| task.on_events(client, id, events, now));
        for frame in server.poll(now) {
            if let Some((id, events)) = client.handle_frame(now, &frame) {
                task.on_events(client, id, events, now);
            }
        }
    }
    panic!("the order does not end");
}

#[test]
fn a_connection_has_its_number_of_calls_and_another_one_takes_its_place() {
    for messages in [1, 3] {
        let lasts = Duration::from_millis(5);
        let order = Order::Calls { concurrent: 4, messages, bytes: 64, warm_up: Duration::ZERO, lasts };
        let mut client = client();
        let outcome = carry_out(&mut client, order, 1);
        assert_eq!(outcome.failed, 0);
        assert_eq!(outcome.latency.len(), outcome.completed);
        // The connection that was open has no part in it.
        let used = (1..PORTS).filter(|&id| client.connection(id).is_some()).count() as u64;
        assert!(used > 4, "{used} connections were used");
        // All but those of the end have had all of their messages.
        let most = used * u64::from(messages);
        assert!(outcome.completed <= most, "{} of {most}", outcome.completed);
        assert!(outcome.completed + 4 * u64::from(messages) >= most, "{} of {most}", outcome.completed);
    }
}

#[test]
fn a_request_longer_than_the_send_buffer_goes_in_parts_and_comes_back_whole() {
    const BYTES: usize = 100_000;
    let config = Config { nodelay: true, send_buffer: 20_000, ..Config::default() };
    let mut client = Client::new(CLIENT, SERVER, config, [7; 16], 1500);
    let lasts = Duration::from_millis(20);
    let order = Order::Echo { bytes: BYTES, outstanding: 1, warm_up: Duration::ZERO, lasts };
    let outcome = carry_out(&mut client, order, 1);
    assert_eq!(outcome.failed, 0);
    assert!(outcome.completed > 1, "{} requests", outcome.completed);
    assert_eq!(outcome.bytes % BYTES as u64, 0, "{} bytes came back", outcome.bytes);
}

#[test]
fn an_answer_longer_than_its_request_is_awaited_to_its_end() {
    const TIMES: usize = 100;
    let mut client = client();
    let (lasts, answer) = (Duration::from_millis(5), 64 * TIMES);
    let order = Order::Fetch { bytes: 64, answer, outstanding: 2, warm_up: Duration::ZERO, lasts };
    let outcome = carry_out_with(Server { times: TIMES, ..Server::new() }, &mut client, order, 2);
    assert_eq!(outcome.failed, 0);
    assert!(outcome.completed > 1, "{} requests", outcome.completed);
    assert_eq!(outcome.bytes, outcome.completed * answer as u64);
}

#[test]
fn what_filled_the_window_before_a_download_is_taken_and_more_comes() {
    const ALL: usize = 200_000;
    let (mut client, mut server) = (client(), Server::new());
    client.connect(0, Instant(0));
    run(&mut client, &mut server, Instant(0), 100);
    let service = server.connections.values_mut().next().expect("it is open");
    assert_eq!(service.send(&[7; ALL]), Ok(ALL));
    for frame in server.poll(Instant(1_000)) {
        client.handle_frame(Instant(1_000), &frame);
    }
    run(&mut client, &mut server, Instant(1_000), 100);
    // The data is not read, so the server waits.
    assert!(client.connection(0).is_some_and(|connection| connection.readable_bytes() < ALL));
    let mut task = Task::new(Order::Download { lasts: Duration::from_millis(1) }, 1, Instant(2_000));
    for step in 0.. {
        let now = Instant(2_000 + step * 100_000);
        if task.poll(&mut client, now, 64, &mut || now) {
            break;
        }
        for (id, events) in run(&mut client, &mut server, now, 100) {
            task.on_events(&mut client, id, events, now);
        }
    }
    assert_eq!(task.outcome(&mut client, Instant(2_000_000)).bytes, ALL as u64);
}

/// Has numbers echoed; the answer to `spoilt` is never right.
#[derive(Debug)]
struct Numbers {
    count: u64,
    spoilt: u64,
}

impl Protocol for Numbers {
    fn name(&self) -> &'static str {
        "numbers"
    }

    fn ids(&self, _medium: Medium) -> Ids {
        Ids::Order
    }

    fn draw(&self, _prng: &mut tailwater_workload::Prng) -> u64 {
        0
    }

    fn encode(&self, request: &Request, _medium: Medium, out: &mut Vec<u8>) {
        out.extend_from_slice(&request.ticket.to_be_bytes());
    }

    fn split(&self, stream: &[u8]) -> Result<Option<usize>, Malformed> {
        Ok((stream.len() >= 8).then_some(8))
    }

    fn id(&self, _answer: &[u8], _medium: Medium) -> Option<u64> {
        None
    }

    fn check(&self, request: &Request, answer: &[u8], _medium: Medium) -> Verdict {
        let right = answer == request.ticket.to_be_bytes() && request.ticket != self.spoilt;
        if right { Verdict::Right } else { Verdict::Wrong }
    }

    fn contact(&self) -> u64 {
        0
    }

    fn preloads(&self) -> u64 {
        self.count
    }
}

/// Stores these numbers within a number of steps; returns how many were stored and how many not.
/// `disturb` may change the server before each step.
fn stored(numbers: Numbers, mut disturb: impl FnMut(&mut Server, u64)) -> (u64, u64) {
    let (mut client, mut server) = (client(), Server::new());
    client.connect(0, Instant(0));
    run(&mut client, &mut server, Instant(0), 100);
    let mut preload = Preload::new(std::sync::Arc::new(numbers), Duration::from_secs(1), Instant(0));
    let mut step = 0;
    loop {
        step += 1;
        let now = Instant(50_000 * step);
        disturb(&mut server, step);
        if preload.poll(&mut client, now) {
            let outcome = preload.outcome(now);
            return (outcome.completed, outcome.failed);
        }
        assert!(preload.next_event() <= Instant(1_000_000_001));
        for (id, events) in run(&mut client, &mut server, now, 100) {
            preload.on_events(&mut client, id, events);
        }
    }
}

#[test]
fn everything_is_stored_before_a_run() {
    for count in [0, 1, 64, 1_000] {
        assert_eq!(stored(Numbers { count, spoilt: u64::MAX }, |_, _| {}), (count, 0));
    }
}

#[test]
fn storing_ends_at_the_first_wrong_answer_and_with_the_connection() {
    assert_eq!(stored(Numbers { count: 500, spoilt: 200 }, |_, _| {}), (200, 300));
    let forget = |server: &mut Server, step| {
        if step == 3 {
            server.connections.clear();
        }
    };
    // Two windows of 64.
    assert_eq!(stored(Numbers { count: 500, spoilt: u64::MAX }, forget), (128, 372));
}
