//! A network namespace of this thread's, with a TUN device in it.

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::net::Ipv4Addr;
use std::process::Command;

pub const DEVICE: &str = "tw-path";

/// The two ends of the path.
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2)];

/// Moves this thread into a network namespace of its own and gives it a TUN device with the address
/// of `end`, whose route leads to the other's. Namespace and device go with the last that holds
/// them.
///
/// # Errors
/// What is missing.
pub fn enter(end: usize) -> Result<OwnedFd, String> {
    // SAFETY: a network namespace affects no memory; only this thread and those it starts are
    // moved.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|error| format!("no network namespace without CAP_SYS_ADMIN ({error})"))?;
    let device = open_tun().map_err(|error| format!("no TUN device ({error})"))?;
    let (own, other) = (ADDRESSES[end], ADDRESSES[1 - end]);
    ip(&["addr", "add", &own.to_string(), "peer", &other.to_string(), "dev", DEVICE])?;
    ip(&["link", "set", DEVICE, "up"])?;
    Ok(device)
}

/// Runs ip(8) in this thread's namespace.
///
/// # Errors
/// Its own words.
pub fn ip(arguments: &[&str]) -> Result<(), String> {
    let output =
        Command::new("ip").args(arguments).output().map_err(|error| format!("no ip(8) ({error})"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| format!("ip {arguments:?}: {said}"))
}

fn open_tun() -> std::io::Result<OwnedFd> {
    let fd = open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: all members are integers and arrays of them, for which zeros are values.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(DEVICE.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: this request reads and writes an ifreq, which lives across the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        0 => Ok(fd),
        _ => Err(std::io::Error::last_os_error()),
    }
}
