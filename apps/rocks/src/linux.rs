//! The service on kernel sockets and ordinary threads: what Tailwater is compared with.
//!
//! Owns: a pool of threads on one UDP socket, a thread per TCP connection, and their clean end. Handling is
//! [`crate::request::handle`], as everywhere. Linux's scheduler is what puts a GET before a SCAN here.
//!
//! Ending: a flag, then `shutdown(2)` of every socket, which wakes the threads that are blocked on it. On the unconnected UDP
//! socket and on the listener Linux does that too, whatever it answers (`inet_shutdown` in net/ipv4/af_inet.c).

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recvfrom, sendto};
use rustix::thread::{CpuSet, sched_setaffinity};
use tailwater_placement::{explain, only_core};

use crate::request::{Limits, MAX_DATAGRAM, MAX_MESSAGE, Tally, handle};
use crate::stream::{read_body, read_header, write_reply};
use crate::{Counts, Store};

/// Connections at a time; others are closed at once.
pub const MAX_CONNECTIONS: usize = 1_024;

/// Ports that are tried for both protocols when the kernel chooses.
const PORT_TRIES: u32 = 10;

/// Longest buffer that a connection keeps for its next request or reply.
const KEPT: usize = 64 << 10;

/// Pause after a failure to accept, which is a lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where to listen, over UDP and TCP; port 0 lets the kernel choose, one for both.
    pub listen: SocketAddr,
    /// Threads on the UDP socket, at least 1.
    pub threads: usize,
    /// Core that all threads are bound to; without it the kernel chooses.
    pub core: Option<usize>,
    /// What a client may ask.
    pub limits: Limits,
}

/// A running server; dropping it ends it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    socket: UdpSocket,
    listener: TcpListener,
    limits: Limits,
    cores: Option<CpuSet>,
    tally: Tally,
    stop: AtomicBool,
    /// By the number each got. The thread takes its entry out, or `stop` does and joins it.
    connections: Mutex<HashMap<u64, Connection>>,
}

#[derive(Debug)]
struct Connection {
    stream: Arc<TcpStream>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Binds the sockets and starts the threads.
    ///
    /// # Errors
    /// The kernel's, with what was attempted: the address is taken or not ours, the core does not exist, no more threads.
    pub fn start(config: &Config, store: Arc<Store>) -> io::Result<Self> {
        let listen = format!("listen on {}", config.listen);
        let (socket, listener) = bind_both(config.listen).map_err(|e| explain(&e, &listen))?;
        let address = socket.local_addr()?;
        let cores = config.core.map(only_core).transpose()?;
        let (tally, stop) = (Tally::default(), AtomicBool::new(false));
        let (limits, connections) = (config.limits, Mutex::default());
        let shared = Shared { store, socket, listener, limits, cores, tally, stop, connections };
        let mut server =
            Self { shared: Arc::new(shared), address, threads: Vec::with_capacity(config.threads + 1) };
        // On failure, dropping `server` ends the threads that did start.
        server.spawn("rocks-accept", Shared::accept)?;
        for _ in 0..config.threads.max(1) {
            server.spawn("rocks-udp", |shared| shared.answer_datagrams())?;
        }
        Ok(server)
    }

    fn spawn(&mut self, name: &str, work: impl Fn(&Arc<Shared>) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            shared.bind_to_core();
            work(&shared);
        });
        self.threads.push(thread.map_err(|e| explain(&e, "start a thread"))?);
        Ok(())
    }

    /// Where it listens, with the port that the kernel chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Ends the threads, each after the request it is working on, and says what they did.
    #[must_use]
    pub fn stop(mut self) -> Counts {
        self.end();
        self.shared.tally.counts()
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Relaxed);
        // ENOTCONN is the expected answer of the first, see the module's header.
        let _: Result<(), Errno> = rustix::net::shutdown(&self.shared.socket, Shutdown::Read);
        let _: Result<(), Errno> = rustix::net::shutdown(&self.shared.listener, Shutdown::Read);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        // The acceptor has ended: no connection is added any more.
        let connections: Vec<_> = self.shared.connections().drain().collect();
        for (_, Connection { stream, thread }) in connections {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            let _ = thread.join();
        }
    }
}

/// Sockets for both protocols on one port. The kernel chooses port 0 for UDP, and it may be taken for TCP: then another.
fn bind_both(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let mut tries = if address.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        let socket = UdpSocket::bind(address)?;
        match TcpListener::bind(socket.local_addr()?) {
            Ok(listener) => return Ok((socket, listener)),
            Err(error) if tries == 1 => return Err(error),
            Err(_) => tries -= 1,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn connections(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Connection>> {
        // A map of handles is whole between any two operations.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bind_to_core(&self) {
        if let Some(cores) = self.cores {
            // Tried on the starting thread before; can fail only if the core goes away right now.
            let _ = sched_setaffinity(None, &cores);
        }
    }

    fn answer_datagrams(&self) {
        let mut bytes = vec![0; MAX_DATAGRAM];
        let mut reply = Vec::new();
        while !self.stop.load(Relaxed) {
            // Not std's `recv_from`, which cannot express the receipt without a sender that `shutdown` ends with.
            let Ok((len, _, Some(client))) = recvfrom(&self.socket, &mut bytes[..], RecvFlags::empty())
            else {
                continue;
            };
            match handle(&bytes[..len], &self.store, &self.limits, MAX_DATAGRAM, &mut || (), &mut reply) {
                Ok(status) => {
                    self.tally.count(status);
                    if sendto(&self.socket, &reply, SendFlags::empty(), &client).is_err() {
                        self.tally.count_unsent();
                    }
                }
                Err(_) => self.tally.count_malformed(),
            }
        }
    }

    fn accept(self: &Arc<Self>) {
        let mut number = 0;
        while !self.stop.load(Relaxed) {
            let Ok((stream, _)) = self.listener.accept() else {
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            // Locked until the entry is there: the thread may end at once, and takes it out.
            let mut connections = self.connections();
            if connections.len() >= MAX_CONNECTIONS {
                continue;
            }
            number += 1;
            let (shared, stream) = (Arc::clone(self), Arc::new(stream));
            let (of_thread, key) = (Arc::clone(&stream), number);
            let thread = std::thread::Builder::new().name("rocks-tcp".to_owned()).spawn(move || {
                shared.answer_stream(&of_thread);
                shared.connections().remove(&key);
            });
            // Without a thread the connection is closed.
            if let Ok(thread) = thread {
                connections.insert(number, Connection { stream, thread });
            }
        }
    }

    /// Serves a connection until it ends, fails, is silent for too long, or something else than a request comes.
    fn answer_stream(&self, stream: &TcpStream) {
        let idle = self.limits.idle;
        // They fail only on a connection that is gone.
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(idle));
        let _ = stream.set_write_timeout(Some(idle));
        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
        let mut stream = stream;
        loop {
            let read = read_header(&mut stream, &mut bytes, idle, || false)
                .and_then(|header| header.map(|h| read_body(&mut stream, &mut bytes, &h, idle)).transpose());
            match read {
                Ok(Some(())) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    break self.tally.count_malformed();
                }
                Ok(None) | Err(_) => break,
            }
            match handle(&bytes, &self.store, &self.limits, MAX_MESSAGE, &mut || (), &mut reply) {
                Ok(status) => self.tally.count(status),
                Err(_) => break self.tally.count_malformed(),
            }
            if write_reply(&mut stream, &reply, idle).is_err() {
                break self.tally.count_unsent();
            }
            bytes.clear();
            reply.clear();
            bytes.shrink_to(KEPT);
            reply.shrink_to(KEPT);
        }
        // The entry in the map keeps the stream for a moment; the client should not wait for that.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}
