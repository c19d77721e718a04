//! What peers see of a program that was killed: the IOKernel answers in its place.

use rustix::process::Signal;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use tailwater_testkit::{PATIENCE, eventually, until};
use tailwater_tests::Bench;
use tailwater_tests::tap::{HOST, bench_with_tap, in_tap_namespace};

#[test]
fn programs_that_wait_for_one_that_is_ended_by_a_signal_learn_of_it() {
    for signal in [Signal::TERM, Signal::KILL] {
        for six in [false, true] {
            let bench = Bench::start(|_| (), Vec::new());
            let mut service = bench.child("absent-serve", "service", "latency-critical");
            let peer = if six {
                format!("[{}]", tailwater_iokernel::Config::default().ip6_of(service.ip).expect("IPv6"))
            } else {
                service.ip.to_string()
            };
            let mut client =
                bench.child_with("absent-watch", "client", "latency-critical", &[("PEER", &peer)]);
            assert_eq!(client.line().as_deref(), Some("waiting"));
            assert_eq!(service.line().as_deref(), Some("accepted"));
            service.signal(signal);
            for expected in [
                "read Err(ConnectionReset)",
                "recv Err(ConnectionRefused)",
                "connect Err(ConnectionRefused)",
                "answer Err(ConnectionRefused)",
            ] {
                assert_eq!(client.line().as_deref(), Some(expected), "{signal:?} {peer}");
            }
            assert!(client.line().is_some());
            assert!(client.succeeded());
            let switch = &bench.stats()["switch"];
            assert!(switch["answered_absent"].as_u64() >= Some(2), "{switch:#}");
        }
    }
}

#[test]
fn linux_is_refused_in_the_name_of_a_killed_program() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let mut service = bench.child("absent-serve", "service", "latency-critical");
        let address = SocketAddr::from((service.ip, 21));
        let connect = || TcpStream::connect_timeout(&address, PATIENCE);
        let mut open = eventually("the service accepts", || connect().ok());
        open.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        service.kill();
        until("its registration has ended", || bench.registered() == 0);
        // A peer that sends is answered, one behind a port that only reads is not told.
        open.write_all(b"?").expect("Linux takes it");
        let ended = open.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(ended, Err(ErrorKind::ConnectionReset));
        assert_eq!(connect().map(drop).map_err(|error| error.kind()), Err(ErrorKind::ConnectionRefused));
        let client = UdpSocket::bind((HOST, 0)).expect("the host's side is configured");
        client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        client.connect((service.ip, 22)).expect("a route");
        let refused = client.send(b"?").and_then(|_| client.recv(&mut [0; 8])).map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::ConnectionRefused));
    });
}
