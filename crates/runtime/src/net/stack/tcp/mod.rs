//! TCP in the stack: which connection a segment is for, when its timers are due, and how what it sends leaves.
//!
//! Owns: the connections (`table`), what is left of closed ones (`time_wait`), listening sockets and their accept queues (`listen`), everybody's timers
//! (`timers`). What a connection does is decided in `tailwater_tcp`, which knows no address, clock or lock; what a program sees is `net::tcp`.
//!
//! ```text
//! handle_tcp -> table -+- Socket (lock) -> Connection::handle_segment --+
//!                      +- TIME-WAIT -> answer                           +-> settle: transmit_ip, timer, waiters
//!                      +- listener -> answer, or a new Socket ----------+
//! write, read, close ---- Socket (lock) -> Connection::send ... --------+
//! poll_timers ----------- Socket (lock) -> Connection::handle_timeout --+
//! ```
//!
//! # Locks
//! In this order, each held for one step and none while a thread waits: ports, then a listener, then a socket, then a shard of the table, of TIME-WAIT or
//! of the timers, then what `transmit_ip` takes. Nothing is looked up in the table with a shard's lock held: it hands out a counted reference.
//!
//! # Acknowledgments
//! One that is due while a batch of frames is processed waits for the batch's end and stands for all segments in it ([`Outlet::defer`](super::Outlet::defer)). Requests
//! and answers are not affected: what carries data, and what tells of a gap, leaves at once.
//!
//! # Nothing is stuck
//! * A segment that finds no room stays with its connection, whose timer is set `RETRY` ahead.
//! * At most `BURST` segments of a connection leave at once; the rest is its timer's, too.
//! * A timer that fires earlier than needed is put back (and put off before, if there is time: `expiry`); one that is needed earlier replaces it.
//!
//! # Bounds
//! Connections: `NetConfig::tcp_connections`. Entries in TIME-WAIT: `MAX_TIME_WAITS`. Each connection's memory is bounded by its two
//! buffers; each listener's by its SYN queue and its backlog. Answers to segments that belong to nobody: `RESETS_PER_SECOND` to each peer.

mod expiry;
mod input;
mod key;
mod listen;
mod open;
mod output;
mod socket;
mod table;
mod tag;
mod time_wait;
mod timers;

pub use key::Key;
pub use listen::{DEFAULT_BACKLOG, ListenInner, Listening};
pub use open::{ConnectError, ListenError};
pub use socket::{Failure, Inner, Refusal, Socket};

use super::Counters;
use super::limiter::PeerLimiter;
use crate::net::wire::{ETHERNET_HEADER, IPV4_HEADER};
use crate::sync::spin::SpinLock;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use listen::Listeners;
use table::Table;
use tailwater_shm::ring::{LINE, RECORD_HEADER};
use tailwater_tcp::ports::EphemeralPorts;
use tailwater_tcp::segment::FIXED_HEADER;
use tailwater_tcp::{Instant, Secret, Stats};
use time_wait::TimeWaits;
use timers::Timers;

/// When a segment that found no room is tried again: the IOKernel and the loopback thread empty what was full within that.
const RETRY: Duration = Duration::from_micros(50);
/// Segments of one connection that leave in one go. So many full ones are as much as most paths hold; it bounds how long the connection's lock is held.
const BURST: usize = 64;
/// Resets and the like for nobody's segments that go to a peer at once, and per second after that.
const RESETS_BURST: u32 = 1000;
const RESETS_PER_SECOND: u32 = 1000;
/// Connections unless configured otherwise.
pub const DEFAULT_CONNECTIONS: u32 = 1_000_000;
/// Entries in TIME-WAIT: as many as Linux keeps on a machine of this size (tcp_max_tw_buckets).
pub const MAX_TIME_WAITS: usize = 262_144;
/// Longest segment to this host itself, header without options excluded.
const LOCAL_MSS: u16 = 32 * 1024;
/// Ephemeral ports: as many as there are (RFC 6056 section 3.2); those that are listened at are left out.
const EPHEMERAL: core::ops::RangeInclusive<u16> = 1024..=u16::MAX;

/// What a stack's TCP must not let anybody guess.
#[derive(Debug, Clone, Copy)]
pub struct Secrets {
    /// Decides initial sequence numbers and cookies.
    pub numbers: Secret,
    /// Decides the order of ports.
    pub ports: Secret,
}

impl Secrets {
    /// As hard to guess as `seed`: for tests, which want the same each time.
    pub fn from_seed(seed: u64) -> Self {
        let secret = |n: u64| {
            let [a, b] = [seed.wrapping_add(n), seed.rotate_left(32) ^ n].map(u64::to_le_bytes);
            Secret(core::array::from_fn(|i| if i < 8 { a[i] } else { b[i - 8] }))
        };
        Self { numbers: secret(1), ports: secret(2) }
    }
}

/// The TCP part of a [`Stack`](super::Stack).
#[derive(Debug)]
pub struct Tcp {
    table: Table,
    time_waits: TimeWaits,
    listeners: Listeners,
    timers: Timers,
    ports: SpinLock<EphemeralPorts>,
    secrets: Secrets,
    resets: PeerLimiter,
    /// Connections in the table. Relaxed: a limit, not a lock.
    connections: AtomicUsize,
    limit: usize,
    /// The most that a peer on this machine is offered: what an ingress ring holds. See [`window_of_ring`].
    local_window: u32,
    /// Numbers sockets, for their timers. Relaxed: only that no two get the same matters.
    next_id: AtomicU64,
    /// What connections that are gone have counted.
    gone: SpinLock<Totals>,
}

/// Sums over connections.
#[derive(Debug, Default, Clone, Copy)]
struct Totals {
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
    fn add(&mut self, stats: &Stats) {
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

impl Tcp {
    /// No connections, and room for `limit`; peers on this machine are offered at most `local_window` bytes.
    pub fn new(secrets: Secrets, seed: u64, limit: u32, local_window: u32) -> Self {
        Self {
            table: Table::new(seed),
            time_waits: TimeWaits::new(seed),
            listeners: Listeners::default(),
            timers: Timers::new(),
            ports: SpinLock::new(EphemeralPorts::new(EPHEMERAL, secrets.ports)),
            secrets,
            resets: PeerLimiter::new(RESETS_BURST, RESETS_PER_SECOND, seed),
            connections: AtomicUsize::new(0),
            limit: limit as usize,
            local_window,
            next_id: AtomicU64::new(0),
            gone: SpinLock::new(Totals::default()),
        }
    }

    fn has_room(&self) -> bool {
        self.connections.load(Relaxed) < self.limit
    }

    /// Adds what connections and listeners have counted. Looks at each of them.
    pub fn count(&self, counters: &mut Counters) {
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

/// Data bytes in as many full segments of packets of `mtu` bytes as take three quarters of a ring of `ring_bytes`; at least two
/// segments. The last quarter is for other connections, and for acknowledgments of what is sent the other way.
///
/// A peer on this machine fills whatever window it is offered within microseconds, and while the receiver has no core all of it
/// lies in the ring: of a larger window the rest would be dropped there, each time the congestion window has grown beyond the
/// ring. Over a network it is the path that holds a window's data, and the ring a small part of it. Called before the
/// configuration has been looked at: an impossible `mtu` gives zero.
pub fn window_of_ring(ring_bytes: u32, mtu: u16) -> u32 {
    let frame = ETHERNET_HEADER + usize::from(mtu) + RECORD_HEADER;
    let frames = ring_bytes / 4 * 3 / (frame.next_multiple_of(LINE) as u32);
    frames.max(2) * u32::from(mtu).saturating_sub((IPV4_HEADER + FIXED_HEADER) as u32)
}

/// A point in time as TCP counts it.
#[inline]
fn instant(now: Duration) -> Instant {
    Instant(now.as_nanos() as u64)
}

fn duration(at: Instant) -> Duration {
    Duration::from_nanos(at.0)
}
