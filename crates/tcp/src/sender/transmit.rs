//! What may go out, and what did.

use core::time::Duration;

use super::recovery::{Frto, Phase};
use super::{Forced, Probe, Range, Sender};
use crate::{Instant, Seq};

impl Sender {
    /// What is to be sent again now, if the window admits it: at most one segment's worth, already sent and not acknowledged.
    /// `has_new` says whether there is data never sent that the peer's window admits: a probe would rather send that.
    /// Stays the same until something happens.
    pub fn next_retransmission(&self, has_new: bool) -> Option<Range> {
        if self.forced == Forced::Probe {
            // RFC 8985 section 7.3: the last segment, if there is nothing new.
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

    /// How many bytes of new data may go out now, as far as congestion goes; zero while something waits to be sent again. Less than a
    /// segment is possible, and then the connection may wait for more (silly window avoidance, Nagle): at least a whole one is admitted
    /// when nothing is in flight. An idle connection's window has faded (RFC 5681 section 4.1).
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

    /// New data went out: `range` starts at [`nxt`](Self::nxt).
    ///
    /// # Panics
    /// If it starts elsewhere or is empty: that is a bug in the connection.
    pub fn on_sent(&mut self, range: Range, now: Instant) {
        // Not against `last_sent`: a listener's SYN left before its sender was made.
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

    /// What [`next_retransmission`](Self::next_retransmission) named went out, or a beginning of it.
    ///
    /// # Panics
    /// If `range` is empty or not within what is unacknowledged: that is a bug in the connection.
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

    /// How long nothing was sent, if that is long enough for the window to fade: a time-out, with nothing unacknowledged.
    fn idle(&self, now: Instant) -> Option<Duration> {
        let idle = now - self.last_sent;
        (self.established && self.board.outstanding() == 0 && idle > self.rtt.rto()).then_some(idle)
    }
}
