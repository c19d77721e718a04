//! What a connection is made with.

use crate::{Seq, sender};
use core::net::IpAddr;
use core::time::Duration;

/// How a connection behaves. Shared by as many as the caller likes: what is needed later is copied.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes received and not yet read, at most: bounds the window and the memory. 1 KiB to 1 GiB; more is taken as the
    /// nearer end.
    pub receive_buffer: u32,
    /// Bytes handed over and not yet acknowledged, at most. 1 KiB to 1 GiB, as above. A connection takes 256 KiB of it at first,
    /// and twice its congestion window when that is more: what is in flight, and as much again that waits for its turn.
    pub send_buffer: u32,
    /// Congestion control and retransmission.
    pub sender: sender::Config,
    /// Small segments leave at once, instead of waiting for the ACK of those before (Nagle; RFC 9293 section 3.7.4).
    pub nodelay: bool,
    /// An ACK waits at most so long for data to go with, less than 500 ms (RFC 9293 section 3.8.6.3; more is taken as 499). On paths with a round
    /// trip below four times that it waits for a quarter of the round trip, at least 2 ms: a peer's retransmission timer
    /// that follows its measurements down to 5 ms must not expire on it.
    pub delayed_ack: Duration,
    /// Whether an idle connection is probed.
    pub keepalive: Option<Keepalive>,
    /// Without progress for so long while something is unacknowledged, the connection fails: R2 of RFC 9293 section 3.8.3,
    /// and the local half of RFC 5482.
    pub user_timeout: Duration,
    /// How often a SYN or its answer is repeated before the attempt fails: seven times take three minutes with the default
    /// timeouts, as RFC 9293 section 3.8.3 asks.
    pub syn_retries: u8,
    /// Offers window scaling (RFC 7323 section 2).
    pub window_scaling: bool,
    /// Offers timestamps (RFC 7323 section 3), which bring protection against wrapped sequence numbers.
    pub timestamps: bool,
    /// Offers selective acknowledgment (RFC 2018).
    pub sack: bool,
    /// Offers explicit congestion notification (RFC 3168). DCTCP needs it.
    pub ecn: bool,
    /// How long old duplicates are waited for: twice the maximum segment lifetime (RFC 9293 section 3.4.2); 60 s, as Linux.
    pub time_wait: Duration,
    /// How long a connection that was released waits in FIN-WAIT-2 for the peer to close.
    pub fin_wait: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            receive_buffer: 1 << 20,
            send_buffer: 4 << 20,
            sender: sender::Config::default(),
            nodelay: false,
            delayed_ack: Duration::from_millis(40),
            keepalive: None,
            user_timeout: DEFAULT_USER_TIMEOUT,
            syn_retries: 7,
            window_scaling: true,
            timestamps: true,
            sack: true,
            ecn: false,
            time_wait: Duration::from_secs(60),
            fin_wait: Duration::from_secs(60),
        }
    }
}

/// Five minutes (RFC 9293 section 3.9.1.1).
pub(crate) const DEFAULT_USER_TIMEOUT: Duration = Duration::from_mins(5);
/// What a connection takes of its send buffer before its congestion window asks for more.
pub(crate) const FIRST_SEND_ROOM: u32 = 256 << 10;
/// Bounds of both buffers: RFC 7323 section 2.3 limits windows to 2^30.
pub(crate) const BUFFER_BOUNDS: (u32, u32) = (1 << 10, 1 << 30);

/// Probing of idle connections (RFC 9293 section 3.8.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Without anything from the peer for so long, the first probe goes out; 2 h by the RFC.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// So many unanswered and the connection fails.
    pub probes: u8,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { idle: Duration::from_hours(2), interval: Duration::from_secs(75), probes: 9 }
    }
}

/// What differs from one new connection to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// This side's port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
    /// Where the numbers begin: see [`isn`](crate::isn).
    pub numbers: InitialNumbers,
    /// The most that one segment can carry on the path, options included: the MTU less the IP header and 20 bytes (RFC 6691
    /// section 2).
    pub path_mss: u16,
    /// What the peer takes if it does not say: see [`default_mss`].
    pub default_mss: u16,
}

/// The segment size of a peer at `remote` that does not say, options included: 536 over IPv4, 1220 over IPv6 (RFC 9293 section
/// 3.7.1).
pub fn default_mss(remote: IpAddr) -> u16 {
    if remote.is_ipv6() { 1220 } else { 536 }
}

/// Where a connection's sequence numbers and timestamps begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitialNumbers {
    /// The number of the SYN (ISS).
    pub seq: Seq,
    /// Added to the clock of timestamps, so that it tells nothing about the machine (RFC 7323 section 5.4).
    pub timestamp_offset: u32,
}
