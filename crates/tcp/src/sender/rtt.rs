//! Round-trip times and the retransmission time-out (RFC 6298), in nanoseconds.

use core::time::Duration;

use super::Config;
use crate::Instant;

/// The least round trip is forgotten after so long without one as short (RFC 8985 section 6.2 asks for a windowed minimum).
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);
/// `G` of RFC 6298 section 2: what a clock of nanoseconds and its reader add.
const GRANULARITY_NS: u64 = 1_000;
/// Longer round trips than this are taken for this.
const MAX_RTT_NS: u64 = 600_000_000_000;
/// Round-trip times of one window are weighed as if they were at most so many.
const MAX_SAMPLES_PER_WINDOW: u64 = 64;
/// A time-out is doubled at most so often; `max_rto` ends it long before.
const MAX_BACKOFF: u8 = 20;

#[derive(Debug)]
pub(super) struct Rtt {
    /// Zero until a round trip was measured.
    srtt_ns: u64,
    rttvar_ns: u64,
    min_ns: u64,
    min_at: Instant,
    min_rto_us: u32,
    max_rto_us: u32,
    initial_rto_us: u32,
    backoff: u8,
}

impl Rtt {
    pub(super) fn new(config: &Config) -> Self {
        let us = |duration: Duration| u32::try_from(duration.as_micros()).unwrap_or(u32::MAX);
        let max_rto_us = us(config.max_rto).max(1);
        Self {
            srtt_ns: 0,
            rttvar_ns: 0,
            min_ns: 0,
            min_at: Instant::default(),
            min_rto_us: us(config.min_rto).min(max_rto_us),
            max_rto_us,
            initial_rto_us: us(config.initial_rto).min(max_rto_us),
            backoff: 0,
        }
    }

    /// One round trip took `rtt`, and `in_window` more will be measured until the next begins (RFC 7323 appendix G: without that,
    /// a large window would forget in one round trip what the variation was).
    pub(super) fn on_sample(&mut self, rtt: Duration, in_window: u32) {
        let sample = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX).clamp(1, MAX_RTT_NS);
        self.backoff = 0;
        if self.srtt_ns == 0 {
            (self.srtt_ns, self.rttvar_ns) = (sample, sample / 2);
            return;
        }
        let weight = u64::from(in_window).clamp(1, MAX_SAMPLES_PER_WINDOW);
        let error = sample.abs_diff(self.srtt_ns);
        self.rttvar_ns = approach(self.rttvar_ns, error, 4 * weight);
        self.srtt_ns = approach(self.srtt_ns, sample, 8 * weight).max(1);
    }

    /// A round trip without a delayed acknowledgement in it took `rtt`.
    pub(super) fn on_least(&mut self, rtt: Duration, now: Instant) {
        let sample = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX).clamp(1, MAX_RTT_NS);
        if self.min_ns == 0 || sample <= self.min_ns || now - self.min_at > MIN_RTT_WINDOW {
            (self.min_ns, self.min_at) = (sample, now);
        }
    }

    /// The retransmission timer expired (RFC 6298 section 5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// The time-out had been backed off for nothing.
    pub(super) fn forget_back_off(&mut self) {
        self.backoff = 0;
    }

    /// A SYN timed out and no round trip is known: data begins with 3 s (RFC 6298 section 5.7).
    pub(super) fn after_lost_syn(&mut self) {
        self.backoff = 0;
        self.initial_rto_us = self.initial_rto_us.max(3_000_000).min(self.max_rto_us);
    }

    pub(super) fn rto(&self) -> Duration {
        let base = if self.srtt_ns == 0 {
            u64::from(self.initial_rto_us) * 1_000
        } else {
            self.srtt_ns + (4 * self.rttvar_ns).max(GRANULARITY_NS)
        };
        let (min, max) = (u64::from(self.min_rto_us) * 1_000, u64::from(self.max_rto_us) * 1_000);
        Duration::from_nanos((base.clamp(min, max) << self.backoff).min(max))
    }

    pub(super) fn srtt(&self) -> Option<Duration> {
        (self.srtt_ns != 0).then(|| Duration::from_nanos(self.srtt_ns))
    }

    pub(super) fn rttvar(&self) -> Option<Duration> {
        (self.srtt_ns != 0).then(|| Duration::from_nanos(self.rttvar_ns))
    }

    pub(super) fn min(&self) -> Option<Duration> {
        (self.min_ns != 0).then(|| Duration::from_nanos(self.min_ns))
    }
}

/// `value`, moved by one part in `parts` towards `target`.
fn approach(value: u64, target: u64, parts: u64) -> u64 {
    if target >= value { value + (target - value) / parts } else { value - (value - target) / parts }
}
