//! The service on kernel sockets and ordinary threads: the baseline for Tailwater.
//!
//! Owns a pool of threads on one UDP socket, a thread per TCP connection, and their termination.
//! Requests are handled by [`crate::request::handle`], as everywhere. Here it is Linux's scheduler
//! that runs a GET before a SCAN.
//!
//! Termination: a flag, then `shutdown(2)` of every socket, which wakes the threads that are
//! blocked on it. On the unconnected UDP socket and on the listener Linux does that too, whatever
//! it returns (`inet_shutdown` in net/ipv4/af_inet.c).

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

/// Maximum number of connections; others are closed at once.
pub const MAX_CONNECTIONS: usize = 1_024;

/// Number of ports that are tried for both protocols if the kernel chooses.
const PORT_TRIES: u32 = 10;

/// Maximum buffer that a connection keeps for its next request or reply.
const KEPT: usize = 64 << 10;

/// Pause after a failure to accept, which is a lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Configuration of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Address to listen at, over UDP and TCP; port 0 lets the kernel choose one for both.
    pub listen: SocketAddr,
    /// Threads on the UDP socket, at least 1.
    pub threads: usize,
    /// Core that all threads are bound to; `None`: the kernel chooses.
    pub core: Option<usize>,
    /// Limits of requests.
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
    /// By number of the connection. Its thread removes the entry, or `stop` does and joins the
    /// thread.
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
    /// The kernel's error, with what was attempted: the address is taken or not ours, the core does
    /// not exist, or threads cannot be started.
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

    /// Returns the address it listens at, with the port that the kernel chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Ends the threads, each after its current request, and returns their counts.
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

/// Binds sockets for both protocols to one port. If the kernel chooses the port for UDP, it may be
/// taken for TCP: then another is tried.
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
        // A map of handles is consistent between any two operations.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bind_to_core(&self) {
        if let Some(cores) = self.cores {
            // Tried on the starting thread before; can fail only if the core goes offline right
            // now.
            let _ = sched_setaffinity(None, &cores);
        }
    }

    fn answer_datagrams(&self) {
        let mut bytes = vec![0; MAX_DATAGRAM];
        let mut reply = Vec::new();
        while !self.stop.load(Relaxed) {
            // Not std's `recv_from`, which cannot represent a receipt without a sender, with which
            // `shutdown` ends the call.
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
            // Locked until the entry is there: the thread may end at once, and then removes it.
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

    /// Serves a connection until it ends, fails, is silent for too long, or sends something that is
    /// not a request.
    fn answer_stream(&self, stream: &TcpStream) {
        let idle = self.limits.idle;
        // Fails only on a connection that is gone.
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(idle));
        let _ = stream.set_write_timeout(Some(idle));
        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
        let mut stream = stream;
        loop {
            let read = read_header(&mut stream, &mut bytes, idle)
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
