//! Why a connection failed, and why a call was refused.

/// Why a connection is no more, or never came to be. It stays the same once set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Error {
    /// Nobody listens there: a reset answered the SYN, or a router said so (`io::ErrorKind::ConnectionRefused`).
    #[error("the peer refused the connection")]
    Refused,
    /// The peer reset the connection (`ConnectionReset`).
    #[error("the peer reset the connection")]
    Reset,
    /// This side aborted it (`ConnectionAborted`).
    #[error("the connection was aborted by this side")]
    Aborted,
    /// The peer answered nothing for as long as is waited (`TimedOut`).
    #[error("the peer stopped answering")]
    TimedOut,
    /// The peer answered nothing, and routers said that its host cannot be reached (`HostUnreachable`).
    #[error("the peer's host cannot be reached")]
    HostUnreachable,
    /// The same of its network (`NetworkUnreachable`).
    #[error("the peer's network cannot be reached")]
    NetworkUnreachable,
}

/// Why [`Connection::send`](crate::Connection::send) took nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SendError {
    /// The buffer is full: again after [`Events::WRITABLE`](crate::Events::WRITABLE).
    #[error("the send buffer is full")]
    WouldBlock,
    /// This direction was closed (`BrokenPipe`).
    #[error("this direction of the connection is closed")]
    Closed,
    /// There is no connection any more.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Why [`Connection::recv`](crate::Connection::recv) gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RecvError {
    /// Nothing is there: again after [`Events::READABLE`](crate::Events::READABLE).
    #[error("nothing was received")]
    WouldBlock,
    /// There is no connection any more. What was received before is handed out first.
    #[error(transparent)]
    Failed(#[from] Error),
}
