//! Reading and writing of connections, as recv(2) and send(2) do.
//!
//! Owns what a call does that fills or empties its buffers in several steps: how long it waits in
//! between, and what it returns if a step fails.

use crate::file::{Errno, File, Stream, errno};
use crate::ready;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use libc::{POLLIN, POLLOUT, c_int};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};

/// How a call for data differs from plain read and write.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    pub waits: bool,
    pub peeks: bool,
    pub fills: bool,
}

impl Manner {
    /// Returns the manner of a call on `file` with the flags of recv(2) and send(2).
    pub fn of(file: &File, flags: c_int) -> Self {
        Self {
            waits: !file.nonblocking.load(Relaxed) && flags & libc::MSG_DONTWAIT == 0,
            peeks: flags & libc::MSG_PEEK != 0,
            fills: flags & libc::MSG_WAITALL != 0,
        }
    }
}

fn limit(ns: &AtomicU64) -> Option<Duration> {
    Some(ns.load(Relaxed)).filter(|&ns| ns > 0).map(Duration::from_nanos)
}

/// Reads into `buffers` as recv(2).
///
/// # Errors
/// What `errno` becomes.
pub fn receive(
    fd: i32,
    stream: &Stream,
    buffers: &mut [IoSliceMut<'_>],
    manner: Manner,
) -> Result<usize, Errno> {
    let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let mut total = 0;
    let mut left: &mut [IoSliceMut<'_>] = buffers;
    loop {
        let result = if manner.peeks {
            let first = left.iter_mut().find(|buffer| !buffer.is_empty());
            first.map_or(Ok(0), |buffer| stream.tcp.peek(buffer))
        } else {
            (&stream.tcp).read_vectored(left)
        };
        match result {
            Ok(read) => {
                total += read;
                if read == 0 || total == wanted || !manner.fills || manner.peeks {
                    return Ok(total);
                }
                IoSliceMut::advance_slices(&mut left, read);
                continue;
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                return if total > 0 { Ok(total) } else { Err(errno(&error)) };
            }
            Err(_) if !manner.waits => return if total > 0 { Ok(total) } else { Err(libc::EAGAIN) },
            Err(_) => {}
        }
        match ready::wait_for(fd, POLLIN, limit(&stream.receive_ns)) {
            Ok(()) => {}
            Err(_) if total > 0 => return Ok(total),
            Err(error) => return Err(error),
        }
    }
}

/// Writes `buffers` as send(2): all of them, if it may wait.
///
/// # Errors
/// What `errno` becomes.
pub fn send(fd: i32, stream: &Stream, buffers: &mut [IoSlice<'_>], manner: Manner) -> Result<usize, Errno> {
    let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let mut total = 0;
    let mut left: &mut [IoSlice<'_>] = buffers;
    loop {
        match (&stream.tcp).write_vectored(left) {
            Ok(written) => {
                total += written;
                if total == wanted {
                    return Ok(total);
                }
                IoSlice::advance_slices(&mut left, written);
                if written > 0 {
                    continue;
                }
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                return if total > 0 { Ok(total) } else { Err(errno(&error)) };
            }
            Err(_) => {}
        }
        if !manner.waits {
            return if total > 0 { Ok(total) } else { Err(libc::EAGAIN) };
        }
        match ready::wait_for(fd, POLLOUT, limit(&stream.send_ns)) {
            Ok(()) => {}
            Err(_) if total > 0 => return Ok(total),
            Err(error) => return Err(error),
        }
    }
}
