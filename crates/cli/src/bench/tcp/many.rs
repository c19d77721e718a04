//! Throughput over a number of established connections (IX, TOCS'17, section 5.2.3): one point of either side, for
//! `tailwater reproduce ix-connections`.
//!
//! Owns what a point is: so many connections are established, then requests of 64 bytes go over all of them in turn,
//! [`OUTSTANDING`] at a time, and come back. On Tailwater a user thread serves each connection and the client is a port of the
//! IOKernel; on Linux client and server are a process each with one epoll thread, bound to a core each. Two processes, so that
//! each has its whole limit of open files for its own ends.

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
use super::rounds::open;
use super::service::MANY;
use super::{REQUEST, kernel, value_of};
use crate::interrupt::Interrupt;
use crate::testbed::child::{ChildProcess, Spec};

/// Requests without an answer at any time: eighteen clients of 24 threads each (IX section 5.2.3).
pub const OUTSTANDING: u32 = 432;
/// Files that a process has open besides connections, with room to spare.
const OTHER_FILES: u64 = 200;
/// Connections from one loopback address: fewer than the kernel has ports for it (ip(7), `ip_local_port_range`).
const PER_SOURCE: u32 = 20_000;
/// Available memory for each connection on Tailwater: 14 KB of the service (measured with 250,000), the client's end, and room to spare.
const CONNECTION_BYTES: u64 = 40_000;

/// Length of a point.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Before counting, at least; more where there are so many connections that not all would have been asked by then.
    pub warm_up: Duration,
    /// Counted.
    pub lasts: Duration,
}

impl Length {
    /// At a rate of 100,000 requests a second all are asked once: what memory they touch for the first time is not counted.
    fn warm_up_over(self, connections: u32) -> Duration {
        self.warm_up.max(Duration::from_micros(10) * connections)
    }
}

/// Echoes over `connections` connections, a user thread for each.
///
/// # Errors
/// When a process does not start, a connection is not established or fails, or a signal came.
pub fn on_tailwater(connections: u32, length: Length, interrupt: &Interrupt) -> Result<Outcome> {
    let host = Host::start()?;
    let _service = host.serve(true, interrupt)?;
    open(&host, MANY, connections)?;
    interrupt.check()?;
    let outcome = host.run(Order::Echo {
        bytes: REQUEST,
        outstanding: OUTSTANDING,
        warm_up: length.warm_up_over(connections),
        lasts: length.lasts,
    })?;
    anyhow::ensure!(outcome.failed == 0, "{} of {connections} connections failed", outcome.failed);
    Ok(outcome)
}

/// The same over the kernel's loopback, an epoll thread on either side.
///
/// # Errors
/// As [`on_tailwater`].
pub fn on_linux(connections: u32, length: Length, interrupt: &Interrupt) -> Result<Outcome> {
    let cores = crate::machine::usable_cores();
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
        // As kthreads and IOKernel do; refused without the privilege, and then for the server too. Ends with this thread.
        let _ = rustix::process::setpriority_process(None, HIGHEST);
        let streams: std::io::Result<Vec<_>> =
            (0..connections).map(|number| connect(number / PER_SOURCE, to)).collect();
        let streams = streams.context("cannot open the baseline's connections")?;
        let mut polled = kernel::Polled::new(streams)?;
        let times = (length.warm_up_over(connections), length.lasts);
        kernel::ask_in_turn(&mut polled, OUTSTANDING, REQUEST, times)
    };
    let outcome = std::thread::scope(|scope| scope.spawn(client).join());
    interrupt.check()?;
    outcome.map_err(|_| anyhow::anyhow!("the baseline's client panicked"))?
}

/// Connects from the `source`-th loopback address. The connection ends with a reset, so that its port can be used again.
fn connect(source: u32, to: SocketAddr) -> std::io::Result<TcpStream> {
    let from = Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + source);
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    rustix::net::bind(&socket, &SocketAddrV4::new(from, 0))?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket.into())
}

/// The server of [`on_linux`], in a process of its own: says where it listens, and serves until the first connection ends.
pub(super) fn serve_on_linux(connections: u32) -> Result<()> {
    raise_file_limit();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port to listen on")?;
    println!("port {}", listener.local_addr()?.port());
    std::io::stdout().flush()?;
    // Ends when the client is gone, by a reset.
    let _ = kernel::serve_echo(&listener, connections, REQUEST);
    Ok(())
}

/// Connections that a process may have open on Linux. Raises this process's own limit as far as it may.
pub fn most_on_linux() -> u32 {
    raise_file_limit().saturating_sub(OTHER_FILES).try_into().unwrap_or(u32::MAX)
}

fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // Up to what it may have anyway; a refusal leaves what was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Connections for which there is memory on Tailwater; all if the kernel does not say.
pub fn most_on_tailwater() -> u32 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(u32::MAX, |kib| (kib * 1024 / CONNECTION_BYTES).try_into().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_round_all_connections_on_linux() {
        // More connections than may be asked at a time, from more than one address.
        const CONNECTIONS: u32 = 600;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || kernel::serve_echo(&listener, CONNECTIONS, REQUEST));
        let streams: Vec<_> = (0..CONNECTIONS).map(|number| connect(number % 2, to).unwrap()).collect();
        let mut polled = kernel::Polled::new(streams).unwrap();
        let times = (Duration::ZERO, Duration::from_millis(50));
        let outcome = kernel::ask_in_turn(&mut polled, OUTSTANDING, REQUEST, times).unwrap();
        assert!(outcome.completed > u64::from(CONNECTIONS), "{} came back", outcome.completed);
        drop(polled);
        // Ends at the first reset.
        let _ = server.join().unwrap();
    }

    #[test]
    fn limits_of_this_machine_are_read() {
        assert!(most_on_linux() > 0);
        assert!(most_on_tailwater() > 0);
    }

    #[test]
    fn every_connection_is_asked_before_counting_begins() {
        let length = Length { warm_up: Duration::from_millis(100), lasts: Duration::from_secs(1) };
        assert_eq!(length.warm_up_over(10), Duration::from_millis(100));
        assert_eq!(length.warm_up_over(250_000), Duration::from_millis(2_500));
    }
}
