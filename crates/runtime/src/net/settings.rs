//! Settings that UDP and TCP sockets have in common: timeouts, time to live.

use crate::records::runtime::deadline_after;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::io;
use tailwater_shm::Cycles;

/// Time that a call waits which waits for peers beyond a lost link, before it reports that anew: a
/// program that repeats the call would otherwise do nothing else.
pub const CUT_OFF_PAUSE: Duration = Duration::from_secs(1);

/// Stores `timeout` in `cell` as nanoseconds, zero for none.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) for a timeout of zero.
pub fn set_timeout(cell: &AtomicU64, timeout: Option<Duration>) -> io::Result<()> {
    if timeout == Some(Duration::ZERO) {
        let why = "a timeout of zero: use None to wait for ever";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    // More than 584 years is treated as unlimited.
    let nanos = timeout.map_or(0, |t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
    cell.store(nanos, Relaxed);
    Ok(())
}

/// Returns the timeout in `cell`.
pub fn timeout(cell: &AtomicU64) -> Option<Duration> {
    match cell.load(Relaxed) {
        0 => None,
        nanos => Some(Duration::from_nanos(nanos)),
    }
}

/// Returns the deadline of a call that begins to wait now.
pub fn deadline_in(cell: &AtomicU64) -> Option<Cycles> {
    timeout(cell).map(deadline_after)
}

/// Checks a time to live.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) outside 1 to 255.
pub fn valid_ttl(ttl: u32) -> io::Result<u8> {
    u8::try_from(ttl).ok().filter(|&ttl| ttl > 0).ok_or_else(|| {
        let why = format!("a time to live of {ttl}: 1 to 255 are allowed");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}
