//! A service that Linux reaches through a TAP device: ARP, ping and UDP from the kernel's own stack.
//!
//! The device lives in a network namespace of its own, made by `unshare(2)` on the test's thread; namespace and device go
//! with the thread. Needs CAP_SYS_ADMIN and CAP_NET_ADMIN; says so and skips without.

use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};
use tailwater_iokernel::port::{Port, tap::TapPort};
use tailwater_tests::{Bench, PATIENCE, cpus};

const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Runs `test` on a thread in a fresh network namespace.
fn in_namespace(test: impl FnOnce() + Send) {
    if cpus() < 2 {
        return eprintln!("skipped: needs 2 CPUs, this machine lets us use {}", cpus());
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return eprintln!("skipped: this kernel has no /dev/net/tun");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a network namespace affects no memory; only this thread and those it starts are moved.
            match unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
                Ok(()) => test(),
                Err(error) => eprintln!("skipped: no network namespace without CAP_SYS_ADMIN ({error})"),
            }
        });
    });
}

fn bench_with_tap() -> Bench {
    let tap: Box<dyn Port> = Box::new(TapPort::new("tw-test0", HOST));
    Bench::start(|c| c.managed_cores = Some(vec![1]), vec![tap])
}

#[test]
fn linux_sockets_reach_a_service_and_get_their_answers() {
    in_namespace(|| {
        let bench = bench_with_tap();
        let service = bench.child("echo", "service", "latency-critical");
        let client = UdpSocket::bind((HOST, 0)).expect("the host's side is configured");
        client.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        client.connect((service.ip, 7)).expect("a route");
        let mut buffer = [0; 2048];
        for len in [0usize, 1, 100, 1472] {
            let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let deadline = Instant::now() + PATIENCE;
            loop {
                client.send(&payload).expect("send");
                match client.recv(&mut buffer) {
                    Ok(n) if buffer[..n] == payload => break,
                    Ok(_) => {}
                    Err(_) => assert!(Instant::now() < deadline, "no echo of {len} bytes through TAP"),
                }
            }
        }
        // A port nobody listens on is answered with ICMP port unreachable, which Linux reports to the socket.
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
fn a_service_answers_ping() {
    in_namespace(|| {
        if Command::new("ping").arg("-V").output().is_err() {
            return eprintln!("skipped: no `ping` (Debian: iputils-ping)");
        }
        let bench = bench_with_tap();
        let service = bench.child("echo", "service", "latency-critical");
        let ping = Command::new("ping")
            .args(["-c", "5", "-i", "0.2", "-W", "10", &service.ip.to_string()])
            .output()
            .expect("ping runs");
        let text = String::from_utf8_lossy(&ping.stdout);
        assert!(ping.status.success() && text.contains(" 0% packet loss"), "{text}");
    });
}
