//! The system calls that have no safe wrapper: all `unsafe` code of this crate.
//!
//! Owns thin functions with checked arguments, and the rings of an AF_XDP socket; no policy.

#![allow(unsafe_code)]

pub(crate) mod interface;
pub(crate) mod tap;
pub(crate) mod xsk;
