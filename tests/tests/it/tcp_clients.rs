//! Third-party client and server programs with services over TAP. Each test is skipped, with a
//! message, if its program is not installed.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use tailwater_testkit::{Program, eventually, run};
use tailwater_tests::clients::{text, with};
use tailwater_tests::tap::{HOST, bench_with_tap};
use tailwater_tests::{Bench, Role};

/// Returns a relay from its port 2222 to `port` of the host.
fn relay(bench: &Bench, port: u16) -> Role {
    let peer = format!("{HOST}:{port}");
    bench.child_with("tcp-relay", "relay", "latency-critical", &[("PEER", &peer)])
}

/// Starts a server on Linux's own sockets and waits until it listens on `port` of the host.
fn server(command: &mut Command, port: u16) -> Program {
    let mut server = Program::start(command);
    eventually("the server listens", || {
        assert!(server.is_running(), "it ended: {}{}", server.output(), server.errors());
        TcpStream::connect((HOST, port)).ok()
    });
    server
}

/// Returns a port that was free a moment ago, and stays so: no other test is in this namespace.
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
                run(Command::new("curl").args(["-sS", "--noproxy", "*", "--max-time", "100", &url]), b"");
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
        let folder = tempfile::tempdir().expect("a folder");
        let (key, certificate) = (folder.path().join("key.pem"), folder.path().join("certificate.pem"));
        let mut command = Command::new("openssl");
        command.args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=tailwater",
        ]);
        ran(command.arg("-keyout").arg(&key).arg("-out").arg(&certificate));
        let mut command = Command::new("openssl");
        // -rev: sends each line back, last letter first.
        command.args(["s_server", "-rev", "-quiet", "-accept", &port.to_string(), "-key"]);
        let _server = server(command.arg(&key).arg("-cert").arg(&certificate), port);
        let relay = relay(&bench, port);
        let to = format!("{}:2222", relay.ip);
        let mut client = Command::new("openssl");
        client.args(["s_client", "-quiet", "-connect", &to, "-verify_return_error", "-CAfile"]);
        // The server ends the session at the second line.
        let output = run(client.arg(&certificate), b"through the relay\nCLOSE\n");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim_end(),
            "yaler eht hguorht",
            "{}",
            text(&output)
        );
    });
}

/// Debian's path.
const SSHD: &str = "/usr/sbin/sshd";

/// Runs a program that must succeed; returns its standard output.
fn ran(command: &mut Command) -> String {
    let output = run(command, b"");
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Makes a key without a passphrase in `file`; returns its public half.
fn ssh_key(file: &Path) -> String {
    ran(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file));
    fs::read_to_string(file.with_extension("pub")).expect("ssh-keygen wrote it")
}

/// Starts an SSH server on `port` of the host that accepts the key in `folder` and no other. All
/// files it reads are there.
fn sshd(folder: &Path, port: u16) -> Program {
    let host_key = folder.join("host");
    let known = format!("relay {}", ssh_key(&host_key));
    fs::write(folder.join("known_hosts"), known).expect("the folder is ours");
    fs::write(folder.join("authorized"), ssh_key(&folder.join("user"))).expect("the folder is ours");
    let config = folder.join("config");
    let lines = format!(
        "ListenAddress {HOST}\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\n\
         AuthenticationMethods publickey\nPermitRootLogin prohibit-password\nPermitUserRC no\n",
        host_key.display(),
        folder.join("authorized").display()
    );
    fs::write(&config, lines).expect("the folder is ours");
    // Debian's sshd needs an empty /run/sshd, which exists only if the machine's own server runs:
    // this one gets its own /run.
    let script = format!("mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec {SSHD} -D -f \"$0\"");
    server(Command::new("unshare").args(["--mount", "sh", "-c", &script]).arg(&config), port)
}

#[test]
fn an_ssh_session_passes_through_a_relay() {
    with("ssh", "openssh-client", || {
        if !Path::new(SSHD).exists() {
            return eprintln!("skipped: no {SSHD} (Debian: openssh-server)");
        }
        let user = ran(Command::new("id").arg("-un"));
        let locked = format!("{user}:!");
        if fs::read_to_string("/etc/shadow")
            .is_ok_and(|all| all.lines().any(|line| line.starts_with(&locked)))
        {
            return eprintln!("skipped: sshd refuses {user}, whose account is locked");
        }
        let mount = ["--mount", "sh", "-c", "mount -t tmpfs none /run"];
        if !run(Command::new("unshare").args(mount), b"").status.success() {
            return eprintln!("skipped: nothing can be mounted here, not even in an own namespace");
        }
        let bench = bench_with_tap(1500);
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let port = free_port();
        let _server = sshd(folder, port);
        let relay = relay(&bench, port);
        let ssh = |command: &str, input: &[u8]| {
            let mut client = Command::new("ssh");
            // Without the user's own settings; new keys are negotiated in the middle of the data.
            client.args([
                "-F",
                "none",
                "-T",
                "-p",
                "2222",
                "-o",
                "BatchMode=yes",
                "-o",
                "IdentitiesOnly=yes",
            ]);
            client.args([
                "-o",
                "StrictHostKeyChecking=yes",
                "-o",
                "HostKeyAlias=relay",
                "-o",
                "RekeyLimit=1M",
            ]);
            client.arg("-o").arg(format!("UserKnownHostsFile={}", folder.join("known_hosts").display()));
            client.arg("-i").arg(folder.join("user")).arg(format!("{user}@{}", relay.ip)).arg(command);
            let output = run(&mut client, input);
            assert!(output.status.success(), "ssh {command}: {}", text(&output));
            output.stdout
        };
        let contents: Vec<u8> = (0..4_000_000u32).map(|i| (i.wrapping_mul(i) >> 11) as u8).collect();
        let (sent, copy) = (folder.join("sent"), folder.join("copy"));
        fs::write(&sent, &contents).expect("the folder is ours");
        let sum = ran(Command::new("sha256sum").arg(&sent));
        let sum = sum.split_whitespace().next().expect("a checksum");
        let said = ssh(&format!("cat >{0} && sha256sum {0}", copy.display()), &contents);
        // The user's shell may print something when it starts.
        assert!(String::from_utf8_lossy(&said).contains(sum), "{}", String::from_utf8_lossy(&said));
        let back = ssh(&format!("cat {}", copy.display()), b"");
        assert!(back.ends_with(&contents), "{} bytes came back", back.len());
    });
}

#[test]
fn iperf3_runs_through_a_relay_in_both_directions() {
    with("iperf3", "iperf3", || {
        let bench = bench_with_tap(1500);
        let port = free_port();
        let mut command = Command::new("iperf3");
        command.args(["--server", "--bind", &HOST.to_string(), "--port", &port.to_string()]);
        let _server = server(&mut command, port);
        let relay = relay(&bench, port);
        for direction in [&[][..], &["--reverse"], &["--bidir", "--parallel", "4"]] {
            let ip = relay.ip.to_string();
            let mut client = Command::new("iperf3");
            client.args(["--client", &ip, "--port", "2222", "--bytes", "10M", "--json"]).args(direction);
            // Its server handles one test at a time and opens its listener anew after each, also
            // after the connection that found it listening.
            let output = eventually("a test for which the server has time", || {
                let output = run(&mut client, b"");
                if !output.status.success() {
                    println!("iperf3 {direction:?}: {}", text(&output));
                }
                output.status.success().then_some(output)
            });
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let bytes = report["end"]["sum_received"]["bytes"].as_u64().expect("a number");
            assert!(bytes >= 1 << 20, "{report:#}");
        }
    });
}
