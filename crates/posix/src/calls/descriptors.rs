//! Descriptors as such: closing, copying, flags.

use super::served;
use crate::file::{File, What};
use crate::{kept, own, real, start, table};
use core::sync::atomic::Ordering::Relaxed;
use libc::{
    F_DUPFD, F_DUPFD_CLOEXEC, F_GETFL, F_SETFL, O_NONBLOCK, O_RDWR, c_int, c_long, c_uint, c_ulong, c_void,
};
use std::sync::Arc;

/// Makes `fd` only the kernel's. What it was ends here if this was its last descriptor.
fn forget(fd: i32) {
    kept::forget(fd);
    end(table::take(fd));
}

/// Drops what a descriptor was.
fn end(file: Option<Arc<File>>) {
    if let Some(file) = file {
        // A connection ends on a kthread; a UDP socket without a side in Tailwater is the kernel's.
        let is_kernel = matches!(&file.what, What::Datagrams(datagrams) if datagrams.begun().is_none());
        let call = (!is_kernel && start::is_running()).then(start::Call::begin);
        drop(file);
        drop(call);
    }
}

/// Makes `to`, a new descriptor of the kernel, one of what `from` is.
fn copy(from: i32, to: i32) -> i32 {
    if to >= 0
        && let Some(file) = table::get(from)
    {
        table::put(to, file);
    }
    to
}

/// As [`copy`], for a `to` that may have been something before. A copy that the kernel refused
/// leaves it.
fn replace(from: i32, to: i32) -> i32 {
    if to < 0 {
        return to;
    }
    let before = table::take(to);
    copy(from, to);
    end(before);
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    // Before the number is free for another thread's descriptor.
    forget(fd);
    // SAFETY: the caller's contract.
    unsafe { real::close(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        table::each(first, last, forget);
    }
    if first <= last && start::is_running() {
        return own::close_others(first, last, flags);
    }
    // SAFETY: the caller's contract.
    unsafe { real::close_range(first, last, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    let from = first.max(0) as c_uint;
    table::each(from, c_uint::MAX, forget);
    if start::is_running() {
        own::close_others(from, c_uint::MAX, 0);
        return;
    }
    // SAFETY: the caller's contract.
    unsafe { real::closefrom(first) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    copy(fd, unsafe { real::dup(fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: no pointers.
    let result = unsafe { real::dup2(from, to) };
    if from == to { result } else { replace(from, result) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: no pointers.
    replace(from, unsafe { real::dup3(from, to, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's contract: the argument is one word, whatever it is.
    let kernel = || unsafe { real::fcntl(fd, command, argument) };
    let Some(file) = table::get(fd).filter(|_| start::may_serve()) else { return kernel() };
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => copy(fd, kernel()),
        F_GETFL => flags(&file, kernel()),
        F_SETFL => {
            let nonblocking = argument as c_int & O_NONBLOCK != 0;
            file.nonblocking.store(nonblocking, Relaxed);
            // All connections share one description of the kernel.
            if matches!(file.what, What::Stream(_)) { 0 } else { kernel() }
        }
        _ => kernel(),
    }
}

/// Returns the flags of a description, of which the kernel's are `kernel`.
fn flags(file: &Arc<File>, kernel: c_int) -> c_int {
    if !matches!(file.what, What::Stream(_)) {
        return kernel;
    }
    if file.nonblocking.load(Relaxed) { O_RDWR | O_NONBLOCK } else { O_RDWR }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { fcntl(fd, command, argument) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    let kernel = || unsafe { real::ioctl(fd, request, argument) };
    let Some((file, _call)) = served(fd) else {
        if request == libc::FIONREAD
            && let Some(bytes) = super::datagrams::unread(fd)
        {
            // SAFETY: the caller's contract: room for an int.
            unsafe { *argument.cast::<c_int>() = bytes };
            return 0;
        }
        if request == libc::FIONBIO
            && let Some(file) = table::get(fd)
        {
            // SAFETY: as above: an int.
            file.nonblocking.store(unsafe { *argument.cast::<c_int>() } != 0, Relaxed);
        }
        return kernel();
    };
    match request {
        libc::FIONBIO => {
            // SAFETY: the caller's contract: an int.
            file.nonblocking.store(unsafe { *argument.cast::<c_int>() } != 0, Relaxed);
            if file.stream().is_some() { 0 } else { kernel() }
        }
        libc::FIONREAD => {
            let Some(stream) = file.stream() else { return kernel() };
            let unread = c_int::try_from(stream.tcp.unread()).unwrap_or(c_int::MAX);
            // SAFETY: the caller's contract: room for an int.
            unsafe { *argument.cast::<c_int>() = unread };
            0
        }
        _ => kernel(),
    }
}
