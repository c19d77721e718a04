//! Finds requests in the bytes of a connection, and bounds the memory of a connection.

use super::super::server::catch;
use core::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the longest request.
const DEFAULT_LONGEST: usize = 64 << 10;
/// Open connections.
const DEFAULT_CONNECTIONS: usize = 4_096;
/// Requests of a connection whose replies are not written.
const DEFAULT_OUTSTANDING: usize = 64;
/// Bytes of requests and replies of a connection.
const DEFAULT_HELD: usize = 1 << 20;
/// How long a client may be idle.
pub(super) const DEFAULT_IDLE: Duration = Duration::from_secs(60);
/// Largest of the bounds in bytes.
const MAX_BYTES: usize = 1 << 30;
/// Most connections.
const MAX_CONNECTIONS: usize = 1 << 20;
/// Most outstanding requests of a connection: one that completes may settle all others with the
/// lock of the replies held, at about 10 ns each.
const MAX_OUTSTANDING: usize = 1 << 14;

/// What the first bytes of a connection that are not part of an earlier request are.
///
/// # Examples
/// ```
/// use tailwater::dispatch::Frame;
///
/// /// Two bytes of length, and so many bytes.
/// fn frame(bytes: &[u8], _seen: usize) -> Frame {
///     match bytes {
///         [a, b, ..] => Frame::Request(2 + usize::from(u16::from_be_bytes([*a, *b]))),
///         _ => Frame::Partial,
///     }
/// }
///
/// assert_eq!(frame(&[0], 0), Frame::Partial);
/// assert_eq!(frame(&[0, 3], 1), Frame::Request(5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// The beginning of a request of unknown length: more bytes are needed.
    Partial,
    /// A request of this many bytes, above 0. Not all of them need to have arrived.
    Request(usize),
    /// No request. The connection is closed.
    Malformed,
}

/// How a [`TcpServer`](super::TcpServer) finds requests in a stream of bytes, and what a connection
/// may hold.
///
/// # Examples
/// ```
/// use tailwater::dispatch::{Frame, Framing};
///
/// // Requests are lines of at most 1,000 bytes.
/// let lines = Framing::new(|bytes, seen| match bytes[seen..].iter().position(|&b| b == b'\n') {
///     Some(end) => Frame::Request(seen + end + 1),
///     None => Frame::Partial,
/// })
/// .longest(1_000);
/// assert!(format!("{lines:?}").contains("1000"));
/// ```
#[derive(Clone)]
pub struct Framing {
    frame: Arc<FrameFn>,
    pub(super) limits: Limits,
}

type FrameFn = dyn Fn(&[u8], usize) -> Frame + Send + Sync;

/// What a connection may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub longest: usize,
    pub connections: usize,
    pub outstanding: usize,
    pub held: usize,
    pub budget: Option<usize>,
    pub in_order: bool,
    pub idle: Option<Duration>,
}

impl fmt::Debug for Framing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Framing").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Framing {
    /// Requests as `frame` finds them: it gets the bytes after the last request, at least one, and
    /// returns what they begin with. If it panics, they are malformed. It is called again when more
    /// bytes have arrived, unless it has returned the length.
    ///
    /// Its second argument is how many of the bytes, from the first on, it has been given before: 0
    /// at first, and then as many as it has returned [`Frame::Partial`] for. A framing that
    /// searches for an end begins there, less what a part of the end may take. If it searched all
    /// bytes again, a client that sends one at a time would cost as much as the square of the
    /// longest request.
    pub fn new(frame: impl Fn(&[u8], usize) -> Frame + Send + Sync + 'static) -> Self {
        let limits = Limits {
            longest: DEFAULT_LONGEST,
            connections: DEFAULT_CONNECTIONS,
            outstanding: DEFAULT_OUTSTANDING,
            held: DEFAULT_HELD,
            budget: None,
            in_order: true,
            idle: Some(DEFAULT_IDLE),
        };
        Self { frame: Arc::new(frame), limits }
    }

    /// Sets the length of the longest request in bytes, 1 to 1 GiB. A connection that sends a
    /// longer one is closed. The default is 64 KiB.
    #[must_use]
    pub fn longest(mut self, bytes: usize) -> Self {
        self.limits.longest = bytes;
        self
    }

    /// Sets how many connections may be open, 1 to 1,048,576; others are closed at once. The
    /// default is 4,096.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.limits.connections = connections;
        self
    }

    /// Sets how many requests of a connection may be accepted whose replies are not written, 1 to
    /// 16,384. No further one is read meanwhile. The default is 64. With 1, the requests of a
    /// connection are executed one after the other.
    #[must_use]
    pub fn outstanding(mut self, requests: usize) -> Self {
        self.limits.outstanding = requests;
        self
    }

    /// Sets how many bytes of unfinished requests and unwritten replies a connection may hold, 1
    /// to 1 GiB. While there are as many, no further request is accepted from it. The default is 1
    /// MiB.
    #[must_use]
    pub fn held(mut self, bytes: usize) -> Self {
        self.limits.held = bytes;
        self
    }

    /// Sets how many bytes of requests and replies all connections may hold together, from 1 on;
    /// without, each has its own bounds only.
    ///
    /// A request takes room for itself and for its [longest reply](super::Service::reply_len) as
    /// soon as its length is known. The room that the reply does not need is returned when it is
    /// made, the rest when it is written. While there is no room the connection is not read. So
    /// clients that read no replies, or announce requests and do not send them, hold up others, for
    /// at most the [idle](Self::idle) time.
    ///
    /// # Examples
    /// ```
    /// use tailwater::dispatch::{Frame, Framing};
    ///
    /// let framing = Framing::new(|_, _| Frame::Request(1)).held(4 << 20).budget(256 << 20);
    /// assert!(format!("{framing:?}").contains("268435456"));
    /// ```
    #[must_use]
    pub fn budget(mut self, bytes: usize) -> Self {
        self.limits.budget = Some(bytes);
        self
    }

    /// Sends replies as they are ready, not in the order of the requests: each carries the number
    /// of its request, or whatever else lets the client tell them apart. A request that panics
    /// ends the connection at once: requests before it that still run are not replied to, either.
    #[must_use]
    pub fn numbered(mut self) -> Self {
        self.limits.in_order = false;
        self
    }

    /// Sets how long a connection may be silent that waits for no reply, how long a request may
    /// take from its first byte to its last, and how long the client may take to read each 64 KiB
    /// of the replies that wait for it, and to acknowledge the last. Then the connection is closed.
    /// The default is 60 seconds: too short for large requests over slow networks.
    ///
    /// `None` is for ever. A client that has vanished is then noticed by probes, after more than
    /// two hours ([`TcpOptions::keepalive`](crate::net::TcpOptions::keepalive) of the listener sets
    /// others).
    #[must_use]
    pub fn idle(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.limits.idle = time.into();
        self
    }

    /// Returns what `bytes`, at least one, begin with. The framing has been given the first `seen`
    /// of them before.
    pub(super) fn frame(&self, bytes: &[u8], seen: usize) -> Frame {
        match catch(|| (self.frame)(bytes, seen)) {
            Some(Frame::Request(0)) | None => Frame::Malformed,
            Some(frame) => frame,
        }
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// If one is out of range.
    pub(super) fn check(&self) -> io::Result<()> {
        let Limits { longest, connections, outstanding, held, idle, .. } = self.limits;
        for (name, value, most) in [
            ("the longest request in bytes", longest, MAX_BYTES),
            ("connections", connections, MAX_CONNECTIONS),
            ("outstanding requests of a connection", outstanding, MAX_OUTSTANDING),
            ("bytes that a connection holds", held, MAX_BYTES),
        ] {
            if !(1..=most).contains(&value) {
                let message = format!("{name}: {value} is out of range, use 1 to {most}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        }
        if self.limits.budget == Some(0) {
            let message = "a budget of 0 bytes admits no request: set one that holds the longest, or none";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if idle == Some(Duration::ZERO) {
            let message = "an idle time of 0 closes every connection: use a longer one, or none";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_out_of_range_are_refused_with_advice() {
        let new = || Framing::new(|_, _| Frame::Partial);
        assert!(new().check().is_ok());
        for (framing, fragment) in [
            (new().longest(0), "the longest request"),
            (new().longest(MAX_BYTES + 1), "use 1 to 1073741824"),
            (new().connections(0), "connections"),
            (new().outstanding(MAX_OUTSTANDING + 1), "use 1 to 16384"),
            (new().held(0), "holds"),
            (new().idle(Duration::ZERO), "use a longer one"),
            (new().budget(0), "a budget of 0"),
        ] {
            let message = framing.check().unwrap_err().to_string();
            assert!(message.contains(fragment), "{message}");
        }
    }

    #[test]
    fn a_framing_that_fails_finds_nothing() {
        assert_eq!(Framing::new(|_, _| Frame::Request(0)).frame(b"a", 0), Frame::Malformed);
        let panics = Framing::new(|bytes, _| Frame::Request(bytes[1].into()));
        assert_eq!(panics.frame(b"a", 0), Frame::Malformed);
    }
}
