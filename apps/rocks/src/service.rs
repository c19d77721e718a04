//! The service on Tailwater: a dispatcher behind a UDP socket and a TCP listener of the runtime's
//! own network stack, which calls the store.
//!
//! Owns what the dispatcher needs to know of requests: their classes, GET, PUT and SCAN, how they
//! are found in a stream, how long their replies may become, and the bounds. Receiving, the order
//! of requests, replies and the end of connections are [`TcpServer`]'s. A SCAN gives way at its
//! poll points. The dispatcher never has more threads than it keeps, so the number of threads that
//! ever call RocksDB is bounded ([`crate::store`] says why).
//!
//! # Memory
//! A request takes room for itself and for its longest reply, of its connection's and of that of
//! all, before its body is read. A datagram that finds no place in the queue is dropped and
//! counted; a connection waits.
//!
//! The service runs until its process ends. No cleanup is needed, because the IOKernel reclaims
//! what a process held.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tailwater::dispatch::{ClassStats, Frame, Framing, Policy, RequestClass, Settings, TcpServer, UdpServer};
use tailwater::net::{TcpListener, UdpSocket};
use tailwater_workload::rocks::{HEADER_LEN, Header, Operation, SCAN_BODY};

use crate::request::{Limits, MAX_DATAGRAM, MAX_MESSAGE, Tally, handle};
use crate::{Counts, Store, store};

/// Maximum number of connections; others are closed at once.
pub const MAX_CONNECTIONS: usize = 4_096;

/// Maximum number of requests that wait for the dispatcher, a third of them of each class.
pub const PLACES: usize = 4_096;

/// Maximum number of requests of a connection that are read but whose replies are not written yet.
pub const IN_FLIGHT: usize = 32;

/// Maximum bytes of requests and replies of a connection: four of the longest. It accepts a request
/// while it holds less than [`HELD`], and one more may be arriving.
pub const PER_CONNECTION: usize = HELD + 2 * LONGEST;

/// Maximum bytes of requests and replies of all connections: 256 MiB and 16 KiB.
pub const MEMORY: usize = 64 * PER_CONNECTION;

/// Most bytes of a request and its reply.
const LONGEST: usize = MAX_MESSAGE + HEADER_LEN;
/// Bytes of requests and replies with which a connection accepts no further request.
const HELD: usize = 2 * LONGEST;

/// SCANs that may be preempted, and requests that may have blocked: together as many threads as a
/// dispatcher keeps beyond one for each lane, so none ends and none is made again.
const PREEMPTED: usize = 56;
const BLOCKED: usize = 8;

/// Targets of GETs and PUTs, and of SCANs.
const SHORT_SLO: Duration = Duration::from_micros(50);
const SCAN_SLO: Duration = Duration::from_millis(5);

/// Configuration of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Address to listen at, over UDP and TCP; port 0 lets the runtime choose one for both.
    pub listen: SocketAddr,
    /// The order in which requests run.
    pub policy: Policy,
    /// Dispatchers with a kthread of their own; 0: as the policy says.
    pub dispatchers: usize,
    /// Limits of requests.
    pub limits: Limits,
}

/// A service whose sockets are bound and whose threads run. Any thread may read its counts.
#[derive(Debug, Clone)]
pub struct Service {
    tally: Arc<Tally>,
    connections: TcpServer,
    datagrams: UdpServer,
}

/// What the dispatcher calls.
struct Requests {
    store: Arc<Store>,
    limits: Limits,
    tally: Arc<Tally>,
}

impl Service {
    /// Binds the sockets and starts the threads. Call it on a user thread.
    ///
    /// # Errors
    /// If the address is taken or not this runtime's, the policy needs to know the work of a
    /// request, or there is no memory for the threads.
    ///
    /// # Panics
    /// If there is no runtime.
    pub fn start(config: &Config, store: Arc<Store>) -> io::Result<Self> {
        let explain =
            |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {}: {e}", config.listen));
        let settings = settings(config.policy, config.dispatchers)?;
        let socket = UdpSocket::bind(config.listen).map_err(explain)?;
        let listener = TcpListener::bind(socket.local_addr()?).map_err(explain)?;
        let tally = Arc::new(Tally::default());
        let requests = Requests { store, limits: config.limits, tally: Arc::clone(&tally) };
        let connections = TcpServer::start(listener, framing(&config.limits), requests, settings)?;
        let datagrams = connections.serve_udp(socket)?;
        Ok(Self { tally, connections, datagrams })
    }

    /// Returns the address it listens at, with the port that the runtime chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.connections.local_addr()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let (counts, connections) = (self.tally.counts(), self.connections.connections());
        Counts {
            malformed: counts.malformed + connections.malformed,
            unsent: connections.unsent + self.datagrams.unsent(),
            dropped: self.classes().iter().map(|class| class.dropped).sum(),
            ..counts
        }
    }

    /// Returns what became of the requests of each class.
    #[must_use]
    pub fn classes(&self) -> Vec<ClassStats> {
        self.connections.stats()
    }

    /// Returns the bytes of requests and replies for which connections hold room at present, at
    /// most [`MEMORY`].
    #[must_use]
    pub fn held(&self) -> u64 {
        self.connections.connections().held
    }
}

/// Returns how requests are found in a stream, and what connections may hold.
fn framing(limits: &Limits) -> Framing {
    let frame = |bytes: &[u8], _seen| {
        let Some(header) = bytes.get(..HEADER_LEN) else { return Frame::Partial };
        match Header::decode(header) {
            Ok(Header { status: None, body_len, .. }) => Frame::Request(HEADER_LEN + body_len as usize),
            _ => Frame::Malformed,
        }
    };
    Framing::new(frame)
        .numbered()
        .longest(MAX_MESSAGE)
        .connections(MAX_CONNECTIONS)
        .outstanding(IN_FLIGHT)
        .held(HELD)
        .budget(MEMORY)
        .idle(limits.idle)
}

/// Returns the settings of the dispatcher.
///
/// # Errors
/// If the policy is not possible.
fn settings(policy: Policy, dispatchers: usize) -> io::Result<Settings> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    let policy = policy.for_unknown_work().map_err(invalid)?;
    Ok(Settings::new(policy)
        .dispatchers(dispatchers)
        .class(RequestClass::new("GET").slo(SHORT_SLO))
        .class(RequestClass::new("PUT").slo(SHORT_SLO))
        .class(RequestClass::new("SCAN").slo(SCAN_SLO))
        .queue(PLACES)
        .preempted(PREEMPTED)
        .blocked(BLOCKED)
        .stack_size(store::STACK))
}

impl Requests {
    fn execute(&self, bytes: &[u8], longest: usize, reply: &mut Vec<u8>) {
        match handle(bytes, &self.store, &self.limits, longest, &mut tailwater::poll, reply) {
            Ok(status) => self.tally.count(status),
            Err(_) => self.tally.count_malformed(),
        }
    }
}

impl tailwater::dispatch::Service for Requests {
    /// A datagram that is no request is of the first class, until it is executed.
    fn classify(&self, request: &[u8]) -> usize {
        match Header::decode(request).map(|header| header.operation) {
            Ok(Operation::Get) | Err(_) => 0,
            Ok(Operation::Put) => 1,
            Ok(Operation::Scan) => 2,
        }
    }

    fn reply_len(&self, head: &[u8]) -> usize {
        match head.get(..HEADER_LEN).map(Header::decode) {
            Some(Ok(header)) => longest_reply(&header),
            _ => 0,
        }
    }

    fn handle(&self, request: &[u8], reply: &mut Vec<u8>) {
        self.execute(request, MAX_MESSAGE, reply);
        // A refused reply may have been long before.
        reply.shrink_to_fit();
    }

    fn handle_datagram(&self, request: &[u8], reply: &mut Vec<u8>) {
        self.execute(request, MAX_DATAGRAM, reply);
    }
}

/// Returns the length of the longest reply that a request can have.
fn longest_reply(header: &Header) -> usize {
    match header.operation {
        Operation::Get if header.body_len == 0 => MAX_MESSAGE,
        Operation::Scan if header.body_len == 0 => HEADER_LEN + SCAN_BODY,
        // With a body, GETs and SCANs are refused.
        Operation::Get | Operation::Scan | Operation::Put => HEADER_LEN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_workload::rocks::MAX_BODY;

    #[test]
    fn no_request_and_its_reply_take_more_than_the_longest() {
        for operation in [Operation::Get, Operation::Scan, Operation::Put] {
            for body_len in [0, 1, MAX_BODY] {
                let header = Header { body_len: body_len as u32, ..Header::request(operation, 1, 2, 0) };
                assert!(HEADER_LEN + body_len + longest_reply(&header) <= LONGEST, "{header:?}");
            }
        }
    }
}
