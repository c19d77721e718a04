//! The error of a system call without a safe wrapper.

use rustix::io::Errno;

/// Returns the error that this thread's last call of the C library left; EIO if it left none.
pub fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
