//! `tailwater iokernel --publish`: programs behind a TAP device at ports of this machine.
//!
//! Two network namespaces stand for the machines. Needs CAP_SYS_ADMIN, /dev/net/tun and nft;
//! without them a message says so and the test is skipped.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::{Program, is_installed, socket_name, text, until};

use crate::common::{run, stats, tailwater};
use crate::load_over::{STORE, STORE_WORDS};

/// This machine's addresses on the network between the two.
const FOUR: &str = "192.168.77.1";
const SIX: &str = "[fd00:1::1]";

/// This machine, an IOKernel on it, and another machine.
struct Bed {
    here: Namespace,
    there: Namespace,
    socket: String,
}

impl Bed {
    /// Returns the machines; `None` where they cannot be, and says why.
    fn new() -> Option<Self> {
        let doctor = text(&run(&["doctor"]).stdout);
        let line = doctor.lines().find(|line| line.contains("TAP")).expect("the doctor speaks of TAP");
        if !line.starts_with("ok ") {
            eprintln!("skipped: {line}");
            return None;
        }
        if !is_installed("nft", "nftables") {
            return None;
        }
        let (here, there) = match (Namespace::new(), Namespace::new()) {
            (Ok(here), Ok(there)) => (here, there),
            (Err(why), _) | (_, Err(why)) => {
                eprintln!("skipped: {why}");
                return None;
            }
        };
        here.join("lan0", &there, "lan0", 1);
        for (machine, number) in [(&here, 1), (&there, 2)] {
            machine.ip(&["addr", "add", &format!("192.168.77.{number}/24"), "dev", "lan0"]);
            machine.ip(&["addr", "add", &format!("fd00:1::{number}/64"), "dev", "lan0", "nodad"]);
        }
        let forward = |file: &str| here.inside(|| std::fs::write(format!("/proc/sys/net/{file}"), "1"));
        for file in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            if let Err(why) = forward(file) {
                eprintln!("skipped: {file} cannot be set: {why}");
                return None;
            }
        }
        Some(Self { here, there, socket: socket_name("nat") })
    }

    fn iokernel(&self) -> Program {
        let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/busy.toml");
        let words =
            ["iokernel", "--share-cores", "--socket", &self.socket, "--log", "warn", "--config", settings];
        let device = ["--tap", "tw0,offload", "--host-ip", "10.77.0.1"];
        let rules = ["--publish", "tcp:6379=kv:11211,tcp:7000=10.77.0.9:11211"];
        let mut command = tailwater(&words);
        command.args(device).args(rules);
        let mut iokernel = self.here.inside(|| Program::start(&mut command));
        until("the IOKernel answers", || {
            assert!(iokernel.is_running(), "the IOKernel did not start: {}", iokernel.errors());
            self.here.inside(|| stats(&self.socket)).is_some()
        });
        iokernel
    }

    fn store(&self) -> Program {
        let program = std::env::current_exe().unwrap();
        let settings =
            ["run", "--iokernel", &self.socket, "--name", "kv", "--kthreads", "1", "--ip", "10.77.0.9", "--"];
        let mut command = tailwater(&settings);
        command.arg(program).args(STORE_WORDS).env(STORE, "-m 16 -l ::");
        self.here.inside(|| Program::start(&mut command))
    }

    /// Returns whether the store answers a client on this machine, or the other one.
    fn answers(&self, from: &Namespace, at: &str) -> bool {
        let at: SocketAddr = at.parse().unwrap();
        let ask = || {
            let mut client = TcpStream::connect_timeout(&at, Duration::from_secs(1)).ok()?;
            client.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
            client.write_all(b"version\r\nquit\r\n").ok()?;
            let mut answer = String::new();
            client.read_to_string(&mut answer).ok()?;
            Some(answer.starts_with("VERSION "))
        };
        from.inside(ask) == Some(true)
    }

    fn has_table(&self) -> bool {
        self.here.run("nft", &["list", "tables"]).contains("table inet tailwater/tw0")
    }

    /// Waits until the store answers both machines at both ports.
    fn answers_at(&self, address: &str) {
        for port in [6379, 7000] {
            let at = format!("{address}:{port}");
            until(&format!("the other machine is answered at {at}"), || self.answers(&self.there, &at));
            until(&format!("this machine is answered at {at}"), || self.answers(&self.here, &at));
        }
    }
}

#[test]
fn another_machine_reaches_a_program_at_a_published_port_also_after_a_crash() {
    let Some(bed) = Bed::new() else { return };
    let mut first = bed.iokernel();
    assert!(!bed.answers(&bed.there, "192.168.77.1:6379"), "no program is named kv yet");
    let _store = bed.store();
    bed.answers_at(FOUR);
    bed.answers_at(SIX);
    first.signal(Signal::KILL);
    first.wait();
    assert!(bed.has_table(), "a crash leaves it for the next IOKernel");
    // By IPv4 only: programs learn late by IPv6 that a device that is made anew has another MAC.
    let mut second = bed.iokernel();
    bed.answers_at(FOUR);
    second.signal(Signal::KILL);
    second.wait();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tailwater.toml");
    let files = |name: &str| format!("[{name}]\nstate-file = {:?}\n", folder.path().join(name));
    std::fs::write(&config, files("ix") + &files("reserve")).unwrap();
    let repair = ["doctor", "--repair", "--config", config.to_str().unwrap()];
    let said = bed.here.inside(|| text(&run(&repair).stdout));
    assert!(said.contains("removed tailwater/tw0"), "{said}");
    assert!(!bed.has_table());
    let mut third = bed.iokernel();
    bed.answers_at(FOUR);
    assert!(bed.here.inside(|| text(&run(&repair).stdout)).contains("published ports: nothing to remove"));
    third.signal(Signal::TERM);
    assert!(third.wait().success(), "{}", third.errors());
    assert!(!bed.has_table(), "the end of an IOKernel takes back what it published");
}

#[test]
fn a_rule_that_cannot_work_is_refused_before_anything_starts() {
    for (rule, part) in [("tcp:80=10.78.0.1", "no address of a program"), ("80=kv", "tcp:PORT")] {
        let words = [
            "iokernel",
            "--tap",
            "tw-no",
            "--host-ip",
            "10.77.0.1",
            "--publish",
            rule,
            "--check",
            "--offline",
        ];
        let output = run(&words);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(!output.status.success() && said.contains(part), "{rule}: {said}");
    }
}
