//! Points in time, as the caller counts them.

use core::ops::{Add, Sub};
use core::time::Duration;

/// Nanoseconds since any moment the caller likes, the same for all calls: 584 years of them.
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

impl Add<Duration> for Instant {
    type Output = Self;
    /// The latest point there is, if the sum is beyond.
    #[inline]
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    /// Time from `earlier` to `self`; zero if it is not earlier.
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
