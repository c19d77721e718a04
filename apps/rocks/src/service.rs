//! The service on Tailwater: user threads on a UDP socket and on TCP connections of the runtime's
//! own network stack, and a dispatcher that calls the store.
//!
//! Owns the threads. Those that receive find out the class of a request, GET, PUT or SCAN, and pass
//! it to one dispatcher for UDP and TCP, which runs requests in the order of its policy: a SCAN
//! gives way at its poll points. The dispatcher never has more threads than it keeps, so the number
//! of threads that ever call RocksDB is bounded ([`crate::store`] says why).
//!
//! # TCP
//! Each connection has two threads: one reads requests, one writes replies. A thread of the
//! dispatcher passes its reply to the second, so a client that does not read holds up no other;
//! replies are sent as they are ready, a GET's before that of an earlier SCAN. Memory is bounded:
//! the reader takes [room](crate::room) for each request and its reply, which is returned when the
//! reply is written. Connections that are silent, and those that do not read, are closed after
//! [`Limits::idle`].
//!
//! # Places
//! At most [`PLACES`] requests wait for the dispatcher. A datagram that finds as many is dropped
//! and counted; a connection waits until one has begun.
//!
//! The service runs until its process ends. No cleanup is needed, because the IOKernel reclaims
//! what a process held.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tailwater::dispatch::{Class, ClassStats, Dispatcher, Policy, Request, Settings};
use tailwater::net::{TcpListener, TcpStream, UdpSocket};
use tailwater::sync::{Semaphore, mpsc};
use tailwater::thread;
use tailwater_workload::rocks::{Header, Operation};

use crate::request::{Limits, MAX_DATAGRAM, MAX_MESSAGE, NoRequest, Tally, handle};
use crate::room::{Allowance, Budget, Room};
use crate::stream::{read_body, read_header, write_reply};
use crate::{Counts, Store, store};

/// Maximum number of connections; others are closed at once.
pub const MAX_CONNECTIONS: usize = 4_096;

/// Maximum number of requests that wait for the dispatcher.
pub const PLACES: usize = 4_096;

/// SCANs that may be preempted, and requests that may have blocked: together as many threads as a
/// dispatcher keeps beyond one for each lane, so none ends and none is made again.
const PREEMPTED: usize = 56;
const BLOCKED: usize = 8;

/// Targets of GETs and PUTs, and of SCANs.
const SHORT_SLO: Duration = Duration::from_micros(50);
const SCAN_SLO: Duration = Duration::from_millis(5);

/// Pause after a failure to accept, which is a lack of memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Configuration of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Address to listen at, over UDP and TCP; port 0 lets the runtime choose one for both.
    pub listen: SocketAddr,
    /// The order in which requests run.
    pub policy: Policy,
    /// Limits of requests.
    pub limits: Limits,
}

/// A service whose sockets are bound and whose threads run.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<Infallible>>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    socket: UdpSocket,
    limits: Limits,
    tally: Tally,
    connections: Arc<Semaphore>,
    memory: Budget,
    places: Semaphore,
    /// Set before any request is received.
    dispatcher: OnceLock<Dispatcher<Job>>,
}

/// A request that was received, for the dispatcher.
struct Job {
    bytes: Vec<u8>,
    from: Source,
}

/// Where a request came from, and its reply goes.
enum Source {
    Datagram(SocketAddr),
    Connection { to: mpsc::Sender<Reply>, room: Room },
}

/// A reply, passed to the connection's writer.
struct Reply {
    bytes: Vec<u8>,
    _room: Room,
}

/// Reads a service's counts from any thread.
#[derive(Debug, Clone)]
pub struct CountsReader(Arc<Shared>);

impl CountsReader {
    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.tally.counts()
    }

    /// Returns what became of the requests of each class.
    #[must_use]
    pub fn classes(&self) -> Vec<ClassStats> {
        self.0.dispatcher.get().map(Dispatcher::stats).unwrap_or_default()
    }

    /// Returns the bytes of requests and replies for which room is taken at present, at most
    /// [`MEMORY`](crate::room::MEMORY).
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.memory.held()
    }
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
        let socket = UdpSocket::bind(config.listen).map_err(explain)?;
        let listener = TcpListener::bind(socket.local_addr()?).map_err(explain)?;
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let (limits, tally, memory) = (config.limits, Tally::default(), Budget::new());
        let (places, dispatcher) = (Semaphore::new(PLACES), OnceLock::new());
        let shared = Shared { store, socket, limits, tally, connections, memory, places, dispatcher };
        let shared = Arc::new(shared);
        let handler = Arc::clone(&shared);
        let dispatcher = Dispatcher::start(settings(config.policy)?, |_| (), move |job| handler.run(job))?;
        shared.dispatcher.get_or_init(|| dispatcher);
        let mut threads = Vec::new();
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let receiver = Arc::clone(&shared);
            let builder = thread::Builder::new().name("rocks-udp");
            threads.push(builder.spawn(move || receiver.receive_datagrams(dispatcher))?);
        }
        let acceptor = Arc::clone(&shared);
        threads.push(thread::spawn(move || acceptor.accept(&listener, dispatcher)));
        Ok(Self { shared, threads })
    }

    /// Returns the address it listens at, with the port that the runtime chose.
    ///
    /// # Errors
    /// As `UdpSocket::local_addr`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared.socket.local_addr()
    }

    /// Returns a reader of the counts, for other threads.
    #[must_use]
    pub fn counts_reader(&self) -> CountsReader {
        CountsReader(Arc::clone(&self.shared))
    }

    /// Waits for ever, unless a thread panicked.
    ///
    /// # Errors
    /// If a serving thread panicked.
    pub fn join(self) -> io::Result<()> {
        for thread in self.threads {
            if thread.join().is_err() {
                return Err(io::Error::other("a serving thread panicked"));
            }
        }
        Ok(())
    }
}

/// Returns the settings of the dispatcher.
///
/// # Errors
/// If the policy is not possible.
fn settings(policy: Policy) -> io::Result<Settings> {
    if policy == Policy::shortest_remaining() {
        let message = "the work of a request is not known before it runs: use mq:5us in place of srpt";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(Settings::new(policy)
        .class(Class::new("GET").slo(SHORT_SLO))
        .class(Class::new("PUT").slo(SHORT_SLO))
        .class(Class::new("SCAN").slo(SCAN_SLO))
        .queue(PLACES)
        .preempted(PREEMPTED)
        .blocked(BLOCKED)
        .stack_size(store::STACK))
}

/// Returns the class of a request.
fn request(header: &Header) -> Request {
    Request::new(match header.operation {
        Operation::Get => 0,
        Operation::Put => 1,
        Operation::Scan => 2,
    })
}

impl Shared {
    fn handle(&self, bytes: &[u8], longest: usize, reply: &mut Vec<u8>) -> Result<(), NoRequest> {
        handle(bytes, &self.store, &self.limits, longest, &mut tailwater::poll, reply)
            .map(|status| self.tally.count(status))
    }

    fn receive_datagrams(&self, dispatcher: Dispatcher<Job>) -> ! {
        // As long as any datagram: none is truncated and then taken for another request.
        let mut bytes = vec![0; MAX_DATAGRAM];
        loop {
            // An error reports the fate of an earlier reply, which its client notices itself.
            let Ok((len, client)) = self.socket.recv_from(&mut bytes) else { continue };
            let Ok(header) = Header::decode(&bytes[..len]) else {
                self.tally.count_malformed();
                continue;
            };
            let Some(place) = self.places.try_acquire() else {
                self.tally.count_dropped();
                continue;
            };
            place.forget();
            let job = Job { bytes: bytes[..len].to_vec(), from: Source::Datagram(client) };
            self.submit(dispatcher, &header, job);
        }
    }

    /// Passes a request with a place to the dispatcher.
    fn submit(&self, dispatcher: Dispatcher<Job>, header: &Header, job: Job) {
        if dispatcher.submit(request(header), job).is_err() {
            unreachable!("there are as many places as the dispatcher's queue has");
        }
    }

    /// Executes a request, on a thread of the dispatcher.
    fn run(&self, Job { bytes, from }: Job) {
        self.places.add_permits(1);
        let mut reply = Vec::new();
        let longest = if matches!(from, Source::Datagram(_)) { MAX_DATAGRAM } else { MAX_MESSAGE };
        if self.handle(&bytes, longest, &mut reply).is_err() {
            return self.tally.count_malformed();
        }
        drop(bytes);
        let sent = match from {
            Source::Datagram(client) => self.socket.send_to(&reply, client).is_ok(),
            Source::Connection { to, mut room } => {
                // A refused reply may have been long before.
                reply.shrink_to_fit();
                room.shrink(reply.len());
                to.send(Reply { bytes: reply, _room: room }).is_ok()
            }
        };
        if !sent {
            self.tally.count_unsent();
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener, dispatcher: Dispatcher<Job>) -> ! {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            let Some(permit) = self.connections.try_acquire_owned() else { continue };
            // A reply is complete: it does not wait for the acknowledgement of the one before (RFC
            // 9293 section 3.7.4). Fails only on a connection that is gone, which its threads
            // notice.
            let _ = stream.set_nodelay(true);
            let _ = stream.set_read_timeout(Some(self.limits.idle));
            let _ = stream.set_write_timeout(Some(self.limits.idle));
            let (shared, stream) = (Arc::clone(self), Arc::new(stream));
            let (to, replies) = mpsc::channel();
            let reader = Arc::clone(&stream);
            drop(thread::spawn(move || shared.read(&reader, dispatcher, &to)));
            let shared = Arc::clone(self);
            drop(thread::spawn(move || {
                shared.write(&stream, &replies);
                drop(permit);
            }));
        }
    }

    /// Reads requests until the connection ends, is silent for too long, or sends something that is
    /// not a request.
    fn read(&self, stream: &TcpStream, dispatcher: Dispatcher<Job>, to: &mpsc::Sender<Reply>) {
        let allowance = self.memory.allowance();
        loop {
            match self.read_request(stream, &allowance) {
                Ok(Some((header, bytes, room))) => {
                    self.places.acquire().forget();
                    let from = Source::Connection { to: to.clone(), room };
                    self.submit(dispatcher, &header, Job { bytes, from });
                }
                Ok(None) => return,
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidData {
                        self.tally.count_malformed();
                    }
                    // Both directions: replies to earlier requests are lost with it, as the
                    // protocol specifies.
                    let _ = stream.shutdown(Shutdown::Both);
                    return;
                }
            }
        }
    }

    /// Reads a request, with room taken for it and its reply; `None` at the end of the stream.
    fn read_request(
        &self,
        mut stream: &TcpStream,
        allowance: &Allowance,
    ) -> io::Result<Option<(Header, Vec<u8>, Room)>> {
        let (idle, mut bytes) = (self.limits.idle, Vec::new());
        // A client that waits for a reply may be silent, and from the reply on for a whole idle
        // time.
        let waited = Cell::new(!allowance.is_whole());
        let waits = || {
            let now = !allowance.is_whole();
            waited.replace(now) || now
        };
        let Some(header) = read_header(&mut stream, &mut bytes, idle, waits)? else { return Ok(None) };
        let room = allowance.take(&header);
        read_body(&mut stream, &mut bytes, &header, idle)?;
        Ok(Some((header, bytes, room)))
    }

    /// Writes replies until no sender of replies is left. After an error it still receives them
    /// all, so that the reader gets its permits back and sees the end.
    fn write(&self, stream: &TcpStream, replies: &mpsc::Receiver<Reply>) {
        let mut open = true;
        let mut writer = stream;
        for reply in replies {
            if open && write_reply(&mut writer, &reply.bytes, self.limits.idle).is_err() {
                open = false;
                let _ = stream.shutdown(Shutdown::Both);
            }
            if !open {
                self.tally.count_unsent();
            }
        }
    }
}
