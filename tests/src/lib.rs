//! The bench of the system tests: an IOKernel on a thread of the test, runtimes as child processes.
//!
//! Tests wait for conditions, with a generous bound ([`PATIENCE`]). What a bench starts ends with
//! it, also if a test panics.

pub mod attack;
pub mod clients;
pub mod stream;
pub mod tap;

use std::net::Ipv4Addr;
use std::ops::{Deref, DerefMut};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_iokernel::stats::StatsHandle;
use tailwater_iokernel::{Config, IoKernel};
use tailwater_iokernel_testing::wire::{self, Endpoint};
use tailwater_ports::{Attachment, Port, memory};
use tailwater_stats::{Counter, HandoffKind};
use tailwater_testkit::{PATIENCE, Program, binary, cpu_numbers, eventually, socket_name, text, until};
use tailwater_wire::MacAddr;

/// Address of the test's own station on the IOKernel's network.
pub const CLIENT: Endpoint =
    Endpoint { mac: MacAddr([2, 0xc1, 0, 0, 0, 1]), ip: Ipv4Addr::new(10, 77, 200, 1), port: 4000 };

/// An IOKernel with a client station, on a thread of the test.
///
/// A process has one at a time, and the tests of a file take turns: each IOKernel uses its cores as
/// its own.
#[derive(Debug)]
pub struct Bench {
    socket: String,
    stop: Arc<AtomicBool>,
    stats: StatsHandle,
    client: memory::MemoryPeer,
    thread: Option<JoinHandle<()>>,
    /// Released after the IOKernel has stopped.
    turn: Option<MutexGuard<'static, ()>>,
}

/// Tells other threads to end when it is dropped, also by a failed assertion: a scope waits for
/// them.
#[derive(Debug)]
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns settings of an IOKernel for tests: one core to lend, whatever the machine has, and
/// tolerance of its load.
///
/// # Panics
/// If the machine has no core.
pub fn config(socket: String) -> Config {
    Config {
        socket,
        managed_cores: Some(vec![*cpu_numbers().last().expect("this process runs somewhere")]),
        // Best-effort kthreads would not run on a busy machine: Linux ranks them below all others
        // otherwise.
        neighbour_share: 0,
        ..Config::default()
    }
}

/// Waits until no other IOKernel of this test program runs.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed in its turn does not affect the next.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts an IOKernel in its own process, with settings of `bin/iokernel.rs`, and waits until
/// programs can register.
///
/// # Panics
/// If it does not get ready.
#[track_caller]
pub fn start_iokernel(socket: &str, settings: &[&str]) -> Program {
    let mut command = Command::new(binary("tailwater-tests", "iokernel"));
    let mut iokernel = Program::start(command.arg(socket).args(settings));
    assert_eq!(iokernel.line().as_deref(), Some("ready"), "{}", iokernel.errors());
    iokernel
}

/// Waits for the end of an IOKernel from which `new` has taken over.
///
/// # Panics
/// If it fails. On a busy machine it may not end within the time that the new one waits for that,
/// which then kills it.
#[track_caller]
pub fn wait_for_predecessor(old: &mut Program, new: &Program) {
    if !old.wait().success() {
        let has_killed = || new.errors().contains("killed the IOKernel before");
        until("the new IOKernel kills the old one, which has not ended in time", has_killed);
    }
}

impl Bench {
    /// Starts an IOKernel with one core to lend, configured by `configure`, with the client station
    /// and `ports`.
    ///
    /// # Panics
    /// If it cannot start, as on a machine with one CPU, where no test of this crate can run.
    pub fn start(configure: impl FnOnce(&mut Config), ports: Vec<Box<dyn Port>>) -> Self {
        let turn = turn();
        let mut bench = Self::start_beside(configure, ports);
        bench.turn = Some(turn);
        bench
    }

    /// Starts one more IOKernel beside that of the present turn, as [`start`](Self::start) does.
    ///
    /// # Panics
    /// As `start`.
    pub fn start_beside(configure: impl FnOnce(&mut Config), mut ports: Vec<Box<dyn Port>>) -> Self {
        let mut config = config(socket_name("test"));
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
        Self { socket, stop, stats, client, thread: Some(thread), turn: None }
    }

    /// Returns the address of the control socket.
    pub fn socket(&self) -> &str {
        &self.socket
    }

    /// Returns the counters, as the `Stats` request does.
    pub fn stats(&self) -> serde_json::Value {
        self.stats.to_json()
    }

    /// Returns the counters of a moment at which no core changes hands. Each counter is read at a
    /// time of its own: a core that passes on meanwhile would be missing, or have two owners.
    ///
    /// # Panics
    /// If cores change hands all the time; quanta that are long enough prevent that.
    pub fn settled_stats(&self) -> serde_json::Value {
        let cores = &self.stats.cores;
        // A look may stand still between the ledger and its counter: counts are of ended looks.
        let moves_after_look = || {
            let looks = cores.ticks.get();
            until("the allocator looks", || cores.ticks.get() > looks);
            [&cores.grants, &cores.preemptions, &cores.idle_takes, &cores.parks].map(Counter::get)
        };
        eventually("no core changes hands", || {
            let before = moves_after_look();
            let stats = self.stats();
            (moves_after_look() == before).then_some(stats)
        })
    }

    /// Starts a child that runs `role` (a name, and arguments after it) under `name` and waits
    /// until it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn child(&self, role: &str, name: &str, class: &str) -> Role {
        self.child_with(role, name, class, &[])
    }

    /// As [`child`](Self::child), with more variables in its environment.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn child_with(&self, role: &str, name: &str, class: &str, variables: &[(&str, &str)]) -> Role {
        Role::spawn(&self.socket, role, name, class, variables, Stdio::inherit())
    }

    /// As [`child_with`](Self::child_with); its standard error is readable through
    /// [`Program::errors`].
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn child_heard(&self, role: &str, name: &str, class: &str, variables: &[(&str, &str)]) -> Role {
        Role::spawn(&self.socket, role, name, class, variables, Stdio::piped())
    }

    /// Sends a datagram from the client station to `to`; the caller waits for the answer, if any.
    pub fn send(&self, to: &Role, port: u16, payload: &[u8]) {
        self.send_from(CLIENT.port, to, port, payload);
    }

    /// As [`send`](Self::send), from a port of the station: flows differ by it.
    pub fn send_from(&self, own: u16, to: &Role, port: u16, payload: &[u8]) {
        let from = Endpoint { port: own, ..CLIENT };
        let to = Endpoint { mac: MacAddr::derived(to.ip), ip: to.ip, port };
        eventually("room in the client port", || {
            self.client.send(&wire::udp(from, to, payload)).then_some(())
        });
    }

    /// Returns the next UDP payload that reaches the client station, answering ARP meanwhile;
    /// `None` after `timeout`.
    pub fn receive(&self, timeout: Duration) -> Option<Vec<u8>> {
        let frame = self.receive_datagram(timeout)?;
        let len = usize::from(u16::from_be_bytes([frame[38], frame[39]])) - 8;
        Some(frame[42..42 + len].to_vec())
    }

    /// Sends the next UDP datagram that reaches the client station back to its sender; returns
    /// false if none comes within `timeout`.
    pub fn return_datagram(&self, timeout: Duration) -> bool {
        let Some(mut frame) = self.receive_datagram(timeout) else { return false };
        wire::turn_around(&mut frame);
        eventually("room in the client port", || self.client.send(&frame).then_some(()));
        true
    }

    fn receive_datagram(&self, timeout: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        loop {
            let frame = self.client.receive_timeout(deadline.saturating_duration_since(Instant::now()))?;
            if let Some(reply) = wire::answer_arp(&frame, CLIENT) {
                self.client.send(&reply);
            } else if frame[12..14] == [8, 0] && frame.len() >= wire::UDP_HEADERS && frame[23] == 17 {
                return Some(frame);
            }
        }
    }

    /// Sends `payload` and waits for its echo, sending again if none arrives (a datagram may be
    /// lost when a victim dies).
    ///
    /// # Panics
    /// After [`PATIENCE`].
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

    /// Returns the number of runtimes registered.
    ///
    /// # Panics
    /// If the statistics have another shape.
    pub fn registered(&self) -> usize {
        self.stats()["runtimes"].as_array().expect("an array").len()
    }

    /// Returns the number of cores that a runtime holds; 0 when it is not registered.
    ///
    /// # Panics
    /// If the statistics have another shape.
    pub fn cores_of(&self, role: &Role) -> u64 {
        cores_in(&self.stats(), role)
    }

    /// Returns the number of cores that were lent and whose new owner was seen running, however
    /// they were freed.
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

/// Returns the number of cores that a runtime holds by these statistics; 0 when it is not
/// registered.
///
/// # Panics
/// If the statistics have another shape.
pub fn cores_in(stats: &serde_json::Value, role: &Role) -> u64 {
    let runtimes = stats["runtimes"].as_array().expect("an array");
    let own = runtimes.iter().find(|runtime| runtime["pid"] == role.pid());
    own.map_or(0, |runtime| runtime["counters"]["cores"].as_u64().expect("a number"))
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop();
        drop(self.turn.take());
    }
}

/// A child process running a Tailwater program, with all that a [`Program`] offers.
#[derive(Debug)]
pub struct Role {
    program: Program,
    /// Its address on the IOKernel's network.
    pub ip: Ipv4Addr,
}

impl Role {
    /// Starts a service that runs `role` under `name` at the IOKernel of `socket`, with these
    /// variables in its environment, and waits until it is ready. [`Bench`] does so for its own.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn start(socket: &str, role: &str, name: &str, variables: &[(&str, &str)]) -> Self {
        Self::spawn(socket, role, name, "latency-critical", variables, Stdio::inherit())
    }

    /// As [`start`](Self::start), a program of this class whose standard error is readable through
    /// [`errors`](Program::errors).
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn start_heard(
        socket: &str,
        role: &str,
        name: &str,
        class: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        Self::spawn(socket, role, name, class, variables, Stdio::piped())
    }

    /// As [`start`](Self::start), a program with this standard error.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn start_with_errors_to(
        stderr: Stdio,
        socket: &str,
        role: &str,
        name: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        Self::spawn(socket, role, name, "latency-critical", variables, stderr)
    }

    fn spawn(
        socket: &str,
        role: &str,
        name: &str,
        class: &str,
        variables: &[(&str, &str)],
        stderr: Stdio,
    ) -> Self {
        let command = Command::new(binary("tailwater-tests", "role"));
        Self::spawn_by(command, socket, role, name, class, variables, stderr)
    }

    /// As [`start`](Self::start), a program of this class in the PID and mount namespaces of
    /// process `pid`, with which it ends. [`pid`](Program::pid) is that of nsenter(1), its parent.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn start_beside(pid: u32, socket: &str, role: &str, name: &str, class: &str) -> Self {
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid.to_string(), "--pid", "--mount", "--"]);
        command.arg(binary("tailwater-tests", "role"));
        Self::spawn_by(command, socket, role, name, class, &[], Stdio::inherit())
    }

    /// As [`start_heard`](Self::start_heard), by a command that ends in the program with its words,
    /// as unshare(1) does. [`pid`](Program::pid) is that of the command.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn start_by(
        mut command: Command,
        socket: &str,
        role: &str,
        name: &str,
        class: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        command.arg(binary("tailwater-tests", "role"));
        Self::spawn_by(command, socket, role, name, class, variables, Stdio::piped())
    }

    /// As [`start_heard`](Self::start_heard), a service that may end before it is ready.
    ///
    /// # Errors
    /// What it wrote to its standard error, if it does.
    ///
    /// # Panics
    /// If it does neither.
    pub fn try_start(
        socket: &str,
        role: &str,
        name: &str,
        variables: &[(&str, &str)],
    ) -> Result<Self, String> {
        let command = Command::new(binary("tailwater-tests", "role"));
        let class = "latency-critical";
        let mut program = Self::launch(command, socket, role, name, class, variables, Stdio::piped());
        loop {
            let Some(line) = program.line() else { return Err(text(&program.finish().stderr)) };
            if let Some(ip) = line.strip_prefix("ready ") {
                return Ok(Self { ip: ip.parse().expect("an address"), program });
            }
        }
    }

    fn spawn_by(
        command: Command,
        socket: &str,
        role: &str,
        name: &str,
        class: &str,
        variables: &[(&str, &str)],
        stderr: Stdio,
    ) -> Self {
        let mut program = Self::launch(command, socket, role, name, class, variables, stderr);
        let ip = program.line_after("ready ").parse().expect("an address");
        Self { program, ip }
    }

    fn launch(
        mut command: Command,
        socket: &str,
        role: &str,
        name: &str,
        class: &str,
        variables: &[(&str, &str)],
        stderr: Stdio,
    ) -> Program {
        command
            .args(role.split(' '))
            .env("TAILWATER_IOKERNEL", socket)
            .env("TAILWATER_NAME", name)
            .env("TAILWATER_CLASS", class)
            .env("TAILWATER_KTHREADS", "1")
            .envs(variables.iter().copied())
            // Stays open: some roles run until their input ends.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr);
        Program::spawn(&mut command)
    }

    /// Ends its input, until which some roles run.
    ///
    /// # Panics
    /// The second time.
    pub fn close_input(&mut self) {
        drop(self.take_input());
    }

    /// Waits for its end; returns whether it succeeded.
    ///
    /// # Panics
    /// After [`PATIENCE`].
    #[track_caller]
    pub fn succeeded(&mut self) -> bool {
        self.wait().success()
    }
}

impl Deref for Role {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl DerefMut for Role {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.program
    }
}
