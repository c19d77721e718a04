//! A later instance of a service takes the place of a running one, under load, and either dies.

use std::io::Write;
use std::process::{ChildStdin, Command};

use rustix::process::Signal;
use tailwater_testkit::{binary, has_two_cpus, run, socket_name, until};
use tailwater_tests::{Bench, Role, start_iokernel, turn};

const REPLACE: (&str, &str) = ("TAILWATER_REPLACE", "true");
const FOR_EVER: (&str, &str) = ("TAILWATER_IOKERNEL_WAIT_MS", "0");

/// An instance of the service.
struct Instance {
    role: Role,
    input: ChildStdin,
}

impl Instance {
    /// Starts one that has no socket yet.
    fn start(socket: &str, number: u8) -> Self {
        let role = format!("replace-serve {number}");
        let mut role = Role::start(socket, &role, "service", &[REPLACE, FOR_EVER]);
        Self { input: role.take_input(), role }
    }

    fn write_line(&mut self) {
        writeln!(self.input).expect("the service reads");
    }

    fn listen(&mut self) {
        self.write_line();
        assert_eq!(self.role.line().as_deref(), Some("listens"));
    }
}

/// The client of the service, and what it has seen last.
struct Client {
    role: Role,
    input: Option<ChildStdin>,
    failures: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    open: u64,
    short: u64,
    latest: u64,
    datagram: u64,
}

impl Client {
    fn start(socket: &str, service: &Instance) -> Self {
        let peer = service.role.ip.to_string();
        let mut role = Role::start(socket, "replace-call", "client", &[("PEER", &peer), FOR_EVER]);
        let input = Some(role.take_input());
        Self { role, input, failures: Vec::new() }
    }

    /// Returns what it has seen, as its next line has it.
    fn seen(&mut self) -> Seen {
        loop {
            let line = self.role.line().expect("the client runs");
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["open", open, "short", short, "latest", latest, "datagram", datagram] => {
                    let number = |word: &str| word.parse().expect("a number");
                    return Seen {
                        open: number(open),
                        short: number(short),
                        latest: number(latest),
                        datagram: number(datagram),
                    };
                }
                ["closed"] => {}
                _ => self.failures.push(line),
            }
        }
    }

    /// Waits until open connections go on, and short ones and datagrams are answered by `instance`.
    fn wait_for(&mut self, instance: u64) {
        let before = self.seen();
        until("open connections go on, and the right instance answers", || {
            let seen = self.seen();
            seen.open > before.open + 20
                && seen.short > before.short + 20
                && (seen.latest, seen.datagram) == (instance, instance)
        });
    }

    /// Has it close its open connections and make others.
    fn close_open(&mut self) {
        writeln!(self.input.as_mut().expect("it goes on")).expect("the client reads");
        loop {
            let line = self.role.line().expect("the client runs");
            match &*line {
                "closed" => return,
                line if line.starts_with("open ") => {}
                _ => self.failures.push(line),
            }
        }
    }

    /// Ends it; returns what has failed.
    fn end(mut self) -> Vec<String> {
        drop(self.input.take());
        let rest = std::iter::from_fn(|| self.role.line());
        self.failures.extend(rest.filter(|line| line.starts_with("failed")));
        assert!(self.role.succeeded());
        self.failures
    }
}

#[test]
fn a_later_instance_takes_the_place_of_a_running_one_and_no_client_notices() {
    let bench = Bench::start(|_| (), Vec::new());
    let mut running = Instance::start(bench.socket(), 1);
    running.listen();
    let mut client = Client::start(bench.socket(), &running);
    client.wait_for(1);
    for number in 2..=5 {
        let mut later = Instance::start(bench.socket(), number);
        assert_eq!(later.role.ip, running.role.ip);
        // It has the address, and no socket yet.
        client.wait_for(u64::from(number) - 1);
        later.listen();
        // The open connections are the earlier one's.
        client.wait_for(number.into());
        later.write_line();
        assert_eq!(running.role.line().as_deref(), Some("ends"));
        client.wait_for(number.into());
        client.close_open();
        assert!(running.role.succeeded(), "it ends after its last connection");
        client.wait_for(number.into());
        running = later;
    }
    assert_eq!(client.end(), [""; 0]);
    assert_eq!(bench.stats()["switch"]["dropped_spoofed"], 0);
}

#[test]
fn a_later_instance_that_is_killed_leaves_the_earlier_one_as_it_was() {
    let bench = Bench::start(|_| (), Vec::new());
    let mut running = Instance::start(bench.socket(), 1);
    running.listen();
    let mut client = Client::start(bench.socket(), &running);
    client.wait_for(1);
    // Before it has a socket: no client notices.
    let mut later = Instance::start(bench.socket(), 2);
    client.wait_for(1);
    later.role.kill();
    client.wait_for(1);
    assert_eq!(client.failures, [""; 0]);
    // Once it serves: its own connections break, those of the earlier one do not.
    let mut later = Instance::start(bench.socket(), 3);
    later.listen();
    client.wait_for(3);
    later.role.kill();
    client.wait_for(1);
    let failed = client.end();
    assert!(failed.len() <= 2, "one short connection at a time: {failed:?}");
}

#[test]
fn the_earlier_instance_may_be_killed_and_the_later_one_serves() {
    let bench = Bench::start(|_| (), Vec::new());
    let mut running = Instance::start(bench.socket(), 1);
    running.listen();
    let mut client = Client::start(bench.socket(), &running);
    client.wait_for(1);
    let mut later = Instance::start(bench.socket(), 2);
    later.listen();
    client.wait_for(2);
    running.role.signal(Signal::KILL);
    running.role.wait();
    until("the clients of the one that was killed learn of it", || {
        client.seen();
        client.failures.len() >= 4
    });
    client.close_open();
    client.wait_for(2);
    assert!(client.failures.iter().all(|line| line.contains("ConnectionReset")), "{:?}", client.failures);
    assert_eq!(client.end().len(), 4, "the open ones");
}

#[test]
fn both_instances_go_on_when_a_killed_iokernel_returns() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let socket = socket_name("replace");
    let mut running = start_iokernel(&socket, &[]);
    let mut earlier = Instance::start(&socket, 1);
    earlier.listen();
    let mut client = Client::start(&socket, &earlier);
    client.wait_for(1);
    let mut later = Instance::start(&socket, 2);
    later.listen();
    client.wait_for(2);
    running.kill();
    // Lines of before are read, so that none of them counts as what goes on later.
    until("nothing goes on", || {
        let seen = [(); 3].map(|()| client.seen());
        seen[0] == seen[2]
    });
    running = start_iokernel(&socket, &[]);
    client.wait_for(2);
    later.write_line();
    assert_eq!(earlier.role.line().as_deref(), Some("ends"));
    client.close_open();
    assert!(earlier.role.succeeded());
    client.wait_for(2);
    assert_eq!(client.end(), [""; 0]);
    running.kill();
}

#[test]
fn an_instance_that_has_not_agreed_is_not_replaced() {
    let bench = Bench::start(|_| (), Vec::new());
    let _running = bench.child("echo", "service", "latency-critical");
    let mut command = Command::new(binary("tailwater-tests", "role"));
    command.args(["replace-serve", "2"]).env("TAILWATER_IOKERNEL", bench.socket());
    command.env("TAILWATER_NAME", "service").env(REPLACE.0, REPLACE.1).env("TAILWATER_KTHREADS", "1");
    let refused = run(&mut command, b"");
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && errors.contains("--replace"), "{errors}");
}
