//! Time as the store sees it: whole seconds since its own beginning, given by the caller.
//!
//! Expiration times come in three kinds (memcached's protocol.txt, "Expiration times"): relative,
//! absolute and negative. [`Expiry::decode`] turns all into seconds of the store, once, when a
//! command is read.

/// Longest relative expiration time, 30 days; larger numbers are Unix times.
const MAX_RELATIVE: i64 = 60 * 60 * 24 * 30;

/// The present second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Seconds since the store's beginning, at least [`Now::FIRST`].
    pub seconds: u32,
    /// Unix time at which `seconds` was 0.
    pub start_unix: i64,
}

impl Now {
    /// The store's first second. Earlier ones denote expirations before it began.
    pub const FIRST: u32 = 2;

    /// Returns the present as Unix time, in seconds.
    #[must_use]
    pub fn unix(self) -> i64 {
        self.start_unix + i64::from(self.seconds)
    }
}

/// The expiration of an item: a second of the store, or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry(u32);

impl Expiry {
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Before the store's first second.
    const PAST: Self = Self(1);

    /// Decodes a client's expiration time: 0 never, negative at once, up to 30 days from now,
    /// otherwise a Unix time.
    #[must_use]
    pub fn decode(wire: i64, now: Now) -> Self {
        let seconds = match wire {
            0 => return Self::NEVER,
            ..0 => return Self::PAST,
            1..=MAX_RELATIVE => i64::from(now.seconds) + wire,
            unix => return Self::at_unix(unix, now),
        };
        Self(u32::try_from(seconds).unwrap_or(u32::MAX))
    }

    /// Returns an expiration at a Unix time.
    #[must_use]
    pub fn at_unix(unix: i64, now: Now) -> Self {
        let seconds = unix.saturating_sub(now.start_unix);
        if seconds < i64::from(Now::FIRST) {
            Self::PAST
        } else {
            Self(u32::try_from(seconds).unwrap_or(u32::MAX))
        }
    }

    /// Returns true if the item has expired.
    #[must_use]
    pub fn is_over(self, now: Now) -> bool {
        self != Self::NEVER && self.0 <= now.seconds
    }

    /// Returns the seconds left, 0 after the expiration; `None` without one.
    #[must_use]
    pub fn left(self, now: Now) -> Option<u32> {
        (self != Self::NEVER).then(|| self.0.saturating_sub(now.seconds))
    }

    /// Returns true if it is earlier than `other`; never is not earlier than anything.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        self != Self::NEVER && self.0 < other.0
    }

    /// Converts to or from the form stored in an item.
    pub(super) fn to_raw(self) -> u32 {
        self.0
    }

    /// Converts to or from the form stored in an item.
    pub(super) fn from_raw(raw: u32) -> Self {
        Self(raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now { seconds: 100, start_unix: 1_700_000_000 };

    #[test]
    fn zero_is_never() {
        assert!(!Expiry::decode(0, NOW).is_over(Now { seconds: u32::MAX, ..NOW }));
        assert_eq!(Expiry::decode(0, NOW).left(NOW), None);
    }

    #[test]
    fn negative_is_over_at_once() {
        for wire in [-1, i64::MIN] {
            assert!(Expiry::decode(wire, NOW).is_over(NOW));
        }
    }

    #[test]
    fn up_to_thirty_days_is_from_now() {
        for wire in [1, 60, MAX_RELATIVE] {
            let expiry = Expiry::decode(wire, NOW);
            assert_eq!(expiry.left(NOW), Some(wire as u32));
            assert!(!expiry.is_over(Now { seconds: 99 + wire as u32, ..NOW }));
            assert!(expiry.is_over(Now { seconds: 100 + wire as u32, ..NOW }));
        }
    }

    #[test]
    fn more_is_a_unix_time() {
        assert_eq!(Expiry::decode(1_700_000_150, NOW).left(NOW), Some(50));
        // In the past, before the beginning, and beyond what an item can hold.
        assert!(Expiry::decode(1_700_000_100, NOW).is_over(NOW));
        assert!(Expiry::decode(MAX_RELATIVE + 1, NOW).is_over(NOW));
        assert!(!Expiry::decode(i64::MAX, NOW).is_over(NOW));
    }
}
