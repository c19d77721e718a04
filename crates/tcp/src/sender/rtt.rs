//! Round-trip times and the retransmission time-out (RFC 6298), in nanoseconds.

use core::time::Duration;

use super::Config;
use crate::time::Instant;

/// Time after which the least round trip is forgotten if none was as short (RFC 8985 section 6.2
/// asks for a windowed minimum).
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);
/// `G` of RFC 6298 section 2: the error of a nanosecond clock and of reading it.
const GRANULARITY_NS: u64 = 1_000;
/// Longest round trip; longer ones count as this.
const MAX_RTT_NS: u64 = 600_000_000_000;
/// Most round-trip times per window that are weighted separately.
const MAX_SAMPLES_PER_WINDOW: u64 = 64;
/// Most doublings of a time-out; `max_rto` ends them long before.
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
    /// Longest time for which the peer delays acknowledgements, in units of [`DELAY_UNIT_NS`].
    max_ack_delay: u16,
    backoff: u8,
}

/// Unit in which the delay of acknowledgements is kept.
const DELAY_UNIT_NS: u64 = 100_000;

fn delay_units(delay: Duration) -> u16 {
    u16::try_from(delay.as_nanos() / u128::from(DELAY_UNIT_NS)).unwrap_or(u16::MAX)
}

/// Longest time-out, about 72 minutes: longer ones that are configured count as this.
pub(crate) const MAX_RTO: Duration = Duration::from_micros(u32::MAX as u64);

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

impl Rtt {
    pub(super) fn new(config: &Config) -> Self {
        let max_rto_us = micros(config.max_rto).max(1);
        Self {
            srtt_ns: 0,
            rttvar_ns: 0,
            min_ns: 0,
            min_at: Instant::default(),
            min_rto_us: micros(config.min_rto).min(max_rto_us),
            max_rto_us,
            initial_rto_us: micros(config.initial_rto).min(max_rto_us),
            max_ack_delay: delay_units(config.max_ack_delay),
            backoff: 0,
        }
    }

    pub(super) fn set_max_ack_delay(&mut self, delay: Duration) {
        self.max_ack_delay = delay_units(delay);
    }

    /// Returns the longest time for which the peer delays acknowledgements.
    pub(super) fn max_ack_delay(&self) -> Duration {
        Duration::from_nanos(u64::from(self.max_ack_delay) * DELAY_UNIT_NS)
    }

    /// Adds a round-trip time. `in_window` is the number of further samples until the next round:
    /// without that weight a large window would forget the variation within one round trip (RFC
    /// 7323 appendix G).
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

    /// Adds a round-trip time that contains no delayed acknowledgement.
    pub(super) fn on_least(&mut self, rtt: Duration, now: Instant) {
        let sample = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX).clamp(1, MAX_RTT_NS);
        if self.min_ns == 0 || sample <= self.min_ns || now - self.min_at > MIN_RTT_WINDOW {
            (self.min_ns, self.min_at) = (sample, now);
        }
    }

    /// Doubles the time-out after the retransmission timer expired (RFC 6298 section 5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// Undoes a back-off that was unnecessary.
    pub(super) fn forget_back_off(&mut self) {
        self.backoff = 0;
    }

    /// Sets the time-out for data to 3 s after a SYN timed out and no round trip is known (RFC 6298
    /// section 5.7).
    pub(super) fn after_lost_syn(&mut self) {
        self.backoff = 0;
        self.initial_rto_us = self.initial_rto_us.max(3_000_000).min(self.max_rto_us);
    }

    /// Returns the time-out for data whose ACK the peer may delay, which it may do on a path whose
    /// round trips never varied before.
    pub(super) fn rto(&self) -> Duration {
        self.timeout(u64::from(self.max_ack_delay) * DELAY_UNIT_NS)
    }

    /// Returns the time-out for data that the peer acknowledges at once.
    pub(super) fn prompt_rto(&self) -> Duration {
        self.timeout(0)
    }

    fn timeout(&self, delay_ns: u64) -> Duration {
        let base = if self.srtt_ns == 0 {
            u64::from(self.initial_rto_us) * 1_000
        } else {
            self.srtt_ns + (4 * self.rttvar_ns).max(GRANULARITY_NS + delay_ns)
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

/// Returns `value`, moved by one part in `parts` towards `target`.
fn approach(value: u64, target: u64, parts: u64) -> u64 {
    if target >= value { value + (target - value) / parts } else { value - (value - target) / parts }
}
