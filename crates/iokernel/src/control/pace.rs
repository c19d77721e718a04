//! Rates: a number of events at once, then one every interval.
//!
//! Pure: time is an argument. One instant is the whole state (the generic cell rate algorithm,
//! ITU-T I.371): the end of what has happened, had it happened once every interval.

use std::time::{Duration, Instant};

/// See the module documentation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    /// Maximum number of times at once.
    pub(super) burst: u32,
    /// Time after which it may happen once more.
    pub(super) interval: Duration,
}

/// What has happened so far, at one [`Rate`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    paid_until: Instant,
}

impl Pace {
    /// Returns the state before the first time.
    pub(super) fn new(now: Instant) -> Self {
        Self { paid_until: now }
    }

    /// Counts one time if it may happen now; returns whether it may.
    pub(super) fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let has_room = self.paid_until < now + rate.interval * rate.burst;
        if has_room {
            self.paid_until = self.paid_until.max(now) + rate.interval;
        }
        has_room
    }

    /// Returns the time after which it may happen once more.
    pub(super) fn wait(&self, rate: Rate, now: Instant) -> Duration {
        // [`take`](Self::take) has room from just before the end of the burst on.
        let from = self.paid_until + Duration::from_nanos(1);
        from.saturating_duration_since(now + rate.interval * rate.burst)
    }

    /// Returns whether the whole burst may happen again, as with a new one.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.paid_until <= now
    }
}
