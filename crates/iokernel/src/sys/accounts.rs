//! Users and groups of the machine, by name, as all its programs see them (nsswitch.conf(5)).

use core::ffi::{c_char, c_int};
use core::mem::MaybeUninit;
use rustix::io::Errno;
use std::ffi::CString;

/// Least and greatest size of the buffer for an entry, in bytes; a group's has all its members.
const BUFFERS: core::ops::RangeInclusive<usize> = 1 << 12..=1 << 20;

/// The form of getpwnam_r(3) and getgrnam_r(3): 0 or an error, and the entry if there is one.
type Lookup<E> = unsafe extern "C" fn(*const c_char, *mut E, *mut c_char, usize, *mut *mut E) -> c_int;

/// Returns the number of the user of this name; `None` if there is none.
///
/// # Errors
/// What the system reports instead.
pub(crate) fn user(name: &str) -> Result<Option<u32>, Errno> {
    // SAFETY: getpwnam_r has the contract that `find` states, and `pw_uid` is a number.
    unsafe { find::<libc::passwd>(name, libc::getpwnam_r, |entry| entry.pw_uid) }
}

/// Returns the number of the group of this name; `None` if there is none.
///
/// # Errors
/// What the system reports instead.
pub(crate) fn group(name: &str) -> Result<Option<u32>, Errno> {
    // SAFETY: getgrnam_r has the contract that `find` states, and `gr_gid` is a number.
    unsafe { find::<libc::group>(name, libc::getgrnam_r, |entry| entry.gr_gid) }
}

/// Looks up `name` with larger and larger buffers.
///
/// # Safety
/// 1. `lookup` writes no more than the given length to the buffer, and if it makes its last
///    argument point to an entry, that is its second one, filled.
/// 2. `number` reads no pointer of the entry.
unsafe fn find<E>(name: &str, lookup: Lookup<E>, number: fn(&E) -> u32) -> Result<Option<u32>, Errno> {
    // No account has a name with a zero byte.
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut len = *BUFFERS.start();
    loop {
        let (mut entry, mut found) = (MaybeUninit::<E>::uninit(), core::ptr::null_mut());
        let mut buffer = vec![0 as c_char; len];
        // SAFETY: the name ends with a zero byte, and all four outlive the call; the buffer has the
        // length that is passed (1).
        let error =
            unsafe { lookup(name.as_ptr(), entry.as_mut_ptr(), buffer.as_mut_ptr(), len, &raw mut found) };
        match error {
            // Some systems report an unknown name as an error (getpwnam(3), ERRORS).
            0 | libc::ENOENT | libc::ESRCH if found.is_null() => return Ok(None),
            // SAFETY: the entry was found, so it is filled (1); its strings are not read (2).
            0 => return Ok(Some(number(unsafe { entry.assume_init_ref() }))),
            libc::ERANGE if len < *BUFFERS.end() => len *= 2,
            libc::EINTR => {}
            other => return Err(Errno::from_raw_os_error(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_and_nobody_else_of_an_impossible_name() {
        assert_eq!(user("root").unwrap(), Some(0));
        assert_eq!(group("root").unwrap(), Some(0));
        for name in ["no:such:account", "", "a\0b"] {
            assert_eq!((user(name).unwrap(), group(name).unwrap()), (None, None), "{name:?}");
        }
    }
}
