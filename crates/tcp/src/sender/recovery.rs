//! Repairing a window that lost something: how it begins, what may go out meanwhile, when it is over, and whether it was all a mistake.
//!
//! Fast recovery lowers the window by Proportional Rate Reduction (RFC 6937; the limit is the slow start reduction bound while all goes well, as
//! its revision says). After a time-out the window is one segment, and F-RTO (RFC 5682) looks whether the time-out was spurious
//! before more than the first segment is sent again. Three witnesses can prove a mistake: a timestamp (Eifel, RFC 3522), a D-SACK for each
//! byte sent again (RFC 3708), and F-RTO. The window is then what it was, and never less than it is.

use super::congestion::Congestion;
use super::scoreboard::Fate;
use super::{Acked, Forced, Range, Sender};
use crate::{Instant, Seq};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Fast recovery.
    Recovery,
    /// After a retransmission time-out.
    Timeout(Frto),
    /// Nothing is repaired any more; kept so that a late D-SACK can undo it.
    Over,
}

/// How far F-RTO has come (RFC 5682 section 2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Frto {
    /// It does not apply, or has failed.
    Off,
    /// The first segment was sent again; nothing else is until an answer comes.
    First,
    /// `una` moved, and new data goes out: does the next answer acknowledge what was never sent again?
    Second,
}

/// One repair. Lives in a box, since most connections at most times have none.
#[derive(Debug)]
pub(super) struct Episode {
    pub(super) phase: Phase,
    /// What the window was.
    before: Congestion,
    /// What was unacknowledged when it began, and what had been sent: its end.
    start: Seq,
    pub(super) until: Seq,
    /// When the first segment was sent again, and which.
    first_again: Option<(Instant, Seq)>,
    /// That segment was acknowledged since: the timestamp witness has spoken.
    answered: bool,
    /// Bytes sent again of which no D-SACK was seen, and whether all were counted.
    unexplained: u32,
    explained: bool,
    /// PRR: in flight when it began, delivered and sent since.
    flight: u32,
    delivered: u32,
    pub(super) out: u32,
}

impl Sender {
    fn begin(&mut self, phase: Phase) {
        let (before, flight) = (self.congestion.clone(), self.board.outstanding() - self.board.delivered());
        self.episode = Some(Box::new(Episode {
            phase,
            before,
            start: self.board.una(),
            until: self.board.nxt(),
            first_again: None,
            answered: false,
            unexplained: 0,
            explained: false,
            flight: flight.max(1),
            delivered: 0,
            out: 0,
        }));
    }

    /// Something is lost, and nothing is being repaired: fast recovery.
    pub(super) fn enter_recovery(&mut self) {
        self.begin(Phase::Recovery);
        self.cut(Sign::Lost);
        self.forced = Forced::Retransmission;
        self.recover = self.board.nxt();
    }

    /// The threshold comes down, once for each window (RFC 3168 section 6.1.2 holds for losses and marks together). What is lost is not
    /// before `una`; what was marked, or repaired by a probe, is, so an acknowledgement of exactly the cut window is still about that one.
    pub(super) fn cut(&mut self, sign: Sign) -> bool {
        let (una, until) = (self.board.una(), self.cut_until);
        let known = if sign == Sign::Lost { una < until } else { una <= until };
        if known {
            self.congestion.ssthresh = self.congestion.ssthresh.min(self.congestion.cwnd);
            return false;
        }
        let flight = self.board.outstanding();
        self.congestion.on_congestion(flight, self.mss, sign == Sign::Marked);
        self.cut_until = self.board.nxt();
        true
    }

    /// The retransmission timer expired: the window is one segment, and only time tells what else is lost.
    pub(super) fn enter_timeout(&mut self, now: Instant) {
        let repairing = self.phase();
        let flight = self.board.outstanding();
        let around = self.circumstances();
        if self.board.first().is_some_and(|first| first.fate == Fate::Delivered) {
            // The peer would have acknowledged it, had it kept it (RFC 2018 section 8).
            self.board.renege();
        }
        if self.sack {
            let expired = self.rack.expired(&self.board, &around, now);
            self.board.mark_lost(|sent| Some(expired(sent)));
        } else {
            self.board.mark_lost(|_| Some(true));
        }
        (self.duplicated, self.duplicates) = (0, 0);
        if repairing.is_none() {
            self.begin(Phase::Timeout(Frto::First));
            self.congestion.on_timeout(flight, self.mss);
        } else if let Some(episode) = &mut self.episode {
            // The threshold came down when this began, and F-RTO cannot tell one copy from another.
            (episode.phase, episode.until) = (Phase::Timeout(Frto::Off), self.board.nxt());
        }
        self.congestion.cwnd = self.mss;
        self.cut_until = self.board.nxt();
        self.recover = self.board.nxt();
        self.forced = Forced::Retransmission;
    }

    /// `range` was sent again.
    pub(super) fn note_retransmission(&mut self, range: Range, now: Instant) {
        let bytes = range.len();
        if let Some(episode) = &mut self.episode {
            episode.first_again.get_or_insert((now, range.start));
            episode.unexplained = episode.unexplained.saturating_add(bytes);
            episode.out = episode.out.saturating_add(bytes);
            if episode.phase == Phase::Timeout(Frto::Second) {
                episode.phase = Phase::Timeout(Frto::Off);
            }
        }
    }

    /// Whether an acknowledgement proves the repair unnecessary. `original`: it newly delivers something from before the time-out that
    /// was sent once.
    pub(super) fn is_spurious(&mut self, acked: &Acked, witness: &Witness) -> bool {
        let (una, mss) = (self.board.una(), self.mss);
        let tick = self.tick();
        let in_flight = self.in_flight();
        let Some(episode) = &mut self.episode else { return false };
        if let Some(copy) = witness.dsacked
            && copy.start >= episode.start
            && episode.unexplained > 0
        {
            episode.unexplained = episode.unexplained.saturating_sub(copy.len());
            episode.explained = episode.unexplained == 0;
        }
        if acked.acked > 0
            && !episode.answered
            && let Some((again, first)) = episode.first_again
            && una > first
        {
            episode.answered = true;
            if witness.echoed.is_some_and(|echoed| echoed + tick <= again) {
                return true;
            }
        }
        if episode.explained {
            return true;
        }
        let Phase::Timeout(frto) = episode.phase else { return false };
        let advanced = acked.acked > 0;
        let next = match frto {
            Frto::First if advanced && una < episode.until => {
                self.congestion.cwnd = in_flight + 2 * mss;
                Frto::Second
            }
            Frto::First if advanced || acked.sacked > 0 || witness.duplicate => Frto::Off,
            Frto::Second if witness.original => return true,
            Frto::Second if advanced || acked.sacked > 0 || witness.duplicate => Frto::Off,
            unchanged => unchanged,
        };
        if frto == Frto::Second && next == Frto::Off {
            // Conventional recovery: as if the two new segments had not been (section 2.1 step 3a).
            self.congestion.cwnd = self.congestion.cwnd.min(3 * mss);
        }
        episode.phase = Phase::Timeout(next);
        false
    }

    /// The repair was unnecessary: as if it had not been.
    pub(super) fn undo(&mut self) {
        let Some(episode) = self.episode.take() else { return };
        let (now, before) = (&self.congestion, episode.before);
        let (cwnd, ssthresh) = (now.cwnd.max(before.cwnd), now.ssthresh.max(before.ssthresh));
        self.congestion = before;
        (self.congestion.cwnd, self.congestion.ssthresh) = (cwnd, ssthresh);
        if episode.phase != Phase::Over {
            self.board.unmark_lost();
        }
        self.rtt.forget_back_off();
        self.forced = Forced::No;
        (self.duplicated, self.duplicates) = (0, 0);
        // Whatever the next acknowledgement says is about a window that was not cut.
        self.cut_until = self.board.una() + u32::MAX;
    }

    /// How much may go out in fast recovery after `delivered` more bytes arrived (RFC 6937 section 3).
    pub(super) fn reduce_rate(&mut self, delivered: u32, safe: bool) {
        let (in_flight, mss, ssthresh) = (self.in_flight(), self.mss, self.congestion.ssthresh);
        let Some(episode) = &mut self.episode else { return };
        episode.delivered = episode.delivered.saturating_add(delivered);
        let mut send = if in_flight > ssthresh {
            let due =
                (u64::from(episode.delivered) * u64::from(ssthresh)).div_ceil(u64::from(episode.flight));
            u32::try_from(due).unwrap_or(u32::MAX).saturating_sub(episode.out)
        } else {
            let conserve = episode.delivered.saturating_sub(episode.out).max(delivered);
            (conserve + if safe { mss } else { 0 }).min(ssthresh - in_flight)
        };
        if episode.out == 0 {
            send = send.max(mss);
        }
        self.congestion.cwnd = in_flight.saturating_add(send).max(mss);
    }

    /// Ends the repair if all it was about is acknowledged, and forgets it when no witness can come any more.
    pub(super) fn leave_if_done(&mut self) {
        let (una, nxt) = (self.board.una(), self.board.nxt());
        let Some(episode) = &mut self.episode else { return };
        if una < episode.until {
            return;
        }
        match episode.phase {
            Phase::Over => self.episode = None,
            phase => {
                if phase == Phase::Recovery {
                    self.congestion.cwnd = self.congestion.ssthresh;
                }
                (episode.phase, episode.until) = (Phase::Over, nxt);
                (self.duplicated, self.duplicates) = (0, 0);
                self.rack.on_recovered();
                if una == nxt {
                    self.episode = None;
                }
                self.forced = Forced::No;
                if self.board.lost() > 0 {
                    // Something sent since it began is lost too: another window, another reduction.
                    self.enter_recovery();
                }
            }
        }
    }
}

/// What speaks of congestion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sign {
    /// Something unacknowledged is lost.
    Lost,
    /// Something that a probe repaired, and that is acknowledged, was lost.
    Repaired,
    /// Something acknowledged was marked (ECN).
    Marked,
}

/// What an acknowledgement says about copies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Witness {
    /// It reports a second copy of these.
    pub(super) dsacked: Option<Range>,
    /// When the copy it answers was sent.
    pub(super) echoed: Option<Instant>,
    /// It newly delivers something from before the time-out that was sent once.
    pub(super) original: bool,
    /// It is a duplicate.
    pub(super) duplicate: bool,
}
