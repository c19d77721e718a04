//! Points in time as TCP counts them.

use core::time::Duration;
use tailwater_tcp::Instant;

/// Converts from the outlet's time.
#[inline]
pub fn instant(now: Duration) -> Instant {
    Instant(now.as_nanos() as u64)
}

/// Converts to the outlet's time.
pub fn duration(at: Instant) -> Duration {
    Duration::from_nanos(at.0)
}
