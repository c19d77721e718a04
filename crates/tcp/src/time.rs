//! Points in time on the caller's clock.

use core::ops::{Add, Sub};
use core::time::Duration;

/// Nanoseconds since an origin of the caller's choice, the same for all calls; 64 bits hold 584
/// years.
///
/// # Examples
/// ```
/// use core::time::Duration;
/// use tailwater_tcp::Instant;
///
/// let start = Instant(1_000);
/// assert_eq!((start + Duration::from_nanos(5)) - start, Duration::from_nanos(5));
/// assert_eq!(start - Instant(2_000), Duration::ZERO, "time does not run backwards");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// A point in time that never comes; a timer set to it does not run.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the value of a timestamp option: ticks of one millisecond, counted from `offset`
    /// (RFC 7323 section 5.4 allows ticks of 1 ms to 1 s).
    #[inline]
    pub(crate) fn timestamp(self, offset: u32) -> u32 {
        ((self.0 / TICK_NS) as u32).wrapping_add(offset)
    }

    /// Returns the whole seconds since the origin, modulo 2^32.
    #[inline]
    pub(crate) fn seconds(self) -> u32 {
        (self.0 / 1_000_000_000) as u32
    }
}

/// A tick of the timestamp clock.
pub(crate) const TICK_NS: u64 = 1_000_000;

impl Add<Duration> for Instant {
    type Output = Self;
    /// Adds a duration; saturates at the latest point.
    #[inline]
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    /// Returns the time from `earlier` to `self`; zero if `earlier` is later.
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
