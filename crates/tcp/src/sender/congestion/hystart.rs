//! HyStart++ (RFC 9406): slow start ends when round-trip times grow, before it overflows the
//! bottleneck's queue.

use core::time::Duration;

use super::Delivery;

/// The parameters of section 4.3.
const MIN_RTT_THRESH: Duration = Duration::from_millis(4);
const MAX_RTT_THRESH: Duration = Duration::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;
const RTT_SAMPLES: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

/// Nanoseconds, saturating at 4.29 s.
type Nanos = u32;
const NONE: Nanos = Nanos::MAX;

#[derive(Clone, Debug)]
pub(super) struct HyStart {
    last_round: Nanos,
    this_round: Nanos,
    /// In conservative slow start, the least round trip of the round before it; else [`NONE`].
    baseline: Nanos,
    samples: u8,
    rounds: u8,
}

impl Default for HyStart {
    fn default() -> Self {
        Self { last_round: NONE, this_round: NONE, baseline: NONE, samples: 0, rounds: 0 }
    }
}

impl HyStart {
    /// Returns the divisor of the growth; `None` if slow start is over (section 4.2).
    pub(super) fn on_delivered(&mut self, ack: &Delivery) -> Option<u32> {
        if ack.new_round {
            (self.last_round, self.this_round, self.samples) = (self.this_round, NONE, 0);
            if self.baseline != NONE {
                self.rounds += 1;
                if self.rounds >= CSS_ROUNDS {
                    return None;
                }
            }
        }
        if let Some(rtt) = ack.rtt {
            self.this_round =
                self.this_round.min(u32::try_from(rtt.as_nanos()).unwrap_or(NONE).min(NONE - 1));
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= RTT_SAMPLES && self.this_round != NONE && self.last_round != NONE {
            if self.baseline == NONE {
                let least = Duration::from_nanos(u64::from(self.last_round));
                let thresh = (least / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
                if Duration::from_nanos(u64::from(self.this_round)) >= least + thresh {
                    (self.baseline, self.rounds) = (self.last_round, 0);
                }
            } else if self.this_round < self.baseline {
                // The growth of the round trip was not caused by a queue.
                self.baseline = NONE;
            }
        }
        Some(if self.baseline != NONE { CSS_GROWTH_DIVISOR } else { 1 })
    }
}
