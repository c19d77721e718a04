//! Loss detection by time (RFC 8985 section 6): a segment is lost if one sent sufficiently later
//! was delivered.

use core::time::Duration;

use super::scoreboard::{Scoreboard, Sent};
use crate::seq::Seq;
use crate::time::Instant;

/// Recoveries without a D-SACK after which the reordering window returns to a quarter of a round
/// trip (section 6.2 step 4).
const PERSIST: u8 = 16;
/// Segments delivered out of order after which no time is left for reordering, if none was ever
/// seen (section 6.2 step 4).
pub(super) const DUP_THRESH: u32 = 3;

#[derive(Debug)]
pub(super) struct Rack {
    /// Time at which the most recently sent delivered segment was sent, and its end.
    at: Instant,
    end: Seq,
    /// The highest number delivered.
    highest: Seq,
    /// End of the round trip within which another D-SACK does not widen the window again.
    dsack_until: Seq,
    /// That segment's round trip; zero before there is one.
    rtt_ns: u64,
    reordering_seen: bool,
    multiplier: u8,
    persist: u8,
}

/// The result of [`Rack::detect`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Detected {
    pub(super) lost: u32,
    /// Time at which data that is only suspected so far becomes lost.
    pub(super) check_at: Option<Instant>,
}

/// Further inputs of the reordering window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    pub(super) srtt: Duration,
    pub(super) min_rtt: Duration,
    pub(super) in_recovery: bool,
    pub(super) mss: u32,
}

impl Rack {
    pub(super) fn new(iss: Seq) -> Self {
        Self {
            at: Instant::default(),
            end: iss,
            highest: iss,
            dsack_until: iss,
            rtt_ns: 0,
            reordering_seen: false,
            multiplier: 1,
            persist: 0,
        }
    }

    /// Records that `sent` was delivered at `now` (steps 1 to 3). `echoed_before` is true if, by
    /// its timestamp, the peer answers a segment sent before that.
    pub(super) fn on_delivered(&mut self, sent: &Sent, now: Instant, min_rtt: Duration, echoed_before: bool) {
        if sent.end > self.highest {
            self.highest = sent.end;
        } else if !sent.again {
            self.reordering_seen = true;
        }
        let rtt = now - sent.at;
        if sent.again && (rtt < min_rtt || echoed_before) {
            return;
        }
        if (sent.at, sent.end.distance(self.end)) > (self.at, 0) {
            (self.at, self.end) = (sent.at, sent.end);
            self.rtt_ns = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX).max(1);
        }
    }

    /// Handles a D-SACK: a retransmission was unnecessary, so the reordering window was too small
    /// (step 4).
    pub(super) fn on_dsack(&mut self, una: Seq, nxt: Seq) {
        if una >= self.dsack_until {
            self.dsack_until = nxt;
            self.multiplier = self.multiplier.saturating_add(1);
        }
        self.persist = PERSIST;
    }

    /// Moves the end of the round trip of the last D-SACK up to `behind`, a number before the first
    /// unacknowledged one.
    pub(super) fn keep_up(&mut self, behind: Seq) {
        self.dsack_until = self.dsack_until.max(behind);
    }

    /// Records the end of a recovery.
    pub(super) fn on_recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.multiplier = 1;
        }
    }

    /// Marks the data that is lost at `now` (step 5).
    pub(super) fn detect(&self, board: &mut Scoreboard, around: &Circumstances, now: Instant) -> Detected {
        if self.rtt_ns == 0 {
            return Detected::default();
        }
        let patience = self.patience(board, around);
        let mut check_at = None;
        let lost = board.mark_lost(|sent| {
            if (sent.at, sent.end.distance(self.end)) >= (self.at, 0) {
                // Ranges beyond this one that were sent only once were sent later still, and
                // retransmissions later than that.
                return if sent.again { Some(false) } else { None };
            }
            let due = sent.at + patience;
            if due > now {
                check_at = check_at.max(Some(due));
            }
            Some(due <= now)
        });
        Detected { lost, check_at }
    }

    /// Marks lost data after the retransmission timer expired: the first range, and others sent
    /// long enough ago (section 6.3).
    pub(super) fn expired(
        &self,
        board: &Scoreboard,
        around: &Circumstances,
        now: Instant,
    ) -> impl Fn(&Sent) -> bool + use<> {
        let (una, known, patience) = (board.una(), self.rtt_ns != 0, self.patience(board, around));
        move |sent| sent.start == una || !known || sent.at + patience <= now
    }

    fn patience(&self, board: &Scoreboard, around: &Circumstances) -> Duration {
        Duration::from_nanos(self.rtt_ns) + self.window(board, around)
    }

    /// Returns the reordering window (step 4).
    pub(super) fn window(&self, board: &Scoreboard, around: &Circumstances) -> Duration {
        if !self.reordering_seen
            && (around.in_recovery || board.delivered() >= DUP_THRESH.saturating_mul(around.mss))
        {
            return Duration::ZERO;
        }
        (around.min_rtt / 4 * u32::from(self.multiplier)).min(around.srtt)
    }
}
