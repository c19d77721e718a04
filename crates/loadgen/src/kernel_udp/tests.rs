use super::*;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use tailwater_testkit::{PATIENCE, eventually};
use tailwater_workload::spin::{Reply, Request};

/// A server on the loopback device that answers each request as often as `answers` returns.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(answers: fn(Request) -> usize) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let address = socket.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while !stopped.load(Relaxed) {
                let Ok((len, client)) = socket.recv_from(&mut bytes) else { continue };
                let request = Request::decode(&bytes[..len]).unwrap();
                for _ in 0..answers(request) {
                    let _ = socket.send_to(&Reply { request, served_ns: 0 }.encode(), client);
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }

    fn target(&self) -> Target {
        Target { server: self.address, core: None, wait: PATIENCE }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn plan(flows: u16) -> Plan {
    let mut plan = Plan::new("100ms@2k".parse().unwrap(), "const:0ns".parse().unwrap());
    plan.arrivals = "const".parse().unwrap();
    plan.flows = flows;
    // Long enough for any machine that runs tests.
    plan.timeout_ns = PATIENCE.as_nanos() as u64;
    plan
}

#[test]
fn every_request_of_every_flow_completes() {
    let server = Server::start(|_| 1);
    for flows in [1, 7] {
        let measurement = run(&plan(flows), 1, &server.target(), &AtomicBool::new(false)).unwrap();
        let counts = measurement.summary.counts();
        assert_eq!((counts.offered, counts.completed, counts.lost), (200, 200, 0), "{flows} flows");
        assert!(!measurement.interrupted);
    }
}

#[test]
fn unanswered_requests_are_lost_and_second_answers_counted() {
    // The first contact has id 0 and must be answered.
    let server = Server::start(|request| match request.id & 0xff {
        0 => 1,
        n if n % 10 == 1 => 0,
        n if n % 10 == 2 => 2,
        _ => 1,
    });
    let mut plan = plan(1);
    plan.timeout_ns = 500_000_000;
    let unanswered = (0..200).filter(|n| n % 10 == 1).count() as u64;
    // A stalled test machine may lose more, never fewer.
    let oddities = eventually("a run without a stall of half a second", || {
        let measurement = run(&plan, 1, &server.target(), &AtomicBool::new(false)).unwrap();
        let counts = measurement.summary.counts();
        assert!(counts.lost >= unanswered, "{counts:?}");
        assert_eq!(counts.lost + counts.completed, 200);
        (counts.lost == unanswered).then_some(measurement.oddities)
    });
    assert!(oddities.duplicate + oddities.stale > 0, "{oddities:?}");
}

#[test]
fn a_missing_server_is_an_error_that_names_the_address() {
    let free = tailwater_testkit::loopback_address();
    let target = Target { server: free, core: None, wait: Duration::from_millis(60) };
    let error = run(&plan(1), 1, &target, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, UdpError::NoServer { .. }), "{error}");
    assert!(error.to_string().contains(&free.to_string()), "{error}");
}

#[test]
fn a_server_that_answers_wrongly_is_told_from_none() {
    use crate::protocol::testing::{Fate, Server, protocols};
    for protocol in protocols(Medium::Datagram) {
        // A false answer for a key that is not read first has no effect.
        if protocol.name() == "memcached" {
            continue;
        }
        let server = Server::start(protocol.name(), |_| Fate::Lie);
        // On a busy machine the server's threads may not run while they are waited for.
        let (stop, wait) = (AtomicBool::new(false), Duration::from_millis(100));
        eventually("a wrong answer over UDP", || {
            match contact_server(&*protocol, server.address, wait, &stop).unwrap_err() {
                UdpError::WrongAnswer(_) => Some(()),
                UdpError::NoServer { .. } => None,
                other => panic!("{other}"),
            }
        });
        let over_tcp = eventually("a wrong answer over TCP", || {
            match crate::kernel_tcp::contact_server(&*protocol, server.address, wait, &stop).unwrap_err() {
                crate::target::TcpLoadError::NoServer { .. } => None,
                error => Some(error.to_string()),
            }
        });
        assert!(
            over_tcp.contains("but wrongly") && over_tcp.contains(&server.address.to_string()),
            "{over_tcp}"
        );
    }
}

#[test]
fn a_stopped_run_reports_what_it_has() {
    let server = Server::start(|_| 1);
    let mut plan = plan(1);
    plan.schedule = "1h@2k".parse().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopper = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            stop.store(true, Relaxed);
        })
    };
    // Set before contact on a slow machine, there is no measurement; afterwards there must be one.
    match run(&plan, 1, &server.target(), &stop) {
        Ok(measurement) => {
            assert!(measurement.interrupted);
            assert!(measurement.summary.duration_ns() < 3_600_000_000_000);
            let counts = measurement.summary.counts();
            assert!(counts.completed <= counts.offered);
        }
        Err(error) => assert!(matches!(error, UdpError::NoServer { .. }), "{error}"),
    }
    stopper.join().unwrap();
}

#[test]
fn every_protocol_is_answered_and_checked() {
    use crate::protocol::testing::{Fate, Server, protocols};
    for protocol in protocols(Medium::Datagram) {
        let server = Server::start(protocol.name(), |_| Fate::Answer);
        let target = Target { server: server.address, core: None, wait: PATIENCE };
        let load = Load { protocol, seed: 2, preload: true };
        for flows in [1, 3] {
            let measurement = run_protocol(&plan(flows), &load, &target, &AtomicBool::new(false)).unwrap();
            let counts = measurement.summary.counts();
            assert_eq!((counts.offered, counts.completed), (200, 200), "{:?}", load.protocol);
            assert_eq!((measurement.oddities.wrong, measurement.oddities.unknown), (0, 0));
        }
    }
}

#[test]
fn a_server_that_lies_or_is_silent_is_found_out() {
    use crate::protocol::testing::{Fate, Server, protocols};
    let fate = |n| match n % 20 {
        9 => Fate::Lie,
        19 => Fate::Drop,
        _ => Fate::Answer,
    };
    for protocol in protocols(Medium::Datagram) {
        let server = Server::start(protocol.name(), fate);
        let target = Target { server: server.address, core: None, wait: PATIENCE };
        let mut plan = plan(2);
        plan.timeout_ns = 500_000_000;
        let load = Load { protocol, seed: 2, preload: false };
        // A stalled test machine may lose more, never fewer, and may be too late to see a lie.
        let wrong = eventually("a run without a stall of half a second", || {
            let measurement = run_protocol(&plan, &load, &target, &AtomicBool::new(false)).unwrap();
            let (counts, oddities) = (measurement.summary.counts(), measurement.oddities);
            assert!(counts.lost >= 20 && counts.lost + counts.completed == 200, "{counts:?}");
            (counts.lost == 20 && oddities.stale == 0).then_some(oddities.wrong)
        });
        assert_eq!(wrong, 10, "{:?}", load.protocol);
    }
}
