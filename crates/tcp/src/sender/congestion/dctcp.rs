//! DCTCP: the window is reduced in proportion to the bytes that were marked (RFC 8257). Growth and
//! the response to loss are NewReno's.

use super::Delivery;
use super::newreno::NewReno;

/// The value 1 in the fixed-point format of `alpha`.
const ONE: u32 = 1 << 20;
/// Shift of the gain `g` = 1/16 (RFC 8257 section 4.2).
const GAIN_SHIFT: u32 = 4;

#[derive(Clone, Debug)]
pub(super) struct Dctcp {
    pub(super) reno: NewReno,
    /// Estimated fraction of bytes marked, in units of 1/[`ONE`]; initially one, so that the first
    /// mark halves the window (RFC 8257 section 3.3).
    alpha: u32,
    delivered: u32,
    marked: u32,
}

impl Default for Dctcp {
    fn default() -> Self {
        Self { reno: NewReno::default(), alpha: ONE, delivered: 0, marked: 0 }
    }
}

impl Dctcp {
    /// Counts bytes and marks; updates the estimate after each round (section 3.3 steps 1 to 8).
    pub(super) fn on_delivered(&mut self, ack: &Delivery) {
        self.delivered = self.delivered.saturating_add(ack.bytes);
        if ack.marked {
            self.marked = self.marked.saturating_add(ack.bytes);
        }
        if !ack.new_round || self.delivered == 0 {
            return;
        }
        let fraction = (u64::from(self.marked) * u64::from(ONE) / u64::from(self.delivered)) as u32;
        self.alpha = self.alpha - (self.alpha >> GAIN_SHIFT) + (fraction >> GAIN_SHIFT);
        // The shift alone would never reach zero (section 4.2's note on integers).
        if fraction == 0 && self.alpha < 1 << GAIN_SHIFT {
            self.alpha = 0;
        }
        (self.delivered, self.marked) = (0, 0);
    }

    /// Returns `cwnd * (1 - alpha / 2)` (section 3.3 step 9).
    pub(super) fn reduce_by_marks(&mut self, cwnd: u32) -> u32 {
        cwnd - (u64::from(cwnd) * u64::from(self.alpha) / u64::from(2 * ONE)) as u32
    }

    #[cfg(test)]
    pub(super) fn alpha(&self) -> f64 {
        f64::from(self.alpha) / f64::from(ONE)
    }
}
