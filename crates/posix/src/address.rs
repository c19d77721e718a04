//! Socket addresses between C and Rust.
//!
//! Owns the two conversions; their callers vouch for the pointers.

use libc::{AF_INET, AF_INET6, c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Returns the IP address of a socket address; `None` for other families and for one cut short.
///
/// # Safety
/// `address` is null or valid for reading `len` bytes.
pub unsafe fn read(address: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    if address.is_null() || (len as usize) < size_of::<sockaddr_in>() {
        return None;
    }
    // SAFETY: by the caller's contract, with the length compared for each type.
    unsafe {
        match c_int::from((*address).sa_family) {
            AF_INET => {
                let v4 = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            AF_INET6 if len as usize >= size_of::<sockaddr_in6>() => {
                let v6 = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, u32::from_be(v6.sin6_flowinfo), v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// Writes an address as the kernel does: as much as there is room for, and its whole length.
///
/// # Safety
/// `out` and `len` are null, or `len` is valid and `out` valid for writing `*len` bytes.
pub unsafe fn write(address: SocketAddr, out: *mut sockaddr, len: *mut socklen_t) {
    if out.is_null() || len.is_null() {
        return;
    }
    let (bytes, size) = to_c(address);
    // SAFETY: by the caller's contract; the storage has `size` bytes and more.
    unsafe {
        let room = (*len as usize).min(size);
        core::ptr::copy_nonoverlapping((&raw const bytes).cast::<u8>(), out.cast(), room);
        *len = size as socklen_t;
    }
}

/// Returns an address in C's form, and its size.
pub fn to_c(address: SocketAddr) -> (sockaddr_storage, usize) {
    // SAFETY: a sockaddr_storage may be all zeros, and has room and alignment for both types.
    unsafe {
        let mut storage: sockaddr_storage = core::mem::zeroed();
        let size = match address {
            SocketAddr::V4(v4) => {
                let out = &mut *(&raw mut storage).cast::<sockaddr_in>();
                out.sin_family = AF_INET as u16;
                out.sin_port = v4.port().to_be();
                out.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                size_of::<sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                let out = &mut *(&raw mut storage).cast::<sockaddr_in6>();
                out.sin6_family = AF_INET6 as u16;
                out.sin6_port = v6.port().to_be();
                out.sin6_addr.s6_addr = v6.ip().octets();
                out.sin6_scope_id = v6.scope_id();
                size_of::<sockaddr_in6>()
            }
        };
        (storage, size)
    }
}
