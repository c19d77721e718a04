//! A service that Linux reaches through a TAP device: ARP, ping and UDP from the kernel's own
//! stack.
//!
//! The device is in its own network namespace, which ends with the test. Needs CAP_SYS_ADMIN and
//! CAP_NET_ADMIN; without them the test is skipped with a message.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};
use tailwater_iokernel::Config;
use tailwater_ports::options::PortOptions;
use tailwater_testkit::{PATIENCE, is_installed, run, text, until};
use tailwater_tests::Bench;
use tailwater_tests::tap::{HOST, bench_with_tap, in_tap_namespace, settled_ip6};

/// Sends datagrams of `len` bytes to the service `client` is connected to until one comes back.
fn echo(client: &UdpSocket, len: usize) {
    let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
    let mut buffer = vec![0; 65_536];
    let deadline = Instant::now() + PATIENCE;
    loop {
        // A route or an address may still be tentative.
        match client.send(&payload).and_then(|_| client.recv(&mut buffer)) {
            Ok(n) if buffer[..n] == payload => return,
            Ok(_) => {}
            Err(_) => assert!(Instant::now() < deadline, "no echo of {len} bytes through TAP"),
        }
    }
}

/// Runs `ping` with `arguments` and checks that every request was answered. The first attempt may
/// be sent before addresses are settled, so it is repeated.
fn ping(arguments: &[&str]) {
    if !is_installed("ping", "iputils-ping") {
        return;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut ping = Command::new("ping");
        let ping = run(ping.args(["-c", "5", "-i", "0.2", "-W", "5"]).args(arguments), b"");
        let (printed, errors) = (text(&ping.stdout), text(&ping.stderr));
        if ping.status.success() && printed.contains(" 0% packet loss") {
            return;
        }
        assert!(Instant::now() < deadline, "ping {arguments:?}: {printed}{errors}");
    }
}

#[test]
fn linux_sockets_reach_a_service_and_get_their_answers() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let service = bench.child("echo", "service", "latency-critical");
        let client = UdpSocket::bind((HOST, 0)).expect("the host's side is configured");
        client.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        client.connect((service.ip, 7)).expect("a route");
        let mut buffer = [0; 2048];
        for len in [0, 1, 100, 1472, 1473, 9000, 20_000] {
            echo(&client, len);
        }
        // A datagram to a closed port is answered with ICMP port unreachable, which Linux reports
        // to the socket.
        client.connect((service.ip, 9)).expect("a route");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let refused = client.send(b"?").and_then(|_| client.recv(&mut buffer));
            if refused.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused) {
                break;
            }
            assert!(Instant::now() < deadline, "a closed port was not refused");
        }
    });
}

#[test]
fn bundles_of_datagrams_are_cut_into_the_datagrams_they_were_made_of() {
    in_tap_namespace(|| {
        let options =
            PortOptions { tap: Some("tw-test0".to_owned()), host_ip: Some(HOST), ..PortOptions::default() };
        let bench = Bench::start(|_| (), options.build().expect("one port"));
        let service = bench.child("echo", "service", "latency-critical");
        let client = UdpSocket::bind((HOST, 0)).expect("the host's side is configured");
        client.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        client.connect((service.ip, 7)).expect("a route");
        let size: libc::c_int = 1000;
        // SAFETY: the option takes an int, which is passed with its size.
        let set = unsafe {
            let (value, len) = ((&raw const size).cast(), size_of::<libc::c_int>() as libc::socklen_t);
            libc::setsockopt(client.as_raw_fd(), libc::IPPROTO_UDP, libc::UDP_SEGMENT, value, len)
        };
        if set != 0 {
            return eprintln!("skipped: this kernel sends no bundles of datagrams (UDP_SEGMENT)");
        }
        // Nine datagrams of 1000 bytes and one of 500 in one call.
        let bundle: Vec<u8> = (0..9_500u32).map(|i| (i * 7 % 251) as u8).collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Fails after an address was not resolved, if the service did not run for seconds.
            if let Err(error) = client.send(&bundle) {
                println!("send: {error}");
            }
            let mut buffer = [0; 2048];
            let answers = std::iter::from_fn(|| {
                let len = client.recv(&mut buffer).ok()?;
                Some(buffer[..len].to_vec())
            });
            let mut answers: Vec<Vec<u8>> = answers.take(10).collect();
            // User threads may answer in any order.
            answers.sort_by_key(|answer| bundle.chunks(1000).position(|chunk| chunk == answer));
            if answers.concat() == bundle {
                break;
            }
            assert!(Instant::now() < deadline, "{} answers: {:#}", answers.len(), bench.stats());
        }
    });
}

#[test]
fn a_service_answers_ping() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(1500);
        let service = bench.child("echo", "service", "latency-critical");
        ping(&[&service.ip.to_string()]);
        // In fragments, both ways.
        ping(&["-s", "4000", &service.ip.to_string()]);
    });
}

#[test]
fn a_link_of_9000_bytes_carries_long_datagrams_whole() {
    in_tap_namespace(|| {
        let bench = bench_with_tap(9000);
        let service = bench.child("echo", "service", "latency-critical");
        let client = UdpSocket::bind((HOST, 0)).expect("the host's side is configured");
        client.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        client.connect((service.ip, 7)).expect("a route");
        for len in [8972, 8973, 60_000] {
            echo(&client, len);
        }
        ping(&["-M", "do", "-s", "8972", &service.ip.to_string()]);
    });
}

#[test]
fn linux_and_a_service_reach_each_other_over_ipv6() {
    in_tap_namespace(|| {
        if !std::path::Path::new("/proc/net/if_inet6").exists() {
            return eprintln!("skipped: this kernel has no IPv6");
        }
        let bench = bench_with_tap(1500);
        let mut service = bench.child("echo", "service", "latency-critical");
        let ip6 = Config::default().ip6_of(service.ip).expect("IPv6 is on by default");
        assert_eq!(bench.stats()["runtimes"][0]["ip6"], ip6.to_string());
        ping(&["-6", &ip6.to_string()]);
        ping(&["-6", "-s", "4000", &ip6.to_string()]);
        let client = UdpSocket::bind((settled_ip6(), 0)).expect("a free port");
        client.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        client.connect((ip6, 7)).expect("a route");
        for len in [0, 1452, 1453, 20_000] {
            echo(&client, len);
        }
        drop(client);
        service.kill();
        // The other direction: a program sends to a socket of Linux, over both families.
        let server = UdpSocket::bind("[::]:0").expect("a free port");
        let port = server.local_addr().expect("bound").port();
        server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut buffer = vec![0; 65_536];
        for (name, host) in [("six", settled_ip6().into()), ("four", IpAddr::V4(HOST))] {
            let peer = SocketAddr::new(host, port).to_string();
            let mut caller = bench.child_with("call", name, "latency-critical", &[("PEER", &peer)]);
            let (len, from) = server.recv_from(&mut buffer).expect("the program calls");
            server.send_to(&buffer[..len], from).expect("send");
            assert_eq!(caller.line().as_deref(), Some("answered"));
            assert!(caller.succeeded());
        }
    });
}

#[test]
fn linux_has_its_ipv6_address_again_after_the_device_was_down_and_up_within_a_moment() {
    if !is_installed("ip", "iproute2") {
        return;
    }
    in_tap_namespace(|| {
        let _bench = bench_with_tap(1500);
        settled_ip6();
        let has_address = || {
            let mut show = Command::new("ip");
            let shown = run(show.args(["-6", "address", "show", "dev", "tw-test0", "scope", "global"]), b"");
            text(&shown.stdout).contains("fd00:7477")
        };
        assert!(has_address());
        for state in ["down", "up"] {
            let mut set = Command::new("ip");
            assert!(run(set.args(["link", "set", "tw-test0", state]), b"").status.success());
        }
        until("the device has its address again", has_address);
    });
}
