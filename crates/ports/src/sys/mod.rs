//! The system calls that have no safe wrapper: all `unsafe` code of this crate.
//!
//! Owns thin functions with checked arguments, and the rings of an AF_XDP socket; no policy.

#![allow(unsafe_code)]

pub(crate) mod interface;
pub(crate) mod tap;
pub(crate) mod xsk;

use rustix::io::Errno;

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
