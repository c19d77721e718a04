//! The service on Tailwater: user threads on a UDP socket and on TCP connections of the runtime's own network stack.
//!
//! Owns the threads. A bounded number of *workers* call the store, each of which may be in a SCAN while others go on with GETs: how many
//! there are is how many SCANs may be under way before a GET has to wait for one. Half of them receive datagrams themselves; the others
//! take what the connections' threads read. So the number of threads that ever call RocksDB is bounded ([`crate::store`] says why).
//!
//! # TCP
//! Each connection has two threads: one reads requests, one writes replies. A worker hands its reply to the second, so a client that does not
//! read holds up nobody else; replies come as they are ready, a GET's before that of a SCAN asked for earlier. Memory is bounded: the
//! reader takes a permit for each request, which its reply returns once written, [`IN_FLIGHT`] a connection.
//!
//! The service runs until its process ends: there is nothing to wind up, because the IOKernel takes back what a process held.

use std::convert::Infallible;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tailwater::net::{TcpListener, TcpStream, UdpSocket};
use tailwater::sync::{OwnedSemaphorePermit, Semaphore, channel, mpsc};
use tailwater::thread;

use crate::request::{Limits, MAX_DATAGRAM, MAX_MESSAGE, NoRequest, Tally, handle, read_request};
use crate::{Counts, Store, store};

/// Requests of a connection that are read but whose replies are not written yet.
pub const IN_FLIGHT: usize = 32;

/// Connections at a time; others are closed at once.
pub const MAX_CONNECTIONS: usize = 4_096;

/// Pause after a failure to accept, which is a lack of memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where to listen, over UDP and TCP; port 0 lets the runtime choose, one for both.
    pub listen: SocketAddr,
    /// Threads that call the store, for UDP and for TCP each; at least 1.
    pub workers: usize,
    /// What a client may ask.
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
}

/// A request read from a connection, on its way to a worker.
struct Job {
    bytes: Vec<u8>,
    to: mpsc::Sender<Reply>,
    permit: OwnedSemaphorePermit,
}

/// A reply on its way to the connection's writer.
struct Reply {
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

/// Reads a service's counts from any thread.
#[derive(Debug, Clone)]
pub struct CountsReader(Arc<Shared>);

impl CountsReader {
    /// What the service did so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.tally.counts()
    }
}

impl Service {
    /// Binds the sockets and starts the threads. Call it on a user thread.
    ///
    /// # Errors
    /// When the address is taken or not this runtime's, or there is no memory for the threads.
    ///
    /// # Panics
    /// Without a runtime.
    pub fn start(config: &Config, store: Arc<Store>) -> io::Result<Self> {
        let explain =
            |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {}: {e}", config.listen));
        let socket = UdpSocket::bind(config.listen).map_err(explain)?;
        let listener = TcpListener::bind(socket.local_addr()?).map_err(explain)?;
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let limits = config.limits;
        let shared = Arc::new(Shared { store, socket, limits, tally: Tally::default(), connections });
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

    /// Where it listens, with the port that the runtime chose.
    ///
    /// # Errors
    /// As `UdpSocket::local_addr`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared.socket.local_addr()
    }

    /// The counts, for other threads.
    #[must_use]
    pub fn counts_reader(&self) -> CountsReader {
        CountsReader(Arc::clone(&self.shared))
    }

    /// Waits, in vain unless a thread panicked.
    ///
    /// # Errors
    /// When a serving thread panicked.
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
        // As long as any datagram: none is cut and then taken for another.
        let mut bytes = vec![0; MAX_DATAGRAM];
        let mut reply = Vec::new();
        loop {
            // Errors report the fate of an earlier reply, which its client notices by itself.
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
            let Job { bytes, to, permit } = queue.recv().expect("the acceptor never drops its end");
            let mut reply = Vec::new();
            // Its header was decoded when it was read, so it is a request.
            if self.handle(&bytes, MAX_MESSAGE, &mut reply).is_err() {
                self.tally.count_malformed();
            } else if to.send(Reply { bytes: reply, _permit: permit }).is_err() {
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
            // A reply is complete: it waits for no acknowledgement of the one before (RFC 9293 section 3.7.4). Fails only on a
            // connection that is gone, which its threads notice.
            let _ = stream.set_nodelay(true);
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

    /// Reads requests until the connection ends or something else comes.
    fn read(&self, stream: &TcpStream, jobs: &channel::Sender<Job>, to: &mpsc::Sender<Reply>) {
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT));
        let mut stream = stream;
        loop {
            let permit = in_flight.acquire_owned();
            let mut bytes = Vec::new();
            match read_request(&mut stream, &mut bytes) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidData {
                        self.tally.count_malformed();
                        // Both ways: replies to what came before are lost with it, as the protocol says.
                        let _ = stream.shutdown(Shutdown::Both);
                    }
                    return;
                }
            }
            jobs.send(Job { bytes, to: to.clone(), permit }).expect("workers never end");
        }
    }

    /// Writes replies until nobody is left who could send one. After an error it takes them all the same, so that the
    /// reader gets its permits back and sees the end.
    fn write(&self, stream: &TcpStream, replies: &mpsc::Receiver<Reply>) {
        let mut open = true;
        let mut writer = stream;
        for reply in replies {
            if open && writer.write_all(&reply.bytes).is_err() {
                open = false;
                let _ = stream.shutdown(Shutdown::Both);
            }
            if !open {
                self.tally.count_unsent();
            }
        }
    }
}
