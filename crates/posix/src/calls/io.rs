//! Reading and writing.

use super::{answer, datagrams, events, served};
use crate::file::{Errno, File, What};
use crate::transfer::{self, Manner, receive};
use crate::{kernel, ready, real, start, table};
use core::sync::atomic::AtomicBool;
use libc::{
    EPIPE, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_OOB, MSG_TRUNC, MSG_WAITFORONE, POLLIN, POLLOUT, c_int, c_short,
    c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec,
};
use std::io::{IoSlice, IoSliceMut};
use std::time::Instant;
use tailwater::resident::{self, Interrupted};

/// Bytes that sendfile(2) copies, and that a read throws away, at once.
pub const CHUNK: usize = 64 * 1024;
/// Buffers and messages of one call that the kernel allows (`UIO_MAXIOV`).
const MAX_BUFFERS: usize = 1024;

/// Calls the C library for a descriptor of the kernel: at home, if the call may wait. That a
/// descriptor is ready does not say so: another thread may be first, and a write may need more room
/// than there is. `flags` are those of recv(2) and send(2). A handler that ran on the way ends a
/// call that would have waited for `events`, and none without: Linux looks before it waits.
pub fn at_kernel<R: From<i8>>(fd: i32, events: c_short, flags: c_int, call: impl FnOnce() -> R) -> R {
    if resident::is_away()
        && flags & MSG_DONTWAIT == 0
        && may_wait(fd)
        && let Some(Interrupted { restarts: false }) = resident::go_home()
        && events != 0
        && !ready::kernel_is_ready(fd, events)
    {
        real::fail(libc::EINTR);
        return R::from(-1);
    }
    let result = call();
    if events == POLLOUT {
        kernel::note_write();
    }
    result
}

/// Returns whether reading and writing of the kernel's `fd` may wait: not with `O_NONBLOCK`, and
/// not for files.
pub fn may_wait(fd: i32) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    if flags < 0 || flags & libc::O_NONBLOCK != 0 {
        return false;
    }
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for a status, which is read only if it was written.
    unsafe {
        libc::fstat(fd, status.as_mut_ptr()) != 0
            || status.assume_init().st_mode & libc::S_IFMT != libc::S_IFREG
    }
}

/// A copy of a program's list of buffers, which reading and writing advance.
pub struct List {
    /// The buffer of a list of one.
    one: [iovec; 1],
    many: Vec<iovec>,
    count: usize,
}

impl List {
    /// Copies and checks a list.
    ///
    /// # Errors
    /// `EINVAL` if there are too many buffers or bytes, `EFAULT` for a null pointer to bytes.
    ///
    /// # Safety
    /// As readv(2) for the list.
    pub unsafe fn of(buffers: *const iovec, count: usize) -> Result<Self, Errno> {
        if count > MAX_BUFFERS {
            return Err(libc::EINVAL);
        }
        let mut list = Self { one: [one(core::ptr::null(), 0)], many: Vec::new(), count };
        // SAFETY: the caller's contract.
        unsafe {
            match count {
                0 => {}
                1 => list.one[0] = buffers.read(),
                _ => list.many = core::slice::from_raw_parts(buffers, count).to_vec(),
            }
        }
        let mut bytes = 0_usize;
        for buffer in list.all() {
            bytes = bytes
                .checked_add(buffer.iov_len)
                .filter(|&bytes| bytes <= isize::MAX as usize)
                .ok_or(libc::EINVAL)?;
            if buffer.iov_len == 0 {
                // A slice has no null pointer.
                buffer.iov_base = core::ptr::NonNull::<u8>::dangling().as_ptr().cast();
            } else if buffer.iov_base.is_null() {
                return Err(libc::EFAULT);
            }
        }
        Ok(list)
    }

    fn all(&mut self) -> &mut [iovec] {
        match self.count {
            0 => &mut [],
            1 => &mut self.one,
            _ => &mut self.many,
        }
    }

    /// Returns the buffers for reading.
    ///
    /// # Safety
    /// As readv(2) for the buffers.
    pub unsafe fn for_reading(&mut self) -> &mut [IoSliceMut<'_>] {
        let all = self.all();
        // SAFETY: the caller's contract; an `IoSliceMut` is an iovec, and `of` has left no null
        // pointer.
        unsafe { core::slice::from_raw_parts_mut(all.as_mut_ptr().cast(), all.len()) }
    }

    /// Returns the buffers for writing.
    ///
    /// # Safety
    /// As writev(2) for the buffers.
    pub unsafe fn for_writing(&mut self) -> &mut [IoSlice<'_>] {
        let all = self.all();
        // SAFETY: as in `for_reading`.
        unsafe { core::slice::from_raw_parts_mut(all.as_mut_ptr().cast(), all.len()) }
    }
}

/// Reads from a served descriptor.
///
/// # Safety
/// As readv(2).
unsafe fn read_into(
    fd: i32,
    file: &File,
    buffers: *const iovec,
    count: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    let stream = file.stream().ok_or(libc::EINVAL)?;
    if flags & (MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // Linux's answers where there is no such data.
        return Err(if flags & MSG_OOB != 0 { libc::EINVAL } else { libc::EAGAIN });
    }
    let manner = Manner::of(file, flags);
    // SAFETY: the caller's contract.
    let mut list = unsafe { List::of(buffers, count)? };
    if flags & MSG_TRUNC != 0 {
        // Linux stores nothing then.
        let wanted: usize = list.all().iter().map(|buffer| buffer.iov_len).sum();
        let mut scratch = vec![0; wanted.min(CHUNK)];
        return receive(fd, stream, &mut [IoSliceMut::new(&mut scratch)], manner);
    }
    // SAFETY: the caller's contract.
    receive(fd, stream, unsafe { list.for_reading() }, manner)
}

/// Writes to a served descriptor.
///
/// # Safety
/// As writev(2).
pub unsafe fn write_from(
    fd: i32,
    file: &File,
    buffers: *const iovec,
    count: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    let stream = file.stream().ok_or(EPIPE)?;
    if flags & MSG_OOB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let manner = Manner::of(file, flags);
    // SAFETY: the caller's contract.
    let mut list = unsafe { List::of(buffers, count)? };
    // SAFETY: as above.
    let result = transfer::send(fd, stream, unsafe { list.for_writing() }, manner);
    if result == Err(EPIPE) && flags & MSG_NOSIGNAL == 0 {
        // The kernel sends the signal to the thread that writes.
        // SAFETY: no pointers.
        resident::at_home(|| unsafe { real::raise(libc::SIGPIPE) });
    }
    result
}

pub fn one(buffer: *const c_void, len: size_t) -> iovec {
    iovec { iov_base: buffer.cast_mut(), iov_len: len }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    match served(fd) {
        // SAFETY: the caller's contract.
        Some((file, _call)) => answer(unsafe { read_into(fd, &file, &one(buffer, len), 1, 0) }),
        None => {
            // SAFETY: as above.
            let kernel = || at_kernel(fd, POLLIN, 0, || unsafe { real::read(fd, buffer, len) });
            // SAFETY: as above.
            unsafe { datagrams::read(fd, &one(buffer, len), 1, 0) }.map_or_else(kernel, answer)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    check(len, room);
    // SAFETY: the caller's contract.
    unsafe { read(fd, buffer, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
    match served(fd) {
        // SAFETY: the caller's contract.
        Some((file, _call)) => answer(unsafe { read_into(fd, &file, buffers, count.max(0) as usize, 0) }),
        None => {
            // SAFETY: as above.
            let kernel = || at_kernel(fd, POLLIN, 0, || unsafe { real::readv(fd, buffers, count) });
            // SAFETY: as above.
            unsafe { datagrams::read(fd, buffers, count.max(0) as usize, 0) }.map_or_else(kernel, answer)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let none = core::ptr::null_mut();
    // SAFETY: the caller's contract.
    unsafe { recvfrom(fd, buffer, len, flags, none, core::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(len, room);
    // SAFETY: the caller's contract.
    unsafe { recv(fd, buffer, len, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    match served(fd) {
        // A connection has no address for each message, and Linux leaves the room as it is.
        // SAFETY: the caller's contract.
        Some((file, _call)) => answer(unsafe { read_into(fd, &file, &one(buffer, len), 1, flags) }),
        // SAFETY: as above.
        None => unsafe {
            let kernel = || {
                at_kernel(fd, POLLIN, flags, || real::recvfrom(fd, buffer, len, flags, address, address_len))
            };
            datagrams::receive_from(fd, &one(buffer, len), flags, address, address_len)
                .map_or_else(kernel, answer)
        },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    check(len, room);
    // SAFETY: the caller's contract.
    unsafe { recvfrom(fd, buffer, len, flags, address, address_len) }
}

/// Ends the process where a fortified program would overrun its buffer, as the C library does.
fn check(len: usize, room: usize) {
    if len > room {
        std::process::abort();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some((file, _call)) = served(fd) else {
        // SAFETY: the caller's contract.
        return unsafe {
            let kernel = || at_kernel(fd, POLLIN, flags, || real::recvmsg(fd, message, flags));
            datagrams::receive(fd, message, flags).map_or_else(kernel, answer)
        };
    };
    // SAFETY: the caller's contract.
    unsafe {
        let (buffers, count) = ((*message).msg_iov, (*message).msg_iovlen);
        let result = read_into(fd, &file, buffers, count, flags);
        if result.is_ok() {
            ((*message).msg_controllen, (*message).msg_flags, (*message).msg_namelen) = (0, 0, 0);
        }
        answer(result)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    time: *mut timespec,
) -> c_int {
    if served(fd).is_none() && !datagrams::receives(fd) {
        // SAFETY: the caller's contract.
        return at_kernel(fd, POLLIN, flags, || unsafe { real::recvmmsg(fd, messages, count, flags, time) });
    }
    // SAFETY: the caller's contract.
    let limit = unsafe {
        if !events::is_time(time) {
            return real::fail(libc::EINVAL);
        }
        events::duration(time)
    };
    let begin = limit.map(|_| Instant::now());
    let mut done = 0;
    while done < (count as usize).min(MAX_BUFFERS) {
        let waits = done == 0 || flags & MSG_WAITFORONE == 0;
        let flags = flags & !MSG_WAITFORONE | if waits { 0 } else { MSG_DONTWAIT };
        // SAFETY: the caller's contract.
        unsafe {
            let message = &mut *messages.add(done);
            let read = recvmsg(fd, &raw mut message.msg_hdr, flags);
            if read < 0 {
                return if done > 0 { done as c_int } else { -1 };
            }
            message.msg_len = read as c_uint;
        }
        done += 1;
        // Linux looks at the time between two messages only (recvmmsg(2), BUGS).
        if let (Some(limit), Some(begin)) = (limit, begin) {
            let left = limit.saturating_sub(begin.elapsed());
            // SAFETY: the caller's contract: a time was read there.
            unsafe {
                *time = timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            }
            if left.is_zero() {
                break;
            }
        }
    }
    done as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    match served(fd) {
        // SAFETY: the caller's contract.
        Some((file, _call)) => answer(unsafe { write_from(fd, &file, &one(buffer, len), 1, 0) }),
        None => {
            // SAFETY: as above.
            let kernel = || at_kernel(fd, POLLOUT, 0, || unsafe { real::write(fd, buffer, len) });
            // SAFETY: as above.
            unsafe { datagrams::write(fd, &one(buffer, len), 1) }.map_or_else(kernel, answer)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
    match served(fd) {
        // SAFETY: the caller's contract.
        Some((file, _call)) => answer(unsafe { write_from(fd, &file, buffers, count.max(0) as usize, 0) }),
        None => {
            // SAFETY: as above.
            let kernel = || at_kernel(fd, POLLOUT, 0, || unsafe { real::writev(fd, buffers, count) });
            // SAFETY: as above.
            unsafe { datagrams::write(fd, buffers, count.max(0) as usize) }.map_or_else(kernel, answer)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    unsafe { sendto(fd, buffer, len, flags, core::ptr::null(), 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    match served(fd) {
        // SAFETY: the caller's contract.
        Some((file, _call)) => answer(unsafe { write_from(fd, &file, &one(buffer, len), 1, flags) }),
        // SAFETY: as above.
        None => unsafe {
            let kernel = || {
                at_kernel(fd, POLLOUT, flags, || real::sendto(fd, buffer, len, flags, address, address_len))
            };
            datagrams::send_to(fd, &one(buffer, len), flags, address, address_len).map_or_else(kernel, answer)
        },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    match served(fd) {
        Some((file, _call)) => {
            // SAFETY: the caller's contract.
            answer(unsafe { write_from(fd, &file, (*message).msg_iov, (*message).msg_iovlen, flags) })
        }
        // SAFETY: as above.
        None => unsafe {
            if passes_connection(message) {
                return real::fail(libc::EOPNOTSUPP) as ssize_t;
            }
            let kernel = || at_kernel(fd, POLLOUT, flags, || real::sendmsg(fd, message, flags));
            datagrams::send(fd, message, flags).map_or_else(kernel, answer)
        },
    }
}

/// Returns whether `is` holds for a control message of `message`.
///
/// # Safety
/// As sendmsg(2).
pub unsafe fn has_control(message: *const msghdr, is: impl Fn(*const libc::cmsghdr) -> bool) -> bool {
    // SAFETY: the caller's contract: the control messages are within their length.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while !control.is_null() {
            if is(control) {
                return true;
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
    false
}

/// Returns whether a message passes descriptors of connections that Tailwater serves, which another
/// process cannot use; says so once. Of listeners and UDP sockets the kernel's side is passed,
/// which is said once, too.
///
/// # Safety
/// As sendmsg(2).
unsafe fn passes_connection(message: *const msghdr) -> bool {
    if !start::is_running() {
        return false;
    }
    // SAFETY: the caller's contract: a message of this type has as many descriptors as fit it.
    unsafe {
        has_control(message, |control| {
            if ((*control).cmsg_level, (*control).cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                return false;
            }
            let bytes = (*control).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let fds = libc::CMSG_DATA(control).cast::<c_int>();
            (0..bytes / size_of::<c_int>()).any(|at| is_refused(fds.add(at).read_unaligned()))
        })
    }
}

/// Returns whether `fd` cannot be passed to another process; says once what becomes of it.
fn is_refused(fd: c_int) -> bool {
    static REFUSED: AtomicBool = AtomicBool::new(false);
    static PASSED: AtomicBool = AtomicBool::new(false);
    let Some(file) = table::get(fd) else { return false };
    match file.what {
        What::Stream(_) => {
            start::say_once(
                &REFUSED,
                "a connection on Tailwater's network cannot be passed to another process \
                 (SCM_RIGHTS): EOPNOTSUPP",
            );
            true
        }
        What::Listener(_) | What::Datagrams(_) => {
            start::say_once(
                &PASSED,
                "a socket is passed to another process (SCM_RIGHTS) as Linux's: the receiver is \
                 not reached over Tailwater's network by it",
            );
            false
        }
        What::Set(_) => false,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: the caller's contract, of which the first message is a part.
    let is_served =
        served(fd).is_some() || count > 0 && unsafe { datagrams::takes(fd, &raw const (*messages).msg_hdr) };
    if !is_served {
        // SAFETY: as above.
        return at_kernel(fd, POLLOUT, flags, || unsafe { real::sendmmsg(fd, messages, count, flags) });
    }
    for done in 0..count as usize {
        // SAFETY: the caller's contract.
        unsafe {
            let message = &mut *messages.add(done);
            let written = sendmsg(fd, &raw const message.msg_hdr, flags);
            if written < 0 {
                return if done > 0 { done as c_int } else { -1 };
            }
            message.msg_len = written as c_uint;
        }
    }
    count as c_int
}
