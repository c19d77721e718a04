//! Programs that know nothing of Tailwater, under `tailwater run --posix` beside an IOKernel.
//!
//! The program is `clients/posix-echo.c`, which the test compiles: a test is skipped, with a
//! message, where there is no C compiler. It listens on Linux's network, too, where a client of the
//! test itself asks it; only on Tailwater's is it reached at its own address.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use tailwater_iokernel::Config;
use tailwater_testkit::{
    PATIENCE, Program, binary, eventually, has_two_cpus, is_installed, is_running, run, socket_name, text,
    unless_too_busy, until,
};
use tailwater_tests::{Bench, start_iokernel, turn};

/// `tailwater` with the library beside it, as they are installed, and the program.
struct Installed(tempfile::TempDir);

impl Installed {
    /// Returns `None` where the programs cannot be made or run, which is said.
    fn new() -> Option<Self> {
        if !has_two_cpus() || !is_installed("cc", "gcc") {
            return None;
        }
        // In the target folder, so that a link is enough.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let library = std::env::current_exe().expect("a test has a file");
        let library = library.with_file_name("libtailwater_posix.so");
        symlink(library, folder.path().join("libtailwater_posix.so")).expect("a link");
        let command = binary("tailwater-cli", "tailwater");
        std::fs::hard_link(command, folder.path().join("tailwater")).expect("a link");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/posix-echo.c");
        let program = folder.path().join("posix-echo");
        let compiled = run(Command::new("cc").args(["-O1", "-o"]).arg(program).arg(source), b"");
        assert!(compiled.status.success(), "{}", text(&compiled.stderr));
        Some(Self(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Starts the program with one kthread at the IOKernel of `socket`, with these options of `run`
    /// and these words.
    fn start(&self, socket: &str, options: &[&str], words: &[&str]) -> Echo {
        let mut command = Command::new(self.path("tailwater"));
        command.args(["run", "--posix", "--iokernel", socket, "--kthreads", "1", "--iokernel-wait", "0s"]);
        command.args(options).arg("--").arg(self.path("posix-echo")).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut program = Program::spawn(&mut command);
        let input = program.take_input();
        Echo { program, input }
    }

    /// Starts a server at this address of Tailwater's network; returns it, and its port.
    fn serve(&self, socket: &str, ip: Ipv4Addr) -> (Echo, u16) {
        let mut server = self.start(socket, &["--ip", &ip.to_string()], &["serve"]);
        let port = server.listen();
        (server, port)
    }

    /// Starts clients of the server at this address until one is connected: the server may not have
    /// registered yet. Returns what both have said if one of them goes on without the IOKernel, as
    /// on a busy machine.
    fn connect(&self, socket: &str, server: &Echo, ip: Ipv4Addr, port: u16) -> Result<Echo, String> {
        self.connect_while(socket, ip, port, || server.errors())
    }

    /// As [`connect`](Self::connect), with what the server has said that matters.
    fn connect_while(
        &self,
        socket: &str,
        ip: Ipv4Addr,
        port: u16,
        server_said: impl Fn() -> String,
    ) -> Result<Echo, String> {
        eventually("the server is reached", || {
            let mut client = self.start(socket, &[], &["ask", &ip.to_string(), &port.to_string()]);
            if client.line().as_deref() == Some("connected") {
                return Some(Ok(client));
            }
            let said = server_said() + &client.errors();
            said.contains("goes on with Linux's network").then_some(Err(said))
        })
    }
}

/// `posix-echo`; it ends with its input, also as a daemon.
struct Echo {
    program: Program,
    input: ChildStdin,
}

impl Echo {
    fn write(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the program reads its input");
    }

    /// Has a server listen; returns its port.
    fn listen(&mut self) -> u16 {
        self.line_after("started");
        self.write("listen");
        self.line_after("port ").parse().expect("a port")
    }

    /// Has a client send a line, and waits until it comes back.
    fn ask(&mut self, line: &str) {
        self.write(line);
        assert_eq!(self.line().as_deref(), Some(line), "{}", self.errors());
    }

    /// Ends it by SIGTERM, for which its handler has to run and its wait to end.
    fn terminate(mut self) {
        self.signal(Signal::TERM);
        self.line_after("terminated");
        assert!(self.wait().success(), "{}", self.errors());
    }
}

impl Deref for Echo {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl DerefMut for Echo {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.program
    }
}

/// A client on Linux's network.
struct OnLinux(BufReader<TcpStream>);

impl OnLinux {
    fn connect(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server listens on Linux");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        Self(BufReader::new(stream))
    }

    fn ask(&mut self, line: &str) {
        let mut answer = String::new();
        writeln!(self.0.get_mut(), "{line}").expect("the server reads");
        self.0.read_line(&mut answer).expect("an answer in time");
        assert_eq!(answer.trim_end(), line);
    }
}

/// Returns whether the process is registered, by the name of the program, which has written over
/// its arguments since.
fn is_registered(bench: &Bench, pid: u32) -> bool {
    let stats = bench.stats();
    let registered = stats["runtimes"].as_array().expect("an array").iter().find(|one| one["pid"] == pid);
    if let Some(registered) = registered {
        assert_eq!(registered["name"], format!("posix-echo.{pid}"));
    }
    registered.is_some()
}

/// Runs a test with the programs, again if one of them got no core in time.
fn with_programs(mut test: impl FnMut(&Installed) -> Result<(), String>) {
    if let Some(installed) = Installed::new() {
        unless_too_busy(|| test(&installed));
    }
}

#[test]
fn a_server_registers_when_it_waits_for_clients_and_serves_both_networks_at_once() {
    with_programs(|installed| {
        let bench = Bench::start(|_| (), vec![]);
        let ip = Ipv4Addr::new(10, 77, 0, 50);
        let mut server = installed.start(bench.socket(), &["--ip", &ip.to_string()], &["serve"]);
        server.line_after("started");
        assert!(!is_registered(&bench, server.pid()), "it has no socket yet");
        server.write("listen");
        let port = server.line_after("port ").parse().expect("a port");
        let mut client = installed.connect(bench.socket(), &server, ip, port)?;
        assert!(is_registered(&bench, server.pid()) && is_registered(&bench, client.pid()));
        let mut on_linux = OnLinux::connect(port);
        for round in 0..20 {
            client.ask(&format!("Tailwater {round}"));
            on_linux.ask(&format!("Linux {round}"));
        }
        client.terminate();
        on_linux.ask("the other client has ended");
        server.terminate();
        until("both have left", || bench.registered() == 0);
        Ok(())
    });
}

/// Its first connection leads to the server before it has registered.
#[test]
fn a_client_knows_the_network_of_its_iokernel() {
    with_programs(|installed| {
        // The server is outside of the default network, which the station of the bench is in.
        let wider =
            |config: &mut Config| (config.network, config.prefix_len) = (Ipv4Addr::new(10, 76, 0, 0), 14);
        let bench = Bench::start(wider, vec![]);
        let ip = Ipv4Addr::new(10, 78, 0, 57);
        let (server, port) = installed.serve(bench.socket(), ip);
        until("the server registers", || is_registered(&bench, server.pid()));
        installed.connect(bench.socket(), &server, ip, port)?.ask("Tailwater");
        Ok(())
    });
}

#[test]
fn two_servers_have_an_address_each() {
    with_programs(|installed| {
        let bench = Bench::start(|_| (), vec![]);
        let start = |number| {
            let ip = Ipv4Addr::new(10, 77, 0, number);
            let (server, port) = installed.serve(bench.socket(), ip);
            let client = installed.connect(bench.socket(), &server, ip, port)?;
            Ok::<_, String>((server, client))
        };
        let ((first, mut of_first), (second, mut of_second)) = (start(51)?, start(52)?);
        for round in 0..20 {
            of_first.ask(&format!("first {round}"));
            of_second.ask(&format!("second {round}"));
        }
        first.terminate();
        of_second.ask("the other server has ended");
        second.terminate();
        Ok(())
    });
}

#[test]
fn a_daemon_serves_after_its_parent_has_ended() {
    with_programs(|installed| {
        let bench = Bench::start(|_| (), vec![]);
        let ip = Ipv4Addr::new(10, 77, 0, 53);
        let mut server = installed.start(bench.socket(), &["--ip", &ip.to_string()], &["daemon"]);
        let pid: i32 = server.line_after("pid ").parse().expect("a process id");
        assert!(server.wait().success(), "{}", server.errors());
        let port = server.listen();
        installed.connect(bench.socket(), &server, ip, port)?.ask("Tailwater");
        assert!(is_registered(&bench, pid.cast_unsigned()));
        OnLinux::connect(port).ask("Linux");
        kill_process(Pid::from_raw(pid).expect("a process id"), Signal::TERM).expect("it runs");
        server.line_after("terminated");
        until("the daemon has ended", || !is_running(pid.cast_unsigned()));
        Ok(())
    });
}

#[test]
fn without_an_iokernel_a_server_says_so_and_goes_on_with_linux() {
    with_programs(|installed| {
        let (mut server, port) = installed.serve(&socket_name("posix-none"), Ipv4Addr::new(10, 77, 0, 54));
        server.error_line_with("goes on with Linux's network alone");
        OnLinux::connect(port).ask("Linux");
        server.terminate();
        Ok(())
    });
}

/// The port takes IPv4 once the program has a listener for that, too.
#[test]
fn a_listener_of_ipv6_alone_is_not_reached_by_ipv4() {
    with_programs(|installed| {
        let bench = Bench::start(|_| (), vec![]);
        let ip = Ipv4Addr::new(10, 77, 0, 56);
        let mut server = installed.start(bench.socket(), &["--ip", &ip.to_string()], &["serve6"]);
        let port = server.listen();
        until("the server registers", || is_registered(&bench, server.pid()));
        let mut client = installed.start(bench.socket(), &[], &["ask", &ip.to_string(), &port.to_string()]);
        let said = client.line();
        if client.errors().contains("goes on with Linux's network") {
            return Err(client.errors());
        }
        assert_eq!(said, None, "the client is connected");
        client.error_line_with("Connection refused");
        server.write("by IPv4, too");
        assert_eq!(server.line().as_deref(), Some("listens"), "{}", server.errors());
        installed.connect(bench.socket(), &server, ip, port)?.ask("IPv4");
        assert!(!server.errors().contains("served by Linux's network alone"), "{}", server.errors());
        server.terminate();
        Ok(())
    });
}

#[test]
fn of_two_workers_of_a_port_one_serves_tailwater_and_the_other_says_why_it_does_not() {
    with_programs(|installed| {
        let bench = Bench::start(|_| (), vec![]);
        let ip = Ipv4Addr::new(10, 77, 0, 57);
        let mut server = installed.start(bench.socket(), &["--ip", &ip.to_string()], &["workers"]);
        let port = server.listen();
        let said = server.error_line_with("goes on with Linux's network alone");
        // Of the address: another reason is a busy machine's.
        if !said.contains(&ip.to_string()) {
            return Err(said);
        }
        let mut client = installed.connect_while(bench.socket(), ip, port, String::new)?;
        let mut on_linux: Vec<_> = (0..4).map(|_| OnLinux::connect(port)).collect();
        for round in 0..20 {
            client.ask(&format!("Tailwater {round}"));
            on_linux.iter_mut().for_each(|client| client.ask(&format!("Linux {round}")));
        }
        until("the client and one worker are registered", || bench.registered() == 2);
        let Echo { mut program, input } = server;
        drop(input);
        assert!(program.wait().success(), "{}", program.errors());
        Ok(())
    });
}

#[test]
fn programs_survive_the_end_of_the_iokernel_and_go_on_at_the_next() {
    with_programs(|installed| {
        let _turn = turn();
        let socket = socket_name("posix-restart");
        let mut iokernel = start_iokernel(&socket, &[]);
        let ip = Ipv4Addr::new(10, 77, 0, 55);
        let (mut server, port) = installed.serve(&socket, ip);
        let mut client = installed.connect(&socket, &server, ip, port)?;
        client.ask("before");
        let mut on_linux = OnLinux::connect(port);
        iokernel.kill();
        server.error_line_with("lost the IOKernel");
        on_linux.ask("without an IOKernel");
        client.write("across");
        let _next = start_iokernel(&socket, &[]);
        server.error_line_with("attached to the IOKernel");
        assert_eq!(client.line().as_deref(), Some("across"), "{}", client.errors());
        on_linux.ask("after");
        client.terminate();
        server.terminate();
        Ok(())
    });
}
