//! UDP and TCP in the shape of POSIX: descriptors, -1 and `errno`.
//!
//! [`table`] finds the socket of a descriptor, mostly by its `owner`; [`address`] converts
//! addresses, [`socket`] has the calls that make sockets and change their state, [`transfer`] those
//! that move bytes, [`options`] `setsockopt` and its kin.

pub mod address;
pub mod options;
mod owner;
pub mod socket;
pub mod table;
pub mod transfer;

use crate::border::{number, set_errno};
use core::ffi::c_int;
use std::io;

/// Returns the result of a call in POSIX's way: -1, with `errno` set.
pub(crate) fn posix(result: io::Result<c_int>) -> c_int {
    result.unwrap_or_else(|error| failed(&error))
}

/// As [`posix`], for a number of bytes.
#[inline]
pub(crate) fn posix_len(result: io::Result<usize>) -> isize {
    result.map_or_else(|error| failed(&error) as isize, |len| len as isize)
}

/// Sets `errno`; returns -1.
#[cold]
fn failed(error: &io::Error) -> c_int {
    set_errno(number(error));
    -1
}

/// Returns an error with a number of `errno`.
pub(crate) fn error(number: c_int) -> io::Error {
    io::Error::from_raw_os_error(number)
}
