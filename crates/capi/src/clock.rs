//! Time: the monotonic clock, sleeping, intervals.

use core::ffi::c_int;
use std::time::{Duration, Instant};
use tailwater::time;

/// Returns the nanoseconds of `CLOCK_MONOTONIC`. Never switches threads, and makes no system call.
#[unsafe(no_mangle)]
pub extern "C" fn tw_now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists, and the result is written to our variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sleeps for so many nanoseconds, with a resolution of 1 us; `TW_FOREVER` for ever. Switches
/// threads; 0 lets others run first.
#[unsafe(no_mangle)]
pub extern "C" fn tw_sleep_ns(duration_ns: u64) {
    time::sleep(crate::border::limit(duration_ns).unwrap_or(Duration::MAX));
}

/// Sleeps until the clock of `tw_now_ns` has this value. Switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_sleep_until_ns(deadline_ns: u64) {
    let (now, base) = (tw_now_ns(), Instant::now());
    time::sleep_until(base + Duration::from_nanos(deadline_ns.saturating_sub(now)));
}

/// The ticks of a period, without drift. Initialise it by `tw_interval_init`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct tw_interval {
    /// When the next tick is due, by the clock of `tw_now_ns`.
    pub next_ns: u64,
    /// Time between two ticks.
    pub period_ns: u64,
}

/// Begins an interval: its first tick is due now. Never switches threads.
///
/// Returns 0, or `-EINVAL` for a period of 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_interval_init(interval: *mut tw_interval, period_ns: u64) -> c_int {
    if period_ns == 0 {
        return -libc::EINVAL;
    }
    // SAFETY: by C's contract.
    unsafe { interval.write(tw_interval { next_ns: tw_now_ns(), period_ns }) };
    0
}

/// Sleeps until the next tick, and returns when it was due. Ticks that are late follow one another
/// at once. Switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_interval_tick(interval: *mut tw_interval) -> u64 {
    // SAFETY: by C's contract.
    let interval = unsafe { &mut *interval };
    let due = interval.next_ns;
    tw_sleep_until_ns(due);
    interval.next_ns = due.saturating_add(interval.period_ns);
    due
}
