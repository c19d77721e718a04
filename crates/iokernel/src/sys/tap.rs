//! Linux TAP devices: making one (the kernel's tuntap.rst).

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::interface::{ioctl, request};

/// Opens a queue of a TAP device by name, making the device if there is none; frames carry no packet information header.
/// Non-blocking. With `several` it may be opened again for another queue; with `napi` Linux takes frames from it by its
/// polled receive path.
///
/// # Errors
/// [`Errno::PERM`] without `CAP_NET_ADMIN` (unless the device exists and belongs to this user), [`Errno::NOENT`] without the
/// tun driver, [`Errno::BUSY`] when another program has it, [`Errno::INVAL`] for an impossible name or a device of another
/// kind.
pub(crate) fn open_tap(name: &str, several: bool, napi: bool) -> Result<OwnedFd, Errno> {
    let fd = open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let mut request = request(name)?;
    let flags = libc::IFF_TAP
        | libc::IFF_NO_PI
        | if several { libc::IFF_MULTI_QUEUE } else { 0 }
        | if napi { libc::IFF_NAPI } else { 0 };
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    ioctl(&fd, libc::TUNSETIFF, &mut request)?;
    Ok(fd)
}
