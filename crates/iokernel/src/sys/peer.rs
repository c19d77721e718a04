//! Options of Unix sockets that concern the process at the other end.

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use tailwater_shm::last_error;

/// `SO_PASSRIGHTS` of `<asm-generic/socket.h>`, since Linux 6.16; libc has no name for it.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Has the kernel refuse messages with descriptors to this socket, and to those accepted from it:
/// their senders get `EPERM`.
///
/// # Errors
/// [`Errno::NOPROTOOPT`] before Linux 6.16.
pub(crate) fn refuse_descriptors(socket: impl AsFd) -> Result<(), Errno> {
    let pass: libc::c_int = 0;
    let len = size_of_val(&pass) as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the option takes an int, which outlives the call; its size is passed with it.
    let result =
        unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const pass).cast(), len) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Returns a descriptor of the process that connected `socket`: of that process even if its number
/// belongs to another one by now (`SO_PEERPIDFD`, since Linux 6.5).
///
/// # Errors
/// [`Errno::NOPROTOOPT`] before Linux 6.5; another error if the process is gone.
pub(crate) fn process_of(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    let mut process: libc::c_int = -1;
    let mut len = size_of_val(&process) as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    let value = (&raw mut process).cast();
    // SAFETY: the option is an int, to which `value` points and whose size `len` has; both outlive
    // the call, which writes no more than that.
    let result =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERPIDFD, value, &raw mut len) };
    if result != 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel has made this descriptor for the caller, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(process) })
}

/// Returns the supplementary groups that the process had which connected `socket`
/// (`SO_PEERGROUPS`, since Linux 4.13).
///
/// # Errors
/// The kernel's error.
pub(crate) fn groups_of(socket: impl AsFd) -> Result<Vec<u32>, Errno> {
    let socket = socket.as_fd().as_raw_fd();
    let mut groups = vec![0 as libc::gid_t; 64];
    loop {
        let mut len = size_of_val(&groups[..]) as libc::socklen_t;
        let value = groups.as_mut_ptr().cast();
        // SAFETY: `value` points to as many bytes as `len` has; both outlive the call, which writes
        // no more than that.
        let result =
            unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERGROUPS, value, &raw mut len) };
        let count = len as usize / size_of::<libc::gid_t>();
        match if result == 0 { Ok(()) } else { Err(last_error()) } {
            Ok(()) => {
                groups.truncate(count);
                return Ok(groups);
            }
            // The length is the one that is needed. A socket's groups do not change.
            Err(Errno::RANGE) if count > groups.len() => groups.resize(count, 0),
            Err(error) => return Err(error),
        }
    }
}
