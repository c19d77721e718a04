//! Failures of TCP as `std` on Linux reports them.

use crate::net::error::{IntoIo, errno};
use std::io;
use tailwater_net::stack::tcp::{ConnectError, ListenError};
use tailwater_net::tcp::Failure;
use tailwater_tcp::Error;

impl IntoIo for Failure {
    fn into_io(self) -> io::Error {
        errno(match self {
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

impl IntoIo for ConnectError {
    fn into_io(self) -> io::Error {
        match self {
            ConnectError::Send(error) => error.into_io(),
            ConnectError::NoPort(_) => io::Error::new(io::ErrorKind::AddrNotAvailable, self),
            ConnectError::TooMany(_) => io::Error::new(io::ErrorKind::QuotaExceeded, self),
        }
    }
}

impl IntoIo for ListenError {
    fn into_io(self) -> io::Error {
        io::Error::new(io::ErrorKind::AddrInUse, self)
    }
}
