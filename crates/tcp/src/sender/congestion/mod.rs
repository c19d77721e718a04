//! Congestion control: the window grows with delivered data and is reduced by losses and marks.
//!
//! Owns the window and the slow start threshold. It knows neither which segments were lost nor how
//! much is in flight: [`super::recovery`] reports at most one loss per window, and lowers the
//! window while it repairs the loss (PRR). All counting is in bytes (RFC 3465), so that a peer
//! gains nothing by splitting acknowledgements.

mod cubic;
mod dctcp;
mod hystart;
mod newreno;
#[cfg(test)]
mod tests;

use core::time::Duration;

use crate::time::Instant;
use cubic::Cubic;
use dctcp::Dctcp;
use hystart::HyStart;
use newreno::NewReno;

/// The congestion control of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Algorithm {
    /// RFC 5681 and RFC 6582.
    NewReno,
    /// RFC 9438. The default.
    #[default]
    Cubic,
    /// RFC 8257: needs ECN from end to end and switches that mark; inside data centres only.
    Dctcp,
}

/// Largest window: the largest that a peer can offer (RFC 7323 section 2.3).
pub(super) const MAX_WINDOW: u32 = 1 << 30;

/// `L` of RFC 9406 section 4.2: most segments by which the window grows for one acknowledgement in
/// slow start. It is larger than RFC 3465's 2, since a peer that coalesces received segments
/// acknowledges many at once.
const SLOW_START_LIMIT: u32 = 8;

/// An acknowledgement, as congestion control sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    /// Bytes newly acknowledged.
    pub(super) bytes: u32,
    /// True if it carries a congestion signal (ECE).
    pub(super) marked: bool,
    /// True if the data in flight used up the window. Otherwise the acknowledgement proves nothing,
    /// and the window does not grow (RFC 9438 section 5.8).
    pub(super) window_limited: bool,
    /// True if it is the first to acknowledge data sent after the previous round began.
    pub(super) new_round: bool,
    /// True after a retransmission time-out, when the window grows by one segment per
    /// acknowledgement (RFC 3465 section 2.3).
    pub(super) after_timeout: bool,
    /// A round-trip time, if the acknowledgement gives one.
    pub(super) rtt: Option<Duration>,
    /// The smoothed round-trip time.
    pub(super) srtt: Duration,
    pub(super) mss: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Congestion {
    pub(super) cwnd: u32,
    pub(super) ssthresh: u32,
    kind: Kind,
    hystart: HyStart,
}

#[derive(Clone, Debug)]
enum Kind {
    NewReno(NewReno),
    Cubic(Cubic),
    Dctcp(Dctcp),
}

impl Congestion {
    pub(super) fn new(algorithm: Algorithm, mss: u32) -> Self {
        let kind = match algorithm {
            Algorithm::NewReno => Kind::NewReno(NewReno::default()),
            Algorithm::Cubic => Kind::Cubic(Cubic::default()),
            Algorithm::Dctcp => Kind::Dctcp(Dctcp::default()),
        };
        Self { cwnd: initial_window(mss), ssthresh: u32::MAX, kind, hystart: HyStart::default() }
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows the window; called outside fast recovery.
    pub(super) fn on_delivered(&mut self, ack: &Delivery, now: Instant) {
        if let Kind::Dctcp(dctcp) = &mut self.kind {
            dctcp.on_delivered(ack);
        }
        let mut bytes = ack.bytes;
        if self.in_slow_start() {
            let divisor = if matches!(self.kind, Kind::Dctcp(_)) || ack.after_timeout {
                Some(1)
            } else {
                self.hystart.on_delivered(ack)
            };
            match divisor {
                None => self.ssthresh = self.cwnd,
                Some(divisor) if ack.window_limited => bytes = self.slow_start(ack, divisor),
                Some(_) => return,
            }
        }
        if bytes == 0 || !ack.window_limited {
            return;
        }
        let avoidance = Delivery { bytes, ..*ack };
        let grown = match &mut self.kind {
            Kind::NewReno(reno) => reno.grow(self.cwnd, &avoidance),
            Kind::Dctcp(dctcp) => dctcp.reno.grow(self.cwnd, &avoidance),
            Kind::Cubic(cubic) => cubic.grow(self.cwnd, &avoidance, now),
        };
        self.cwnd = grown.min(MAX_WINDOW);
    }

    /// Grows the window by the delivered bytes divided by `divisor`; returns the bytes beyond the
    /// threshold, which are left for congestion avoidance.
    fn slow_start(&mut self, ack: &Delivery, divisor: u32) -> u32 {
        let limit = if ack.after_timeout { 1 } else { SLOW_START_LIMIT };
        let grow = ack.bytes.min(limit.saturating_mul(ack.mss)) / divisor;
        let room = self.ssthresh - self.cwnd;
        self.cwnd = (self.cwnd + grow.min(room)).min(MAX_WINDOW);
        grow.saturating_sub(room)
    }

    /// Lowers the threshold after a window lost data or was marked. The caller lowers the window
    /// itself.
    pub(super) fn on_congestion(&mut self, in_flight: u32, mss: u32, marked: bool) {
        // If the lost window was not full, `cwnd` may be far above anything ever tried (RFC 9438
        // section 4.6).
        let used = self.cwnd.min(in_flight.max(mss));
        let reduced = match &mut self.kind {
            Kind::NewReno(reno) => reno.reduce(used),
            Kind::Cubic(cubic) => cubic.reduce(self.cwnd, used),
            Kind::Dctcp(dctcp) if marked => dctcp.reduce_by_marks(self.cwnd),
            Kind::Dctcp(dctcp) => dctcp.reno.reduce(used),
        };
        self.ssthresh = reduced.max(2 * mss);
        self.hystart = HyStart::default();
    }

    /// Handles the first expiry of the retransmission timer in this window (RFC 5681 section 3.1
    /// equation 4).
    pub(super) fn on_timeout(&mut self, in_flight: u32, mss: u32) {
        self.on_congestion(in_flight, mss, false);
        if let Kind::Cubic(cubic) = &mut self.kind {
            cubic.after_timeout();
        }
    }

    /// Lowers the window after nothing was sent for `idle`, at least one time-out of `rto`:
    /// knowledge of the path becomes stale (RFC 5681 section 4.1), so the window is halved for each
    /// time-out (RFC 2861 section 3.1).
    pub(super) fn on_idle(&mut self, idle: Duration, rto: Duration, mss: u32) {
        self.ssthresh =
            if self.ssthresh == u32::MAX { u32::MAX } else { self.ssthresh.max(self.cwnd - self.cwnd / 4) };
        self.cwnd = self.after_idle(idle, rto, mss);
        if let Kind::Cubic(cubic) = &mut self.kind {
            cubic.after_idle(idle);
        }
    }

    /// Returns the window after such a pause.
    pub(super) fn after_idle(&self, idle: Duration, rto: Duration, mss: u32) -> u32 {
        let halvings = (idle.as_nanos() / rto.as_nanos().max(1)).min(31) as u32;
        (self.cwnd >> halvings).max(self.cwnd.min(initial_window(mss)))
    }
}

/// Returns the initial window of RFC 6928 section 2.
pub(super) fn initial_window(mss: u32) -> u32 {
    (10 * mss).min((2 * mss).max(14_600))
}
