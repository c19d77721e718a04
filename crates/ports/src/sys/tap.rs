//! Linux TAP devices: making one (the kernel's tuntap.rst).

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use tailwater_shm::last_error;

use super::interface::{ioctl, request};
use crate::tap_offload::HEADER;

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

    /// Returns whether a device with these flags is of this kind.
    fn has(self, flags: libc::c_int) -> bool {
        let all = Self { several: true, napi: true, offload: true }.flags() | libc::IFF_TUN;
        flags & all == self.flags()
    }
}

/// Returns whether a descriptor is a queue of the TAP device `name`, opened in this way.
pub(crate) fn is_tap(device: &OwnedFd, name: &str, kind: Kind) -> bool {
    let (Ok(mut found), Ok(wanted)) = (request(name), request(name)) else { return false };
    if ioctl(device, libc::TUNGETIFF, &mut found).is_err() {
        return false;
    }
    // SAFETY: the request has filled in the flags, and all values of an integer are valid.
    let flags = libc::c_int::from(unsafe { found.ifr_ifru.ifru_flags });
    found.ifr_name == wanted.ifr_name && kind.has(flags)
}

/// Returns whether the TAP device `name` was opened in this way; `None` if `/sys` does not say so.
pub(crate) fn is_in_use_as(name: &str, kind: Kind) -> Option<bool> {
    let flags = std::fs::read_to_string(format!("/sys/class/net/{name}/tun_flags")).ok()?;
    Some(kind.has(libc::c_int::from_str_radix(flags.trim().strip_prefix("0x")?, 16).ok()?))
}

/// Opens a queue of a TAP device by name, making the device if there is none. Frames carry no
/// packet information header. Non-blocking. A device that is in use stays as it is: what Linux
/// passes is set by [`set_segments`].
///
/// # Errors
/// [`Errno::PERM`] without `CAP_NET_ADMIN` (unless the device exists and belongs to this user),
/// [`Errno::NOENT`] without the tun driver, [`Errno::BUSY`] when another program has it,
/// [`Errno::EXIST`] when another program has some of its queues with other `napi` or `offload`,
/// [`Errno::INVAL`] for an impossible name or a device of another kind.
pub(crate) fn open_tap(name: &str, kind: Kind) -> Result<OwnedFd, Errno> {
    let fd = open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = kind.flags() as libc::c_short;
    ioctl(&fd, libc::TUNSETIFF, &mut request)?;
    // Linux lets another program open a further queue of a device that has several, and keeps the
    // device's kind.
    if is_tap(&fd, name, kind) { Ok(fd) } else { Err(Errno::EXIST) }
}

/// Sets what Linux passes through a device of this kind, for all its queues: a device that lasts
/// keeps what its last user has set.
///
/// # Errors
/// [`Errno::OPNOTSUPP`] when this kernel passes no long segments.
pub(crate) fn set_segments(fd: &OwnedFd, kind: Kind) -> Result<(), Errno> {
    let is_unknown = |error| matches!(error, Errno::INVAL | Errno::NOTTY);
    if !kind.offload {
        return match set_offload(fd, 0) {
            Err(error) if !is_unknown(error) => Err(error),
            _ => Ok(()),
        };
    }
    let segments = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    // Bundles of datagrams since Linux 6.2.
    set_header(fd, HEADER)
        .and_then(|()| {
            set_offload(fd, segments | libc::TUN_F_USO4 | libc::TUN_F_USO6)
                .or_else(|_| set_offload(fd, segments))
        })
        .map_err(|error| if is_unknown(error) { Errno::OPNOTSUPP } else { error })
}

/// Sets the length of the header before each frame.
fn set_header(fd: &OwnedFd, len: usize) -> Result<(), Errno> {
    let len = len as libc::c_int;
    // SAFETY: the request reads an int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Sets which work Linux may leave undone in the frames it passes.
fn set_offload(fd: &OwnedFd, what: u32) -> Result<(), Errno> {
    // SAFETY: the request takes a number and touches no memory of ours.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(what)) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

#[cfg(test)]
mod tests {
    use super::super::interface::Interface;
    use super::*;
    use std::net::Ipv4Addr;
    use tailwater_testkit::eventually;
    use tailwater_testkit::namespace::Namespace;

    use crate::tap::TapPort;
    use crate::{Context, Port};
    use tailwater_shm::Clock;

    /// `ETHTOOL_GTXCSUM`, `ETHTOOL_GTSO` (linux/ethtool.h): what Linux may leave undone.
    const FEATURES: [u32; 2] = [0x16, 0x1e];

    /// Runs `test` in a namespace of its own, if this machine has what it needs.
    fn in_namespace(test: impl FnOnce()) {
        if !std::path::Path::new("/dev/net/tun").exists() {
            return eprintln!("skipped: this kernel has no /dev/net/tun");
        }
        match Namespace::new() {
            Ok(namespace) => namespace.inside(test),
            Err(why) => eprintln!("skipped: {why}"),
        }
    }

    #[test]
    fn a_device_of_several_queues_that_another_program_uses_is_refused_and_stays_as_it_is() {
        in_namespace(|| {
            let running = Kind { several: true, napi: false, offload: true };
            let queue = open_tap("tw0", running).unwrap();
            set_segments(&queue, running).unwrap();
            let interface = Interface::new("tw0").unwrap();
            let features = || FEATURES.map(|feature| interface.value(feature));
            assert_eq!(features(), [Some(1); 2], "the device has what was set");
            // `/sys` may be that of another network namespace, and say nothing of the kind.
            for words in ["tw0,queues=2", "tw0,queues=2,offload=off", "tw0,queues=2,napi"] {
                let port = TapPort::with_spec(words.parse().unwrap(), Ipv4Addr::LOCALHOST);
                let error = port.examine(16, false).unwrap_err().to_string();
                assert!(error.contains("another program uses tw0"), "{words}: {error}");
                assert_eq!(features(), [Some(1); 2], "{words}");
            }
            set_offload(&queue, 0).unwrap();
            let mut same = TapPort::with_spec("tw0,queues=2".parse().unwrap(), Ipv4Addr::LOCALHOST);
            assert!(same.examine(16, true).unwrap().contains("passed on"));
            let clock = Clock::from_hz(1_000_000_000);
            let context = Context { clock, mtu: 1500, prefix_len: 16, network6: None };
            let error = same.start(&context).unwrap_err().to_string();
            assert!(error.contains("another program uses tw0"), "{error}");
            assert_eq!(features(), [Some(0); 2], "one of the same kind changes nothing, either");
            drop(queue);
            // A child that another test has just started may have it for a moment.
            eventually("the device is gone", || {
                same.examine(16, false).ok().filter(|found| found.contains("can be made"))
            });
        });
    }

    #[test]
    fn an_interface_that_is_no_tap_device_is_refused_before_a_takeover_too() {
        in_namespace(|| {
            let port = TapPort::with_spec("lo,queues=2".parse().unwrap(), Ipv4Addr::LOCALHOST);
            for inherits in [false, true] {
                let error = port.examine(16, inherits).unwrap_err().to_string();
                assert!(error.contains("of another kind"), "{error}");
            }
        });
    }

    #[test]
    fn a_device_that_lasts_gets_the_header_of_its_next_user() {
        in_namespace(|| {
            let kind = Kind { several: false, napi: false, offload: true };
            let before = open_tap("tw0", kind).unwrap();
            set_header(&before, 12).unwrap();
            // SAFETY: the request takes a number and touches no memory of ours.
            assert_eq!(unsafe { libc::ioctl(before.as_raw_fd(), libc::TUNSETPERSIST, 1) }, 0);
            drop(before);
            let next = open_tap("tw0", kind).unwrap();
            let header = || {
                let mut len: libc::c_int = 0;
                // SAFETY: the request writes an int.
                let result = unsafe { libc::ioctl(next.as_raw_fd(), libc::TUNGETVNETHDRSZ, &raw mut len) };
                (result, len)
            };
            assert_eq!(header(), (0, 12), "Linux keeps it");
            set_segments(&next, kind).unwrap();
            assert_eq!(header(), (0, HEADER as libc::c_int));
        });
    }
}
