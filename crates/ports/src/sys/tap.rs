//! Linux TAP devices: making one (the kernel's tuntap.rst).

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::interface::{ioctl, request};
use super::last_error;

/// How a queue is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// It may be opened again for another queue.
    pub(crate) several: bool,
    /// Linux takes frames from it through its polled receive path.
    pub(crate) napi: bool,
    /// Linux passes long segments, and each frame is preceded by a `virtio_net_hdr` of 10 bytes in
    /// both directions.
    pub(crate) offload: bool,
}

impl Kind {
    fn flags(self) -> libc::c_int {
        libc::IFF_TAP
            | libc::IFF_NO_PI
            | if self.several { libc::IFF_MULTI_QUEUE } else { 0 }
            | if self.napi { libc::IFF_NAPI } else { 0 }
            | if self.offload { libc::IFF_VNET_HDR } else { 0 }
    }
}

/// Returns whether a descriptor is a queue of the TAP device `name`, opened in this way.
pub(crate) fn is_tap(device: &OwnedFd, name: &str, kind: Kind) -> bool {
    let all = Kind { several: true, napi: true, offload: true }.flags() | libc::IFF_TUN;
    let (Ok(mut found), Ok(wanted)) = (request(name), request(name)) else { return false };
    if ioctl(device, libc::TUNGETIFF, &mut found).is_err() {
        return false;
    }
    // SAFETY: the request has filled in the flags, and all values of an integer are valid.
    let flags = libc::c_int::from(unsafe { found.ifr_ifru.ifru_flags });
    found.ifr_name == wanted.ifr_name && flags & all == kind.flags()
}

/// Opens a queue of a TAP device by name, making the device if there is none; frames carry no
/// packet information header. Non-blocking.
///
/// # Errors
/// [`Errno::PERM`] without `CAP_NET_ADMIN` (unless the device exists and belongs to this user),
/// [`Errno::NOENT`] without the tun driver, [`Errno::BUSY`] when another program has it,
/// [`Errno::INVAL`] for an impossible name or a device of another kind.
pub(crate) fn open_tap(name: &str, kind: Kind) -> Result<OwnedFd, Errno> {
    let fd = open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = kind.flags() as libc::c_short;
    ioctl(&fd, libc::TUNSETIFF, &mut request)?;
    if !kind.offload {
        // A device that lasts keeps what its last user has set.
        set_offload(&fd, 0)?;
    } else {
        let segments = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        // Bundles of datagrams since Linux 6.2.
        set_offload(&fd, segments | libc::TUN_F_USO4 | libc::TUN_F_USO6)
            .or_else(|_| set_offload(&fd, segments))?;
    }
    Ok(fd)
}

/// Sets which work Linux may leave undone in the frames it passes.
fn set_offload(fd: &OwnedFd, what: u32) -> Result<(), Errno> {
    // SAFETY: the request takes a number and touches no memory of ours.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(what)) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}
