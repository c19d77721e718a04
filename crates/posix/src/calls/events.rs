//! epoll, poll and select.

use super::{answer_int, kernel_side, served};
use crate::file::{Errno, File, What};
use crate::kept::{self, Registration};
use crate::set::Set;
use crate::{ready, real, start, table};
use core::time::Duration;
use libc::{FD_SETSIZE, c_int, c_short, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::sync::Arc;
use tailwater::resident;

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller's contract.
    let kernel = || unsafe { real::epoll_ctl(set, operation, fd, event) };
    let Some(file) = table::get(fd).filter(|_| start::may_serve()) else {
        let result = kernel();
        if result == 0 && start::may_serve() && (kept::has(set, fd) || may_connect(operation, fd)) {
            // SAFETY: the caller's contract.
            unsafe { follow(set, operation, fd, event) };
        }
        return result;
    };
    let is_twofold = !matches!(file.what, What::Stream(_));
    if is_twofold {
        // The kernel's side comes first: its answer counts if Tailwater has none.
        let result = kernel();
        let is_served = match &file.what {
            What::Listener(listener) => listener.tailwater().is_some(),
            What::Datagrams(datagrams) => datagrams.for_wait().is_some(),
            _ => start::is_running(),
        };
        if result == 0 && !is_served && matches!(file.what, What::Datagrams(_)) {
            // SAFETY: the caller's contract.
            unsafe { follow(set, operation, fd, event) };
        }
        if result != 0 || !is_served {
            return result;
        }
    }
    let Some(owner) = set_of(set) else { return real::fail(libc::EINVAL) };
    let What::Set(owner) = &owner.what else { return real::fail(libc::EINVAL) };
    // SAFETY: the caller's contract.
    let event = unsafe { (!event.is_null()).then(|| event.read_unaligned()) };
    let result = owner.control(operation, fd, &file, event);
    // The kernel has changed its side: that the other was not there, or had ended, is no matter.
    if is_twofold && operation != libc::EPOLL_CTL_ADD { 0 } else { answer_int(result.map(|()| 0)) }
}

/// Returns whether a descriptor that is added to a set is a TCP socket that may be connected later.
fn may_connect(operation: c_int, fd: c_int) -> bool {
    operation == libc::EPOLL_CTL_ADD && kernel_side::is_tcp(fd) && kernel_side::is_unconnected(fd)
}

/// Keeps or forgets a registration that the kernel alone has.
///
/// # Safety
/// As epoll_ctl(2) for `event`.
unsafe fn follow(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) {
    if operation == libc::EPOLL_CTL_DEL {
        kept::remove(set, fd);
    } else if !event.is_null() {
        // SAFETY: the caller's contract.
        kept::keep(Registration { set, fd, event: unsafe { event.read_unaligned() } });
    }
}

/// Makes the kept registrations of `fd`, which is served from now on, on Tailwater's side.
pub fn register_kept(fd: c_int, file: &Arc<File>) {
    // The kernel has nothing to report of a connection that Tailwater serves; a UDP socket is both.
    let operation = if file.stream().is_some() { libc::EPOLL_CTL_DEL } else { libc::EPOLL_CTL_MOD };
    for Registration { set, fd, mut event } in kept::take(fd) {
        // The number of a set that was closed unseen may be another's now.
        // SAFETY: the event is valid.
        let is_there = unsafe { real::epoll_ctl(set, operation, fd, &raw mut event) == 0 };
        if is_there
            && let Some(owner) = set_of(set)
            && let What::Set(owner) = &owner.what
        {
            // It cannot be there yet.
            let _ = owner.control(libc::EPOLL_CTL_ADD, fd, file, Some(event));
        }
    }
}

/// Returns the file of an epoll set of the kernel, which becomes a set of both sides.
fn set_of(fd: i32) -> Option<Arc<File>> {
    if let Some(file) = table::get(fd) {
        return Some(file);
    }
    let set = Set::new(fd)?;
    let file = File::new(What::Set(set), false);
    table::put(fd, Arc::clone(&file)).then_some(file)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(set: c_int, events: *mut epoll_event, max: c_int, ms: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { epoll_pwait(set, events, max, ms, core::ptr::null()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    let Some((file, _call)) = served(set) else {
        // Here and below: Linux looks before it waits, so a handler ends nothing but a wait.
        let is_over = ms != 0 && resident::go_home().is_some();
        // SAFETY: the caller's contract.
        let found = unsafe { real::epoll_pwait(set, events, max, if is_over { 0 } else { ms }, mask) };
        return if is_over && found == 0 { real::fail(libc::EINTR) } else { found };
    };
    let What::Set(set) = &file.what else { return real::fail(libc::EINVAL) };
    if max <= 0 {
        return real::fail(libc::EINVAL);
    }
    // SAFETY: the caller's contract: room for `max` events, which the wait writes before it reads.
    let out = unsafe { core::slice::from_raw_parts_mut(events, max as usize) };
    let time = u64::try_from(ms).ok().map(Duration::from_millis);
    // SAFETY: as above.
    unsafe { masked(mask, time, |time| set.wait(out, time)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        // To the next millisecond, so that no wait ends early.
        let ms = duration(time)
            .map_or(-1, |time| time.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as c_int);
        epoll_pwait(set, events, max, ms, mask)
    }
}

/// Runs a wait with a signal mask of its own, if `mask` is one. A signal that it opens ends the
/// wait, as one that comes later: `wait` is then called not to wait, and finding nothing means
/// `EINTR`.
///
/// # Safety
/// `mask` is null or valid.
unsafe fn masked(
    mask: *const sigset_t,
    time: Option<Duration>,
    wait: impl FnOnce(Option<Duration>) -> Result<usize, Errno>,
) -> c_int {
    if mask.is_null() {
        return answer_int(wait(time).map(|found| found as c_int));
    }
    let mut before = core::mem::MaybeUninit::<sigset_t>::uninit();
    let has_handled = resident::go_home().is_some() && time != Some(Duration::ZERO);
    // SAFETY: the caller's contract. Handlers of signals that the mask opens run here.
    let is_over = unsafe {
        let is_over = opens_pending(mask) || has_handled;
        real::pthread_sigmask(libc::SIG_SETMASK, mask, before.as_mut_ptr());
        is_over
    };
    resident::enter();
    let result = match wait(if is_over { Some(Duration::ZERO) } else { time }) {
        Ok(0) if is_over => Err(libc::EINTR),
        result => result,
    };
    resident::go_home();
    // SAFETY: the mask was written above.
    unsafe { real::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    answer_int(result.map(|found| found as c_int))
}

/// Returns whether a signal with a handler is pending that `mask` does not block.
///
/// # Safety
/// `mask` is valid.
unsafe fn opens_pending(mask: *const sigset_t) -> bool {
    // SAFETY: room for a set and an action; the caller's contract.
    unsafe {
        let mut pending = core::mem::zeroed::<sigset_t>();
        libc::sigpending(&raw mut pending);
        (1..libc::SIGRTMAX()).any(|signal| {
            let mut action = core::mem::zeroed::<libc::sigaction>();
            libc::sigismember(&raw const pending, signal) == 1
                && libc::sigismember(mask, signal) == 0
                && libc::sigaction(signal, core::ptr::null(), &raw mut action) == 0
                && action.sa_sigaction != libc::SIG_IGN
                && action.sa_sigaction != libc::SIG_DFL
        })
    }
}

/// Returns a time of the C interface; `None` for a null pointer.
///
/// # Safety
/// `time` is null or valid.
pub unsafe fn duration(time: *const timespec) -> Option<Duration> {
    // SAFETY: the caller's contract.
    let time = unsafe { time.as_ref() }?;
    let nanoseconds = time.tv_nsec.clamp(0, 999_999_999) as u32;
    Some(Duration::new(time.tv_sec.max(0) as u64, nanoseconds))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, ms: c_int) -> c_int {
    let time = u64::try_from(ms).ok().map(Duration::from_millis);
    // SAFETY: the caller's contract.
    answer_int(ready::poll(unsafe { slice(fds, count) }, time).map(|found| found as c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, ms: c_int, room: usize) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
    // SAFETY: the caller's contract.
    unsafe { poll(fds, count, ms) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let fds_here = slice(fds, count);
        if ready::served(fds_here).is_none() {
            let is_over = resident::go_home().is_some() && duration(time) != Some(Duration::ZERO);
            let time = if is_over { &raw const ready::NOW } else { time };
            let found = real::ppoll(fds, count, time, mask);
            return if is_over && found == 0 { real::fail(libc::EINTR) } else { found };
        }
        masked(mask, duration(time), |time| ready::poll(fds_here, time))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
    // SAFETY: the caller's contract.
    unsafe { ppoll(fds, count, time, mask) }
}

/// Returns the descriptors of a poll(2).
///
/// # Safety
/// As poll(2).
unsafe fn slice<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's contract.
    unsafe { core::slice::from_raw_parts_mut(fds, count as usize) }
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
        let limit = time.as_ref().map(|time| timespec {
            tv_sec: time.tv_sec + time.tv_usec / 1_000_000,
            tv_nsec: time.tv_usec % 1_000_000 * 1000,
        });
        let limit = limit.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        pselect(count, reads, writes, excepts, limit, core::ptr::null())
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
    let sets = [reads, writes, excepts];
    let wishes = ready::of_select();
    // SAFETY: the caller's contract.
    unsafe {
        let mut fds = Vec::new();
        for fd in 0..count.clamp(0, FD_SETSIZE as c_int) {
            let asked = |(set, (ask, _)): (&*mut fd_set, &(c_short, c_short))| {
                if !set.is_null() && libc::FD_ISSET(fd, *set) { *ask } else { 0 }
            };
            let events = sets.iter().zip(&wishes).map(asked).fold(0, |all, one| all | one);
            if events != 0 {
                fds.push(pollfd { fd, events, revents: 0 });
            }
        }
        if ready::served(&fds).is_none() {
            let is_over = resident::go_home().is_some() && duration(time) != Some(Duration::ZERO);
            if is_over && ready::poll(&mut fds, Some(Duration::ZERO)) == Ok(0) {
                return real::fail(libc::EINTR);
            }
            let time = if is_over { &raw const ready::NOW } else { time };
            return real::pselect(count, reads, writes, excepts, time, mask);
        }
        masked(mask, duration(time), |left| {
            let found = ready::poll(&mut fds, left)?;
            // A wait that a handler ends leaves the sets as they are.
            if found == 0 && left != duration(time) { Ok(0) } else { report(&fds, sets, &wishes) }
        })
    }
}

/// Writes the result of a select(2); returns the number of bits.
///
/// # Safety
/// As select(2) for the sets.
unsafe fn report(
    fds: &[pollfd],
    sets: [*mut fd_set; 3],
    wishes: &[(c_short, c_short); 3],
) -> Result<usize, Errno> {
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(libc::EBADF);
    }
    let mut found = 0;
    for (set, (ask, bits)) in sets.into_iter().zip(wishes).filter(|(set, _)| !set.is_null()) {
        // SAFETY: the caller's contract.
        unsafe { libc::FD_ZERO(set) };
        for fd in fds.iter().filter(|fd| fd.events & ask != 0 && fd.revents & bits != 0) {
            // SAFETY: as above.
            unsafe { libc::FD_SET(fd.fd, set) };
            found += 1;
        }
    }
    Ok(found)
}
