//! select(2), as poll(2) of the descriptors in its sets.
//!
//! Owns the sets of bits. They have as many as the call says, which may be more or fewer than an
//! `fd_set` has: libevent's have room for the descriptors that it knows.

use super::answer_int;
use super::events::{duration, ends_at_home, is_time, masked};
use crate::file::Errno;
use crate::{ready, real};
use core::time::Duration;
use libc::{
    FD_SETSIZE, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, POLLWRNORM,
    c_int, c_short, fd_set, pollfd, sigset_t, timespec, timeval,
};
use std::time::Instant;
use tailwater::resident;

/// What select(2) asks of poll(2) for reading, writing and exceptions, and which answers count.
const WISHES: [(c_short, c_short); 3] = [
    (POLLIN, POLLIN | POLLRDNORM | POLLHUP | POLLERR | POLLRDHUP),
    (POLLOUT, POLLOUT | POLLWRNORM | POLLERR),
    (POLLPRI, POLLPRI),
];
/// Bits of a word of a set.
const WORD: usize = u64::BITS as usize;

/// A set of a program, or none.
#[derive(Clone, Copy)]
struct Bits {
    words: *mut u64,
    count: usize,
}

impl Bits {
    /// # Safety
    /// As select(2) for a set of `count` descriptors.
    unsafe fn of(set: *mut fd_set, count: usize) -> Self {
        Self { words: set.cast(), count: if set.is_null() { 0 } else { count } }
    }

    fn has(self, fd: usize) -> bool {
        // SAFETY: the contract of `of`: the set has the words of its bits.
        fd < self.count && unsafe { self.words.add(fd / WORD).read() } & (1 << (fd % WORD)) != 0
    }

    fn add(self, fd: usize) {
        if fd < self.count {
            // SAFETY: as in `has`.
            unsafe { *self.words.add(fd / WORD) |= 1 << (fd % WORD) };
        }
    }

    /// Removes all, also the rest of the last word, as the kernel does.
    fn clear(self) {
        // SAFETY: as in `has`.
        unsafe { self.words.write_bytes(0, self.count.div_ceil(WORD)) };
    }
}

/// Returns how many bits of its sets a call has. The kernel reads no more than its table of the
/// process's descriptors has room for (core_sys_select, fs/select.c): programs pass the limit of
/// descriptors (getdtablesize(3)) as the count, and an `fd_set`, which is smaller.
fn bits_of(count: c_int) -> usize {
    let count = usize::try_from(count).unwrap_or(0);
    if count <= FD_SETSIZE {
        return count;
    }
    let mut size = FD_SETSIZE;
    while size < count && has_room_beyond(size) {
        size *= 2;
    }
    count.min(size)
}

/// Returns whether the kernel's table of descriptors, whose size is a power of two, has room for
/// descriptor `fd`. A closed one is an error there, and is not looked at behind the table.
fn has_room_beyond(fd: usize) -> bool {
    let mut set = vec![0_u64; fd / WORD + 1];
    set[fd / WORD] = 1 << (fd % WORD);
    let (set, none) = (set.as_mut_ptr().cast(), core::ptr::null_mut());
    // SAFETY: a set with as many bits as the call says, and no mask.
    unsafe {
        real::fcntl(fd as c_int, libc::F_GETFD, 0) >= 0
            || real::pselect(fd as c_int + 1, set, none, none, &raw const ready::NOW, core::ptr::null()) < 0
                && real::errno() == libc::EBADF
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let Some(limit) = time.as_mut() else {
            return pselect(count, reads, writes, excepts, core::ptr::null(), core::ptr::null());
        };
        let (seconds, rest) =
            (limit.tv_sec.saturating_add(limit.tv_usec / 1_000_000), limit.tv_usec % 1_000_000);
        let time = timespec { tv_sec: seconds, tv_nsec: rest * 1000 };
        let begin = Instant::now();
        let found = pselect(count, reads, writes, excepts, &raw const time, core::ptr::null());
        // Linux says how much time was left (select(2)), not for a time that it refuses.
        if is_time(&raw const time)
            && let Some(time) = duration(&raw const time)
        {
            let left = time.saturating_sub(begin.elapsed());
            limit.tv_sec = left.as_secs() as libc::time_t;
            limit.tv_usec = left.subsec_micros().into();
        }
        found
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    resident::begin_call();
    // SAFETY: the caller's contract.
    unsafe {
        if !is_time(time) {
            return real::fail(libc::EINVAL);
        }
        let bits = bits_of(count);
        let sets = [reads, writes, excepts].map(|set| Bits::of(set, bits));
        let mut fds = asked(sets, bits);
        if ready::served(&fds).is_none() {
            let is_over = ends_at_home(time);
            if is_over && ready::poll(&mut fds, Some(Duration::ZERO)) == Ok(0) {
                return real::fail(libc::EINTR);
            }
            let time = if is_over { &raw const ready::NOW } else { time };
            return real::pselect(count, reads, writes, excepts, time, mask);
        }
        // A wait that a handler ends leaves the sets as they are.
        let found = masked(mask, duration(time), |left| ready::poll(&mut fds, left));
        if found < 0 { found } else { answer_int(report(&fds, sets)) }
    }
}

/// Returns what poll(2) is to wait for.
fn asked(sets: [Bits; 3], count: usize) -> Vec<pollfd> {
    let events = |fd| {
        let asked = sets.iter().zip(WISHES).filter(|(set, _)| set.has(fd));
        asked.fold(0, |events, (_, (ask, _))| events | ask)
    };
    let fds = (0..count).map(|fd| pollfd { fd: fd as c_int, events: events(fd), revents: 0 });
    fds.filter(|fd| fd.events != 0).collect()
}

/// Writes the result of a select(2); returns the number of bits.
fn report(fds: &[pollfd], sets: [Bits; 3]) -> Result<c_int, Errno> {
    if fds.iter().any(|fd| fd.revents & POLLNVAL != 0) {
        return Err(libc::EBADF);
    }
    let mut found = 0;
    for (set, (ask, bits)) in sets.into_iter().zip(WISHES) {
        set.clear();
        for fd in fds.iter().filter(|fd| fd.events & ask != 0 && fd.revents & bits != 0) {
            set.add(fd.fd as usize);
            found += 1;
        }
    }
    Ok(found)
}
