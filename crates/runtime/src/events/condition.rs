//! The types that a round reports, and the errors of commands.

use crate::token::Token;
use core::fmt;
use core::net::SocketAddr;
use core::ops::Range;
use std::io;

/// The loop's identifier of a socket, unique in the process. The handle of a closed socket stays
/// invalid.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::events::{CommandError, EventLoop, Token};
///
/// #[tailwater::main]
/// fn main() {
///     let mut events = EventLoop::new();
///     let listener = tailwater::net::TcpListener::bind("127.0.0.1:0").unwrap();
///     let handle = events.listen(listener, Token(0));
///     events.close(handle).unwrap();
///     assert_eq!(events.close(handle), Err(CommandError::UnknownHandle));
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    pub(super) index: u32,
    pub(super) generation: u64,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({}.{})", self.index, self.generation)
    }
}

/// Where the data of a datagram lies until the next round: see
/// [`EventLoop::datagram`](super::EventLoop::datagram).
///
/// # Examples
/// ```
/// use tailwater::events::{Condition, DatagramRange};
///
/// fn range(condition: Condition) -> Option<DatagramRange> {
///     match condition {
///         Condition::Datagram { range, .. } => Some(range),
///         _ => None,
///     }
/// }
/// assert_eq!(range(Condition::Woken), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramRange {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) round: u64,
    /// The socket's.
    pub(super) generation: u64,
}

impl DatagramRange {
    pub(super) fn new(socket: Handle, range: &Range<usize>, round: u64) -> Self {
        let generation = socket.generation;
        Self { start: range.start as u32, len: range.len() as u32, round, generation }
    }

    pub(super) fn bytes(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// What happened to a socket. In parentheses the name in IX (table II).
///
/// # Examples
/// ```
/// use tailwater::events::Condition;
///
/// assert_eq!(Condition::Woken.handle(), None, "no socket's");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// A peer has connected to a listener (knock). Nothing of the connection is reported until
    /// [`accept`](super::EventLoop::accept); [`close`](super::EventLoop::close) rejects it.
    /// Call one of the two at once: the connection no longer counts to the listener's backlog, so
    /// the backlog does not limit how many such connections there are. A connection that its peer
    /// resets before this condition is not reported.
    Incoming {
        /// The listener's.
        listener: Token,
        /// Of the new connection.
        handle: Handle,
        /// Address of the peer.
        peer: SocketAddr,
    },
    /// A connection that this side opened is established (connected). If it fails,
    /// [`Closed`](Self::Closed) is reported instead.
    Connected {
        /// The program's name for it.
        token: Token,
        /// The loop's name for it.
        handle: Handle,
    },
    /// Data has arrived (recv): [`data`](super::EventLoop::data) returns it, after the earlier
    /// bytes that are not consumed yet.
    Received {
        /// The program's name for it.
        token: Token,
        /// The loop's name for it.
        handle: Handle,
        /// Number of new bytes, at least one.
        fresh: usize,
    },
    /// A datagram has arrived.
    Datagram {
        /// The program's name for the socket.
        token: Token,
        /// The loop's name for the socket.
        handle: Handle,
        /// Address of its sender.
        from: SocketAddr,
        /// The argument for which [`datagram`](super::EventLoop::datagram) returns its data, in
        /// this round.
        range: DatagramRange,
    },
    /// A connection has room again after a [`send`](super::EventLoop::send) that was not accepted
    /// in full (sent). With [`report_acknowledged`](super::EventLoop::report_acknowledged) also:
    /// the peer has acknowledged bytes. Once both sides have shut down, acknowledgments that are
    /// still missing are not reported.
    Window {
        /// The program's name for it.
        token: Token,
        /// The loop's name for it.
        handle: Handle,
        /// Bytes that a `send` would accept now.
        room: usize,
        /// Bytes sent that the peer has acknowledged since the last such condition.
        acknowledged: usize,
    },
    /// The peer has closed its direction, and all its data was reported. This side may still send.
    Eof {
        /// The program's name for it.
        token: Token,
        /// The loop's name for it.
        handle: Handle,
    },
    /// An earlier datagram of a connected UDP socket was not delivered. The socket stays usable.
    Undelivered {
        /// The program's name for the socket.
        token: Token,
        /// The loop's name for the socket.
        handle: Handle,
        /// As `std`'s sockets report it.
        reason: io::ErrorKind,
    },
    /// A connection is over (dead): both sides have closed their directions, or it has failed. Its
    /// data can be read in this round; after that the handle is invalid.
    Closed {
        /// The program's name for it.
        token: Token,
        /// The loop's name for it.
        handle: Handle,
        /// Why it failed, as `std`'s sockets report it; `None` if it did not.
        reason: Option<io::ErrorKind>,
    },
    /// [`LoopWaker::wake`](super::LoopWaker::wake) was called, once or more.
    Woken,
}

impl Condition {
    /// Returns the handle of the socket that it is about.
    ///
    /// # Examples
    /// ```
    /// use tailwater::events::Condition;
    ///
    /// assert!(Condition::Woken.handle().is_none());
    /// ```
    pub fn handle(&self) -> Option<Handle> {
        match *self {
            Self::Incoming { handle, .. }
            | Self::Connected { handle, .. }
            | Self::Received { handle, .. }
            | Self::Datagram { handle, .. }
            | Self::Window { handle, .. }
            | Self::Eof { handle, .. }
            | Self::Undelivered { handle, .. }
            | Self::Closed { handle, .. } => Some(handle),
            Self::Woken => None,
        }
    }
}

/// The conditions of one round: see [`EventLoop::poll`](super::EventLoop::poll).
///
/// # Examples
/// ```
/// use tailwater::events::Batch;
///
/// let batch = Batch::new();
/// assert!(batch.is_empty() && batch.iter().next().is_none());
/// ```
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) conditions: Vec<Condition>,
}

impl Batch {
    /// Returns an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the conditions in the order in which they were found.
    ///
    /// # Examples
    /// ```
    /// use tailwater::events::Batch;
    ///
    /// assert_eq!(Batch::new().iter().count(), 0);
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = Condition> + '_ {
        self.conditions.iter().copied()
    }

    /// Returns their number.
    pub fn len(&self) -> usize {
        self.conditions.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }
}

/// Why a command was refused. A refused command has no effect.
///
/// # Examples
/// ```
/// use tailwater::events::{CommandError, EventLoop};
///
/// let mut events = EventLoop::new();
/// assert_eq!(events.set_batch(0), Err(CommandError::Batch(0)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// No socket of this loop has the handle.
    #[error("the handle is not of this loop, or was closed: forget a handle when it is closed")]
    UnknownHandle,
    /// The socket is of another kind.
    #[error("a socket of this kind has no such command")]
    WrongKind,
    /// The connection was not accepted.
    #[error("the connection waits to be accepted: call accept or close first")]
    NotAccepted,
    /// The connection needs no acceptance.
    #[error("the connection was accepted before, or was opened by this side")]
    Accepted,
    /// This side has closed its sending direction.
    #[error("the sending direction was closed by shutdown: nothing can be sent after it")]
    ShutDown,
    /// The connection has failed or ended.
    #[error(
        "the connection is over, and its condition Closed has the reason; or a clone of a registered \
         stream has closed the sending direction"
    )]
    Over,
    /// More bytes than there are.
    #[error("{asked} bytes cannot be consumed, for {lent} are lent: count those of `data` alone")]
    NotLent {
        /// The bytes to be consumed.
        asked: usize,
        /// The bytes on loan.
        lent: usize,
    },
    /// The datagram is of an earlier round.
    #[error("a datagram is lent until the next round: copy what is needed longer")]
    Returned,
    /// The datagram was received by another socket.
    #[error("the range is of another socket: pass the handle of the same condition")]
    OtherSocket,
    /// There is no room for a datagram now.
    #[error("the egress ring is full: send the datagram in a later round, or drop it")]
    Full,
    /// The datagram cannot be sent, as `std`'s sockets report it.
    #[error("the datagram cannot be sent: {0}")]
    Refused(io::ErrorKind),
    /// The size of a round is out of range.
    #[error("a round has 1 to 256 conditions, not {0}")]
    Batch(usize),
}
