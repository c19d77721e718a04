//! Readiness, in the shape of epoll.

use crate::border::{limit, status};
use crate::net::socket::Kind;
use crate::net::{error, table};
use core::ffi::c_int;
use std::io;
use tailwater::internals::SpinLock;
use tailwater::readiness::{Events, Interest, Mode, Poller, Source, Token};

/// A read, an accept or a receive would not wait. As `EPOLLIN`.
pub const TW_IN: u32 = 0x1;
/// A write or a send would not wait. As `EPOLLOUT`.
pub const TW_OUT: u32 = 0x4;
/// The socket has failed. Always reported. As `EPOLLERR`.
pub const TW_ERR: u32 = 0x8;
/// Accepted, as epoll does; what ends or fails is reported as `TW_RDHUP` or `TW_ERR`. As
/// `EPOLLHUP`.
pub const TW_HUP: u32 = 0x10;
/// The peer has ended its stream. As `EPOLLRDHUP`.
pub const TW_RDHUP: u32 = 0x2000;
/// Reported when it changes, not for as long as it is ready. As `EPOLLET`.
pub const TW_ET: u32 = 0x8000_0000;
/// Reported once, until it is modified. As `EPOLLONESHOT`.
pub const TW_ONESHOT: u32 = 0x4000_0000;
/// What `tw_poller_wait` reports of a timer.
pub const TW_TIMER: u32 = 0x1_0000;

/// Adds a descriptor. As `EPOLL_CTL_ADD`.
pub const TW_CTL_ADD: c_int = 1;
/// Removes a descriptor. As `EPOLL_CTL_DEL`.
pub const TW_CTL_DEL: c_int = 2;
/// Changes what is reported of a descriptor. As `EPOLL_CTL_MOD`.
pub const TW_CTL_MOD: c_int = 3;

/// What is reported, and the program's name for it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct tw_event {
    /// `TW_IN` and the others.
    pub events: u32,
    /// The program's.
    pub data: u64,
}

/// Waits for many descriptors and timers; any number of threads may wait.
pub struct tw_poller {
    poller: Poller,
    /// Lists of earlier waits, to be filled again.
    spares: SpinLock<Vec<Events>>,
}

/// Events that one wait returns at most.
const MOST: usize = 64;

/// Makes a poller. Free it by `tw_poller_free`. Never switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_poller_new() -> *mut tw_poller {
    Box::into_raw(Box::new(tw_poller { poller: Poller::new(), spares: SpinLock::default() }))
}

/// Frees a poller that no thread uses. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_poller_free(poller: *mut tw_poller) {
    if !poller.is_null() {
        // SAFETY: by C's contract.
        drop(unsafe { Box::from_raw(poller) });
    }
}

fn control(poller: &Poller, operation: c_int, source: &impl Source, event: tw_event) -> io::Result<()> {
    let known = TW_IN | TW_OUT | TW_ERR | TW_HUP | TW_RDHUP | TW_ET | TW_ONESHOT;
    if event.events & !known != 0 {
        return Err(error(libc::EINVAL));
    }
    let interest = match (event.events & (TW_IN | TW_RDHUP) != 0, event.events & TW_OUT != 0) {
        (true, true) => Interest::READABLE | Interest::WRITABLE,
        (true, false) => Interest::READABLE,
        (false, true) => Interest::WRITABLE,
        (false, false) => Interest::NONE,
    };
    let mode = match event.events {
        bits if bits & TW_ONESHOT != 0 => Mode::OneShot,
        bits if bits & TW_ET != 0 => Mode::Edge,
        _ => Mode::Level,
    };
    let token = Token(event.data as usize);
    match operation {
        TW_CTL_ADD => poller.register(source, token, interest, mode),
        TW_CTL_MOD => poller.modify(source, token, interest, mode),
        TW_CTL_DEL => poller.deregister(source),
        _ => Err(error(libc::EINVAL)),
    }
}

/// As `epoll_ctl`, with `TW_CTL_...` and `TW_IN` and the others, which have the numbers of epoll.
/// `event` may be NULL for `TW_CTL_DEL`. A descriptor that is closed leaves the poller. May switch
/// threads.
///
/// Returns 0, or a negative error number: `-EEXIST`, `-ENOENT`, `-EINVAL`, `-EBADF`; `-ENOTCONN`
/// for a TCP socket that neither listens nor connects yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_poller_ctl(
    poller: *mut tw_poller,
    operation: c_int,
    fd: c_int,
    event: *const tw_event,
) -> c_int {
    // SAFETY: by C's contract.
    let (poller, event) = unsafe { (&(*poller).poller, event.as_ref().copied()) };
    let Some(event) = event.or((operation == TW_CTL_DEL).then_some(tw_event { events: 0, data: 0 })) else {
        return -libc::EINVAL;
    };
    status(table::find(fd).and_then(|socket| match socket.transfers()? {
        Kind::Udp(udp) => control(poller, operation, udp, event),
        Kind::Stream(stream) => control(poller, operation, stream, event),
        Kind::Listener(listener) => control(poller, operation, listener, event),
    }))
}

/// Sets the timer that is reported with `data` and `TW_TIMER`, once, in `after_ns` nanoseconds; one
/// that was set before with the same `data` is moved. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_poller_set_timer(poller: *mut tw_poller, data: u64, after_ns: u64) {
    let at = std::time::Instant::now() + std::time::Duration::from_nanos(after_ns);
    // SAFETY: by C's contract.
    unsafe { &(*poller).poller }.set_timer(Token(data as usize), at);
}

/// Removes the timer with `data`. Never switches threads.
///
/// Returns 0, or `-ENOENT` if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_poller_clear_timer(poller: *mut tw_poller, data: u64) -> c_int {
    // SAFETY: by C's contract.
    if unsafe { &(*poller).poller }.clear_timer(Token(data as usize)) { 0 } else { -libc::ENOENT }
}

/// Makes one `tw_poller_wait` return, now or later, maybe without events. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_poller_wake(poller: *mut tw_poller) {
    // SAFETY: by C's contract.
    unsafe { &(*poller).poller }.wake();
}

/// As `epoll_wait`: waits for `timeout_ns` nanoseconds at most (`TW_FOREVER`: for ever), and stores
/// up to `capacity` events, at most 64. Switches threads while there are none.
///
/// Returns their number; 0 after the timeout and after `tw_poller_wake`. `-EINVAL` for a capacity
/// of 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_poller_wait(
    poller: *mut tw_poller,
    events: *mut tw_event,
    capacity: usize,
    timeout_ns: u64,
) -> c_int {
    if capacity == 0 || events.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: by C's contract.
    let this = unsafe { &*poller };
    let spare = (capacity >= MOST).then(|| this.spares.lock().pop()).flatten();
    let mut list = spare.unwrap_or_else(|| Events::with_capacity(capacity.min(MOST)));
    let len = this.poller.wait(&mut list, limit(timeout_ns));
    for (index, event) in list.iter().enumerate() {
        let bit = |condition: bool, bit: u32| if condition { bit } else { 0 };
        let bits = bit(event.is_readable(), TW_IN)
            | bit(event.is_writable(), TW_OUT)
            | bit(event.is_end(), TW_RDHUP)
            | bit(event.is_failed(), TW_ERR)
            | bit(event.is_timer(), TW_TIMER);
        // SAFETY: by C's contract there is room for `capacity` events.
        unsafe { events.add(index).write(tw_event { events: bits, data: event.token().0 as u64 }) };
    }
    if capacity >= MOST {
        this.spares.lock().push(list);
    }
    len as c_int
}

// For cbindgen, which cannot read libc's, the constants are numbers.
const _: () = {
    assert!(TW_IN == libc::EPOLLIN as u32 && TW_OUT == libc::EPOLLOUT as u32);
    assert!(TW_ERR == libc::EPOLLERR as u32 && TW_HUP == libc::EPOLLHUP as u32);
    assert!(TW_RDHUP == libc::EPOLLRDHUP as u32);
    assert!(TW_ET == libc::EPOLLET as u32 && TW_ONESHOT == libc::EPOLLONESHOT as u32);
    assert!(TW_CTL_ADD == libc::EPOLL_CTL_ADD && TW_CTL_DEL == libc::EPOLL_CTL_DEL);
    assert!(TW_CTL_MOD == libc::EPOLL_CTL_MOD);
};
