//! One IOKernel takes the place of another under running programs: `tailwater iokernel --takeover`.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use tailwater_iokernel::Config;
use tailwater_shm::Version;
use tailwater_shm::control::{
    self, ClientMessage, ControlError, Estate, Handover, HandoverProgram, Instance, Network, ProgramClass,
    Register, ServerMessage, TAKEOVER_STEPS, Takeover,
};
use tailwater_shm::layout::VERSION;
use tailwater_testkit::{
    PATIENCE, Program, binary, cpu_numbers, eventually, has_two_cpus, socket_name, text, until,
};
use tailwater_tests::attack::{Target, as_user, pid_namespace};
use tailwater_tests::tap::{HOST, in_tap_namespace};
use tailwater_tests::{Role, attack, turn, wait_for_predecessor};

/// Busy connections between two programs.
const CONNECTIONS: usize = 16;
/// How often an IOKernel takes over.
const TIMES: u32 = 3;
/// Programs wait for the next IOKernel for ever.
const WAIT: (&str, &str) = ("TAILWATER_IOKERNEL_WAIT_MS", "0");

/// Starts an IOKernel at `socket` with one core to lend.
fn command(socket: &str, more: &[&str]) -> Program {
    command_of(Command::new(binary("tailwater-cli", "tailwater")), socket, more)
}

/// As [`command`], by the beginning of a command.
fn command_of(mut command: Command, socket: &str, more: &[&str]) -> Program {
    let core = cpu_numbers().last().expect("this process runs somewhere").to_string();
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/busy.toml");
    command.args(["iokernel", "--share-cores", "--managed-cores", &core, "--socket", socket]);
    Program::start(command.args(["--config", settings]).args(more))
}

/// Waits until a program ends with an error; returns its standard error.
fn refusal(program: Program) -> String {
    let output = program.finish();
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    said
}

/// As [`command`], and waits until it serves.
fn iokernel(socket: &str, more: &[&str]) -> Program {
    let mut program = command(socket, more);
    program.error_line_with(" ready ");
    program
}

/// Starts an IOKernel that takes the place of `old`, and checks how that one ends.
fn take_over(old: &mut Program, socket: &str, more: &[&str]) -> Program {
    let words: Vec<&str> = more.iter().copied().chain(["--takeover"]).collect();
    let new = iokernel(socket, &words);
    wait_for_predecessor(old, &new);
    new
}

/// Returns the exchanges of the slowest connection, as the next line of the client has it.
fn least(client: &mut Role) -> u64 {
    let line = client.line().expect("the client runs");
    let least = line.strip_prefix("least ").and_then(|rest| rest.split(' ').next()?.parse().ok());
    least.unwrap_or_else(|| panic!("{line}"))
}

fn wait_for_progress(client: &mut Role) {
    let before = least(client);
    until("each connection goes on", || least(client) >= before + 3);
}

/// Waits until a program has attached so many times after its start.
fn wait_for_attachments(program: &Role, times: u32) {
    let attached = || program.errors().matches("attached to the IOKernel").count();
    until("the program is attached again", || attached() >= times as usize);
}

#[test]
fn programs_keep_their_connections_when_another_iokernel_takes_over() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    // The address of a socket has 107 characters at most: too few for some TMPDIR.
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let socket = folder.path().join("socket").to_str().expect("Unicode").to_owned();
    let mut running = iokernel(&socket, &[]);
    let start = |role: &str, variables: &[(&str, &str)]| {
        let name = role.split(' ').next().expect("a first word");
        let variables: Vec<(&str, &str)> = variables.iter().copied().chain([WAIT]).collect();
        Role::start_heard(&socket, role, name, "latency-critical", &variables)
    };
    let (tcp, udp) = (start("tcp-serve", &[]), start("echo", &[]));
    let (peer, udp_peer) = (format!("{}:7", tcp.ip), format!("{}:7", udp.ip));
    let mut client = start(&format!("steady {CONNECTIONS}"), &[("PEER", &*peer), ("UDP_PEER", &*udp_peer)]);
    wait_for_progress(&mut client);
    for time in 1..=TIMES {
        running = take_over(&mut running, &socket, &[]);
        for program in [&tcp, &udp, &client] {
            wait_for_attachments(program, time);
        }
        wait_for_progress(&mut client);
    }
    client.close_input();
    let rest: Vec<String> = std::iter::from_fn(|| client.line()).collect();
    assert_eq!(rest.last().map(String::as_str), Some("intact"), "{rest:?}");
    // The file of the socket is the last one's, which removes it.
    running.signal(Signal::TERM);
    assert!(running.wait().success());
    assert!(!std::path::Path::new(&socket).exists());
}

#[test]
fn a_program_in_a_pid_namespace_of_its_own_attaches_after_a_takeover_and_a_kill() {
    if !has_two_cpus() {
        return;
    }
    let Some(inside) = pid_namespace() else { return };
    let _turn = turn();
    let socket = socket_name("inside");
    let mut running = iokernel(&socket, &[]);
    let program = Role::start_by(inside, &socket, "echo", "inside", "latency-critical", &[WAIT]);
    running = take_over(&mut running, &socket, &[]);
    wait_for_attachments(&program, 1);
    running.kill();
    let _running = iokernel(&socket, &[]);
    wait_for_attachments(&program, 2);
}

#[test]
fn a_connection_of_linux_and_its_device_outlive_the_iokernel() {
    in_tap_namespace(|| {
        let _turn = turn();
        let socket = socket_name("takeover-tap");
        let host = HOST.to_string();
        let port = ["--tap", "tw-test0", "--host-ip", &host];
        let mut running = iokernel(&socket, &port);
        let service = Role::start_heard(&socket, "tcp-serve", "service", "latency-critical", &[WAIT]);
        // An IOKernel that is not run for three seconds answers no ARP request in time.
        let mut stream = eventually("a connection", || TcpStream::connect((service.ip, 7)).ok());
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut answer = vec![0; 100_000];
        // The device cannot change its kind under the running IOKernel, which goes on.
        let other = ["--takeover", "--tap", "tw-test0,queues=2", "--host-ip", &host];
        let said = refusal(command(&socket, &other));
        assert!(said.contains("other queues"), "{said}");
        for time in 1..=TIMES {
            let request: Vec<u8> = (0..answer.len()).map(|i| (i as u32 * 7 + time) as u8).collect();
            let mut writer = stream.try_clone().expect("a descriptor");
            let sender = std::thread::spawn({
                let request = request.clone();
                move || writer.write_all(&request)
            });
            running = take_over(&mut running, &socket, &port);
            stream.read_exact(&mut answer).expect("an answer");
            assert!(answer == request, "other bytes came back than were sent");
            sender.join().expect("it does not panic").expect("the connection lives");
            wait_for_attachments(&service, time);
        }
        assert!(running.errors().contains("goes on with the device"), "{}", running.errors());
    });
}

#[test]
fn without_an_iokernel_to_take_over_from_none_starts_and_the_error_says_so() {
    let socket = socket_name("takeover-none");
    let said = refusal(command(&socket, &["--takeover"]));
    assert!(said.contains("cannot take over from the IOKernel at") && said.contains(&socket), "{said}");
}

/// Returns what a successor of the IOKernels of these tests requests.
fn request() -> Takeover {
    let Config { network: ip, prefix_len, mtu, max_kthreads, .. } = Config::default();
    let ip6 = Config::default().ip6_of(ip);
    let network = Network { ip, prefix_len, gateway: None, ip6, mtu };
    Takeover { version: VERSION, steps: TAKEOVER_STEPS, network, macs: BTreeMap::new(), max_kthreads }
}

/// Sends the IOKernel a request for its place; returns the connection, and the answer.
fn ask(target: &Target, request: Takeover) -> (OwnedFd, ServerMessage) {
    let connection = attack::dial(&target.socket);
    control::send(&connection, &ClientMessage::Takeover(request), &[]).expect("a message is taken");
    let (answer, _) = control::receive(&connection).expect("an answer");
    (connection, answer)
}

#[test]
fn other_users_versions_and_addresses_do_not_get_the_place() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start();
    let as_stranger = || ask(&target, request()).1;
    let wrong_version = Takeover { version: VERSION + 1, ..request() };
    // A newer one that serves programs of this version is asked for the next of its properties.
    let newer = Version::new(Version::OWN.major(), Version::OWN.minor() + 1).0;
    let newer = Takeover { version: newer, steps: 0, ..request() };
    let other_steps = Takeover { steps: 0, ..request() };
    let wrong_network = Takeover { network: Network { mtu: 1400, ..request().network }, ..request() };
    let macs = BTreeMap::from([("10.77.0.9".parse().expect("an address"), "52:54:00:00:00:09".to_owned())]);
    let other_macs = Takeover { macs, ..request() };
    let fewer_kthreads = Takeover { max_kthreads: 1, ..request() };
    let answers = [
        (as_user(65_534, as_stranger), "user 65534 may not take over"),
        (Some(ask(&target, wrong_version).1), "speaks version"),
        (Some(ask(&target, other_steps).1), "without --takeover"),
        (Some(ask(&target, newer).1), "other steps"),
        (Some(ask(&target, wrong_network).1), "MTU: 1400"),
        (Some(ask(&target, other_macs).1), "`macs`"),
        (Some(ask(&target, fewer_kthreads).1), "max-kthreads"),
    ];
    for (answer, reason) in answers {
        match answer {
            Some(ServerMessage::Refused { why }) => assert!(why.contains(reason), "{why}"),
            // Skipped.
            None => {}
            other => panic!("{other:?}"),
        }
    }
    drop(target.admits("newcomer"));
}

#[test]
fn a_successor_that_ends_or_fails_before_it_serves_leaves_the_other_as_it_was() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start();
    let program = target.admits("before");
    let (connection, answer) = ask(&target, request());
    assert!(matches!(answer, ServerMessage::Handover(_)), "{answer:?}");
    drop(connection);
    // One that is gone when the promise is sent.
    let (connection, answer) = ask(&target, request());
    assert!(matches!(answer, ServerMessage::Handover(_)), "{answer:?}");
    shutdown(&connection, Shutdown::Read).expect("a connection");
    control::send(&connection, &ClientMessage::Succeed, &[]).expect("a message is taken");
    drop(connection);
    // One that serves another network.
    let other = ["--takeover", "--pcap", "record=/dev/null,gateway=10.77.0.1"];
    let said = refusal(command(&target.socket, &other));
    assert!(said.contains("gateway: 10.77.0.1"), "{said}");
    drop(target.admits("newcomer"));
    drop(program);
}

#[test]
fn only_one_of_two_successors_gets_the_place() {
    if !has_two_cpus() {
        return;
    }
    let mut target = Target::start();
    let successors = [ask(&target, request()), ask(&target, request())];
    for (connection, answer) in &successors {
        assert!(matches!(answer, ServerMessage::Handover(_)), "{answer:?}");
        // A message that comes too late has no reader.
        let _ = control::send(connection, &ClientMessage::Succeed, &[]);
    }
    let answers = successors.map(|(connection, _)| control::receive::<ServerMessage>(&connection));
    let promises = answers.iter().filter(|answer| matches!(answer, Ok((ServerMessage::Leaving, _))));
    assert_eq!(promises.count(), 1, "{answers:?}");
    assert!(target.program.wait().success());
}

/// Returns `tailwater` in another mount namespace, with these words before it; `None` and a reason
/// where that cannot be made.
fn elsewhere(words: &[&str]) -> Option<Command> {
    let mut elsewhere = Command::new("unshare");
    elsewhere.arg("--mount").args(words);
    let mut probe = Command::new("unshare");
    let probe = probe.arg("--mount").args(words).arg("true").output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: unshare(1) makes no mount namespace here, or there is no setpriv(1)");
        return None;
    }
    elsewhere.arg(binary("tailwater-cli", "tailwater"));
    Some(elsewhere)
}

/// Returns whether this process, and with it what it starts, has `CAP_SYS_PTRACE`, which is bit 19
/// (linux/capability.h). A root user in a container often has no such capability.
fn may_trace() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
    let capabilities = capabilities.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    capabilities.is_some_and(|mask| mask & (1 << 19) != 0)
}

#[test]
fn a_process_in_another_namespace_that_may_not_trace_does_not_get_the_place() {
    if !has_two_cpus() {
        return;
    }
    let Some(elsewhere) = elsewhere(&["setpriv", "--bounding-set", "-sys_ptrace"]) else { return };
    let target = Target::start();
    let said = refusal(command_of(elsewhere, &target.socket, &["--takeover"]));
    assert!(said.contains("another mnt namespace") && said.contains("without --takeover"), "{said}");
    drop(target.admits("newcomer"));
}

#[test]
fn a_process_that_systemd_has_given_a_mount_namespace_of_its_own_gets_the_place() {
    if !has_two_cpus() {
        return;
    }
    if !may_trace() {
        return eprintln!("skipped: needs CAP_SYS_PTRACE");
    }
    let Some(elsewhere) = elsewhere(&[]) else { return };
    let mut target = Target::start();
    let mut later = command_of(elsewhere, &target.socket, &["--takeover"]);
    later.error_line_with(" ready ");
    assert!(target.program.wait().success());
}

/// A process in whose name a socket listens: a successor may kill the process that it takes for the
/// IOKernel before, and that must not be the test.
struct Listener(Child);

impl Listener {
    fn of(socket: &OwnedFd) -> Self {
        let mut command = Command::new(binary("tailwater-tests", "listen"));
        let socket = socket.try_clone().expect("a descriptor");
        let mut child = command.stdin(Stdio::from(socket)).stdout(Stdio::piped()).spawn().expect("a process");
        let output = child.stdout.take().expect("piped");
        let listener = Self(child);
        let line = BufReader::new(output).lines().next().expect("a line").expect("of text");
        assert_eq!(line, "listens");
        listener
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Plays the IOKernel which is taken over from, up to a step.
struct Played {
    process: Listener,
    successor: Program,
    listener: OwnedFd,
    connection: OwnedFd,
}

impl Played {
    /// Starts a successor and receives its request.
    fn start() -> Self {
        let socket = socket_name("takeover-played");
        let listener = control::serve(&socket, |_| {}).expect("an address");
        let process = Listener::of(&listener);
        let successor = command(&socket, &["--takeover"]);
        let connection = eventually("a connection", || accept_with(&listener, SocketFlags::CLOEXEC).ok());
        set_socket_timeout(&connection, Timeout::Recv, Some(PATIENCE)).expect("a timeout");
        let played = Self { process, successor, listener, connection };
        assert!(matches!(played.hear(), ClientMessage::Takeover(_)));
        played
    }

    fn hear(&self) -> ClientMessage {
        control::receive(&self.connection).expect("a message").0
    }

    fn say(&self, message: &ServerMessage, fds: &[BorrowedFd<'_>]) {
        control::send(&self.connection, message, fds).expect("a message is taken");
    }

    fn hand_over(&self) {
        self.hand_over_with(&Estate::default());
        assert!(matches!(self.hear(), ClientMessage::Succeed));
    }

    fn hand_over_with(&self, estate: &Estate) {
        let programs = estate.to_file().expect("a memory file");
        let handover = Handover { process: None, ports: Vec::new() };
        self.say(&ServerMessage::Handover(handover), &[self.listener.as_fd(), programs.as_fd()]);
    }
}

#[test]
fn a_successor_that_would_refuse_a_program_names_it_and_requests_no_end() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let played = Played::start();
    let register = Register {
        version: VERSION,
        name: "greedy".to_owned(),
        kthreads: 9,
        guaranteed: 9,
        class: ProgramClass::LatencyCritical,
        ring_bytes: 1 << 16,
        ip: None,
        returns: false,
        instance: Instance::Only,
        listen: Vec::new(),
    };
    let ip = "10.77.0.2".parse().expect("an address");
    let program = HandoverProgram { register, ip, grant: None, uid: 0, groups: Vec::new() };
    played.hand_over_with(&Estate { programs: vec![program] });
    let said = refusal(played.successor);
    assert!(said.contains("\"greedy\" of user 0") && said.contains("9 guaranteed cores"), "{said}");
    let next = control::receive::<ClientMessage>(&played.connection);
    assert!(matches!(next, Err(ControlError::Closed)), "{next:?}");
}

#[test]
fn a_successor_that_is_stopped_while_it_waits_ends_and_leaves_the_other_as_it_was() {
    if !has_two_cpus() {
        return;
    }
    // It waits for what it needs, or for the promise.
    for hand_over in [false, true] {
        let _turn = turn();
        let played = Played::start();
        if hand_over {
            played.hand_over();
        }
        played.successor.signal(Signal::TERM);
        let said = refusal(played.successor);
        assert!(said.contains("interrupted by a signal"), "{said}");
        let promise = control::send(&played.connection, &ServerMessage::Leaving, &[]);
        assert!(promise.is_err(), "the promise has nobody who receives it");
    }
}

#[test]
fn a_successor_that_is_stopped_after_the_promise_ends_and_names_the_process_that_has_not() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let played = Played::start();
    played.hand_over();
    played.say(&ServerMessage::Leaving, &[]);
    played.successor.signal(Signal::TERM);
    let said = refusal(played.successor);
    let number = played.process.0.id();
    assert!(said.contains(&format!("process {number}")) && said.contains("kill it"), "{said}");
}
