//! The rate limit of challenge ACKs (RFC 5961 section 10), shared by connections and TIME-WAIT.

use crate::time::Instant;

/// A token bucket: ten at once, then ten a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Time at which the bucket was, or will be, empty, in units of 100 ms.
    empty_at: u32,
}

impl Bucket {
    const SIZE: u32 = 10;
    const UNIT_NS: u64 = 100_000_000;

    /// Creates a full bucket.
    pub(crate) fn new(now: Instant) -> Self {
        Self { empty_at: Self::units(now) }
    }

    /// Takes a token; returns false if there is none.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let filled_since = Self::units(now);
        // The bucket is at most full; each token taken moves the time on by the time it takes to
        // refill one.
        if self.empty_at.wrapping_sub(filled_since) as i32 <= 0 {
            self.empty_at = filled_since;
        }
        let used = self.empty_at.wrapping_sub(filled_since);
        if used >= Self::SIZE {
            return false;
        }
        self.empty_at = self.empty_at.wrapping_add(1);
        true
    }

    fn units(now: Instant) -> u32 {
        (now.0 / Self::UNIT_NS) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn a_bucket_gives_ten_and_then_ten_a_second() {
        let start = Instant(7_000_000_000);
        let mut bucket = Bucket::new(start);
        let take = |bucket: &mut Bucket, now| (0..100).filter(|_| bucket.take(now)).count();
        assert_eq!(take(&mut bucket, start), 10);
        assert_eq!(take(&mut bucket, start + Duration::from_millis(100)), 1);
        assert_eq!(take(&mut bucket, start + Duration::from_secs(1)), 9);
        assert_eq!(take(&mut bucket, start + Duration::from_hours(1)), 10);
    }
}
