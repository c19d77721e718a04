//! TCP sockets, and the tables that find them: by flow, by port, by deadline.
//!
//! Owns the connections (`table`), the remains of closed ones (`time_wait`), listening sockets with
//! their accept queues (`listen`), the timers of all of these (`timers`), and the windows of peers
//! on this machine (`machine_window`). `tailwater_tcp` decides what a connection does and knows
//! neither clock nor lock. [`crate::stack::tcp`] passes segments and time.
//!
//! ```text
//! handle_tcp -> table -+- Socket (lock) -> Connection::handle_segment --+
//!                      +- TIME-WAIT -> answer                           +-> settle:
//!                      +- listener -> answer, or a new Socket ----------+   transmit_ip,
//! write, read, close ---- Socket (lock) -> Connection::send ... --------+   timer,
//! poll_timers ----------- Socket (lock) -> Connection::handle_timeout --+   waiters
//! ```
//!
//! # Locks
//! Taken in this order, each held for one step and none while a thread waits: ports, a listener, a
//! socket, a shard of the table, of TIME-WAIT or of the timers, then the locks that `transmit_ip`
//! takes. The table returns counted references, so its shards are not locked while a socket is
//! used.
//!
//! # Acknowledgments
//! One that is due while a batch of frames is processed waits for the end of the batch and covers
//! all segments in it ([`InputBatch::defer`](crate::InputBatch::defer)). Segments with data, and
//! acknowledgments that report a gap, leave at once.
//!
//! # Nothing is stuck
//! * A segment for which there is no room stays with its connection, whose timer is set as far
//!   ahead as the outlet says ([`Outlet::retry_after`](crate::Outlet::retry_after)).
//! * At most `BURST` segments of a connection, or `BURST_BYTES` to another host, leave at once; the
//!   timer sends the rest.
//! * A timer that fires early is set again, and one that is needed earlier replaces it.
//!
//! # Bounds
//! Connections: `NetConfig::tcp_connections`. Entries in TIME-WAIT: `MAX_TIME_WAITS`. Each
//! connection's memory is bounded by its two buffers; each listener's by its SYN queue and its
//! backlog. Answers to segments without a connection: `RESETS_PER_SECOND` to each peer.

pub mod clock;
pub(crate) mod cookies;
mod key;
mod listen;
mod machine_window;
pub(crate) mod socket;
mod table;
mod tag;
mod time_wait;
mod timers;

pub use key::Key;
pub(crate) use listen::add;
pub use listen::{DEFAULT_BACKLOG, ListenError, ListenInner, Listeners, Listening, Reach};
pub use socket::{Failure, Inner, Refusal, Settings, Socket};
pub use timers::Due;

use crate::counters::NetCounters;
use crate::limiter::PeerLimiter;
use crate::platform::{Lock, Platform};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use machine_window::MachineWindow;
use table::Table;
use tailwater_tcp::ports::EphemeralPorts;
use tailwater_tcp::{Secret, Stats};
use time_wait::TimeWaits;
use timers::Timers;

/// Maximum number of segments of one connection that leave in one call. So many full segments fill
/// most paths, and the bound limits the time for which the connection's lock is held.
pub(crate) const BURST: usize = 64;
/// Bytes after which a call sends no further segment of a connection to another host; the last one
/// may exceed them.
pub(crate) const BURST_BYTES: usize = 128 << 10;
/// Longest time for which a peer on this machine, which is a stack like this one, delays an
/// acknowledgment: 2 ms on so short a path, and time in which it has no core.
pub(crate) const LOCAL_ACK_DELAY: Duration = Duration::from_millis(4);
/// Resets to a peer at once, and per second after that, for segments without a connection.
const RESETS_BURST: u32 = 1000;
const RESETS_PER_SECOND: u32 = 1000;
/// Entries in TIME-WAIT: as many as Linux keeps on a machine of this size (tcp_max_tw_buckets).
pub const MAX_TIME_WAITS: usize = 262_144;
/// Longest segment to this host itself, header without options excluded.
pub(crate) const LOCAL_MSS: u16 = 32 * 1024;
/// Ephemeral ports: as many as there are (RFC 6056 section 3.2); those that are listened at are
/// left out.
const EPHEMERAL: core::ops::RangeInclusive<u16> = 1024..=u16::MAX;

/// Secrets of a stack's TCP.
#[derive(Debug, Clone, Copy)]
pub struct Secrets {
    /// Decides initial sequence numbers and cookies.
    pub numbers: Secret,
    /// Decides the order of ports.
    pub ports: Secret,
}

impl Secrets {
    /// Derives secrets from `seed`, for reproducible tests.
    pub fn from_seed(seed: u64) -> Self {
        let secret = |n: u64| {
            let [a, b] = [seed.wrapping_add(n), seed.rotate_left(32) ^ n].map(u64::to_le_bytes);
            Secret(core::array::from_fn(|i| if i < 8 { a[i] } else { b[i - 8] }))
        };
        Self { numbers: secret(1), ports: secret(2) }
    }
}

/// The TCP part of a [`Stack`](crate::Stack).
#[derive(Debug)]
pub struct Tcp<P: Platform> {
    pub(crate) table: Table<P>,
    /// Cookies of servers, for clients with Fast Open.
    pub(crate) cookies: cookies::Cookies<P>,
    pub(crate) time_waits: TimeWaits<P>,
    pub(crate) listeners: Listeners<P>,
    pub(crate) timers: Timers<P>,
    pub(crate) ports: P::Lock<EphemeralPorts>,
    pub(crate) secrets: Secrets,
    pub(crate) resets: PeerLimiter,
    /// Connections in the table. Relaxed: a limit, not a lock.
    pub(crate) connections: AtomicUsize,
    pub(crate) limit: usize,
    /// The windows of peers on this machine.
    pub(crate) machine_window: MachineWindow,
    /// True once the program ends: no handshake is begun. Relaxed: a connection that is accepted
    /// before a kthread sees it is reset by the last look at all connections.
    pub(crate) ending: AtomicBool,
    /// Numbers sockets for their timers. Relaxed: only uniqueness matters.
    pub(crate) next_id: AtomicU64,
    /// Counters of connections that are gone.
    pub(crate) gone: P::Lock<Totals>,
}

/// Sums over connections.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    received: u64,
    sent: u64,
    retransmitted: u64,
    timeouts: u64,
    tail_probes: u64,
    spurious_repairs: u64,
    out_of_order: u64,
    resequenced: u64,
    bytes_received: u64,
    bytes_sent: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, stats: &Stats) {
        self.received += u64::from(stats.segments_received);
        self.sent += u64::from(stats.segments_sent);
        self.retransmitted += u64::from(stats.retransmissions);
        self.timeouts += u64::from(stats.timeouts);
        self.tail_probes += u64::from(stats.tail_probes);
        self.spurious_repairs += u64::from(stats.spurious_repairs);
        self.out_of_order += u64::from(stats.out_of_order);
        self.resequenced += stats.resequenced_bytes;
        self.bytes_received += stats.bytes_received;
        self.bytes_sent += stats.bytes_sent;
    }
}

impl<P: Platform> Tcp<P> {
    /// Makes tables without connections and with room for `limit`. For `machine_window` see
    /// [`NetConfig::machine_window`](crate::NetConfig::machine_window).
    pub fn new(secrets: Secrets, seed: u64, limit: u32, machine_window: u32) -> Self {
        Self {
            table: Table::new(seed),
            cookies: cookies::Cookies::default(),
            time_waits: TimeWaits::new(seed),
            listeners: Listeners::default(),
            timers: Timers::new(),
            ports: Lock::new(EphemeralPorts::new(EPHEMERAL, secrets.ports)),
            secrets,
            resets: PeerLimiter::new(RESETS_BURST, RESETS_PER_SECOND, seed),
            connections: AtomicUsize::new(0),
            limit: limit as usize,
            machine_window: MachineWindow::new(machine_window),
            ending: AtomicBool::new(false),
            next_id: AtomicU64::new(0),
            gone: Lock::new(Totals::default()),
        }
    }

    /// Gives connections that are opened from now on one of these ports; `None`: of all.
    pub(crate) fn use_ports(&self, ports: Option<core::ops::RangeInclusive<u16>>) {
        *self.ports.lock() = EphemeralPorts::new(ports.unwrap_or(EPHEMERAL), self.secrets.ports);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.connections.load(Relaxed) < self.limit
    }

    /// Adds the counters of all connections and listeners, locking each.
    pub fn count(&self, counters: &mut NetCounters) {
        let mut totals = *self.gone.lock();
        let mut open = 0;
        self.table.for_each(|socket| {
            totals.add(&socket.lock().connection.stats());
            open += 1;
        });
        counters.tcp_connections = open;
        counters.tcp_time_waits = self.time_waits.len() as u64;
        counters.tcp_segments_received = totals.received;
        counters.tcp_segments_sent = totals.sent;
        counters.tcp_received_bytes = totals.bytes_received;
        counters.tcp_sent_bytes = totals.bytes_sent;
        counters.tcp_retransmitted = totals.retransmitted;
        counters.tcp_timeouts = totals.timeouts;
        counters.tcp_tail_probes = totals.tail_probes;
        counters.tcp_spurious_repairs = totals.spurious_repairs;
        counters.tcp_out_of_order = totals.out_of_order;
        counters.tcp_resequenced_bytes = totals.resequenced;
        let listen = self.listeners.stats();
        counters.tcp_accepted = listen.accepted;
        counters.tcp_listen_overflows = listen.overflows + listen.syns_dropped;
        counters.tcp_cookies_sent = listen.cookies_sent;
        counters.tcp_cookies_accepted = listen.cookies_accepted;
        counters.tcp_cookies_refused = listen.cookies_refused;
    }
}
