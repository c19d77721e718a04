//! A runtime of this process without an IOKernel: generator and servers are user threads on its
//! loopback network.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};

use tailwater::net::{TcpListener, TcpStream, UdpSocket};
use tailwater::thread;
use tailwater_testkit::{PATIENCE, eventually};
use tailwater_workload::Interval;

use super::*;
use crate::protocol::testing::{Fate, answer, lie, protocols, request_len};
use crate::protocol::{Medium, Protocol};

/// There can be only one per process.
static RUNTIME: LazyLock<Attached> =
    LazyLock::new(|| Attached::start(RuntimeBuilder::new().kthreads(2)).expect("it starts"));

/// Starts a server for the life of the process; `fate` is given the number of each request, from 0.
fn serve(name: &'static str, medium: Medium, fate: fn(u64) -> Fate) -> SocketAddr {
    LazyLock::force(&RUNTIME);
    let made = thread::spawn(move || match medium {
        Medium::Datagram => {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            thread::spawn(move || serve_datagrams(name, &socket, fate));
            address
        }
        Medium::Stream => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let requests = Arc::new(AtomicU64::new(0));
            thread::spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    let requests = Arc::clone(&requests);
                    // Ends with the connection.
                    thread::spawn(move || drop(serve_stream(name, stream, fate, &requests)));
                }
            });
            address
        }
    });
    made.join().unwrap()
}

fn serve_datagrams(name: &str, socket: &UdpSocket, fate: fn(u64) -> Fate) {
    let (mut bytes, mut number) = (vec![0; 1 << 16], 0);
    while let Ok((len, client)) = socket.recv_from(&mut bytes) {
        let answer = answer(name, Medium::Datagram, &bytes[..len]);
        let _ = match fate(number) {
            Fate::Answer => socket.send_to(&answer, client),
            Fate::Lie => socket.send_to(&lie(name, Medium::Datagram, answer), client),
            Fate::Drop | Fate::Close => Ok(0),
        };
        number += 1;
    }
}

fn serve_stream(
    name: &str,
    mut stream: TcpStream,
    fate: fn(u64) -> Fate,
    requests: &AtomicU64,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut input, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            len => input.extend_from_slice(&piece[..len]),
        }
        while let Some(len) = request_len(name, &input) {
            let request: Vec<u8> = input.drain(..len).collect();
            let answer = answer(name, Medium::Stream, &request);
            match fate(requests.fetch_add(1, Relaxed)) {
                Fate::Answer => stream.write_all(&answer)?,
                Fate::Lie => stream.write_all(&lie(name, Medium::Stream, answer))?,
                Fate::Drop => {}
                Fate::Close => return Ok(()),
            }
        }
    }
}

fn plan(schedule: &str) -> Plan {
    let mut plan = Plan::new(schedule.parse().unwrap(), "const:0ns".parse().unwrap());
    plan.arrivals = "const".parse().unwrap();
    // Long enough for any machine that runs tests.
    plan.timeout_ns = PATIENCE.as_nanos() as u64;
    plan
}

fn target(server: SocketAddr) -> Target {
    Target { server, core: None, wait: PATIENCE }
}

fn load(protocol: &Arc<dyn Protocol>) -> Load {
    Load { protocol: Arc::clone(protocol), seed: 2, preload: true }
}

fn run_tcp(
    plan: &Plan,
    protocol: &Arc<dyn Protocol>,
    server: SocketAddr,
    connections: (u32, usize),
) -> Measurement {
    let (count, pipeline) = connections;
    let stop = AtomicBool::new(false);
    let control = Control::new(&stop);
    let connections = Connections { count, pipeline };
    RUNTIME.run_tcp(plan, &load(protocol), connections, &target(server), &control).unwrap()
}

#[test]
fn every_protocol_is_answered_and_checked_over_udp() {
    for protocol in protocols(Medium::Datagram) {
        let server = serve(protocol.name(), Medium::Datagram, |_| Fate::Answer);
        for flows in [1, 3] {
            let mut plan = plan("50ms@4k");
            plan.flows = flows;
            let stop = AtomicBool::new(false);
            let control = Control::new(&stop);
            let measured = RUNTIME.run_udp(&plan, &load(&protocol), &target(server), &control).unwrap();
            let counts = measured.summary.counts();
            assert_eq!((counts.offered, counts.completed), (200, 200), "{protocol:?}");
            assert_eq!((measured.oddities.wrong, measured.oddities.unknown), (0, 0), "{protocol:?}");
            assert!(!measured.interrupted);
        }
    }
}

#[test]
fn every_protocol_is_answered_and_checked_over_tcp() {
    for protocol in protocols(Medium::Stream) {
        let server = serve(protocol.name(), Medium::Stream, |_| Fate::Answer);
        for connections in [(1, 1), (3, 4)] {
            let measured = run_tcp(&plan("50ms@4k"), &protocol, server, connections);
            let counts = measured.summary.counts();
            assert_eq!((counts.offered, counts.completed), (200, 200), "{protocol:?}");
            assert_eq!((measured.oddities.wrong, measured.oddities.reconnects), (0, 0), "{protocol:?}");
        }
    }
}

#[test]
fn a_server_that_lies_or_is_silent_is_found_out() {
    // The first request is the first contact.
    let fate = |n| match n % 20 {
        9 => Fate::Lie,
        19 => Fate::Drop,
        _ => Fate::Answer,
    };
    for protocol in protocols(Medium::Datagram).into_iter().take(2) {
        let server = serve(protocol.name(), Medium::Datagram, fate);
        let mut plan = plan("100ms@2k");
        plan.timeout_ns = 500_000_000;
        let stop = AtomicBool::new(false);
        let load = Load { preload: false, ..load(&protocol) };
        // A stalled test machine may lose more, never fewer, and may be too late to see a lie.
        let wrong = eventually("a run without a stall of half a second", || {
            let measured = RUNTIME.run_udp(&plan, &load, &target(server), &Control::new(&stop)).unwrap();
            let (counts, oddities) = (measured.summary.counts(), measured.oddities);
            assert!(counts.lost >= 20 && counts.lost + counts.completed == 200, "{counts:?}");
            (counts.lost == 20 && oddities.stale == 0).then_some(oddities.wrong)
        });
        assert_eq!(wrong, 10, "{protocol:?}");
    }
}

#[test]
fn a_connection_that_ends_is_opened_again_and_what_was_on_it_is_lost() {
    let protocol = protocols(Medium::Stream).remove(0);
    let server =
        serve(protocol.name(), Medium::Stream, |n| if n % 50 == 49 { Fate::Close } else { Fate::Answer });
    let measured = run_tcp(&plan("300ms@1k"), &protocol, server, (2, 4));
    let counts = measured.summary.counts();
    assert!(measured.oddities.reconnects >= 4, "{:?}", measured.oddities);
    assert_eq!((counts.offered, counts.lost + counts.completed), (300, 300));
    assert!((4..60).contains(&counts.lost), "{counts:?}");
}

#[test]
fn requests_without_room_are_held_back_and_leave_when_an_answer_makes_room() {
    let protocol = protocols(Medium::Stream).remove(0);
    let server = serve(protocol.name(), Medium::Stream, |_| Fate::Answer);
    // All are due within 200 us, and one may be unanswered.
    let measured = run_tcp(&plan("200us@1M"), &protocol, server, (1, 1));
    let counts = measured.summary.counts();
    assert_eq!((counts.offered, counts.completed), (200, 200));
    assert!(measured.oddities.held_back > 100, "{:?}", measured.oddities);
}

#[test]
fn large_requests_that_a_connection_has_no_room_for_hold_up_no_other() {
    // 200 requests of 60 KB on two connections: more than send buffers hold.
    let protocol: Arc<dyn Protocol> = Arc::new(crate::protocol::Echo::new(60_000).unwrap());
    let listener = thread::spawn(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                thread::spawn(move || {
                    let mut bytes = vec![0; 1 << 16];
                    while let Ok(len @ 1..) = stream.read(&mut bytes) {
                        // The client reads answers more slowly than this thread writes them.
                        if stream.write_all(&bytes[..len]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    });
    let measured = run_tcp(&plan("10ms@20k"), &protocol, listener.join().unwrap(), (2, 64));
    let counts = measured.summary.counts();
    assert_eq!((counts.offered, counts.completed, measured.oddities.wrong), (200, 200, 0));
}

#[test]
fn a_run_is_stopped_early_and_hands_out_its_intervals() {
    let protocol = protocols(Medium::Datagram).remove(0);
    let server = serve(protocol.name(), Medium::Datagram, |_| Fate::Answer);
    let mut plan = plan("1h@2k");
    plan.intervals = true;
    let (stop, seen) = (AtomicBool::new(false), Mutex::new(0));
    let observer = |interval: &Interval| {
        *seen.lock().unwrap() += interval.counts.offered;
        stop.store(true, Relaxed);
    };
    let control = Control::new(&stop).with_observer(&observer);
    let measured = RUNTIME.run_udp(&plan, &load(&protocol), &target(server), &control).unwrap();
    assert!(measured.interrupted);
    assert!(measured.summary.duration_ns() < 3_600_000_000_000);
    assert!(*seen.lock().unwrap() > 0);
}

#[test]
fn a_missing_server_is_an_error_that_names_the_address() {
    let protocol = protocols(Medium::Stream).remove(0);
    LazyLock::force(&RUNTIME);
    let server: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let target = Target { server, core: None, wait: Duration::from_millis(60) };
    let stop = AtomicBool::new(false);
    let control = Control::new(&stop);
    let connections = Connections { count: 1, pipeline: 1 };
    let plan = plan("10ms@1k");
    let error = RUNTIME.run_tcp(&plan, &load(&protocol), connections, &target, &control).unwrap_err();
    assert!(matches!(error, AttachedError::Tcp(TcpLoadError::NoServer { .. })), "{error}");
    assert!(error.to_string().contains("127.0.0.1:9"), "{error}");
    let error = RUNTIME.run_udp(&plan, &load(&protocol), &target, &control).unwrap_err();
    assert!(matches!(error, AttachedError::Udp(UdpError::NoServer { .. })), "{error}");
}

#[test]
fn there_is_one_runtime_to_a_process() {
    LazyLock::force(&RUNTIME);
    let error = Attached::start(RuntimeBuilder::new()).unwrap_err();
    assert!(matches!(error, AttachedError::Start(StartError::AlreadyRunning)), "{error}");
}
