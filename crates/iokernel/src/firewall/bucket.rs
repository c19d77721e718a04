//! Token buckets: a rate in frames or bits per second, and a burst.
//!
//! Owns the arithmetic, which is exact: a level is counted in units times cycles per second, so
//! that a cycle adds exactly the rate and a unit costs exactly the clock's frequency. Nothing is
//! rounded and nothing drifts. Takes the time as an argument; a clock that stands still or goes
//! back adds nothing.

use tailwater_shm::Cycles;

use super::config::{Limit, MAX_BURST, MAX_RATE};

/// Fastest clock, in Hz: with bursts up to [`MAX_BURST`] a full level stays below 2^63.
const MAX_HZ: u64 = 1 << 34;

/// One bucket. New buckets are full.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// Units per second.
    rate: u64,
    hz: u64,
    /// Level of a full bucket, and how many cycles fill it.
    full: u64,
    filled_in: Cycles,
    level: u64,
    /// Time of the level. `None`: before the first packet.
    at: Option<Cycles>,
}

impl Bucket {
    /// Returns a full bucket of `rate` units per second, at most [`MAX_RATE`], with bursts of
    /// `burst`, at most [`MAX_BURST`].
    fn new(rate: u64, burst: u64, hz: u64) -> Self {
        let (rate, hz) = (rate.clamp(1, MAX_RATE), hz.clamp(1, MAX_HZ));
        let full = burst.min(MAX_BURST) * hz;
        Self { rate, hz, full, filled_in: full.div_ceil(rate), level: full, at: None }
    }

    /// Adds the units of the time since the last call.
    fn refill(&mut self, now: Cycles) {
        let elapsed = now.saturating_sub(self.at.unwrap_or(now)).min(self.filled_in);
        // No overflow: elapsed is below full / rate + 1, so the product is below full + rate.
        self.level = self.level.saturating_add(elapsed * self.rate).min(self.full);
        self.at = Some(self.at.map_or(now, |at| at.max(now)));
    }

    fn holds(&self, units: u64) -> bool {
        self.level >= units * self.hz
    }

    fn take(&mut self, units: u64) {
        self.level -= units * self.hz;
    }
}

/// The limits of one runtime in one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limiter {
    frames: Option<Bucket>,
    bits: Option<Bucket>,
}

impl Limiter {
    pub(super) fn new(limit: Option<&Limit>, hz: u64) -> Self {
        let Some(limit) = limit else { return Self::default() };
        Self {
            frames: limit.frames_per_s.map(|rate| Bucket::new(rate, limit.burst_frames(), hz)),
            bits: limit.bits_per_s.map(|rate| Bucket::new(rate, limit.burst_bytes() * 8, hz)),
        }
    }

    pub(super) fn is_unlimited(&self) -> bool {
        self.frames.is_none() && self.bits.is_none()
    }

    /// Returns whether a frame of `len` bytes may pass at `now`. One that may not takes nothing.
    #[inline]
    pub(super) fn take(&mut self, len: usize, now: Cycles) -> bool {
        let bits = len as u64 * 8;
        let mut enough = true;
        for (bucket, units) in [(&mut self.frames, 1), (&mut self.bits, bits)] {
            if let Some(bucket) = bucket {
                bucket.refill(now);
                enough &= bucket.holds(units);
            }
        }
        if enough {
            self.frames.iter_mut().for_each(|bucket| bucket.take(1));
            self.bits.iter_mut().for_each(|bucket| bucket.take(bits));
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_bucket_passes_its_burst_and_then_its_rate() {
        let mut bucket = Bucket::new(1_000, 5, 1_000_000_000);
        let mut passed = |now| {
            bucket.refill(now);
            let enough = bucket.holds(1);
            if enough {
                bucket.take(1);
            }
            enough
        };
        assert_eq!((0..10).filter(|_| passed(7)).count(), 5);
        assert!(!passed(7 + 999_999), "a millisecond makes one");
        assert!(passed(7 + 1_000_000) && !passed(7 + 1_000_000));
        assert!(!passed(3), "a clock that goes back brings nothing");
        assert_eq!((0..10).filter(|_| passed(u64::MAX)).count(), 5, "and no pause brings more than a burst");
    }

    #[test]
    fn a_frame_that_one_bucket_refuses_takes_nothing_from_the_other() {
        let limit = Limit {
            frames_per_s: Some(1),
            burst_frames: Some(2),
            bits_per_s: Some(8),
            burst_bytes: Some(100),
            ..Limit::default()
        };
        let mut limiter = Limiter::new(Some(&limit), 1_000);
        assert!(limiter.take(60, 0));
        assert!(!limiter.take(60, 0), "40 bytes are left");
        assert!(limiter.take(40, 0), "and a frame");
        assert!(!limiter.take(0, 0), "no more");
    }

    proptest! {
        /// Over any time, at most burst plus rate times time passes; if frames are offered often
        /// enough, at least that less one frame.
        #[test]
        fn what_passes_is_bounded_by_rate_and_burst(rate in 1u64..=MAX_RATE, burst in 9_018u64 * 8..=MAX_BURST,
            hz in prop::sample::select(vec![1_000_000u64, 2_794_748_123, MAX_HZ]), start in any::<u32>(),
            steps in prop::collection::vec((0u64..1 << 24, 14usize..9_018), 1..200)) {
            let mut bucket = Bucket::new(rate, burst, hz);
            let (mut now, mut passed) = (u64::from(start), 0u128);
            for (step, len) in steps {
                now += step;
                bucket.refill(now);
                let units = len as u64 * 8;
                // The level that an account with unlimited range would have if the bucket had never
                // been full.
                let allowed = u128::from(burst) * u128::from(hz)
                    + u128::from(rate) * u128::from(now - u64::from(start));
                if bucket.holds(units) {
                    bucket.take(units);
                    passed += u128::from(units) * u128::from(hz);
                    prop_assert!(passed <= allowed, "{passed} passed, {allowed} allowed");
                } else {
                    prop_assert!(bucket.level < bucket.full);
                }
            }
        }
    }
}
