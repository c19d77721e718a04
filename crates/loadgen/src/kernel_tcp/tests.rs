//! Against servers of `std` on the loopback device.

use super::*;
use crate::protocol::testing::{Fate, Server, protocols};
use crate::target::WrongAnswer;
use std::net::TcpListener;
use std::sync::atomic::Ordering::Relaxed;
use tailwater_testkit::{PATIENCE, until};

fn plan(schedule: &str) -> Plan {
    let mut plan = Plan::new(schedule.parse().unwrap(), "const:0ns".parse().unwrap());
    plan.arrivals = "const".parse().unwrap();
    // Long enough for any machine that runs tests.
    plan.timeout_ns = PATIENCE.as_nanos() as u64;
    plan
}

fn load(name: &str) -> Load {
    let all = protocols(Medium::Stream);
    let protocol = all.into_iter().find(|protocol| protocol.name() == name).unwrap();
    Load { protocol, seed: 1, preload: false }
}

fn target(server: &Server) -> Target {
    Target { server: server.address, core: None, wait: PATIENCE }
}

fn go(plan: &Plan, load: &Load, count: u32, pipeline: usize, server: &Server) -> Measurement {
    let connections = Connections { count, pipeline };
    run(plan, load, connections, &target(server), &AtomicBool::new(false)).unwrap()
}

#[test]
fn every_protocol_is_answered_and_checked_on_every_connection() {
    for protocol in protocols(Medium::Stream) {
        let server = Server::start(protocol.name(), |_| Fate::Answer);
        let load = Load { preload: true, protocol, seed: 2 };
        for count in [1, 7] {
            let measurement = go(&plan("60ms@2k"), &load, count, 4, &server);
            let counts = measurement.summary.counts();
            assert_eq!((counts.offered, counts.completed, counts.lost), (120, 120, 0), "{:?}", load.protocol);
            let oddities = measurement.oddities;
            assert_eq!(
                (oddities.wrong, oddities.malformed, oddities.missed, oddities.reconnects),
                (0, 0, 0, 0)
            );
        }
        // Contacts, preloads and the schedule's, twice.
        assert_eq!(server.requests.load(Relaxed), 2 * (1 + load.protocol.preloads() + 120));
    }
}

#[test]
fn a_server_that_lies_is_found_out() {
    for protocol in protocols(Medium::Stream) {
        let name = protocol.name();
        let server = Server::start(name, |n| if n % 10 == 9 { Fate::Lie } else { Fate::Answer });
        let load = Load { protocol, seed: 1, preload: false };
        let measurement = go(&plan("50ms@2k"), &load, 3, 4, &server);
        let (counts, oddities) = (measurement.summary.counts(), measurement.oddities);
        assert_eq!((counts.offered, counts.completed, counts.lost), (100, 90, 10), "{name}");
        assert_eq!((oddities.wrong, oddities.reconnects), (10, 0), "{name}");
        assert!(measurement.report().warnings.iter().any(|warning| warning.contains("wrongly")));
    }
}

#[test]
fn an_answer_that_never_comes_is_lost_and_the_others_are_not() {
    // By ids; the first request is the contact.
    let server = Server::start("rocks", |n| if n % 10 == 9 { Fate::Drop } else { Fate::Answer });
    let mut plan = plan("50ms@2k");
    plan.timeout_ns = 1_000_000_000;
    let measurement = go(&plan, &load("rocks"), 5, 100, &server);
    let counts = measurement.summary.counts();
    // A stalled test machine may lose more, never fewer.
    assert!(counts.lost >= 10 && counts.lost + counts.completed == 100, "{counts:?}");
}

#[test]
fn connections_that_end_are_opened_again_and_what_was_on_them_is_lost() {
    let server = Server::start("echo", |n| if n % 50 == 49 { Fate::Close } else { Fate::Answer });
    let measurement = go(&plan("300ms@2k"), &load("echo"), 4, 8, &server);
    let (counts, oddities) = (measurement.summary.counts(), measurement.oddities);
    assert_eq!(counts.lost + counts.completed, 600);
    assert!(oddities.reconnects >= 5, "{oddities:?}");
    // Each end costs what was in flight there, up to the pipeline.
    assert!(counts.lost >= oddities.reconnects, "{counts:?} {oddities:?}");
    assert!(counts.lost <= 8 * oddities.reconnects, "{counts:?} {oddities:?}");
    assert!(counts.completed > 400, "{counts:?}");
    assert_eq!((oddities.wrong, oddities.malformed), (0, 0));
}

#[test]
fn a_connection_that_stays_silent_is_opened_again() {
    let mut plan = plan("400ms@1k");
    plan.timeout_ns = 1_000_000_000;
    // Requests that fall due while the machine stalls for the time-out are lost, too.
    until("a run without a stall", || {
        // Without ids, an answer that is left out puts all later ones out of step.
        let server = Server::start("echo", |n| if n == 20 { Fate::Drop } else { Fate::Answer });
        let measurement = go(&plan, &load("echo"), 1, 2, &server);
        let (counts, oddities) = (measurement.summary.counts(), measurement.oddities);
        assert!(oddities.reconnects >= 1, "{oddities:?}");
        assert!(counts.lost >= 1, "{counts:?}");
        assert_eq!(counts.lost + counts.completed, counts.offered);
        counts.completed > 100
    });
}

#[test]
fn without_room_requests_are_held_back_and_their_latency_shows_it() {
    let server = Server::start("echo", |_| {
        std::thread::sleep(Duration::from_millis(5));
        Fate::Answer
    });
    let measurement = go(&plan("50ms@1k"), &load("echo"), 1, 1, &server);
    let report = measurement.report();
    assert!(report.oddities.held_back >= 40, "{report:?}");
    assert_eq!((measurement.summary.counts().completed, report.figures.lost), (50, 0));
    // 50 requests of 5 ms each; the last one was due at 50 ms.
    assert!(report.figures.max_us.unwrap() > 190_000.0, "{report:?}");
    assert!(report.warnings.iter().any(|warning| warning.contains("no connection had room")));
}

#[test]
fn a_server_of_another_protocol_is_refused() {
    let server = Server::start("echo", |_| Fate::Answer);
    let target = Target { wait: Duration::from_millis(100), ..target(&server) };
    let connections = Connections { count: 1, pipeline: 1 };
    // 40 bytes are asked for, and come back; they are no reply.
    let error =
        run(&plan("1s@1"), &load("memcached"), connections, &target, &AtomicBool::new(true)).unwrap_err();
    assert!(matches!(error, TcpLoadError::NoServer { .. }), "{error}");
    let free = tailwater_testkit::loopback_address();
    let target = Target { server: free, ..target };
    let error = run(&plan("1s@1"), &load("spin"), connections, &target, &AtomicBool::new(false)).unwrap_err();
    assert!(error.to_string().contains(&free.to_string()), "{error}");
    // The reason is in the message, so it must not be repeated as the error's source.
    assert!(std::error::Error::source(&error).is_none());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target { server: silent.local_addr().unwrap(), ..target };
    let error = run(&plan("1s@1"), &load("spin"), connections, &target, &AtomicBool::new(false)).unwrap_err();
    assert!(error.to_string().contains("nothing came back"), "{error}");
    let none = Connections { count: 0, pipeline: 1 };
    let error = run(&plan("1s@1"), &load("spin"), none, &target, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, TcpLoadError::Count { count: 0 }), "{error}");
}

#[test]
fn a_first_page_that_redirects_is_an_answer_but_not_the_right_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    // Ends with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut asked) = (stream.unwrap(), [0; 1024]);
            let answer = b"HTTP/1.1 301 Moved\r\nLocation: https://example.com/\r\nContent-Length: 0\r\n\r\n";
            // Once for the request, and once until the client has read and left.
            while let Ok(1..) = std::io::Read::read(&mut stream, &mut asked) {
                let _ = std::io::Write::write_all(&mut stream, answer);
            }
        }
    });
    let http = crate::protocol::Http::new("example.com", &["/"]).unwrap();
    // On a busy machine the server's thread may not run while it is waited for.
    let wait = Duration::from_millis(100);
    let error = tailwater_testkit::eventually("a wrong answer", || {
        let error = contact_server(&http, server, wait, &AtomicBool::new(false)).unwrap_err();
        Some(error).filter(|error| !matches!(error, TcpLoadError::NoServer { .. }))
    });
    assert!(matches!(error, TcpLoadError::WrongAnswer(WrongAnswer { protocol: "http", .. })), "{error}");
    assert!(error.to_string().contains("redirection"), "{error}");
}
