//! The server on Tailwater with dispatchers: queries run in the order of a policy, so that answers
//! that are found at once do not wait behind those whose proof takes hundreds of hashes.
//!
//! Owns what the dispatchers need to know of queries: their classes, and how they are found in a
//! stream. Receiving, the order of queries, replies and the end of connections are [`TcpServer`]'s,
//! one for each address, with a dispatcher that the datagrams of the address share. It runs until
//! the process ends.
//!
//! | | class |
//! |---|---|
//! | `plain` | all but the following |
//! | `hashed` | a query with the bit DO for what a zone with iterated NSEC3 hashes does not hold |

use std::io;
use std::iter::repeat;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tailwater::dispatch::{ClassStats, Frame, Framing, Policy, RequestClass, Settings, TcpServer, UdpServer};
use tailwater::net::{TcpListener, UdpSocket};

use crate::answer::{Transport, Verdict, respond, takes_hashes};
use crate::serve::Shared;
use crate::serve::counters::{Counts, Event};

/// Target of plain queries.
const PLAIN_SLO: Duration = Duration::from_micros(50);
/// Target of those that take hashes.
const HASHED_SLO: Duration = Duration::from_millis(1);

/// Queries that wait at an address, half of them of each class; further datagrams are dropped.
const PLACES: usize = 4_096;

/// Octets of a message's length before it.
const PREFIX: usize = 2;
/// Octets of a message's header (RFC 1035, section 4.1.1).
const HEADER: usize = 12;
/// Bytes of queries and answers with which a connection accepts no further query.
const HELD: usize = 256 << 10;

/// In what order queries run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The policy.
    pub policy: Policy,
    /// Dispatchers with a kthread of their own; 0: as the policy says.
    pub dispatchers: usize,
}

/// A server whose sockets are bound and whose threads run. Any thread may read its counts.
#[derive(Debug, Clone)]
pub struct Dispatched {
    shared: Arc<Shared>,
    servers: Vec<(TcpServer, UdpServer)>,
}

impl Dispatched {
    /// Binds UDP and TCP at each address and starts the threads. Call it on a user thread.
    ///
    /// # Errors
    /// If an address is taken or not this runtime's, a setting is out of range, the policy needs to
    /// know the work of a query, or there is no memory for the threads.
    ///
    /// # Panics
    /// Without a runtime.
    pub fn start(listen: &[SocketAddr], shared: &Arc<Shared>, order: Order) -> io::Result<Self> {
        let settings = settings(order)?;
        let mut servers = Vec::new();
        for address in listen {
            let explain = |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {address}: {e}"));
            let socket = UdpSocket::bind(address).map_err(explain)?;
            let listener = TcpListener::bind(socket.local_addr()?).map_err(explain)?;
            let queries = Queries(Arc::clone(shared));
            let framing = framing(shared, listen.len());
            let connections = TcpServer::start(listener, framing, queries, settings.clone())?;
            let datagrams = connections.serve_udp(socket)?;
            servers.push((connections, datagrams));
        }
        Ok(Self { shared: Arc::clone(shared), servers })
    }

    /// Returns the addresses it listens at, with the ports that the runtime chose.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|(connections, _)| connections.local_addr()).collect()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.shared.counts();
        for (server, datagrams) in &self.servers {
            let connections = server.connections();
            counts.refused += connections.refused;
            counts.ignored += connections.malformed;
            counts.unsent += connections.unsent + datagrams.unsent();
            // Counted when it was made. Its type and code stay.
            counts.udp = counts.udp.saturating_sub(datagrams.unsent());
        }
        counts
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.servers.iter().map(|(server, _)| server.open_connections() as u64).sum()
    }

    /// Returns what became of the queries of each class, for each address.
    #[must_use]
    pub fn classes(&self) -> Vec<(SocketAddr, ClassStats)> {
        let of = |server: &TcpServer| server.stats().into_iter().zip(repeat(server.local_addr()));
        let all = self.servers.iter().flat_map(|(server, _)| of(server));
        all.map(|(class, address)| (address, class)).collect()
    }
}

/// Returns the settings of a dispatcher.
///
/// # Errors
/// If the policy is not possible.
fn settings(Order { policy, dispatchers }: Order) -> io::Result<Settings> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    let policy = policy.for_unknown_work().map_err(invalid)?;
    Ok(Settings::new(policy)
        .dispatchers(dispatchers)
        .class(RequestClass::new("plain").slo(PLAIN_SLO))
        .class(RequestClass::new("hashed").slo(HASHED_SLO))
        .queue(PLACES))
}

/// Returns how queries are found in a stream, and the limits of one of `addresses` addresses: its
/// share of the connections, the bytes each may hold, and the idle time. Bytes that are no query
/// end their connection.
fn framing(shared: &Shared, addresses: usize) -> Framing {
    Framing::new(|bytes, _seen| match bytes {
        [high, low, rest @ ..] => {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            match rest.get(2) {
                _ if len < HEADER => Frame::Malformed,
                None => Frame::Partial,
                // The bit QR: an answer.
                Some(flags) if flags & 0x80 != 0 => Frame::Malformed,
                Some(_) => Frame::Request(PREFIX + len),
            }
        }
        _ => Frame::Partial,
    })
    .longest(PREFIX + usize::from(u16::MAX))
    .connections(shared.limits().connections.div_ceil(addresses))
    .held(HELD)
    .idle(shared.limits().idle)
}

/// What the dispatchers call.
struct Queries(Arc<Shared>);

impl Queries {
    fn answer(&self, query: &[u8], transport: Transport, answer: &mut Vec<u8>) {
        match respond(&self.0.store.zones(), query, transport, answer) {
            Verdict::Ignore => self.0.counters().add(Event::Ignored),
            Verdict::Reply(answered) => self.0.counters().add_answer(transport, answered),
        }
    }
}

impl tailwater::dispatch::Service for Queries {
    fn classify(&self, query: &[u8]) -> usize {
        self.classify_datagram(&query[PREFIX..])
    }

    fn classify_datagram(&self, query: &[u8]) -> usize {
        usize::from(takes_hashes(&self.0.store.zones(), query))
    }

    fn handle(&self, query: &[u8], reply: &mut Vec<u8>) {
        self.answer(&query[PREFIX..], Transport::Tcp, reply);
        // An answer has at most 65,535 octets.
        let len = reply.len() as u16;
        if len > 0 {
            reply.splice(..0, len.to_be_bytes());
        }
    }

    fn handle_datagram(&self, query: &[u8], reply: &mut Vec<u8>) {
        self.answer(query, Transport::Udp, reply);
    }
}
