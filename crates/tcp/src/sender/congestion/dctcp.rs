//! A window cut in proportion to the bytes that were marked (RFC 8257); it grows, and answers to loss, as NewReno's does.

use super::Delivery;
use super::newreno::NewReno;

/// 1 in the fixed point of `alpha`.
const ONE: u32 = 1 << 20;
/// `g` is 1/16 (RFC 8257 section 4.2).
const GAIN_SHIFT: u32 = 4;

#[derive(Clone, Debug)]
pub(super) struct Dctcp {
    pub(super) reno: NewReno,
    /// The estimated fraction of bytes marked, in parts of [`ONE`]; one at first (RFC 8257 section 3.3: the first mark halves).
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
    /// Counts, and estimates anew after each round (section 3.3 steps 1 to 8).
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
        // The shift alone would never come to zero (section 4.2's note on integers).
        if fraction == 0 && self.alpha < 1 << GAIN_SHIFT {
            self.alpha = 0;
        }
        (self.delivered, self.marked) = (0, 0);
    }

    /// `cwnd * (1 - alpha / 2)` (section 3.3 step 9).
    pub(super) fn reduce_by_marks(&mut self, cwnd: u32) -> u32 {
        cwnd - (u64::from(cwnd) * u64::from(self.alpha) / u64::from(2 * ONE)) as u32
    }

    #[cfg(test)]
    pub(super) fn alpha(&self) -> f64 {
        f64::from(self.alpha) / f64::from(ONE)
    }
}
