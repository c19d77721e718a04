//! Decides what may be sent, and records what was sent.

use core::time::Duration;

use super::recovery::{Frto, Phase};
use super::{Forced, Probe, Sender};
use crate::seq::{Range, Seq};
use crate::time::Instant;

impl Sender {
    /// Returns the range to retransmit now, if the window admits one: at most a segment, sent
    /// before and not acknowledged. `has_new` is true if there is unsent data that the peer's
    /// window admits, which a probe prefers. The result stays the same until the state changes.
    pub fn next_retransmission(&self, has_new: bool) -> Option<Range> {
        if self.forced == Forced::Probe {
            // RFC 8985 section 7.3: a probe repeats the last segment if there is nothing new.
            let last = self.board.last().filter(|_| !has_new)?;
            let bytes = (last.end - last.start).min(self.mss);
            return Some(Range { start: Seq(last.end.0.wrapping_sub(bytes)), end: last.end });
        }
        let lost = self.board.next_lost()?;
        if has_new && self.phase() == Some(Phase::Timeout(Frto::Second)) {
            return None;
        }
        let bytes = lost.len().min(self.mss);
        let in_flight = self.in_flight();
        let admitted = self.forced == Forced::Retransmission
            || in_flight == 0
            || in_flight.saturating_add(bytes) <= self.congestion.cwnd;
        admitted.then(|| Range::new(lost.start, bytes))
    }

    /// Returns how many bytes of new data the congestion window admits; zero while data waits to be
    /// retransmitted.
    ///
    /// The result may be less than a segment, and then the connection may wait for more (silly
    /// window avoidance, Nagle). At least a whole segment is admitted if nothing is in flight. The
    /// window of an idle connection has decayed (RFC 5681 section 4.1).
    pub fn may_send_new(&self, now: Instant) -> u32 {
        if self.board.is_full() {
            return 0;
        }
        if self.forced == Forced::Probe {
            return self.mss.max(self.congestion.cwnd.saturating_sub(self.in_flight()));
        }
        let testing = self.phase() == Some(Phase::Timeout(Frto::Second));
        if self.board.lost() > 0 && !testing {
            return 0;
        }
        let cwnd = match self.idle(now) {
            Some(idle) => self.congestion.after_idle(idle, self.rtt.rto(), self.mss),
            None => self.congestion.cwnd,
        };
        cwnd.saturating_sub(self.in_flight())
    }

    /// Records that new data was sent; `range` starts at [`nxt`](Self::nxt).
    ///
    /// # Panics
    /// If it starts elsewhere or is empty, which is a defect of the connection.
    pub fn on_sent(&mut self, range: Range, now: Instant) {
        // Compares with the board and not with `last_sent`: a listener's SYN was sent before its
        // sender was created.
        let now = self.board.last().map_or(now, |last| now.max(last.at));
        if let Some(idle) = self.idle(now) {
            self.congestion.on_idle(idle, self.rtt.rto(), self.mss);
        }
        self.board.push(range, now);
        self.last_sent = self.last_sent.max(now);
        self.peak[0] = self.peak[0].max(self.in_flight());
        if let Some(episode) = &mut self.episode {
            episode.out = episode.out.saturating_add(range.len());
        }
        if self.forced == Forced::Probe {
            self.forced = Forced::No;
            self.probe = Probe::New;
            self.rearm(now);
        } else {
            self.arm(now);
            self.arm_probe(now);
        }
    }

    /// Records that the range named by [`next_retransmission`](Self::next_retransmission), or its
    /// beginning, was sent.
    ///
    /// # Panics
    /// If `range` is empty or not within the unacknowledged data, which is a defect of the
    /// connection.
    pub fn on_retransmitted(&mut self, range: Range, now: Instant) {
        let now = now.max(self.last_sent);
        let head = range.start == self.board.una();
        self.board.retransmit(range, now);
        self.last_sent = now;
        self.note_retransmission(range, now);
        let probing = self.forced == Forced::Probe;
        if probing {
            self.probe = Probe::Again(range.end);
        }
        self.forced = Forced::No;
        if probing || head {
            self.rearm(now);
        } else {
            self.arm(now);
        }
    }

    /// Returns the time since anything was sent, if nothing is unacknowledged and that time exceeds
    /// a time-out, after which the window decays.
    fn idle(&self, now: Instant) -> Option<Duration> {
        let idle = now - self.last_sent;
        (self.established && self.board.outstanding() == 0 && idle > self.rtt.rto()).then_some(idle)
    }
}
