//! What the kernel knows of a descriptor's socket.

use crate::{address, real};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use libc::{
    IPPROTO_IPV6, IPPROTO_TCP, O_NONBLOCK, SO_PROTOCOL, SOL_SOCKET, c_int, sockaddr_storage, socklen_t,
    timeval,
};

/// Returns an int option of the kernel's socket.
pub fn option(fd: i32, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len) = (0, size_of::<c_int>() as socklen_t);
    // SAFETY: room for an int.
    let result = unsafe { real::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    (result == 0).then_some(value)
}

/// Returns a time option of the kernel's socket; `None` if it is no time.
pub fn time_option(fd: i32, name: c_int) -> Option<Duration> {
    let mut value = timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of::<timeval>() as socklen_t;
    // SAFETY: room for a timeval.
    let result = unsafe { real::getsockopt(fd, SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
    let time = Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000);
    (result == 0 && !time.is_zero()).then_some(time)
}

/// Returns whether the kernel's `fd` is a TCP socket over IP.
pub fn is_tcp(fd: i32) -> bool {
    let domain = option(fd, SOL_SOCKET, libc::SO_DOMAIN);
    // Not of MPTCP, whose options are others.
    option(fd, SOL_SOCKET, SO_PROTOCOL) == Some(IPPROTO_TCP)
        && matches!(domain, Some(libc::AF_INET | libc::AF_INET6))
}

/// Returns whether the kernel's socket `fd` has no peer.
pub fn is_unconnected(fd: i32) -> bool {
    let mut storage = core::mem::MaybeUninit::<sockaddr_storage>::zeroed();
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: room for any address.
    let result = unsafe { real::getpeername(fd, storage.as_mut_ptr().cast(), &raw mut len) };
    result != 0 && real::errno() == libc::ENOTCONN
}

/// Returns whether the kernel's description of `fd` has `O_NONBLOCK`.
pub fn is_nonblocking(fd: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { real::fcntl(fd, libc::F_GETFL, 0) & O_NONBLOCK != 0 }
}

/// Returns the address that the kernel's socket is bound to.
pub fn bound(fd: i32) -> Option<SocketAddr> {
    let mut storage = core::mem::MaybeUninit::<sockaddr_storage>::zeroed();
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: room for any address, which is read as far as it was written.
    unsafe {
        let result = real::getsockname(fd, storage.as_mut_ptr().cast(), &raw mut len);
        if result != 0 {
            return None;
        }
        address::read(storage.as_ptr().cast(), len)
    }
}

/// Returns whether a socket of Linux at `at` takes both families.
pub fn takes_both(fd: i32, at: SocketAddr) -> bool {
    at.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && option(fd, IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(0)
}

/// Returns whether Tailwater can listen at an address of Linux: all addresses, or loopback. Other
/// addresses are interfaces of Linux.
pub fn is_reachable(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.to_canonical().is_loopback()
}
