//! The end of a program as its peers see it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use tailwater_testkit::{PATIENCE, eventually};
use tailwater_tests::tap::{bench_with_tap, in_tap_namespace};
use tailwater_tests::{Bench, Role, stream};

/// The ways in which a program ends, as roles, with their exit status.
const WAYS: [(&str, i32); 3] = [("leave-return", 0), ("leave-exit", 0), ("leave-panic", 101)];
/// Bytes that it sends last.
const LEN: u64 = 100_000;

/// Returns what a peer receives that gets all of it.
fn whole() -> String {
    stream::send(&mut std::io::sink(), 7, LEN).expect("a sink takes all")
}

fn try_connect(service: &Role) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((service.ip, 21)), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn connect(service: &Role) -> TcpStream {
    // The device's addresses may be tentative at first.
    eventually("the service accepts", || try_connect(service).ok())
}

#[test]
fn what_a_program_has_sent_last_reaches_linux_and_its_open_connections_are_reset() {
    in_tap_namespace(|| {
        for (way, status) in WAYS {
            let bench = bench_with_tap(1500);
            let mut service = bench.child_heard(way, "service", "latency-critical", &[]);
            let (mut open, mut last) = (connect(&service), connect(&service));
            assert_eq!(stream::receive(&mut last).expect("a stream and its end"), whole(), "{way}");
            let ended = open.read(&mut [0]).map_err(|error| error.kind());
            assert_eq!(ended, Err(ErrorKind::ConnectionReset), "{way}");
            assert_eq!(service.wait().code(), Some(status), "{way}: {}", service.errors());
            assert_eq!(service.line(), None, "{way}: no thread learns of the end");
        }
    });
}

#[test]
fn what_a_program_has_sent_last_reaches_another_program_and_its_open_connections_are_reset() {
    for (way, status) in WAYS {
        let bench = Bench::start(|_| (), Vec::new());
        let mut service = bench.child_heard(way, "service", "latency-critical", &[]);
        let peer = format!("{}:21", service.ip);
        let mut client = bench.child_with("leave-watch", "client", "latency-critical", &[("PEER", &peer)]);
        assert_eq!(client.line(), Some(format!("received {}", whole())), "{way}");
        assert_eq!(client.line().as_deref(), Some("ended Err(ConnectionReset)"), "{way}");
        assert!(client.succeeded(), "{way}");
        assert_eq!(service.wait().code(), Some(status), "{way}: {}", service.errors());
        assert_eq!(service.line(), None, "{way}: no thread learns of the end");
    }
}

#[test]
fn what_was_written_to_an_open_connection_arrives_before_its_reset() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let mut service = bench.child("leave-open", "service", "latency-critical");
        let mut open = connect(&service);
        // Else the reset may arrive before this thread sees that the connection is established.
        open.write_all(&[0]).expect("the service reads it");
        let (mut received, mut chunk) = (Vec::new(), [0; 4096]);
        let error = loop {
            match open.read(&mut chunk) {
                Ok(0) => panic!("a stream that was cut off seems whole"),
                Ok(len) => received.extend_from_slice(&chunk[..len]),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(stream::receive(&mut &received[..]).expect("a slice gives all"), whole());
        assert!(service.succeeded());
    });
}

#[test]
fn a_peer_that_reads_nothing_holds_the_end_up_for_the_exit_linger_at_most() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let linger = [("TAILWATER_EXIT_LINGER_MS", "0")];
        let mut service = bench.child_with("leave-return", "service", "latency-critical", &linger);
        let mut open = connect(&service);
        // A reset may arrive before this thread sees that the connection is established.
        let last = try_connect(&service);
        assert!(service.succeeded());
        assert_eq!(open.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
        // It may have got all of it by chance, but not an end that was not agreed upon.
        let received = last.and_then(|mut last| stream::receive(&mut last)).map_err(|error| error.kind());
        assert!(received == Ok(whole()) || received == Err(ErrorKind::ConnectionReset), "{received:?}");
    });
}

#[test]
fn datagrams_that_wait_for_a_neighbour_leave_before_the_end() {
    let bench = Bench::start(|_| (), Vec::new());
    let mut program = bench.child("part", "program", "latency-critical");
    for number in 0..20 {
        assert_eq!(bench.receive(PATIENCE), Some(vec![number]));
    }
    assert!(program.succeeded());
}
