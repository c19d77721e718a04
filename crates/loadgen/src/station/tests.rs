//! The station against a switch that answers (or does not) in the same loop, on the real cycle
//! clock.

use super::*;
use crate::protocol::Spin;
use std::sync::atomic::{AtomicUsize, Ordering};
use tailwater_testkit::PATIENCE;
use tailwater_wire::frame::ARP_FRAME;
use tailwater_workload::spin::{Reply, Request};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 250);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), 5000);

/// A spin server behind the switch, that answers at once.
struct Echo {
    replies: Vec<Vec<u8>>,
    /// Frames it takes before its ring is full.
    room: usize,
    frames: AtomicUsize,
}

impl Echo {
    fn new(room: usize) -> Self {
        Self { replies: Vec::new(), room, frames: AtomicUsize::new(0) }
    }
}

impl Inject for Echo {
    fn inject(&mut self, frame: &[u8]) -> Delivery {
        if self.room == 0 {
            return Delivery::Full;
        }
        self.room -= 1;
        self.frames.fetch_add(1, Ordering::Relaxed);
        let datagram = wire::decode_datagram(frame).expect("a request");
        let request = Request::decode(datagram.payload).expect("a request");
        let reply = Reply { request, served_ns: 0 }.encode();
        // The same frame back, eight bytes longer.
        let mut back = frame[..wire::PAYLOAD].to_vec();
        back[..6].copy_from_slice(&frame[6..12]);
        back[6..12].copy_from_slice(&frame[..6]);
        back[17] += 8;
        back[26..30].copy_from_slice(&frame[30..34]);
        back[30..34].copy_from_slice(&frame[26..30]);
        back[34..36].copy_from_slice(&frame[36..38]);
        back[36..38].copy_from_slice(&frame[34..36]);
        back[39] += 8;
        back.extend(reply);
        self.replies.push(back);
        Delivery::Delivered
    }

    fn resolve(&self, ip: Ipv4Addr) -> Option<MacAddr> {
        (ip == *SERVER.ip()).then(|| MacAddr::derived(ip))
    }
}

fn order(plan: &str) -> Order {
    let mut plan = Plan::new(plan.parse().unwrap(), "const:10us".parse().unwrap());
    plan.flows = 16;
    // Long enough for any machine that runs tests.
    plan.timeout_ns = PATIENCE.as_nanos() as u64;
    let protocol = Arc::new(Spin::new(plan.service.clone()));
    Order { plan, protocol, preload: false, seed: 1, server: SERVER, wait: PATIENCE }
}

fn started() -> (Station, StationHandle) {
    let (mut station, handle) = station("load", OWN).unwrap();
    let clock = Clock::calibrate(5);
    station.start(&Context { clock, mtu: 1500, prefix_len: 16, network6: None }).unwrap();
    (station, handle)
}

/// Turns the loop until the run ends.
fn turn(
    station: &mut Station,
    handle: &StationHandle,
    echo: &mut Echo,
) -> Result<Box<Measurement>, StationError> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        station.poll(clock::now(), 32, echo).unwrap();
        for reply in std::mem::take(&mut echo.replies) {
            assert!(station.transmit(clock::now(), &reply));
        }
        if let Some(Progress::Finished(measurement)) = handle.wait(Duration::ZERO)? {
            return Ok(measurement);
        }
    }
    panic!("the run does not end");
}

#[test]
fn every_request_of_a_run_is_sent_and_its_reply_counted() {
    let (mut station, handle) = started();
    let mut echo = Echo::new(usize::MAX);
    for _ in 0..2 {
        handle.start(order("50ms@20k")).unwrap();
        let report = turn(&mut station, &handle, &mut echo).unwrap().report();
        assert!(report.figures.completed > 500, "{report:?}");
        assert_eq!((report.figures.lost, report.oddities.unknown, report.interrupted), (0, 0, false));
    }
    assert_eq!(station.next_event(), None, "an idle station lets the IOKernel sleep");
}

/// A store behind the switch that loses one of its first requests, and notes what it was asked to
/// store and when.
#[derive(Default)]
struct Store {
    replies: Vec<Vec<u8>>,
    frames: usize,
    stored: std::collections::HashSet<Vec<u8>>,
    stored_before_run: Option<usize>,
}

impl Inject for Store {
    fn inject(&mut self, frame: &[u8]) -> Delivery {
        self.frames += 1;
        let datagram = wire::decode_datagram(frame).expect("a request");
        if datagram.payload[8..].starts_with(b"set ")
            && datagram.from.port() == CONTACT_PORT
            && self.frames != 5
        {
            self.stored.insert(datagram.payload[8..].to_vec());
        }
        if datagram.from.port() != CONTACT_PORT {
            self.stored_before_run.get_or_insert(self.stored.len());
        }
        if self.frames != 5 {
            let server = Host { mac: MacAddr::derived(*SERVER.ip()), ip: *SERVER.ip() };
            let client = Host { mac: MacAddr::derived(OWN), ip: OWN };
            let mut back = wire::request_template(server, client, datagram.from.port());
            back.extend(crate::protocol::testing::answer("memcached", Medium::Datagram, datagram.payload));
            wire::complete(&mut back, SERVER.port());
            self.replies.push(back);
        }
        Delivery::Delivered
    }

    fn resolve(&self, ip: Ipv4Addr) -> Option<MacAddr> {
        Some(MacAddr::derived(ip))
    }
}

#[test]
fn everything_is_stored_before_the_first_request_of_the_run() {
    use crate::protocol::Memcached;
    use tailwater_workload::keyvalue::Workload;

    // What the server of the tests knows.
    const KEYS: u64 = 50;
    let (mut station, handle) = started();
    let protocol = Arc::new(Memcached::new(Workload::Usr, KEYS, Medium::Datagram).unwrap());
    handle.start(Order { protocol, preload: true, ..order("20ms@20k") }).unwrap();
    let (mut store, begin) = (Store::default(), Instant::now());
    while begin.elapsed() < PATIENCE {
        station.poll(clock::now(), 32, &mut store).unwrap();
        for reply in std::mem::take(&mut store.replies) {
            assert!(station.transmit(clock::now(), &reply));
        }
        if let Some(Progress::Finished(_)) = handle.wait(Duration::ZERO).unwrap() {
            break;
        }
    }
    assert_eq!(store.stored_before_run, Some(KEYS as usize));
}

#[test]
fn requests_that_the_switch_refuses_are_lost() {
    let (mut station, handle) = started();
    // One frame is the first contact.
    let mut echo = Echo::new(101);
    handle.start(order("20ms@20k")).unwrap();
    let report = turn(&mut station, &handle, &mut echo).unwrap().report();
    assert_eq!(report.figures.completed, 100, "{report:?}");
    assert!(report.figures.lost > 100 && report.oddities.send_failed == report.figures.lost, "{report:?}");
}

#[test]
fn a_server_that_does_not_answer_is_named() {
    let (mut station, handle) = started();
    let impatient = || Order { wait: Duration::from_millis(200), ..order("1s@1k") };
    handle.start(impatient()).unwrap();
    let error = turn(&mut station, &handle, &mut Echo::new(0)).unwrap_err();
    assert!(matches!(error, StationError::NoServer { server: SERVER, .. }), "{error}");
    let mut elsewhere = impatient();
    elsewhere.server.set_port(5001);
    elsewhere.server.set_ip(Ipv4Addr::new(10, 77, 0, 9));
    let mut echo = Echo::new(usize::MAX);
    handle.start(elsewhere).unwrap();
    assert!(turn(&mut station, &handle, &mut echo).is_err());
    assert_eq!(*echo.frames.get_mut(), 0, "no host has the address, so nothing is sent");
}

#[test]
fn a_stopped_run_reports_what_it_measured() {
    let (mut station, handle) = started();
    let mut echo = Echo::new(usize::MAX);
    handle.start(order("1000s@20k")).unwrap();
    let begin = Instant::now();
    while *echo.frames.get_mut() < 300 {
        assert!(begin.elapsed() < PATIENCE, "requests are not sent");
        station.poll(clock::now(), 32, &mut echo).unwrap();
        std::mem::take(&mut echo.replies).iter().for_each(|r| assert!(station.transmit(clock::now(), r)));
    }
    handle.stop();
    let report = turn(&mut station, &handle, &mut echo).unwrap().report();
    assert!(report.interrupted && report.figures.completed > 100, "{report:?}");
}

#[test]
fn the_loop_may_sleep_until_the_next_request_and_no_longer() {
    let (mut station, handle) = started();
    let mut echo = Echo::new(usize::MAX);
    handle.start(order("20s@100")).unwrap();
    for _ in 0..2 {
        station.poll(clock::now(), 32, &mut echo).unwrap();
        std::mem::take(&mut echo.replies).iter().for_each(|r| assert!(station.transmit(clock::now(), r)));
    }
    let next = station.next_event().unwrap();
    assert_eq!(station.poll(next - 10_000, 32, &mut echo).unwrap(), 0);
    assert_eq!(station.poll(next + 10_000, 32, &mut echo).unwrap(), 1);
}

#[test]
fn a_question_for_the_stations_address_is_answered_at_the_next_poll() {
    struct Sink(Vec<Vec<u8>>);
    impl Inject for Sink {
        fn inject(&mut self, frame: &[u8]) -> Delivery {
            self.0.push(frame.to_vec());
            Delivery::Delivered
        }
        fn resolve(&self, _: Ipv4Addr) -> Option<MacAddr> {
            None
        }
    }
    let (mut station, _handle) = started();
    let mut question = vec![0; ARP_FRAME];
    question[..6].copy_from_slice(&MacAddr::BROADCAST.0);
    question[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    question[38..42].copy_from_slice(&OWN.octets());
    assert!(station.transmit(0, &question));
    assert_eq!(station.next_event(), Some(0));
    let mut sink = Sink(Vec::new());
    assert_eq!(station.poll(clock::now(), 32, &mut sink).unwrap(), 1);
    assert_eq!(sink.0.len(), 1);
    assert_eq!(&sink.0[0][22..28], &MacAddr::derived(OWN).0);
}
