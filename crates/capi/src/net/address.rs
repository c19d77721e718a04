//! `sockaddr` and Rust's addresses.

use super::error;
use core::mem;
use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Reads an address of C.
///
/// # Errors
/// `EINVAL` if it is null or too short, `EAFNOSUPPORT` for another family.
///
/// # Safety
/// `address` is null or has `len` bytes.
#[inline]
pub unsafe fn read(address: *const sockaddr, len: socklen_t) -> io::Result<SocketAddr> {
    let len = len as usize;
    if address.is_null() || len < size_of::<sockaddr>() {
        return Err(error(libc::EINVAL));
    }
    // SAFETY: by the caller's contract, each structure only if the length has room for it.
    unsafe {
        match i32::from((*address).sa_family) {
            AF_INET if len >= size_of::<sockaddr_in>() => {
                let v4 = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            AF_INET6 if len >= size_of::<sockaddr_in6>() => {
                let v6 = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            AF_INET | AF_INET6 => Err(error(libc::EINVAL)),
            _ => Err(error(libc::EAFNOSUPPORT)),
        }
    }
}

/// Writes an address where C has room for `*len` bytes, cut off if there is too little, and its
/// length to `*len`. Does nothing if `address` or `len` is null.
///
/// # Safety
/// `len` is null or valid, and `address` null or of `*len` bytes.
#[inline]
pub unsafe fn write(value: SocketAddr, address: *mut sockaddr, len: *mut socklen_t) {
    if address.is_null() || len.is_null() {
        return;
    }
    // SAFETY: zeros are valid addresses; the rest by the caller's contract.
    unsafe {
        match value {
            SocketAddr::V4(v4) => {
                let mut out: sockaddr_in = mem::zeroed();
                out.sin_family = AF_INET as u16;
                out.sin_port = v4.port().to_be();
                out.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                put(out, address, len);
            }
            SocketAddr::V6(v6) => {
                let mut out: sockaddr_in6 = mem::zeroed();
                out.sin6_family = AF_INET6 as u16;
                out.sin6_port = v6.port().to_be();
                out.sin6_flowinfo = v6.flowinfo();
                out.sin6_scope_id = v6.scope_id();
                out.sin6_addr.s6_addr = v6.ip().octets();
                put(out, address, len);
            }
        }
    }
}

/// Stores an address, cut off at `*len` bytes, and its length in `*len`. Room for all of it is the
/// common case, which has no call of `memcpy`.
///
/// # Safety
/// `len` is valid, and `address` has `*len` bytes.
#[inline]
unsafe fn put<T>(value: T, address: *mut sockaddr, len: *mut socklen_t) {
    let size = size_of::<T>();
    // SAFETY: by the caller's contract, each store only if there is room for it.
    unsafe {
        let room = (*len) as usize;
        if room >= size {
            address.cast::<T>().write_unaligned(value);
        } else {
            core::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), address.cast(), room);
        }
        *len = size as socklen_t;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_went() {
        for text in ["10.1.2.3:80", "[fe80::1%3]:65535", "[::ffff:1.2.3.4]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            // SAFETY: the storage is as long as it says.
            unsafe {
                let mut storage: libc::sockaddr_storage = mem::zeroed();
                let mut len = size_of_val(&storage) as socklen_t;
                write(address, (&raw mut storage).cast(), &raw mut len);
                assert_eq!(read((&raw const storage).cast(), len).unwrap(), address);
                assert_eq!(
                    read((&raw const storage).cast(), 4).unwrap_err().raw_os_error(),
                    Some(libc::EINVAL)
                );
            }
        }
    }

    #[test]
    fn a_short_buffer_gets_what_fits_and_learns_the_length() {
        let mut bytes = [0xffu8; 16];
        let mut len = 4;
        // SAFETY: the buffer has more than the four bytes that it says.
        unsafe { write("1.2.3.4:5".parse().unwrap(), bytes.as_mut_ptr().cast(), &raw mut len) };
        assert_eq!((len, bytes[4]), (16, 0xff));
    }
}
