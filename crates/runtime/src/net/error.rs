//! Errors of the stack as the `std::io` errors that `std` on Linux returns.

use std::io;
use tailwater_net::SendError;
use tailwater_net::udp::{BindError, GroupError, SocketError};

/// An error of the stack that `std` on Linux reports too.
pub trait IntoIo {
    /// Returns the error that `std` reports.
    fn into_io(self) -> io::Error;
}

pub fn errno(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Returns the error of a call that may not wait, or has waited long enough.
pub fn would_block() -> io::Error {
    errno(libc::EAGAIN)
}

impl IntoIo for SocketError {
    fn into_io(self) -> io::Error {
        errno(match self {
            SocketError::Refused => libc::ECONNREFUSED,
            SocketError::HostUnreachable => libc::EHOSTUNREACH,
            SocketError::NetworkUnreachable => libc::ENETUNREACH,
            SocketError::NoProtocol => libc::ENOPROTOOPT,
            SocketError::Prohibited => libc::EACCES,
        })
    }
}

impl IntoIo for SendError {
    fn into_io(self) -> io::Error {
        let number = match self {
            SendError::Full => libc::EAGAIN,
            SendError::Down => libc::ENETDOWN,
            SendError::TooLong { .. } => libc::EMSGSIZE,
            SendError::NetworkUnreachable => libc::ENETUNREACH,
            SendError::HostUnreachable => libc::EHOSTUNREACH,
            SendError::Family => libc::EAFNOSUPPORT,
            SendError::BroadcastForbidden => return io::Error::new(io::ErrorKind::PermissionDenied, self),
            SendError::NoPort | SendError::LoopbackSource => {
                return io::Error::new(io::ErrorKind::InvalidInput, self);
            }
        };
        errno(number)
    }
}

impl IntoIo for BindError {
    fn into_io(self) -> io::Error {
        let kind = match self {
            BindError::InUse(_) | BindError::Crowded(_) | BindError::NoPort(_) => io::ErrorKind::AddrInUse,
            BindError::TooMany => io::ErrorKind::QuotaExceeded,
        };
        io::Error::new(kind, self)
    }
}

impl IntoIo for GroupError {
    fn into_io(self) -> io::Error {
        let kind = match self {
            GroupError::NoGroup(_) | GroupError::Bound(_) => io::ErrorKind::InvalidInput,
            GroupError::Joined(_) => io::ErrorKind::AddrInUse,
            GroupError::NotJoined(_) => io::ErrorKind::AddrNotAvailable,
            GroupError::TooMany => io::ErrorKind::QuotaExceeded,
        };
        io::Error::new(kind, self)
    }
}
