//! Options of a connection that `std` does not have.

use core::time::Duration;
use std::io;
use tailwater_net::tcp::DEFAULT_BACKLOG;
use tailwater_tcp::sender::Algorithm;
use tailwater_tcp::{Config, Keepalive};

/// Segment sizes that a program may set: Linux's bounds.
const SEGMENTS: core::ops::RangeInclusive<usize> = 88..=32_767;

/// Returns a segment size that [is allowed](SEGMENTS).
pub(super) fn valid_segment(bytes: usize) -> io::Result<u16> {
    let fits = u16::try_from(bytes).ok().filter(|_| SEGMENTS.contains(&bytes));
    fits.ok_or_else(|| {
        let (least, most) = (SEGMENTS.start(), SEGMENTS.end());
        let why = format!("a segment size of {bytes} bytes: {least} to {most} are allowed");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

/// The congestion control algorithm of a connection.
///
/// # Examples
/// ```
/// assert_eq!(tailwater::net::Congestion::default(), tailwater::net::Congestion::Cubic);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Congestion {
    /// RFC 5681 and RFC 6582.
    NewReno,
    /// RFC 9438, as Linux by default.
    #[default]
    Cubic,
    /// RFC 8257: only if all switches mark packets by ECN, within a data centre.
    Dctcp,
}

/// Options that are fixed when a connection begins; a listener's are those of the connections it
/// accepts.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::net::{Congestion, TcpOptions};
///
/// #[tailwater::main]
/// fn main() {
///     let options = TcpOptions::new().backlog(16).nodelay(true).congestion(Congestion::NewReno);
///     let listener = options.listen("127.0.0.1:0").unwrap();
///     let stream = options.connect(listener.local_addr().unwrap()).unwrap();
///     assert!(stream.nodelay().unwrap());
/// }
/// ```
#[derive(Debug, Clone)]
#[must_use = "options do nothing until something is opened with them"]
pub struct TcpOptions {
    pub(super) config: Config,
    pub(super) backlog: u32,
    pub(super) syn_queue: u32,
    pub(super) fast_open_pending: u32,
    pub(super) only_v6: bool,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            config: Config::default(),
            backlog: DEFAULT_BACKLOG,
            syn_queue: 1024,
            fast_open_pending: 256,
            only_v6: false,
        }
    }
}

impl TcpOptions {
    /// Returns the defaults: those of `std`'s sockets, CUBIC, a receive buffer of 1 MiB and a send
    /// buffer of 4 MiB, both allocated only as they fill, the latter up to 256 KiB until the
    /// congestion window needs more.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the congestion control.
    pub fn congestion(mut self, congestion: Congestion) -> Self {
        self.config.sender.algorithm = match congestion {
            Congestion::NewReno => Algorithm::NewReno,
            Congestion::Cubic => Algorithm::Cubic,
            Congestion::Dctcp => Algorithm::Dctcp,
        };
        self
    }

    /// Offers explicit congestion notification (RFC 3168). Off by default; DCTCP implies it.
    pub fn ecn(mut self, ecn: bool) -> Self {
        self.config.ecn = ecn;
        self
    }

    /// Sends small segments at once, as [`TcpStream::set_nodelay`] does.
    ///
    /// [`TcpStream::set_nodelay`]: crate::net::TcpStream::set_nodelay
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.config.nodelay = nodelay;
        self
    }

    /// Limits segments, sent and received, to `bytes` behind the fixed header (`TCP_MAXSEG`),
    /// clamped to 88 to 32,767. The limit is announced to the peer. A limit of 1460 or more, at
    /// an MTU of 1500 and over IPv4, does not limit what a program on the same machine sends.
    pub fn max_segment(mut self, bytes: usize) -> Self {
        self.config.max_segment = valid_segment(bytes.clamp(*SEGMENTS.start(), *SEGMENTS.end())).ok();
        self
    }

    /// Sets a low-water mark for unsent data: see [`TcpStream::set_notsent_lowat`].
    ///
    /// [`TcpStream::set_notsent_lowat`]: crate::net::TcpStream::set_notsent_lowat
    pub fn notsent_lowat(mut self, bytes: Option<usize>) -> Self {
        self.config.notsent_lowat = bytes.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        self
    }

    /// Sets the maximum of bytes received and not yet read, clamped to 1 KiB to 1 GiB. Set before
    /// the handshake it determines the window's scale.
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.config.receive_buffer = u32::try_from(bytes).unwrap_or(u32::MAX);
        self
    }

    /// Sets the maximum of bytes written and not yet acknowledged, clamped to 1 KiB to 1 GiB.
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.config.send_buffer = u32::try_from(bytes).unwrap_or(u32::MAX);
        self
    }

    /// Probes connections that are idle.
    pub fn keepalive(mut self, keepalive: Option<Keepalive>) -> Self {
        self.config.keepalive = keepalive;
        self
    }

    /// Sets the duration of TIME-WAIT: 60 s by default, as on Linux.
    pub fn time_wait(mut self, time_wait: Duration) -> Self {
        self.config.time_wait = time_wait;
        self
    }

    /// Sets the maximum number of connections that wait to be accepted: 4096 by default, at least
    /// 1. Further clients are not answered until there is room, and retry.
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    /// Sets the maximum number of handshakes that a listener remembers: 1024 by default. Further
    /// clients get a SYN cookie (RFC 4987 section 3.6), which needs no memory.
    ///
    /// The last acknowledgment of a handshake that is not remembered, as of every one with 0, does
    /// not fetch a core by itself: a program without a core gets it with the next frame that does,
    /// or after `ack-hold-us` of the IOKernel, 2 ms by default. The same may happen to a client
    /// that had to repeat its SYN.
    pub fn syn_queue(mut self, handshakes: u32) -> Self {
        self.syn_queue = handshakes;
        self
    }

    /// Uses TCP Fast Open (RFC 7413). A client asks a server for a cookie, and later carries the
    /// data of [`connect_with_data`](Self::connect_with_data) on its SYN. A listener hands out
    /// cookies, and a connection whose SYN shows one can be accepted, read and written at once.
    ///
    /// Data on a SYN may arrive twice: only for requests that may be repeated. A server is reached
    /// without it if it refuses the cookie, and a path that drops such SYNs is left alone for a
    /// minute, then longer.
    pub fn fast_open(mut self, fast_open: bool) -> Self {
        self.config.fast_open = fast_open;
        self
    }

    /// Sets the maximum of connections of a listener that were opened by a cookie and whose client
    /// has not confirmed the handshake: 256 by default. Further clients shake hands as usual.
    pub fn fast_open_pending(mut self, connections: u32) -> Self {
        self.fast_open_pending = connections;
        self
    }

    /// Has a listener at `[::]` take clients over IPv6 alone (`IPV6_V6ONLY`), so that another one
    /// may listen at 0.0.0.0 and the same port. Off by default, as on Linux.
    pub fn only_v6(mut self, only_v6: bool) -> Self {
        self.only_v6 = only_v6;
        self
    }
}
