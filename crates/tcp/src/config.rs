//! The parameters of a connection.

use crate::sender;
use crate::seq::Seq;
use core::net::IpAddr;
use core::time::Duration;

/// The behaviour of connections. One value may serve any number of them: a connection copies what
/// it needs later.
#[derive(Debug, Clone)]
pub struct Config {
    /// Most bytes received and not yet read; bounds the window and the memory. From 1 KiB to 1 GiB;
    /// other values are clamped.
    pub receive_buffer: u32,
    /// Most bytes handed over and not yet acknowledged; from 1 KiB to 1 GiB, clamped. A connection
    /// uses 256 KiB of it at first, and twice its congestion window if that is more: the bytes in
    /// flight, and as many again that wait for their turn.
    pub send_buffer: u32,
    /// Congestion control and retransmission.
    pub sender: sender::Config,
    /// Sends small segments at once instead of holding them until earlier ones are acknowledged
    /// (Nagle; RFC 9293 section 3.7.4).
    pub nodelay: bool,
    /// Most bytes of a segment that this side wants to send and to receive, options included
    /// (TCP_MAXSEG); `None` is no limit but the path's and the peer's.
    pub max_segment: Option<u16>,
    /// Number of unsent bytes above which the connection accepts no more data
    /// (TCP_NOTSENT_LOWAT): see
    /// [`Connection::set_notsent_lowat`](crate::Connection::set_notsent_lowat).
    pub notsent_lowat: Option<u32>,
    /// Longest time an ACK waits for data to go with it, less than 500 ms (RFC 9293 section
    /// 3.8.6.3; more counts as 499 ms). On paths with a round trip below four times that, the ACK
    /// waits for a quarter of the round trip, at least 2 ms, so that it does not cause a peer's
    /// retransmission timer to expire that follows its measurements down to 5 ms.
    pub delayed_ack: Duration,
    /// How an idle connection is probed, if at all.
    pub keepalive: Option<Keepalive>,
    /// Time without progress, while something is unacknowledged, after which the connection fails:
    /// R2 of RFC 9293 section 3.8.3, and the local half of RFC 5482.
    pub user_timeout: Duration,
    /// Times a SYN or its answer is repeated before the attempt fails. Seven repetitions take three
    /// minutes with the default timeouts, as RFC 9293 section 3.8.3 asks.
    pub syn_retries: u8,
    /// Offers window scaling (RFC 7323 section 2).
    pub window_scaling: bool,
    /// Offers timestamps (RFC 7323 section 3), which protect against wrapped sequence numbers.
    pub timestamps: bool,
    /// Offers selective acknowledgment (RFC 2018).
    pub sack: bool,
    /// Uses TCP Fast Open (RFC 7413) where the caller has
    /// [offered it](crate::Connection::offer_fast_open), and asks for cookies.
    pub fast_open: bool,
    /// Offers explicit congestion notification (RFC 3168). DCTCP needs it.
    pub ecn: bool,
    /// Time for which old duplicates are waited for: twice the maximum segment lifetime (RFC 9293
    /// section 3.4.2); 60 s, as in Linux.
    pub time_wait: Duration,
    /// Time for which a released connection waits in FIN-WAIT-2 for the peer to close.
    pub fin_wait: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            receive_buffer: 1 << 20,
            send_buffer: 4 << 20,
            sender: sender::Config::default(),
            nodelay: false,
            max_segment: None,
            notsent_lowat: None,
            delayed_ack: DEFAULT_ACK_DELAY,
            keepalive: None,
            user_timeout: DEFAULT_USER_TIMEOUT,
            syn_retries: 7,
            window_scaling: true,
            timestamps: true,
            sack: true,
            fast_open: false,
            ecn: false,
            time_wait: DEFAULT_WAIT,
            fin_wait: DEFAULT_WAIT,
        }
    }
}

/// Five minutes (RFC 9293 section 3.9.1.1).
pub(crate) const DEFAULT_USER_TIMEOUT: Duration = Duration::from_mins(5);
/// Longest delay of an ACK, which is Linux's.
pub(crate) const DEFAULT_ACK_DELAY: Duration = Duration::from_millis(40);
/// The time in TIME-WAIT and in FIN-WAIT-2.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_secs(60);
/// Bytes of its send buffer that a connection uses before its congestion window calls for more.
pub(crate) const FIRST_SEND_ROOM: u32 = 256 << 10;
/// Bounds of both buffers: RFC 7323 section 2.3 limits windows to 2^30.
pub(crate) const BUFFER_BOUNDS: (u32, u32) = (1 << 10, 1 << 30);

/// Probing of idle connections (RFC 9293 section 3.8.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keepalive {
    /// Time without a segment from the peer after which the first probe is sent; 2 h by the RFC.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection fails.
    pub probes: u8,
}

impl Keepalive {
    /// Sets the time without a segment from the peer after which the first probe is sent.
    #[must_use]
    pub const fn idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Sets the time between probes.
    #[must_use]
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets the number of unanswered probes after which the connection fails.
    #[must_use]
    pub const fn probes(mut self, probes: u8) -> Self {
        self.probes = probes;
        self
    }
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { idle: Duration::from_hours(2), interval: Duration::from_secs(75), probes: 9 }
    }
}

/// The parameters that differ from one new connection to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// This side's port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
    /// Its initial numbers: see [`isn`](crate::isn).
    pub numbers: InitialNumbers,
    /// Most bytes one segment can carry on the path, options included: the MTU less the IP header
    /// and 20 bytes (RFC 6691 section 2).
    pub path_mss: u16,
    /// Segment size that the peer accepts if it announces none: see [`default_mss`].
    pub default_mss: u16,
}

/// Returns the segment size, options included, of a peer at `remote` that announces none: 536 over
/// IPv4, 1220 over IPv6 (RFC 9293 section 3.7.1).
pub fn default_mss(remote: IpAddr) -> u16 {
    if remote.is_ipv6() { 1220 } else { 536 }
}

/// The initial sequence number and timestamp offset of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitialNumbers {
    /// The number of the SYN (ISS).
    pub seq: Seq,
    /// Offset added to the timestamp clock, so that timestamps reveal nothing about the machine
    /// (RFC 7323 section 5.4).
    pub timestamp_offset: u32,
}
