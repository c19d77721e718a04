//! `tailwater iokernel --publish`: programs behind a TAP device at ports of this machine.
//!
//! Two network namespaces stand for the machines. Needs CAP_SYS_ADMIN, /dev/net/tun, IPv6 and nft
//! with what a table needs of Linux; without them a message says so and the test is skipped.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::{PATIENCE, Program, installed, run as run_program, socket_name, text, until};

use crate::common::{run, stats, tailwater};
use crate::load_over::{STORE, STORE_WORDS};

/// This machine's addresses on the network between the two.
const FOUR: &str = "192.168.77.1";
const SIX: &str = "[fd00:1::1]";

/// A table that needs of Linux and nft what a published port needs.
const PROBE: &str = r#"table inet probe {
    comment "is kept"
    chain arriving {
        type nat hook prerouting priority -100; policy accept;
        meta nfproto ipv4 fib daddr type local tcp dport 9 dnat ip to 192.0.2.1:9
        meta nfproto ipv6 fib daddr type local tcp dport 9 dnat ip6 to [2001:db8::1]:9
    }
    chain leaving {
        type nat hook postrouting priority 100; policy accept;
        ip saddr 192.0.2.0/24 masquerade
        ip6 saddr 2001:db8::/64 masquerade
    }
}
"#;

/// This machine, an IOKernel on it, and another machine.
struct Bed {
    here: Namespace,
    there: Namespace,
    socket: String,
    nft: PathBuf,
}

/// Returns why nothing can be published in a namespace, or why it has no IPv6; `None` if all is
/// there.
fn lacks(here: &Namespace, nft: &Path) -> Option<String> {
    here.inside(|| {
        let is_off = |of: &str| {
            let file = format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6");
            std::fs::read_to_string(file).is_ok_and(|text| text.trim() != "0")
        };
        if !Path::new("/proc/net/if_inet6").exists() || is_off("all") || is_off("default") {
            return Some("Linux has no IPv6, or it is switched off".to_owned());
        }
        let made = run_program(Command::new(nft).args(["--file", "-"]), PROBE.as_bytes());
        if !made.status.success() {
            return Some(format!("nft cannot make a table: {} {}", made.status, text(&made.stderr)));
        }
        let shown = run_program(Command::new(nft).args(["list", "table", "inet", "probe"]), b"");
        run_program(Command::new(nft).args(["delete", "table", "inet", "probe"]), b"");
        let is_kept = text(&shown.stdout).contains("is kept");
        (!is_kept).then(|| "Linux keeps no comments of tables (it does from 5.10 on)".to_owned())
    })
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
        let nft = installed("nft", "nftables")?;
        let [here, there] = Namespace::pair(["lan0", "lan0"], 1)?;
        if let Some(why) = lacks(&here, &nft) {
            eprintln!("skipped: {why}");
            return None;
        }
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
        Some(Self { here, there, socket: socket_name("nat"), nft })
    }

    fn iokernel(&self) -> Program {
        self.iokernel_with(&[])
    }

    fn iokernel_with(&self, words_of_its_own: &[&str]) -> Program {
        let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/busy.toml");
        let words =
            ["iokernel", "--share-cores", "--socket", &self.socket, "--log", "warn", "--config", settings];
        let device = ["--tap", "tw0", "--host-ip", "10.77.0.1"];
        let rules = ["--publish", "tcp:6379=kv:11211,tcp:7000=10.77.0.9:11211"];
        let mut command = tailwater(&words);
        command.args(device).args(rules).args(words_of_its_own);
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

    fn nft(&self, words: &[&str]) -> String {
        self.here.run(self.nft.to_str().unwrap(), words)
    }

    fn has_table(&self) -> bool {
        self.nft(&["list", "tables"]).contains("table inet tailwater/tw0")
    }

    /// Puts another table in the place of the IOKernel's, with this comment.
    fn replace_table(&self, comment: &str) {
        let table = "inet tailwater/tw0";
        self.nft(&[&format!("delete table {table}; add table {table} {{ comment \"{comment}\"; }}")]);
    }

    /// Runs `tailwater doctor --repair` in files of its own; returns what it prints.
    fn repair(&self, service_result: Option<&str>) -> String {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("tailwater.toml");
        let files = |name: &str| format!("[{name}]\nstate-file = {:?}\n", folder.path().join(name));
        std::fs::write(&config, files("ix") + &files("reserve")).unwrap();
        let mut command = tailwater(&["doctor", "--repair", "--config", config.to_str().unwrap()]);
        command.env_remove("SERVICE_RESULT").envs(service_result.map(|result| ("SERVICE_RESULT", result)));
        let output = self.here.inside(|| run_program(&mut command, b""));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
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
    let mac = || {
        let shown = bed.here.run("ip", &["-br", "link", "show", "tw0"]);
        shown.split_whitespace().nth(2).map(str::to_owned)
    };
    let before = mac();
    first.signal(Signal::KILL);
    first.wait();
    assert!(bed.has_table(), "a crash leaves it for the next IOKernel");
    let mut second = bed.iokernel();
    assert_eq!(mac(), before, "the store need not look for the device again");
    bed.answers_at(FOUR);
    bed.answers_at(SIX);
    second.signal(Signal::KILL);
    second.wait();
    let said = bed.repair(Some("signal"));
    assert!(said.contains("stay for the next start"), "{said}");
    assert!(bed.has_table(), "systemd starts the IOKernel again");
    let said = bed.repair(None);
    assert!(said.contains("removed tailwater/tw0"), "{said}");
    assert!(!bed.has_table());
    let mut third = bed.iokernel();
    bed.answers_at(FOUR);
    let said = bed.repair(Some("success"));
    assert!(said.contains("published ports: nothing to remove\n"), "{said}");
    third.signal(Signal::TERM);
    assert!(third.wait().success(), "{}", third.errors());
    assert!(!bed.has_table(), "the end of an IOKernel takes back what it published");
}

#[test]
fn a_program_reaches_another_machine_under_the_address_of_this_one() {
    let Some(bed) = Bed::new() else { return };
    let _iokernel = bed.iokernel();
    for (server, own) in [("192.168.77.2:9", FOUR), ("[fd00:1::2]:9", SIX)] {
        let socket = bed.there.inside(|| UdpSocket::bind(server).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let words = ["load", server, "--over", "tailwater", "--iokernel", &bed.socket, "--rate", "100"];
        let _load = bed.here.inside(|| Program::start(&mut tailwater(&words)));
        let (_, from) = socket.recv_from(&mut [0; 2_048]).expect("its requests arrive");
        assert_eq!(from.ip().to_string(), own.trim_matches(['[', ']']));
    }
}

#[test]
fn an_iokernel_that_is_succeeded_leaves_the_ports_of_its_programs_to_its_successor() {
    let Some(bed) = Bed::new() else { return };
    let mut first = bed.iokernel();
    let _store = bed.store();
    bed.answers_at(FOUR);
    let mut second = bed.iokernel_with(&["--takeover"]);
    assert!(first.wait().success(), "{}", first.errors());
    let successor = format!("process {},", second.pid());
    // Each rule stands there twice; by the name if the program is there.
    until("the table is the successor's, and leads to the program by its name, too", || {
        let table = bed.nft(&["list", "table", "inet", "tailwater/tw0"]);
        table.contains(&successor) && table.matches("dnat ip to 10.77.0.9:11211").count() == 4
    });
    bed.answers_at(FOUR);
    second.signal(Signal::TERM);
    assert!(second.wait().success(), "{}", second.errors());
    assert!(!bed.has_table());
}

#[test]
fn a_table_of_a_process_that_is_not_known_to_be_gone_stays() {
    let Some(bed) = Bed::new() else { return };
    let mut iokernel = bed.iokernel();
    until("ports are published", || bed.has_table());
    bed.replace_table("process 1, started 1, namespace 1");
    iokernel.signal(Signal::TERM);
    assert!(iokernel.wait().success(), "{}", iokernel.errors());
    assert!(bed.has_table(), "another process has made it");
    for comment in ["process 1, started 1, namespace 1", "something else"] {
        bed.replace_table(comment);
        let said = bed.repair(None);
        assert!(said.contains("nothing to remove; left tailwater/tw0"), "{comment}: {said}");
        assert!(said.contains("nft delete table inet tailwater/tw0"), "{said}");
        assert!(bed.has_table(), "{comment}");
    }
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
