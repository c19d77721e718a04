//! epoll and poll.

use super::{answer_int, kernel_side, served};
use crate::file::{Errno, File, What};
use crate::kept::{self, Registration};
use crate::set::Set;
use crate::start::Call;
use crate::{ready, real, start, table};
use core::time::Duration;
use libc::{c_int, epoll_event, nfds_t, pollfd, sigset_t, timespec};
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
    // Linux does not look for signals if it is not to wait, unlike for poll and select (ep_poll,
    // fs/eventpoll.c).
    let mask = if ms == 0 { core::ptr::null() } else { mask };
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
        if !is_time(time) {
            return real::fail(libc::EINVAL);
        }
        // To the next millisecond, so that no wait ends early.
        let ms = duration(time)
            .map_or(-1, |time| time.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as c_int);
        epoll_pwait(set, events, max, ms, mask)
    }
}

/// Runs a wait with a signal mask of its own, if `mask` is one. A signal that it opens ends the
/// wait, whether it came before or comes later: `wait` is then called not to wait, and finding
/// nothing means `EINTR`. In the middle of a call.
///
/// # Safety
/// `mask` is null or valid.
pub unsafe fn masked(
    mask: *const sigset_t,
    time: Option<Duration>,
    wait: impl FnOnce(Option<Duration>) -> Result<usize, Errno>,
) -> c_int {
    // SAFETY: the caller's contract. The kernel has the first word of the C library's set.
    let bits = unsafe { mask.cast::<u64>().as_ref() };
    let result = match bits {
        Some(&bits) if resident::mask() != Some(bits) => {
            let _call = Call::at_home();
            let has_handled = has_handled_at_home(time);
            let found = resident::with_mask(bits, |is_due| {
                let is_over = is_due || has_handled;
                let found = wait(if is_over { Some(Duration::ZERO) } else { time });
                (!is_over || found != Ok(0)).then_some(found)
            });
            found.unwrap_or(Err(libc::EINTR))
        }
        _ => wait(time),
    };
    answer_int(result.map(|found| found as c_int))
}

/// Goes home, in the middle of a call; returns whether a handler has run that ends a wait of this
/// time. One that is not to wait ends by itself.
fn has_handled_at_home(time: Option<Duration>) -> bool {
    resident::go_home_within().is_some() && time != Some(Duration::ZERO)
}

/// As [`has_handled_at_home`], for a time of the C interface.
///
/// # Safety
/// `time` is null or valid.
pub unsafe fn ends_at_home(time: *const timespec) -> bool {
    // SAFETY: the caller's contract.
    has_handled_at_home(unsafe { duration(time) })
}

/// Returns whether a wait can have this time: the kernel refuses others (`EINVAL`).
///
/// # Safety
/// `time` is null or valid.
pub unsafe fn is_time(time: *const timespec) -> bool {
    // SAFETY: the caller's contract.
    let time = unsafe { time.as_ref() };
    time.is_none_or(|time| time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec))
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
    resident::begin_call();
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
    resident::begin_call();
    // SAFETY: the caller's contract.
    unsafe {
        if !is_time(time) {
            return real::fail(libc::EINVAL);
        }
        let fds_here = slice(fds, count);
        if ready::served(fds_here).is_none() {
            let is_over = ends_at_home(time);
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
