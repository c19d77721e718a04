//! Throughput over a number of established connections (IX, TOCS'17, section 5.2.3): one point of
//! either system, for `tailwater-lab reproduce ix-connections`.
//!
//! Owns a point: the connections are established, each is asked once, then requests of 64 bytes are
//! echoed over all of them in turn, [`OUTSTANDING`] at a time. First accesses to the memory of a
//! connection are not counted, and a point exists only if every connection has answered. On
//! Tailwater a user thread serves each connection, and the client is a port of the IOKernel. On
//! Linux client and server are two processes with one epoll thread each, bound to a core each, so
//! that each has the whole limit of open files for its ends.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tailwater_loadgen::pin::PinnedThread;
use tailwater_loadgen::tcp::{Order, Outcome};
use tailwater_shm::priority::HIGHEST;

use super::host::Host;
use super::kernel;
use super::rounds::{WAIT, WAIT_EACH, ask_once, open};
use super::terms::{MANY, REQUEST, value_of};
use tailwater_testbed::child::{ChildProcess, Spec};
use tailwater_testbed::interrupt::Interrupt;

/// Unanswered requests at any time: eighteen clients of 24 threads each (IX section 5.2.3).
pub const OUTSTANDING: u32 = 432;
/// Maximum number of open files of a process besides connections.
const OTHER_FILES: u64 = 200;
/// Connections from one loopback address: fewer than its local ports (ip(7),
/// `ip_local_port_range`).
const PER_SOURCE: u32 = 20_000;
/// Memory that must be available for each connection on Tailwater: 14 KB of the service (measured
/// with 250,000), the client's end, and a margin.
const CONNECTION_BYTES: u64 = 40_000;

/// Length of a point.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Time from the first answer of the last connection until counting begins.
    pub warm_up: Duration,
    /// Counted time.
    pub lasts: Duration,
}

/// Measures echoes over `connections` connections with a user thread for each.
///
/// # Errors
/// If a process does not start, if a connection is not established, does not answer or fails,
/// or on a signal.
pub fn on_tailwater(connections: u32, length: Length, interrupt: &Interrupt) -> Result<Outcome> {
    let host = Host::start()?;
    let _service = host.serve(true, interrupt)?;
    open(&host, MANY, connections)?;
    ask_once(&host, connections, OUTSTANDING)?;
    interrupt.check()?;
    let Length { warm_up, lasts } = length;
    let outcome = host.run(Order::Echo { bytes: REQUEST, outstanding: OUTSTANDING, warm_up, lasts })?;
    anyhow::ensure!(outcome.failed == 0, "{} of {connections} connections failed", outcome.failed);
    Ok(outcome)
}

/// Measures the same over the kernel's loopback device with an epoll thread on either side.
pub fn on_linux(connections: u32, length: Length, interrupt: &Interrupt) -> Result<Outcome> {
    let cores = tailwater_testbed::machine::usable_cores();
    let (first, last) = cores.first().zip(cores.last()).context("no core")?;
    let spec = Spec {
        app: "tcp",
        arguments: vec!["linux".to_owned(), connections.to_string()],
        cores: vec![*last],
        raise: true,
        ..Spec::default()
    };
    let mut server = ChildProcess::start(&spec)?;
    let port = value_of(&server.read_line(interrupt)?, "port")? as u16;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let client = || -> Result<Outcome> {
        let _pinned = PinnedThread::new(*first)?;
        // The priority of kthreads and IOKernel. Without CAP_SYS_NICE it is refused to the server
        // too. It ends with this thread.
        let _ = rustix::process::setpriority_process(None, HIGHEST);
        let streams: std::io::Result<Vec<_>> =
            (0..connections).map(|number| connect(number / PER_SOURCE, to)).collect();
        let streams = streams.context("cannot open the baseline's connections")?;
        let mut polled = kernel::Polled::new(streams)?;
        kernel::ask_once(&mut polled, OUTSTANDING, REQUEST, WAIT + WAIT_EACH * connections)?;
        kernel::ask_in_turn(&mut polled, OUTSTANDING, REQUEST, (length.warm_up, length.lasts))
    };
    let outcome = std::thread::scope(|scope| scope.spawn(client).join());
    interrupt.check()?;
    outcome.map_err(|_| anyhow::anyhow!("the baseline's client panicked"))?
}

/// Connects from the `source`-th loopback address after 127.0.0.1, whose ports earlier connections
/// of others may hold for a minute after their end (TIME-WAIT). This connection ends with a reset,
/// which frees its port at once.
fn connect(source: u32, to: SocketAddr) -> std::io::Result<TcpStream> {
    let from = Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + 1 + source);
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    rustix::net::bind(&socket, &SocketAddrV4::new(from, 0))?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket.into())
}

/// The server process of [`on_linux`]: prints where it listens, and serves until the first
/// connection ends.
pub(super) fn serve_on_linux(connections: u32) -> Result<()> {
    raise_file_limit();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port to listen on")?;
    writeln!(std::io::stdout(), "port {}", listener.local_addr()?.port())?;
    // Ends with a reset when the client is gone.
    let _ = kernel::serve_echo(&listener, connections, REQUEST);
    Ok(())
}

/// Maximum number of connections of a process on Linux. Raises this process's limit of open files
/// as far as it may.
pub fn max_on_linux() -> u32 {
    raise_file_limit().saturating_sub(OTHER_FILES).try_into().unwrap_or(u32::MAX)
}

fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // Up to the hard limit; a refusal leaves the limit as it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Maximum number of connections for which there is memory on Tailwater; unbounded if the kernel
/// reports no memory.
pub fn max_on_tailwater() -> u32 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(u32::MAX, |kib| (kib * 1024 / CONNECTION_BYTES).try_into().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// How long an answer may take on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(120);

    #[test]
    fn requests_go_round_all_connections_on_linux() {
        // More connections than [`OUTSTANDING`], from more than one address.
        const CONNECTIONS: u32 = 600;
        const TURNS: u32 = 3;
        // Both ends are this test's.
        if max_on_linux() < 2 * CONNECTIONS {
            return eprintln!("skipped: needs {} open files; raise `ulimit -n`", 2 * CONNECTIONS);
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        // Answers each connection in turn, in the order of acceptance, so that another order of
        // requests ends in a deadlock, and a wait for it in an error.
        let server = std::thread::spawn(move || -> std::io::Result<Vec<TcpStream>> {
            let accept = |_| listener.accept().map(|(stream, _)| stream);
            let mut streams: Vec<_> = (0..CONNECTIONS).map(accept).collect::<std::io::Result<_>>()?;
            let mut buffer = [0; REQUEST];
            for _ in 0..TURNS {
                for stream in &mut streams {
                    stream.set_read_timeout(Some(PATIENCE))?;
                    stream.read_exact(&mut buffer)?;
                    stream.write_all(&buffer)?;
                }
            }
            // Stay open until the client has read.
            Ok(streams)
        });
        let streams: Vec<_> = (0..CONNECTIONS).map(|number| connect(number % 2, to).unwrap()).collect();
        let mut polled = kernel::Polled::new(streams).unwrap();
        for _ in 0..TURNS {
            kernel::ask_once(&mut polled, OUTSTANDING, REQUEST, PATIENCE).unwrap();
        }
        assert_eq!(server.join().unwrap().unwrap().len(), CONNECTIONS as usize);
    }

    #[test]
    fn a_server_that_never_answers_is_an_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let streams = vec![connect(0, listener.local_addr().unwrap()).unwrap()];
        let mut polled = kernel::Polled::new(streams).unwrap();
        let wait = Duration::from_millis(10);
        let error = kernel::ask_once(&mut polled, OUTSTANDING, REQUEST, wait).unwrap_err();
        assert!(error.to_string().contains("0 of 1 connections"), "{error}");
    }

    #[test]
    fn limits_of_this_machine_are_read() {
        assert!(max_on_linux() > 0);
        assert!(max_on_tailwater() > 0);
    }
}
