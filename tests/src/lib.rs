//! The bench system tests are built on: an IOKernel on a thread of the test, runtimes as child processes.
//!
//! Everything is waited for by condition with a generous deadline ([`PATIENCE`]); nothing sleeps and hopes. What a bench
//! starts ends with it, also when a test panics.

pub mod clients;
pub mod namespace;
pub mod stream;
pub mod tap;

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_iokernel::frame::Mac;
use tailwater_iokernel::port::{Attachment, Port, memory};
use tailwater_iokernel::stats::{HandoffKind, StatsHandle};
use tailwater_iokernel::testing::wire::{self, Endpoint};
use tailwater_iokernel::{Config, IoKernel};

/// How long a condition may take on a machine that is busy with other tests.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Address of the test's own station on the IOKernel's network.
pub const CLIENT: Endpoint =
    Endpoint { mac: Mac([2, 0xc1, 0, 0, 0, 1]), ip: Ipv4Addr::new(10, 77, 200, 1), port: 4000 };

/// Number of CPUs this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Waits until `condition` gives a value.
///
/// # Panics
/// When [`PATIENCE`] is exhausted.
#[track_caller]
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An IOKernel with a client station, on a thread of the test.
#[derive(Debug)]
pub struct Bench {
    socket: String,
    stop: Arc<AtomicBool>,
    stats: StatsHandle,
    client: memory::MemoryPeer,
    thread: Option<JoinHandle<()>>,
}

impl Bench {
    /// Starts an IOKernel as `configure` wants it, with the client station and `ports`.
    ///
    /// # Panics
    /// If it cannot start: on a machine with one CPU, say, where no test of this crate can run.
    pub fn start(configure: impl FnOnce(&mut Config), mut ports: Vec<Box<dyn Port>>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut config = Config {
            socket: format!("@tailwater-test-{}-{number}", std::process::id()),
            ..Config::default()
        };
        configure(&mut config);
        let socket = config.socket.clone();
        let station = Attachment::Station { mac: CLIENT.mac, ip: Some(CLIENT.ip) };
        let (port, client) = memory::pair("client", station).expect("an event descriptor");
        ports.insert(0, Box::new(port));
        let iokernel = IoKernel::new(config, ports).unwrap_or_else(|e| panic!("IOKernel: {e}"));
        let stats = iokernel.stats();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || iokernel.run(&stop).expect("the IOKernel runs")
        });
        Self { socket, stop, stats, client, thread: Some(thread) }
    }

    /// Counters, as the `Stats` request gives them.
    pub fn stats(&self) -> serde_json::Value {
        self.stats.to_json()
    }

    /// Starts a child that plays `role` (a name, and words after it) under `name` and waits until it says it is ready.
    ///
    /// # Panics
    /// If it does not.
    pub fn child(&self, role: &str, name: &str, class: &str) -> Role {
        self.child_with(role, name, class, &[])
    }

    /// As [`child`](Self::child), with more variables in its environment.
    ///
    /// # Panics
    /// If it does not get ready.
    pub fn child_with(&self, role: &str, name: &str, class: &str, variables: &[(&str, &str)]) -> Role {
        self.start_child(role, name, class, variables, Stdio::inherit())
    }

    /// As [`child_with`](Self::child_with); what it says on standard error is kept in [`Role::errors`].
    ///
    /// # Panics
    /// If it does not get ready.
    pub fn child_heard(&self, role: &str, name: &str, class: &str, variables: &[(&str, &str)]) -> Role {
        let mut child = self.start_child(role, name, class, variables, Stdio::piped());
        let mut pipe = child.process.stderr.take().expect("piped");
        let errors = Arc::clone(&child.errors);
        // Ends with the child.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = pipe.read(&mut bytes) {
                errors.lock().expect("nobody panics with it").extend_from_slice(&bytes[..len]);
            }
        });
        child
    }

    fn start_child(
        &self,
        role: &str,
        name: &str,
        class: &str,
        variables: &[(&str, &str)],
        stderr: Stdio,
    ) -> Role {
        Role::spawn(&self.socket, role, name, class, variables, stderr)
    }

    /// A datagram from the client station to `to`; the answer that carries the same payload is waited for by the caller.
    pub fn send(&self, to: &Role, port: u16, payload: &[u8]) {
        let to = Endpoint { mac: Mac::derived(to.ip), ip: to.ip, port };
        eventually("room in the client port", || {
            self.client.send(&wire::udp(CLIENT, to, payload)).then_some(())
        });
    }

    /// Next UDP payload that reaches the client station, answering ARP on the way; `None` after `timeout`.
    pub fn receive(&self, timeout: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        loop {
            let frame = self.client.receive_timeout(deadline.saturating_duration_since(Instant::now()))?;
            if let Some(reply) = wire::answer_arp(&frame, CLIENT) {
                self.client.send(&reply);
            } else if frame[12..14] == [8, 0] && frame.len() >= wire::UDP_HEADERS && frame[23] == 17 {
                let len = usize::from(u16::from_be_bytes([frame[38], frame[39]])) - 8;
                return Some(frame[42..42 + len].to_vec());
            }
        }
    }

    /// Sends `payload` and waits for its echo, sending again when none comes (a datagram may be lost to a victim's death).
    ///
    /// # Panics
    /// When [`PATIENCE`] is exhausted.
    pub fn echo(&self, to: &Role, payload: &[u8]) {
        let deadline = Instant::now() + PATIENCE;
        self.send(to, 7, payload);
        let mut retry = Instant::now() + Duration::from_secs(2);
        loop {
            match self.receive(Duration::from_millis(200)) {
                Some(answer) if answer == payload => return,
                Some(_) => {}
                None => assert!(
                    Instant::now() < deadline,
                    "no echo of {payload:?} within {PATIENCE:?}: {:#}",
                    self.stats()
                ),
            }
            if Instant::now() > retry {
                self.send(to, 7, payload);
                retry = Instant::now() + Duration::from_secs(2);
            }
        }
    }

    /// Number of runtimes registered.
    ///
    /// # Panics
    /// If the statistics have another shape.
    pub fn registered(&self) -> usize {
        self.stats()["runtimes"].as_array().expect("an array").len()
    }

    /// Number of cores that a runtime holds; 0 when it is not registered.
    ///
    /// # Panics
    /// If the statistics have another shape.
    pub fn cores_of(&self, role: &Role) -> u64 {
        let stats = self.stats();
        let runtimes = stats["runtimes"].as_array().expect("an array");
        let own = runtimes.iter().find(|runtime| runtime["pid"] == role.pid());
        own.map_or(0, |runtime| runtime["counters"]["cores"].as_u64().expect("a number"))
    }

    /// Cores that were lent and whose new owner was seen running, however they were freed.
    pub fn handoffs(&self) -> u64 {
        HandoffKind::ALL.iter().map(|&kind| self.stats.handoff(kind).running.snapshot().len()).sum()
    }

    /// Stops the IOKernel and waits for its thread.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "the IOKernel panicked");
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Where a program of this package is.
///
/// # Panics
/// If this program has no path.
pub fn binary(name: &str) -> std::path::PathBuf {
    // target/PROFILE/deps/TEST -> target/PROFILE/name
    let mut path = std::env::current_exe().expect("own path");
    path.pop();
    path.pop();
    path.join(name)
}

/// A child process running a Tailwater program.
#[derive(Debug)]
pub struct Role {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// Its address on the IOKernel's network.
    pub ip: Ipv4Addr,
}

impl Role {
    /// Starts a service that plays `role` under `name` at the IOKernel of `socket`, with these variables in its environment,
    /// and waits until it says it is ready. [`Bench`] does so for its own.
    ///
    /// # Panics
    /// If it does not get ready.
    pub fn start(socket: &str, role: &str, name: &str, variables: &[(&str, &str)]) -> Self {
        Self::spawn(socket, role, name, "latency-critical", variables, Stdio::inherit())
    }

    fn spawn(
        socket: &str,
        role: &str,
        name: &str,
        class: &str,
        variables: &[(&str, &str)],
        stderr: Stdio,
    ) -> Self {
        let mut command = Command::new(binary("role"));
        command
            .args(role.split(' '))
            .env("TAILWATER_IOKERNEL", socket)
            .env("TAILWATER_NAME", name)
            .env("TAILWATER_CLASS", class)
            .env("TAILWATER_KTHREADS", "1")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr);
        let mut process = command.spawn().expect("the role binary starts");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let ip = match lines.next() {
            Some(Ok(line)) if line.starts_with("ready ") => {
                line["ready ".len()..].parse().expect("an address")
            }
            other => {
                let _ = process.kill();
                let _ = process.wait();
                panic!("{role} {name} did not get ready: {other:?}");
            }
        };
        Self { process, lines, errors: Arc::default(), ip }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Next line it prints; `None` at the end of its output.
    pub fn line(&mut self) -> Option<String> {
        self.lines.next()?.ok()
    }

    /// What it has said on standard error so far, if it is [heard](Bench::child_heard).
    ///
    /// # Panics
    /// If the thread that listens has panicked.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.errors.lock().expect("nobody panics with it")).into_owned()
    }

    /// Sends `signal`.
    ///
    /// # Panics
    /// If the process is gone already.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id() as i32).expect("a process id");
        kill_process(pid, signal).expect("the child is ours");
    }

    /// kill -9, and waits for the end.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn kill(&mut self) {
        self.process.kill().expect("the child is ours");
        self.process.wait().expect("the child is ours");
    }

    /// Waits for its own end; true if it succeeded.
    ///
    /// # Panics
    /// If it does not end within [`PATIENCE`].
    pub fn succeeded(&mut self) -> bool {
        eventually("the child ends", || self.process.try_wait().expect("the child is ours")).success()
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
