//! The service on Tailwater: user threads on a UDP socket and on TCP connections of the runtime's
//! own network stack.
//!
//! Owns the threads. A bounded number of *workers* call the store, each of which may be in a SCAN
//! while others go on with GETs: their number is the number of SCANs that may run before a GET has
//! to wait for one. Half of them receive datagrams themselves; the others take what the
//! connections' threads read. So the number of threads that ever call RocksDB is bounded
//! ([`crate::store`] says why).
//!
//! # TCP
//! Each connection has two threads: one reads requests, one writes replies. A worker passes its
//! reply to the second, so a client that does not read holds up no other; replies are sent as they
//! are ready, a GET's before that of an earlier SCAN. Memory is bounded: the reader takes
//! [room](crate::room) for each request and its reply, which is returned when the reply is written.
//! Connections that are silent, and those that do not read, are closed after [`Limits::idle`].
//!
//! The service runs until its process ends. No cleanup is needed, because the IOKernel reclaims
//! what a process held.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tailwater::net::{TcpListener, TcpStream, UdpSocket};
use tailwater::sync::{Semaphore, channel, mpsc};
use tailwater::thread;

use crate::request::{Limits, MAX_DATAGRAM, MAX_MESSAGE, NoRequest, Tally, handle};
use crate::room::{Allowance, Budget, Room};
use crate::stream::{read_body, read_header, write_reply};
use crate::{Counts, Store, store};

/// Maximum number of connections; others are closed at once.
pub const MAX_CONNECTIONS: usize = 4_096;

/// Pause after a failure to accept, which is a lack of memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Configuration of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Address to listen at, over UDP and TCP; port 0 lets the runtime choose one for both.
    pub listen: SocketAddr,
    /// Threads that call the store, for UDP and for TCP each; at least 1.
    pub workers: usize,
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
}

/// A request read from a connection, passed to a worker.
struct Job {
    bytes: Vec<u8>,
    to: mpsc::Sender<Reply>,
    room: Room,
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
    /// If the address is taken or not this runtime's, or there is no memory for the threads.
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
        let shared = Arc::new(Shared { store, socket, limits, tally, connections, memory });
        let workers = config.workers.max(1);
        let (jobs, queue) = channel::bounded(workers);
        let mut threads = Vec::with_capacity(2 * workers + 1);
        for _ in 0..workers {
            let (for_udp, for_tcp, queue) = (Arc::clone(&shared), Arc::clone(&shared), queue.clone());
            threads.push(worker().spawn(move || for_udp.answer_datagrams())?);
            threads.push(worker().spawn(move || for_tcp.answer_jobs(&queue))?);
        }
        let acceptor = Arc::clone(&shared);
        threads.push(thread::spawn(move || acceptor.accept(&listener, &jobs)));
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

fn worker() -> thread::Builder {
    thread::Builder::new().name("rocks-worker").stack_size(store::STACK)
}

impl Shared {
    fn handle(&self, bytes: &[u8], longest: usize, reply: &mut Vec<u8>) -> Result<(), NoRequest> {
        handle(bytes, &self.store, &self.limits, longest, &mut tailwater::poll, reply)
            .map(|status| self.tally.count(status))
    }

    fn answer_datagrams(&self) -> ! {
        // As long as any datagram: none is truncated and then taken for another request.
        let mut bytes = vec![0; MAX_DATAGRAM];
        let mut reply = Vec::new();
        loop {
            // An error reports the fate of an earlier reply, which its client notices itself.
            let Ok((len, client)) = self.socket.recv_from(&mut bytes) else { continue };
            if self.handle(&bytes[..len], MAX_DATAGRAM, &mut reply).is_err() {
                self.tally.count_malformed();
            } else if self.socket.send_to(&reply, client).is_err() {
                self.tally.count_unsent();
            }
        }
    }

    fn answer_jobs(&self, queue: &channel::Receiver<Job>) -> ! {
        loop {
            let Job { bytes, to, mut room } = queue.recv().expect("the acceptor never drops its end");
            let mut reply = Vec::new();
            // Its header was decoded when it was read, so it is a request.
            if self.handle(&bytes, MAX_MESSAGE, &mut reply).is_err() {
                self.tally.count_malformed();
                continue;
            }
            drop(bytes);
            // A refused reply may have been long before.
            reply.shrink_to_fit();
            room.shrink(reply.len());
            if to.send(Reply { bytes: reply, _room: room }).is_err() {
                self.tally.count_unsent();
            }
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener, jobs: &channel::Sender<Job>) -> ! {
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
            let (shared, jobs, stream) = (Arc::clone(self), jobs.clone(), Arc::new(stream));
            let (to, replies) = mpsc::channel();
            let reader = Arc::clone(&stream);
            drop(thread::spawn(move || shared.read(&reader, &jobs, &to)));
            let shared = Arc::clone(self);
            drop(thread::spawn(move || {
                shared.write(&stream, &replies);
                drop(permit);
            }));
        }
    }

    /// Reads requests until the connection ends, is silent for too long, or sends something that is
    /// not a request.
    fn read(&self, stream: &TcpStream, jobs: &channel::Sender<Job>, to: &mpsc::Sender<Reply>) {
        let allowance = self.memory.allowance();
        loop {
            match self.read_request(stream, &allowance) {
                Ok(Some((bytes, room))) => {
                    jobs.send(Job { bytes, to: to.clone(), room }).expect("workers never end");
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
    ) -> io::Result<Option<(Vec<u8>, Room)>> {
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
        Ok(Some((bytes, room)))
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
