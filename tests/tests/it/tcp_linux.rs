//! TCP with the kernel's own stack on the other side of a TAP device, in both directions.
//!
//! Each test has its own network namespace, which ends with it. Needs CAP_SYS_ADMIN and
//! CAP_NET_ADMIN; without them the test is skipped with a message. `TCP_LINUX_CONNECTIONS` sets how
//! many connections are open at once (10,000, which takes about ten seconds).

use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};
use tailwater_iokernel::Config;
use tailwater_ports::tap::TapPort;
use tailwater_ports::{Context, Port};
use tailwater_shm::Clock;
use tailwater_testkit::{PATIENCE, eventually, run, until};
use tailwater_tests::tap::{HOST, bench_with_tap, in_tap_namespace, settled_ip6};
use tailwater_tests::{Bench, Role, stream};
use tailwater_wire::{MacAddr, Sum, checksum};

/// Bytes of a bulk transfer: many windows.
const BULK: u64 = 24 << 20;

fn service(bench: &Bench) -> Role {
    bench.child("tcp-serve", "service", "latency-critical")
}

/// Connects; the device's addresses may be tentative at first.
fn connect(to: impl Into<IpAddr>, port: u16) -> TcpStream {
    let to = SocketAddr::new(to.into(), port);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect_timeout(&to, PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
                return stream;
            }
            Err(error) => assert!(Instant::now() < deadline, "no connection to {to}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Accepts the connection of a program.
fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    listener.set_nonblocking(true).expect("a flag");
    let (stream, peer) = eventually("the program calls", || listener.accept().ok());
    stream.set_nonblocking(false).expect("a flag");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    (stream, peer)
}

/// Sends `len` bytes to the service's port 9, closes that direction, and checks the hash that the
/// service received.
fn upload(to: impl Into<IpAddr>, len: u64) {
    let mut stream = connect(to, 9);
    let sent = stream::send(&mut stream, 3, len).expect("the service reads");
    stream.shutdown(Shutdown::Write).expect("half of it closes");
    let mut seen = String::new();
    stream.read_to_string(&mut seen).expect("the service answers on the other half");
    assert_eq!(seen, sent);
}

/// Makes the service send `len` bytes and close.
fn download(to: impl Into<IpAddr>, len: u64) {
    let mut stream = connect(to, 19);
    writeln!(stream, "11 {len}").expect("a request");
    let received = stream::receive(&mut stream).expect("the service sends");
    assert_eq!(received, stream::send(&mut std::io::sink(), 11, len).expect("a sink takes all"));
}

#[test]
fn bulk_arrives_whole_in_both_directions_at_each_mtu() {
    in_tap_namespace(|| {
        for mtu in [576, 1500, 9000] {
            let bench = bench_with_tap(mtu);
            let service = service(&bench);
            for len in [0, 1, 100_000, BULK] {
                upload(service.ip, len);
                download(service.ip, len);
            }
        }
    });
}

#[test]
fn bulk_arrives_whole_through_several_queues_and_without_offloads() {
    for words in ["tw-test0,queues=2", "tw-test0,offload=off"] {
        in_tap_namespace(|| {
            let words = words.parse().expect("words of a TAP device");
            let port: Box<dyn Port> = Box::new(TapPort::with_spec(words, HOST));
            let bench = Bench::start(|_| (), vec![port]);
            let service = service(&bench);
            upload(service.ip, BULK);
            download(service.ip, BULK);
        });
    }
}

/// Returns a segment of 1,000 bytes to Linux, the `number`th of its flow, of which the third
/// pushes.
fn segment(to: MacAddr, six: bool, number: u32) -> Vec<u8> {
    let mut frame = [&to.0[..], &[2, 0, 0, 0, 0, 2]].concat();
    let (from, host) = (Ipv4Addr::new(10, 77, 0, 2), HOST);
    if six {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0x03, 0xfc, 6, 64]);
        for ip in [from, host] {
            frame.extend(Config::default().ip6_of(ip).expect("IPv6 is on by default").octets());
        }
    } else {
        frame.extend([8, 0, 0x45, 0, 0x04, 0x10, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend([from.octets(), host.octets()].concat());
        let sum = checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    let start = frame.len();
    let flags = if number == 2 { 0x18 } else { 0x10 };
    frame.extend([0x1f, 0x90, 0x1f, 0x91]);
    frame.extend((number * 1_000).to_be_bytes());
    frame.extend([0, 0, 0, 9, 0x50, flags, 1, 2, 0, 0, 0, 0]);
    frame.resize(start + 1_020, 7);
    let pseudo = Sum::new().bytes(&frame[if six { 22..54 } else { 26..34 }]).word(6).word(1_020);
    let sum = pseudo.bytes(&frame[start..]).finish();
    frame[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Returns how many segments Linux's TCP has received here, and how many of them were damaged.
fn segments() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    ["InSegs", "InErrs"].map(|wanted| {
        let at = names.split_whitespace().position(|name| name == wanted).expect("a counter");
        values.split_whitespace().nth(at).and_then(|value| value.parse().ok()).expect("its value")
    })
}

#[test]
fn linux_takes_joined_segments_of_both_families_as_one_undamaged_packet() {
    in_tap_namespace(|| {
        let mut port = TapPort::with_spec("tw-test0".parse().expect("words of a TAP device"), HOST);
        let network6 = Some(Config::default().network6);
        let clock = Clock::from_hz(1_000_000_000);
        port.start(&Context { clock, mtu: 1500, prefix_len: 16, network6 }).expect("a device");
        let mac = port.mac().expect("a TAP device has an address");
        let has_ipv6 = std::path::Path::new("/proc/net/if_inet6").exists();
        if has_ipv6 {
            settled_ip6();
        }
        for six in [false, true].into_iter().take(1 + usize::from(has_ipv6)) {
            let [before, damaged] = segments();
            // The last one is sent at once, with the others: Linux has taken the packet.
            assert!((0..3).all(|number| port.transmit(0, &segment(mac, six, number))));
            until("Linux has processed the packet", || segments()[0] > before);
            assert_eq!(segments(), [before + 1, damaged], "IPv6: {six}");
        }
    });
}

#[test]
fn both_directions_at_once_do_not_wait_for_each_other() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let service = service(&bench);
        let mut stream = connect(service.ip, 7);
        let mut incoming = stream.try_clone().expect("a descriptor");
        std::thread::scope(|scope| {
            let received = scope.spawn(move || stream::receive(&mut incoming).expect("the echo"));
            let sent = stream::send(&mut stream, 4, BULK).expect("the service reads");
            stream.shutdown(Shutdown::Write).expect("half of it closes");
            assert_eq!(received.join().expect("no panic"), sent);
        });
    });
}

#[test]
fn requests_are_answered_one_by_one() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let service = service(&bench);
        let mut stream = connect(service.ip, 7);
        stream.set_nodelay(true).expect("an option");
        let mut shortest = Duration::MAX;
        for i in 0..1000u64 {
            let start = Instant::now();
            stream.write_all(&i.to_le_bytes()).expect("a request");
            let mut answer = [0; 8];
            stream.read_exact(&mut answer).expect("an answer");
            assert_eq!(u64::from_le_bytes(answer), i);
            shortest = shortest.min(start.elapsed());
        }
        // An answer that waits for Linux's delayed ACK takes 40 ms or more, and each would.
        assert!(shortest < Duration::from_millis(40), "no answer took less than {shortest:?}");
    });
}

#[test]
fn resets_reach_the_other_side() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let mut service = service(&bench);
        drop(connect(service.ip, 7));
        let refused = TcpStream::connect((service.ip, 1)).expect_err("the port is closed");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        // The service closes with something unread.
        let mut stream = connect(service.ip, 104);
        stream.write_all(b"never read").expect("room");
        let error = stream.read(&mut [0; 8]).expect_err("a reset is an error");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        // Linux closes with a reset, and without.
        for (linger, expected) in
            [(Some(Duration::ZERO), "ended Some(ConnectionReset)"), (None, "ended None")]
        {
            let mut stream = connect(service.ip, 110);
            stream.write_all(b"something").expect("room");
            sockopt::set_socket_linger(&stream, linger).expect("an option");
            drop(stream);
            assert_eq!(service.line().as_deref(), Some(expected));
        }
    });
}

/// Waits until the only program of an idle network has received and sent some frames: probes of an
/// idle connection and their answers, and perhaps an ARP request and its answer.
fn answers_to_probes(bench: &Bench) {
    let frames = || {
        let counters = &bench.stats()["runtimes"][0]["counters"];
        ["rx_frames", "tx_frames"].map(|name| counters[name].as_u64().expect("a number"))
    };
    let before = frames();
    until("probes are answered", || frames().iter().zip(before).all(|(now, before)| *now >= before + 5));
}

#[test]
fn keepalives_of_linux_are_answered_until_the_service_is_gone() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let mut service = service(&bench);
        let mut stream = connect(service.ip, 7);
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(1)).expect("an option");
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(1)).expect("an option");
        // So many that a busy machine that answers none of them for a minute ends no connection.
        sockopt::set_tcp_keepcnt(&stream, 60).expect("an option");
        sockopt::set_socket_keepalive(&stream, true).expect("an option");
        answers_to_probes(&bench);
        stream.write_all(b"x").expect("still open");
        stream.read_exact(&mut [0]).expect("still answered");
        service.kill();
        let error = stream.read(&mut [0]).expect_err("the service is gone");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the IOKernel answers the next probe: {error}");
    });
}

#[test]
fn keepalives_of_a_program_are_answered_until_linux_falls_silent() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let listener = TcpListener::bind((HOST, 0)).expect("a free port");
        let peer = listener.local_addr().expect("bound").to_string();
        let mut program = bench.child_with("tcp-keep", "keeper", "latency-critical", &[("PEER", &peer)]);
        let (mut stream, _) = accept(&listener);
        answers_to_probes(&bench);
        stream.write_all(b"x").expect("still open");
        stream.read_exact(&mut [0]).expect("still answered");
        // From now on Linux has no route back.
        let route = ["route", "add", "blackhole", &program.ip.to_string()];
        assert!(run(Command::new("ip").args(route), b"").status.success(), "`ip route` fails");
        assert_eq!(program.line().as_deref(), Some("ended Some(TimedOut)"));
    });
}

#[test]
fn many_connections_are_open_at_once_and_all_answer() {
    in_tap_namespace(|| {
        let count: usize = std::env::var("TCP_LINUX_CONNECTIONS")
            .map_or(10_000, |n| n.parse().expect("TCP_LINUX_CONNECTIONS is a number"));
        // With room for the tests beside this one, whose limit it is, too.
        let (files, limit) = (count as u64 + 2_000, rustix::process::getrlimit(Resource::Nofile));
        let wider = Rlimit { current: limit.current.map(|now| now.max(files)), ..limit };
        let enough = limit.maximum.is_none_or(|most| most >= files);
        if !enough || setrlimit(Resource::Nofile, wider).is_err() {
            return eprintln!("skipped: {count} connections need as many descriptors (ulimit -n)");
        }
        let bench = bench_with_tap(1500);
        let service = service(&bench);
        let mut streams: Vec<TcpStream> = (0..count).map(|_| connect(service.ip, 7)).collect();
        for (i, stream) in streams.iter_mut().enumerate() {
            stream.write_all(&i.to_le_bytes()).expect("room");
        }
        for (i, stream) in streams.iter_mut().enumerate() {
            let mut answer = [0; 8];
            stream.read_exact(&mut answer).expect("an answer");
            assert_eq!(usize::from_le_bytes(answer), i);
        }
    });
}

#[test]
fn connections_come_and_go() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let service = service(&bench);
        for i in 0..500u32 {
            let mut stream = connect(service.ip, 7);
            stream.write_all(&i.to_le_bytes()).expect("room");
            // Either side closes first.
            if i % 2 == 0 {
                stream.shutdown(Shutdown::Write).expect("half of it closes");
            }
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).expect("an answer");
            assert_eq!(u32::from_le_bytes(answer), i);
        }
    });
}

#[test]
fn options_are_negotiated_with_linux() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let service = service(&bench);
        let mut stream = connect(service.ip, 7);
        stream.write_all(b"x").expect("room");
        stream.read_exact(&mut [0]).expect("an answer");
        let output = run(Command::new("ss").args(["-tinoH", "dport", "=", ":7"]), b"");
        let text = String::from_utf8_lossy(&output.stdout);
        for option in ["wscale:", " ts ", " sack ", "mss:1448"] {
            assert!(text.contains(option), "{option:?} is not in {text}");
        }
    });
}

#[test]
fn linux_and_a_service_talk_over_ipv6() {
    in_tap_namespace(|| {
        if !std::path::Path::new("/proc/net/if_inet6").exists() {
            return eprintln!("skipped: this kernel has no IPv6");
        }
        let bench = bench_with_tap(1500);
        let service = service(&bench);
        let ip6 = Config::default().ip6_of(service.ip).expect("IPv6 is on by default");
        let host = settled_ip6();
        upload(ip6, BULK / 4);
        download(ip6, BULK / 4);
        called_at(&bench, host.into(), "caller", BULK / 4);
        let refused = TcpStream::connect((ip6, 1)).expect_err("the port is closed");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

/// Makes a program connect to `host`, which echoes what arrives and closes.
fn called_at(bench: &Bench, host: IpAddr, name: &str, len: u64) {
    let listener =
        TcpListener::bind((if host.is_ipv4() { "0.0.0.0" } else { "::" }, 0)).expect("a free port");
    let peer = SocketAddr::new(host, listener.local_addr().expect("bound").port()).to_string();
    let variables = [("PEER", &*peer), ("LEN", &*len.to_string())];
    let mut caller = bench.child_with("tcp-call", name, "latency-critical", &variables);
    let (mut stream, _) = accept(&listener);
    let mut outgoing = stream.try_clone().expect("a descriptor");
    std::io::copy(&mut stream, &mut outgoing).expect("bytes pass");
    outgoing.shutdown(Shutdown::Write).expect("half of it closes");
    let expected = stream::send(&mut std::io::sink(), 5, len).expect("a sink takes all");
    assert_eq!(caller.line().as_deref(), Some(&*format!("sent {expected} received {expected}")));
    assert!(caller.succeeded());
}

#[test]
fn programs_call_linux() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        called_at(&bench, HOST.into(), "small", 10);
        called_at(&bench, HOST.into(), "bulk", BULK);
        let peer = format!("{HOST}:1");
        let variables = [("PEER", &*peer), ("LEN", "1")];
        let mut caller = bench.child_with("tcp-call", "refused", "latency-critical", &variables);
        assert_eq!(caller.line().as_deref(), Some("failed ConnectionRefused"));
    });
}

#[test]
fn a_program_learns_that_linux_reset_its_connection() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let listener = TcpListener::bind((HOST, 0)).expect("a free port");
        let peer = listener.local_addr().expect("bound").to_string();
        let variables = [("PEER", &*peer), ("LEN", "100000000")];
        let mut caller = bench.child_with("tcp-call", "caller", "latency-critical", &variables);
        let (mut stream, _) = accept(&listener);
        stream.read_exact(&mut [0; 1000]).expect("some of it");
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("an option");
        drop(stream);
        // The first of its reader and its writer gets the reset; the other finds the connection
        // gone, as on Linux.
        let line = caller.line();
        assert!(matches!(line.as_deref(), Some("failed ConnectionReset" | "failed BrokenPipe")), "{line:?}");
    });
}
