//! Programs that people use, as clients and servers of services over TAP. Each test skips, and says so, where its program is
//! not installed.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use tailwater_tests::clients::{run, text, with};
use tailwater_tests::tap::{HOST, bench_with_tap};
use tailwater_tests::{Bench, Role, eventually};

/// A relay from its port 2222 to `port` of the host.
fn relay(bench: &Bench, port: u16) -> Role {
    let peer = format!("{HOST}:{port}");
    bench.child_with("tcp-relay", "relay", "latency-critical", &[("PEER", &peer)])
}

/// A server of Linux's; killed when dropped.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> Self {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(quiet.spawn().expect("the server starts"))
    }

    /// Waits until it listens.
    fn wait(self, port: u16) -> Self {
        eventually("the server listens", || TcpStream::connect((HOST, port)).ok());
        self
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that was free a moment ago; nobody else is in this namespace.
fn free_port() -> u16 {
    eventually("the device has its address", || TcpListener::bind((HOST, 0)).ok())
        .local_addr()
        .expect("bound")
        .port()
}

#[test]
fn curl_fetches_from_a_service() {
    with("curl", "curl", || {
        let bench = bench_with_tap(1500);
        let service = bench.child("tcp-serve", "service", "latency-critical");
        for len in [0usize, 1000, 10_000_000] {
            let url = format!("http://{}/{len}", service.ip);
            let output =
                run(Command::new("curl").args(["-sS", "--noproxy", "*", "--max-time", "25", &url]), b"");
            assert!(output.status.success(), "curl {url}: {}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(output.stdout.len(), len);
        }
    });
}

#[test]
fn netcat_gets_back_what_it_sends() {
    with("nc", "netcat-openbsd", || {
        let bench = bench_with_tap(1500);
        let service = bench.child("tcp-serve", "service", "latency-critical");
        let input: Vec<u8> = (0..1_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        // -N: closes its direction at the end of its input.
        let output = run(Command::new("nc").args(["-N", &service.ip.to_string(), "7"]), &input);
        assert!(output.status.success() && output.stdout == input, "{} bytes came back", output.stdout.len());
    });
}

#[test]
fn a_tls_session_passes_through_a_relay() {
    with("openssl", "openssl", || {
        let bench = bench_with_tap(1500);
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("tailwater-tls-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (key, certificate) = (folder.join("key.pem"), folder.join("certificate.pem"));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tailwater"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .expect("openssl runs");
        assert!(made.status.success(), "{}", text(&made));
        let mut server = Command::new("openssl");
        // -rev: sends each line back, last letter first.
        server.args(["s_server", "-rev", "-quiet", "-accept", &port.to_string(), "-key"]);
        let _server = Server::start(server.arg(&key).arg("-cert").arg(&certificate)).wait(port);
        let relay = relay(&bench, port);
        let to = format!("{}:2222", relay.ip);
        let mut client = Command::new("openssl");
        client.args(["s_client", "-quiet", "-connect", &to, "-verify_return_error", "-CAfile"]);
        // The server ends the session at the second line.
        let output = run(client.arg(&certificate), b"through the relay\nCLOSE\n");
        std::fs::remove_dir_all(&folder).expect("the folder is ours");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim_end(),
            "yaler eht hguorht",
            "{}",
            text(&output)
        );
    });
}

#[test]
fn iperf3_runs_through_a_relay_in_both_directions() {
    with("iperf3", "iperf3", || {
        let bench = bench_with_tap(1500);
        let port = free_port();
        let mut server = Command::new("iperf3");
        server.args(["--server", "--bind", &HOST.to_string(), "--port", &port.to_string()]);
        let _server = Server::start(&mut server).wait(port);
        let relay = relay(&bench, port);
        for direction in [&[][..], &["--reverse"], &["--bidir", "--parallel", "4"]] {
            let ip = relay.ip.to_string();
            let mut client = Command::new("iperf3");
            client.args(["--client", &ip, "--port", "2222", "--time", "1", "--json"]).args(direction);
            let output = run(&mut client, b"");
            assert!(output.status.success(), "iperf3 {direction:?}: {}", text(&output));
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let bits = report["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate");
            println!("iperf3 {direction:?}: {:.2} Gbit/s", bits / 1e9);
            assert!(bits > 1e6, "{report:#}");
        }
    });
}
