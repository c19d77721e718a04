//! The functions that the library exports: the C interface.
//!
//! Owns pointers, `errno` and signals of broken pipes. Each function looks its descriptor up, and
//! calls the C library's where the descriptor is only the kernel's.
//!
//! A pointer of a program is valid as the manual page of its function says. That contract stands
//! for every function here, and every `SAFETY` comment rests on it.

mod datagrams;
mod descriptors;
mod events;
mod io;
mod kernel_side;
mod options;
mod process;
mod select;
mod sendfile;
mod sockets;

use crate::file::{Errno, File, What};
use crate::start::{self, Call};
use crate::{real, table};
use std::sync::Arc;

/// Returns the file of a served descriptor, and the proof that the caller is on a kthread. UDP
/// sockets are not among them: [`datagrams`] has their calls.
#[inline]
fn served(fd: i32) -> Option<(Arc<File>, Call)> {
    let file = table::get(fd)?;
    if !start::is_running() || matches!(file.what, What::Datagrams(_)) {
        return None;
    }
    Some((file, Call::begin()?))
}

/// Returns a result as C does.
#[inline]
fn answer(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(error) => real::fail(error) as isize,
    }
}

/// As [`answer`], for functions that return an int.
fn answer_int(result: Result<i32, Errno>) -> i32 {
    result.unwrap_or_else(real::fail)
}
