//! The spin service on Tailwater: user threads on one socket of the runtime's own network stack.
//!
//! Owns the threads and their counts. Requests are handled by [`crate::handle`], as everywhere,
//! with [`tailwater::poll`] as poll point, so that a long request yields the core when the
//! IOKernel reclaims it. The service runs until its process ends. No cleanup is needed, because the
//! IOKernel reclaims what a process held.
//!
//! `counts` is written by the serving threads with relaxed additions and may be read from any
//! thread at any time.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use tailwater::dispatch::{ClassStats, UdpServer};
use tailwater::net::UdpSocket;
use tailwater_workload::spin::{REPLY_LEN, REQUEST_LEN};

use crate::Counts;
use crate::classes::{Classes, Classified};
use crate::work::Spinner;

/// Which user thread executes a request.
#[derive(Debug, Clone, Default)]
pub enum Dispatch {
    /// The one that received it: one thread per kthread.
    #[default]
    Workers,
    /// A new one, which ends with the request: shows the cost of thread creation, and lets the
    /// runtime balance requests.
    SpawnPerRequest,
    /// One of a dispatcher, in the order of its policy.
    Policy(Classes),
}

/// A service whose socket is bound and whose threads run.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    threads: Vec<tailwater::thread::JoinHandle<Infallible>>,
    server: Option<UdpServer>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    socket: UdpSocket,
    spinner: Spinner,
    origin: Instant,
    served: AtomicU64,
    malformed: AtomicU64,
    unsent: AtomicU64,
}

/// Reads a service's counts from any thread.
#[derive(Debug, Clone)]
pub struct CountsReader {
    shared: Arc<Shared>,
    server: Option<UdpServer>,
}

impl CountsReader {
    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        // A dispatcher sends the replies of requests that are counted as served.
        let unsent = self.server.as_ref().map_or(0, UdpServer::unsent);
        Counts {
            served: self.shared.served.load(Relaxed).saturating_sub(unsent),
            malformed: self.shared.malformed.load(Relaxed),
            unsent: self.shared.unsent.load(Relaxed) + unsent,
        }
    }

    /// Returns what became of the requests of each class, if there are classes.
    #[must_use]
    pub fn classes(&self) -> Vec<ClassStats> {
        self.server.as_ref().map(UdpServer::stats).unwrap_or_default()
    }
}

impl Service {
    /// Binds `listen` and starts the threads. Call it on a user thread.
    ///
    /// # Errors
    /// If the address is taken or not this runtime's.
    ///
    /// # Panics
    /// If there is no runtime.
    pub fn start(listen: SocketAddr, dispatch: Dispatch, spinner: Spinner) -> io::Result<Self> {
        let socket = UdpSocket::bind(listen)
            .map_err(|e| io::Error::new(e.kind(), format!("cannot listen on {listen}: {e}")))?;
        let shared = Arc::new(Shared {
            socket,
            spinner,
            origin: Instant::now(),
            served: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
        });
        let spawns = match dispatch {
            Dispatch::Workers => false,
            Dispatch::SpawnPerRequest => true,
            Dispatch::Policy(classes) => {
                let (socket, settings) = (shared.socket.try_clone()?, classes.settings());
                let service = Classified { shared: Arc::clone(&shared), classes };
                let server = UdpServer::start(socket, service, settings)?;
                return Ok(Self { shared, threads: Vec::new(), server: Some(server) });
            }
        };
        let threads = (0..tailwater::thread::available_parallelism().map_or(1, usize::from))
            .map(|_| {
                let shared = Arc::clone(&shared);
                tailwater::thread::spawn(move || if spawns { shared.spawn() } else { shared.work() })
            })
            .collect();
        Ok(Self { shared, threads, server: None })
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
        CountsReader { shared: Arc::clone(&self.shared), server: self.server.clone() }
    }

    /// Waits for ever, unless a thread panicked.
    ///
    /// # Errors
    /// If a serving thread panicked.
    pub fn join(self) -> io::Result<()> {
        if self.server.is_some() {
            loop {
                tailwater::thread::park();
            }
        }
        for thread in self.threads {
            if thread.join().is_err() {
                return Err(io::Error::other("a serving thread panicked"));
            }
        }
        Ok(())
    }
}

impl Shared {
    fn work(&self) -> ! {
        loop {
            let (bytes, len, client) = self.receive();
            self.serve(&bytes[..len], client);
        }
    }

    fn spawn(self: &Arc<Self>) -> ! {
        loop {
            let (bytes, len, client) = self.receive();
            let shared = Arc::clone(self);
            drop(tailwater::thread::spawn(move || shared.serve(&bytes[..len], client)));
        }
    }

    /// Receives the next datagram. An error reports the fate of an earlier reply, which its client
    /// notices itself.
    #[inline]
    fn receive(&self) -> ([u8; REQUEST_LEN + 1], usize, SocketAddr) {
        // One byte more than a request, so that a longer datagram is seen to be too long.
        let mut bytes = [0; REQUEST_LEN + 1];
        loop {
            if let Ok((len, client)) = self.socket.recv_from(&mut bytes) {
                return (bytes, len, client);
            }
        }
    }

    #[inline]
    fn serve(&self, bytes: &[u8], client: SocketAddr) {
        let now_ns = || self.origin.elapsed().as_nanos() as u64;
        let count = match crate::handle(bytes, &self.spinner, now_ns, &mut tailwater::poll) {
            Ok(reply) if self.socket.send_to(&reply, client).is_ok() => &self.served,
            Ok(_) => &self.unsent,
            Err(_) => &self.malformed,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Executes a request of a dispatcher, which sends the reply.
    #[inline]
    pub(crate) fn answer(&self, bytes: &[u8]) -> Option<[u8; REPLY_LEN]> {
        let now_ns = || self.origin.elapsed().as_nanos() as u64;
        let reply = crate::handle(bytes, &self.spinner, now_ns, &mut tailwater::poll).ok();
        let count = if reply.is_some() { &self.served } else { &self.malformed };
        count.fetch_add(1, Relaxed);
        reply
    }
}
