//! State shared by all connections of a server: the store, the settings, and counts of connections
//! and bytes.
//!
//! All counters are relaxed: they are only reported, and no decision relates one to another.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{OnceLock, PoisonError};
use std::{collections::BTreeMap, sync::Arc};

use tailwater::dispatch::Policy;
use tailwater::sync::Mutex;

use crate::replicate::{self, Replication};
use crate::store::{Now, Store};

/// Version reported to clients: that of the memcached whose protocol it speaks, for clients that
/// check it.
pub const VERSION: &str = "1.6.18-tailwater";

/// The settings of a server, by memcached's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// TCP port (`-p`).
    pub tcp_port: u16,
    /// UDP port, 0 for none (`-U`).
    pub udp_port: u16,
    /// Address (`-l`).
    pub listen: String,
    /// Maximum number of connections (`-c`).
    pub max_connections: u32,
    /// Threads that serve at once (`-t`).
    pub threads: u32,
    /// Seconds after which an idle connection is closed, or one that does not read its answers; 0
    /// for never (`-o idle_timeout`).
    pub idle_timeout: u32,
    /// True if clients may flush (off with `-F`).
    pub flush: bool,
    /// Who executes the requests of connections.
    pub mode: Mode,
}

impl Default for Settings {
    /// Returns memcached's defaults, but on the loopback address and with one thread.
    fn default() -> Self {
        Self {
            tcp_port: 11211,
            udp_port: 0,
            listen: "127.0.0.1".to_owned(),
            max_connections: 1024,
            threads: 1,
            idle_timeout: 0,
            flush: true,
            mode: Mode::Threads,
        }
    }
}

/// Who executes the requests of connections. Kernel sockets have threads only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A thread for each connection.
    Threads,
    /// The threads of a dispatcher, in the order of its policy (`--dispatch`). Without UDP.
    Dispatch(Sizes),
    /// An event loop on each kthread (`--events`). Without backups.
    Events,
}

/// Which retrievals are large, and what runs before what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// The policy.
    pub policy: Policy,
    /// Dispatchers with a kthread of their own; 0: as the policy says.
    pub dispatchers: usize,
    /// Number of keys from which a retrieval is large, at least 1.
    pub large: usize,
}

/// The state shared by all connections.
#[derive(Debug)]
pub struct Service {
    /// The items.
    pub store: Arc<Store>,
    /// The settings.
    pub settings: Settings,
    /// The verbosity that a client last set, which has no effect.
    pub verbosity: AtomicU32,
    /// Connections accepted.
    pub total_connections: AtomicU64,
    /// Connections refused because there were too many.
    pub rejected_connections: AtomicU64,
    /// Connections closed because they were idle.
    pub idle_kicks: AtomicU64,
    /// Bytes received.
    pub bytes_read: AtomicU64,
    /// Bytes sent.
    pub bytes_written: AtomicU64,
    /// Commands to flush.
    pub flushes: AtomicU64,
    /// Meta commands.
    pub meta_commands: AtomicU64,
    /// Backups of this store, or the role of a backup, if there are any.
    pub replication: OnceLock<Arc<Replication>>,
    /// Open connections by a number that is never reused and that `stats reset` does not change.
    open: Mutex<BTreeMap<u64, Arc<Peer>>>,
    next: AtomicU64,
}

/// A connection that is open.
#[derive(Debug)]
pub struct Peer {
    /// The client.
    pub address: SocketAddr,
    /// Second of its last command.
    pub last: AtomicU32,
}

/// Guard that keeps a connection in the list of open ones.
#[derive(Debug)]
pub struct Registered {
    service: Arc<Service>,
    number: u64,
    /// The connection's entry.
    pub peer: Arc<Peer>,
}

impl Service {
    /// Creates a service over `store`.
    #[must_use]
    pub fn new(store: Store, settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::new(store),
            settings,
            verbosity: AtomicU32::new(0),
            total_connections: AtomicU64::new(0),
            rejected_connections: AtomicU64::new(0),
            idle_kicks: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            meta_commands: AtomicU64::new(0),
            replication: OnceLock::new(),
            open: Mutex::new(BTreeMap::new()),
            next: AtomicU64::new(1),
        })
    }

    /// Has this service, which is not started yet, replicate its store, or be a backup, or both.
    ///
    /// # Errors
    /// If it serves datagrams, or does so already, and those of [`Replication::new`].
    pub fn replicate(&self, settings: replicate::Settings) -> io::Result<()> {
        let invalid = |message| io::Error::new(io::ErrorKind::InvalidInput, message);
        if self.settings.udp_port != 0 {
            let message = "datagrams are not replicated: leave -U or --replicate and --backup out";
            return Err(invalid(message));
        }
        let replication = Replication::new(&self.store, &self.settings.listen, settings)?;
        let twice = |_| invalid("the service is replicated already: make another");
        self.replication.set(Arc::new(replication)).map_err(twice)
    }

    /// Registers a new connection; `None` if there are too many.
    pub fn register(self: &Arc<Self>, address: SocketAddr, now: Now) -> Option<Registered> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= self.settings.max_connections as usize {
            self.rejected_connections.fetch_add(1, Relaxed);
            return None;
        }
        self.total_connections.fetch_add(1, Relaxed);
        let number = self.next.fetch_add(1, Relaxed);
        let peer = Arc::new(Peer { address, last: AtomicU32::new(now.seconds) });
        open.insert(number, Arc::clone(&peer));
        Some(Registered { service: Arc::clone(self), number, peer })
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the oldest connections that are open and have no lower number than `first`, at most
    /// `most`, with their numbers.
    #[must_use]
    pub fn peers(&self, first: u64, most: usize) -> Vec<(u64, Arc<Peer>)> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.range(first..).take(most).map(|(&number, peer)| (number, Arc::clone(peer))).collect()
    }

    /// Resets the counters (`stats reset`).
    pub fn reset_counters(&self) {
        self.store.reset_counters();
        let counters =
            [&self.total_connections, &self.rejected_connections, &self.idle_kicks, &self.bytes_read];
        for counter in counters.into_iter().chain([&self.bytes_written, &self.flushes, &self.meta_commands]) {
            counter.store(0, Relaxed);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.service.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}
