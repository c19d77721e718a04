//! A dispatcher behind a TCP listener: requests are found in the bytes of each connection, and
//! replies return in their order.
//!
//! Owns the threads: one that accepts, and two for each connection, which reads and which writes
//! ([`connection`]), and which close it together ([`closing`]). Bytes are untrusted: if the
//! [framing](Framing) refuses them, or code of the service panics, only their connection ends, and
//! the reason is counted. Datagrams may come beside ([`TcpServer::serve_udp`]): they share the
//! dispatcher and its permits, and are dropped where a connection waits.

mod budget;
mod closing;
mod connection;
mod framing;
mod input;
mod pace;
mod replies;

pub use framing::{Frame, Framing};

use super::dispatcher::{Dispatcher, Request};
use super::permits::{QueuePermit, QueuePermits};
use super::settings::Settings;
use super::stats::ClassStats;
use super::udp::{Endpoint, Service, UdpServer, receivers};
use crate::net::{TcpKeepalive, TcpListener, TcpStream, UdpSocket};
use crate::sync::{Semaphore, mpsc};
use crate::{thread, time};
use budget::Budget;
use connection::{Connection, Shared, Ticket};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Pause after a failure to accept, which is a lack of memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A request as the dispatcher has it.
#[derive(Debug)]
struct Job {
    bytes: Box<[u8]>,
    from: Source,
    permit: QueuePermit,
}

/// Where a request came from, and its reply goes.
#[derive(Debug)]
enum Source {
    Connection(Ticket),
    Datagram(Arc<Endpoint>, SocketAddr),
}

/// [`ConnectionStats`] of a running server.
#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    refused: AtomicU64,
    malformed: AtomicU64,
    too_long: AtomicU64,
    unclassified: AtomicU64,
    cut: AtomicU64,
    idle: AtomicU64,
    held_back: AtomicU64,
    unsent: AtomicU64,
}

/// What became of the connections of a [`TcpServer`].
///
/// # Examples
/// ```standalone_crate
/// use tailwater::dispatch::{Frame, Framing, Service, Settings, TcpServer};
/// use tailwater::net::TcpListener;
///
/// struct Silent;
///
/// impl Service for Silent {
///     fn classify(&self, _request: &[u8]) -> usize {
///         0
///     }
///
///     fn handle(&self, _request: &[u8], _reply: &mut Vec<u8>) {}
/// }
///
/// #[tailwater::main]
/// fn main() {
///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
///     let settings = Settings::new("sq:5us".parse().unwrap());
///     let framing = Framing::new(|_, _| Frame::Request(1));
///     let server = TcpServer::start(listener, framing, Silent, settings).unwrap();
///     let connections = server.connections();
///     println!("{} accepted, {} malformed", connections.accepted, connections.malformed);
/// }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Connections that were established.
    pub accepted: u64,
    /// Those of them closed at once: the maximum number was open, or there was no memory.
    pub refused: u64,
    /// Connections closed because their bytes were no request.
    pub malformed: u64,
    /// Connections closed because a request was longer than allowed.
    pub too_long: u64,
    /// Connections closed because [`Service::classify`] or [`Service::work`] panicked.
    pub unclassified: u64,
    /// Connections that ended amid a request.
    pub cut: u64,
    /// Connections closed because they sent, or read, nothing for too long.
    pub idle: u64,
    /// Requests that waited in their connections, because the dispatcher's queue had no place for
    /// their class.
    pub held_back: u64,
    /// Bytes of requests and replies that connections hold of the [budget](Framing::budget) at
    /// present; 0 without one.
    pub held: u64,
    /// Replies that could not be sent, of connections that are gone.
    pub unsent: u64,
}

/// A service behind a listener. Runs until its process ends; a clone of the listener that is
/// [closed](TcpListener::close) ends the accepting of connections.
///
/// Requests of one connection may run at the same time, and are answered in their order, unless
/// the [framing](Framing) says otherwise. Nothing is sent for an empty reply. A request that
/// panics has no reply: its connection is closed after the replies to those before it, or at once
/// with [`Framing::numbered`].
///
/// # Examples
/// ```standalone_crate
/// use std::io::{Read, Write};
/// use tailwater::dispatch::{Frame, Framing, Service, Settings, TcpServer};
/// use tailwater::net::{TcpListener, TcpStream};
///
/// struct Upper;
///
/// impl Service for Upper {
///     fn classify(&self, _line: &[u8]) -> usize {
///         0
///     }
///
///     fn handle(&self, line: &[u8], reply: &mut Vec<u8>) {
///         reply.extend(line.to_ascii_uppercase());
///     }
/// }
///
/// #[tailwater::main]
/// fn main() {
///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
///     let address = listener.local_addr().unwrap();
///     let end = |bytes: &[u8]| bytes.iter().position(|&byte| byte == b'\n');
///     let lines = Framing::new(move |bytes, seen| match end(&bytes[seen..]) {
///         Some(end) => Frame::Request(seen + end + 1),
///         None => Frame::Partial,
///     });
///     let settings = Settings::new("sq:5us".parse().unwrap());
///     let server = TcpServer::start(listener, lines, Upper, settings).unwrap();
///
///     let mut client = TcpStream::connect(address).unwrap();
///     client.write_all(b"one\ntwo\n").unwrap();
///     let mut replies = [0; 8];
///     client.read_exact(&mut replies).unwrap();
///     assert_eq!(&replies, b"ONE\nTWO\n");
///     assert_eq!(server.connections().accepted, 1);
/// }
/// ```
#[derive(Debug, Clone)]
pub struct TcpServer {
    dispatcher: Dispatcher<Job>,
    address: SocketAddr,
    service: Shareable,
    counters: Arc<Counters>,
    permits: Arc<QueuePermits>,
    budget: Arc<Budget>,
    /// Has a permit for each connection that may be opened.
    room: Arc<Semaphore>,
    most: usize,
}

/// The service, whatever its type.
#[derive(Clone)]
struct Shareable(Arc<dyn Service>);

impl fmt::Debug for Shareable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

impl TcpServer {
    /// Starts a dispatcher, and a thread that accepts connections from `listener`, which is set to
    /// block. Requests that find the dispatcher's queue full wait in their connections; each class
    /// has an equal share of the queue.
    ///
    /// # Errors
    /// If a setting or a bound of the framing is out of range, or there is no memory for the
    /// threads. Nothing runs then.
    ///
    /// # Panics
    /// If there is no runtime.
    pub fn start(
        listener: TcpListener,
        framing: Framing,
        service: impl Service,
        settings: Settings,
    ) -> io::Result<Self> {
        framing.check()?;
        listener.set_nonblocking(false)?;
        let address = listener.local_addr()?;
        let (service, counters) = (Arc::new(service), Arc::new(Counters::default()));
        let permits = Arc::new(QueuePermits::new(settings.queue, settings.classes.len()));
        let budget = Budget::new(framing.limits.budget);
        let most = framing.limits.connections;
        let room = Arc::new(Semaphore::new(most));
        let free = Arc::clone(&room);
        let (handler, initial, given_back) =
            (Arc::clone(&service), Arc::clone(&service), Arc::clone(&permits));
        let shared = Arc::new(Shared {
            service: Arc::clone(&service),
            framing,
            counters: Arc::clone(&counters),
            permits: Arc::clone(&permits),
            budget: Arc::clone(&budget),
        });
        // Waits for the dispatcher, and ends if there will be none. Until then it has no listener:
        // on an error the caller's is closed when this returns.
        let (start, started) = mpsc::channel();
        drop(thread::Builder::new().name("dispatch-accept".to_owned()).spawn(move || {
            if let Ok((listener, dispatcher)) = started.recv() {
                accept(&listener, &free, &shared, dispatcher);
            }
        })?);
        let dispatcher = Dispatcher::start(
            settings,
            move |core| initial.init_per_core(core),
            move |Job { bytes, from, permit }| {
                given_back.give_back(permit);
                let mut reply = Vec::new();
                match from {
                    Source::Connection(ticket) => {
                        handler.handle(&bytes, &mut reply);
                        ticket.reply(reply);
                    }
                    Source::Datagram(endpoint, from) => {
                        handler.handle_datagram(&bytes, &mut reply);
                        endpoint.reply(&reply, from);
                    }
                }
            },
        )?;
        start.send((listener, dispatcher)).expect("the acceptor waits for the dispatcher");
        let service = Shareable(service);
        Ok(Self { dispatcher, address, service, counters, permits, budget, room, most })
    }

    /// Serves datagrams from `socket`, too, with the same dispatcher: one policy orders the
    /// requests of both, and [`stats`](Self::stats) counts both. A datagram that finds no place for
    /// its class is dropped and counted there. The socket is set to block without a timeout.
    ///
    /// # Errors
    /// If there is no memory for the threads. None is served then.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::dispatch::{Frame, Framing, Service, Settings, TcpServer};
    /// use tailwater::net::{TcpListener, UdpSocket};
    ///
    /// struct Echo;
    ///
    /// impl Service for Echo {
    ///     fn classify(&self, _request: &[u8]) -> usize {
    ///         0
    ///     }
    ///
    ///     fn handle(&self, request: &[u8], reply: &mut Vec<u8>) {
    ///         reply.extend_from_slice(request);
    ///     }
    /// }
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     let address = socket.local_addr().unwrap();
    ///     let listener = TcpListener::bind(address).unwrap();
    ///     let framing = Framing::new(|_, _| Frame::Request(1));
    ///     let settings = Settings::new("sq:5us".parse().unwrap());
    ///     let server = TcpServer::start(listener, framing, Echo, settings).unwrap();
    ///     let datagrams = server.serve_udp(socket).unwrap();
    ///
    ///     let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     client.send_to(b"abc", address).unwrap();
    ///     assert_eq!(client.recv(&mut [0; 3]).unwrap(), 3);
    ///     assert_eq!((server.stats()[0].accepted, datagrams.unsent()), (1, 0));
    /// }
    /// ```
    pub fn serve_udp(&self, socket: UdpSocket) -> io::Result<UdpServer> {
        let (endpoint, receivers) = receivers(socket, &self.service.0)?;
        let (dispatcher, permits) = (self.dispatcher, Arc::clone(&self.permits));
        let to = Arc::clone(&endpoint);
        Ok(UdpServer::begin(dispatcher, endpoint, receivers, move |request: Request, bytes, from| {
            let Some(permit) = permits.try_take(request.class()) else {
                return dispatcher.drop_unsubmitted(&request);
            };
            let from = Source::Datagram(Arc::clone(&to), from);
            // With a permit, it is not refused.
            let _ = dispatcher.submit(request, Job { bytes, from, permit });
        }))
    }

    /// Returns the listener's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns what became of the requests of each class.
    pub fn stats(&self) -> Vec<ClassStats> {
        self.dispatcher.stats()
    }

    /// Returns the number of open connections: those whose replies the client has not acknowledged
    /// are among them, those that wait for its end of the stream are not.
    pub fn open_connections(&self) -> usize {
        self.most - self.room.available_permits()
    }

    /// Returns what became of the connections.
    pub fn connections(&self) -> ConnectionStats {
        let counters = &self.counters;
        ConnectionStats {
            accepted: counters.accepted.load(Relaxed),
            refused: counters.refused.load(Relaxed),
            malformed: counters.malformed.load(Relaxed),
            too_long: counters.too_long.load(Relaxed),
            unclassified: counters.unclassified.load(Relaxed),
            cut: counters.cut.load(Relaxed),
            idle: counters.idle.load(Relaxed),
            held_back: counters.held_back.load(Relaxed),
            held: self.budget.held() as u64,
            unsent: counters.unsent.load(Relaxed),
        }
    }
}

fn accept<S: Service>(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
    shared: &Arc<Shared<S>>,
    dispatcher: Dispatcher<Job>,
) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            time::sleep(ACCEPT_PAUSE);
            continue;
        };
        let from = stream.peer();
        let counters = &shared.counters;
        counters.accepted.fetch_add(1, Relaxed);
        let Some(permit) = room.try_acquire_owned() else {
            // Before the client notices.
            counters.refused.fetch_add(1, Relaxed);
            continue;
        };
        let connection = Arc::new(Connection::new(shared, permit));
        if serve(&Arc::new(stream), from, &connection, shared, dispatcher).is_err() {
            counters.refused.fetch_add(1, Relaxed);
            // Without a reader the writer ends, if there is one, and closes the connection.
            connection.abandon();
        }
    }
}

/// Starts the threads of a connection.
fn serve<S: Service>(
    stream: &Arc<TcpStream>,
    from: SocketAddr,
    connection: &Arc<Connection>,
    shared: &Arc<Shared<S>>,
    dispatcher: Dispatcher<Job>,
) -> io::Result<()> {
    // A reply is complete: it does not wait for the acknowledgment of the one before (RFC 9293
    // section 3.7.4). These fail only on a connection that is gone, which its threads notice.
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(shared.framing.limits.idle);
    let _ = stream.set_write_timeout(shared.framing.limits.idle);
    if shared.framing.limits.idle.is_none() && stream.keepalive()?.is_none() {
        let _ = stream.set_keepalive(Some(TcpKeepalive::default()));
    }
    let (of_writer, of_reader, shared) = (Arc::clone(stream), Arc::clone(stream), Arc::clone(shared));
    let builder = || thread::Builder::new().name("dispatch-tcp".to_owned());
    drop(builder().spawn({
        let connection = Arc::clone(connection);
        move || connection.write(&of_writer)
    })?);
    let connection = Arc::clone(connection);
    builder().spawn(move || connection.read(&of_reader, from, &shared, dispatcher)).map(drop)
}
