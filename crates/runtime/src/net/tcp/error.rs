//! Failures as `std` on Linux reports them.

use crate::net::stack::tcp::{ConnectError, Failure, ListenError};
use std::io;
use tailwater_tcp::Error;

pub(super) fn errno(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// What a call that may not wait, or has waited long enough, says.
pub(super) fn would_block() -> io::Error {
    errno(libc::EAGAIN)
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        errno(match failure {
            Failure::Protocol(Error::Refused) => libc::ECONNREFUSED,
            Failure::Protocol(Error::Reset) => libc::ECONNRESET,
            Failure::Protocol(Error::Aborted) => libc::ECONNABORTED,
            Failure::Protocol(Error::TimedOut) => libc::ETIMEDOUT,
            Failure::Protocol(Error::HostUnreachable) => libc::EHOSTUNREACH,
            Failure::Protocol(Error::NetworkUnreachable) => libc::ENETUNREACH,
            Failure::Down => libc::ENETDOWN,
        })
    }
}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Send(error) => error.into(),
            ConnectError::NoPort(_) => Self::new(io::ErrorKind::AddrNotAvailable, error),
            ConnectError::TooMany(_) => Self::new(io::ErrorKind::QuotaExceeded, error),
        }
    }
}

impl From<ListenError> for io::Error {
    fn from(error: ListenError) -> Self {
        Self::new(io::ErrorKind::AddrInUse, error)
    }
}
