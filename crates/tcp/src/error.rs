//! Why a connection failed, and why a call was refused.

/// Why a connection failed or could not be opened. It does not change once set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Error {
    /// The port is closed: a reset answered the SYN, or a router reported it
    /// (`io::ErrorKind::ConnectionRefused`).
    #[error("the peer refused the connection")]
    Refused,
    /// The peer reset the connection (`ConnectionReset`).
    #[error("the peer reset the connection")]
    Reset,
    /// This side aborted it (`ConnectionAborted`).
    #[error("the connection was aborted by this side")]
    Aborted,
    /// The peer did not answer within the time limit (`TimedOut`).
    #[error("the peer stopped answering")]
    TimedOut,
    /// The peer did not answer, and routers reported that its host cannot be reached
    /// (`HostUnreachable`).
    #[error("the peer's host cannot be reached")]
    HostUnreachable,
    /// The peer did not answer, and routers reported that its network cannot be reached
    /// (`NetworkUnreachable`).
    #[error("the peer's network cannot be reached")]
    NetworkUnreachable,
}

/// Why [`Connection::send`](crate::Connection::send) accepted nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SendError {
    /// The buffer is full: try again after [`Events::WRITABLE`](crate::Events::WRITABLE).
    #[error("the send buffer is full")]
    WouldBlock,
    /// This direction was closed (`BrokenPipe`).
    #[error("this direction of the connection is closed")]
    Closed,
    /// The connection has failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Why [`Connection::recv`](crate::Connection::recv) returned nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RecvError {
    /// Nothing was received: try again after [`Events::READABLE`](crate::Events::READABLE).
    #[error("nothing was received")]
    WouldBlock,
    /// The connection has failed. Data received before is returned first.
    #[error(transparent)]
    Failed(#[from] Error),
}
