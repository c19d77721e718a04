//! Credentials of the process at the other end of a Unix socket.

use core::ptr;

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;

use crate::errno::last_error;

/// The process that connected a socket, or called listen(2) on it, as it was then (`SO_PEERCRED` of
/// unix(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its number; `None` if it is in a PID namespace (pid_namespaces(7)) that this process does
    /// not see: of another container.
    pub pid: Option<i32>,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl Peer {
    /// Returns the peer of `socket`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of(socket: impl AsFd) -> Result<Self, Errno> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let socket = socket.as_fd().as_raw_fd();
        let value = (&raw mut peer).cast();
        // SAFETY: the option is a `ucred`, to which `value` points and whose size `len` has; both
        // outlive the call, which writes no more than that.
        let result = unsafe {
            libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, value, ptr::from_mut(&mut len))
        };
        if result != 0 {
            return Err(last_error());
        }
        // 0 stands for a process that has no number here.
        Ok(Self { pid: Some(peer.pid).filter(|&pid| pid > 0), uid: peer.uid, gid: peer.gid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let own = Peer {
            pid: Some(std::process::id().cast_signed()),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        assert_eq!(Peer::of(&one), Ok(own));
    }

    #[test]
    fn a_descriptor_that_is_no_socket_has_no_peer() {
        assert_eq!(Peer::of(std::fs::File::open("/dev/null").unwrap()), Err(Errno::NOTSOCK));
    }
}
