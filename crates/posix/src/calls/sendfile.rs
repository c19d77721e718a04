//! Copying from one descriptor to another: sendfile(2) and splice(2).

use super::io::{CHUNK, at_kernel, may_wait, one, write_from};
use super::{answer, served};
use crate::file::{Errno, File};
use crate::real;
use libc::{MSG_DONTWAIT, POLLOUT, c_int, c_uint, off64_t, size_t, ssize_t};
use tailwater::resident;

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off64_t, len: size_t) -> ssize_t {
    // SAFETY: the caller's contract.
    unsafe { sendfile64(to, from, offset, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, offset: *mut off64_t, len: size_t) -> ssize_t {
    match served(to) {
        // SAFETY: the caller's contract.
        Some((file, _call)) => answer(unsafe { copy_file(to, &file, from, offset, len) }),
        // SAFETY: as above.
        None => at_kernel(to, POLLOUT, 0, || unsafe { real::sendfile64(to, from, offset, len) }),
    }
}

/// Copies from a file to a served descriptor.
///
/// # Safety
/// As sendfile(2) for `offset`.
unsafe fn copy_file(
    to: i32,
    file: &File,
    from: i32,
    offset: *mut off64_t,
    len: usize,
) -> Result<usize, Errno> {
    let mut chunk = vec![0_u8; len.min(CHUNK)];
    let mut total = 0;
    // SAFETY: no pointers; the caller's contract.
    let mut at = unsafe { if offset.is_null() { libc::lseek64(from, 0, libc::SEEK_CUR) } else { *offset } };
    if at < 0 {
        return Err(libc::EINVAL);
    }
    while total < len {
        let room = chunk.len().min(len - total);
        // SAFETY: the chunk has that room.
        let read = unsafe { libc::pread64(from, chunk.as_mut_ptr().cast(), room, at) };
        if read < 0 && total == 0 {
            return Err(real::errno());
        }
        if read <= 0 {
            break;
        }
        // SAFETY: a buffer of our own.
        let sent = unsafe { write_from(to, file, &one(chunk.as_ptr().cast(), read as usize), 1, 0) };
        match sent {
            Ok(sent) => {
                total += sent;
                at += sent as off64_t;
                if sent < read as usize {
                    break;
                }
            }
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        }
    }
    // SAFETY: no pointers; the caller's contract.
    unsafe {
        if offset.is_null() {
            libc::lseek64(from, at, libc::SEEK_SET);
        } else {
            *offset = at;
        }
    }
    Ok(total)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    if served(from).is_some() || served(to).is_some() {
        return real::fail(libc::EINVAL) as ssize_t;
    }
    if resident::is_away() && (may_wait(from) || may_wait(to)) {
        resident::go_home();
    }
    // SAFETY: the caller's contract.
    at_kernel(to, POLLOUT, MSG_DONTWAIT, || unsafe {
        real::splice(from, from_offset, to, to_offset, len, flags)
    })
}
