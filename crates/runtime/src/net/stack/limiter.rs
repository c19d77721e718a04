//! A token bucket: so many at once, then so many a second.

use core::time::Duration;

/// Allows a burst and then a steady rate. Pure: time is an argument, and one that goes back changes nothing.
#[derive(Debug)]
pub struct TokenBucket {
    /// Time one token takes to grow.
    interval: Duration,
    /// Time a full bucket takes to grow.
    full: Duration,
    /// When the bucket would have been empty: the tokens in it are the intervals since then.
    empty_at: Duration,
}

impl TokenBucket {
    /// A full bucket of `burst` tokens that gains `per_second` tokens a second.
    ///
    /// # Panics
    /// If either is zero.
    pub fn new(burst: u32, per_second: u32) -> Self {
        assert!(burst > 0 && per_second > 0, "a limit of {burst} at once and {per_second} a second");
        let interval = Duration::from_secs(1) / per_second;
        Self { interval, full: interval * burst, empty_at: Duration::ZERO }
    }

    /// Takes a token if there is one.
    pub fn take(&mut self, now: Duration) -> bool {
        // A bucket never holds more than `full`. Before the clock has run that long the subtraction stops at zero.
        let empty_at = self.empty_at.max(now.saturating_sub(self.full));
        let taken = empty_at + self.interval;
        let ok = taken <= now;
        if ok {
            self.empty_at = taken;
        }
        ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut bucket = TokenBucket::new(50, 1000);
        let start = Duration::from_secs(100);
        let passed =
            |bucket: &mut TokenBucket, now, tries: u32| (0..tries).filter(|_| bucket.take(now)).count();
        assert_eq!(passed(&mut bucket, start, 1000), 50);
        assert_eq!(passed(&mut bucket, start + Duration::from_micros(999), 10), 0);
        assert_eq!(passed(&mut bucket, start + Duration::from_millis(7), 10), 7);
        assert_eq!(passed(&mut bucket, start + Duration::from_secs(9), 1000), 50);
        assert_eq!(passed(&mut bucket, start, 10), 0, "a clock that goes back grants nothing");
    }
}
