//! NewReno: additive increase, multiplicative decrease (RFC 5681 section 3.1).

use super::Delivery;

#[derive(Clone, Debug, Default)]
pub(super) struct NewReno {
    /// Bytes delivered towards the next segment of growth (RFC 3465 section 2.1).
    delivered: u32,
}

impl NewReno {
    /// Grows the window by one segment for each window delivered.
    pub(super) fn grow(&mut self, cwnd: u32, ack: &Delivery) -> u32 {
        self.delivered = self.delivered.saturating_add(ack.bytes.min(cwnd));
        if self.delivered < cwnd {
            return cwnd;
        }
        self.delivered -= cwnd;
        cwnd + ack.mss
    }

    /// Returns half of the data in flight.
    pub(super) fn reduce(&mut self, used: u32) -> u32 {
        self.delivered = 0;
        used / 2
    }
}
