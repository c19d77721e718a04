//! Repair of a window that lost data: how it begins, what may be sent meanwhile, when it ends, and
//! whether it was unnecessary.
//!
//! Fast recovery lowers the window by Proportional Rate Reduction (RFC 9937): below the
//! threshold an acknowledgement that advances and shows no further loss releases one segment more
//! than it delivers, another one as much as it delivers. After a time-out the window is one
//! segment, and F-RTO (RFC 5682) checks whether the time-out was spurious before more than the
//! first segment is sent again. Three kinds of evidence can prove a repair unnecessary: a
//! timestamp (Eifel, RFC 3522), a D-SACK for each byte sent again (RFC 3708), and F-RTO. The window
//! is then restored, and never lowered.

use super::congestion::Congestion;
use super::scoreboard::Fate;
use super::{Acked, Forced, Sender};
use crate::seq::{Range, Seq};
use crate::time::Instant;
use alloc::boxed::Box;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Fast recovery.
    Recovery,
    /// After a retransmission time-out.
    Timeout(Frto),
    /// The repair is complete; kept so that a late D-SACK can undo it.
    Over,
}

/// The progress of F-RTO (RFC 5682 section 2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Frto {
    /// It does not apply, or has failed.
    Off,
    /// The first segment was sent again; nothing else is until an answer arrives.
    First,
    /// `una` moved, and new data is sent. The next answer shows whether data was acknowledged that
    /// was never sent again.
    Second,
}

/// One repair. It is boxed, since most connections have none at most times.
#[derive(Debug)]
pub(super) struct Episode {
    pub(super) phase: Phase,
    /// The congestion state before the repair.
    before: Congestion,
    /// The unacknowledged range when it began: its start and its end.
    start: Seq,
    pub(super) until: Seq,
    /// Time at which the first segment was sent again, and its number.
    first_again: Option<(Instant, Seq)>,
    /// True if that segment was acknowledged since, so that its timestamp has been evaluated.
    answered: bool,
    /// Bytes sent again for which no D-SACK was seen, and true if all were counted.
    unexplained: u32,
    explained: bool,
    /// PRR: bytes in flight when it began, delivered and sent since.
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

    /// Starts fast recovery after a loss outside a repair.
    pub(super) fn enter_recovery(&mut self) {
        self.begin(Phase::Recovery);
        self.cut(Signal::Lost);
        self.forced = Forced::Retransmission;
        self.recover = self.board.nxt();
    }

    /// Lowers the threshold, once for each window (RFC 3168 section 6.1.2 holds for losses and
    /// marks together); returns true if it did.
    ///
    /// Lost data is not before `una`. Data that was marked, or repaired by a probe, is, so an
    /// acknowledgement of exactly the reduced window still concerns that window.
    pub(super) fn cut(&mut self, sign: Signal) -> bool {
        let (una, until) = (self.board.una(), self.cut_until);
        let known = if sign == Signal::Lost { una < until } else { una <= until };
        if known {
            self.congestion.ssthresh = self.congestion.ssthresh.min(self.congestion.cwnd);
            return false;
        }
        let flight = self.board.outstanding();
        self.congestion.on_congestion(flight, self.mss, sign == Signal::Marked);
        self.cut_until = self.board.nxt();
        true
    }

    /// Handles an expired retransmission timer: the window becomes one segment, and only time shows
    /// what else is lost.
    pub(super) fn enter_timeout(&mut self, now: Instant) {
        let repairing = self.phase();
        let flight = self.board.outstanding();
        let around = self.circumstances();
        if self.board.first().is_some_and(|first| first.fate == Fate::Delivered) {
            // The peer would have acknowledged the first segment if it had kept it (RFC 2018
            // section 8).
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
            // The threshold was lowered when this repair began, and F-RTO cannot distinguish the
            // copies.
            (episode.phase, episode.until) = (Phase::Timeout(Frto::Off), self.board.nxt());
        }
        self.congestion.cwnd = self.mss;
        self.cut_until = self.board.nxt();
        self.recover = self.board.nxt();
        self.forced = Forced::Retransmission;
    }

    /// Records that `range` was sent again.
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

    /// Returns true if an acknowledgement proves the repair unnecessary. `original` is true if it
    /// newly delivers data from before the time-out that was sent only once.
    pub(super) fn is_spurious(&mut self, acked: &Acked, evidence: &Evidence) -> bool {
        let (una, mss) = (self.board.una(), self.mss);
        let tick = self.tick();
        let in_flight = self.in_flight();
        let Some(episode) = &mut self.episode else { return false };
        if let Some(copy) = evidence.dsacked
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
            if evidence.echoed.is_some_and(|echoed| echoed + tick <= again) {
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
            Frto::First if advanced || acked.sacked > 0 || evidence.duplicate => Frto::Off,
            Frto::Second if evidence.original => return true,
            Frto::Second if advanced || acked.sacked > 0 || evidence.duplicate => Frto::Off,
            unchanged => unchanged,
        };
        if frto == Frto::Second && next == Frto::Off {
            // Conventional recovery: undoes the effect of the two new segments (section 2.1 step
            // 3a).
            self.congestion.cwnd = self.congestion.cwnd.min(3 * mss);
        }
        episode.phase = Phase::Timeout(next);
        false
    }

    /// Restores the state before an unnecessary repair.
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
        // The next acknowledgement concerns a window that was not reduced.
        self.cut_until = self.board.una() + u32::MAX;
    }

    /// Sets the window of fast recovery after `delivered` more bytes arrived (RFC 9937, which
    /// obsoletes RFC 6937). `safe` is true if the acknowledgement advances and shows no further
    /// loss.
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

    /// Ends the repair once all of its data is acknowledged, and drops it when later data is: until
    /// then a D-SACK may show that the repair was unnecessary.
    pub(super) fn leave_if_done(&mut self) {
        let (una, nxt) = (self.board.una(), self.board.nxt());
        let Some(episode) = &mut self.episode else { return };
        let explicable = self.sack && episode.unexplained > 0;
        let over = episode.phase == Phase::Over;
        if una < episode.until || (over && una == episode.until && explicable) {
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
                if una == nxt && !explicable {
                    self.episode = None;
                }
                self.forced = Forced::No;
                if self.board.lost() > 0 {
                    // Data sent since it began is lost too, which is another window and another
                    // reduction.
                    self.enter_recovery();
                }
            }
        }
    }
}

/// A congestion signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Signal {
    /// Unacknowledged data is lost.
    Lost,
    /// Acknowledged data was lost and repaired by a probe.
    Repaired,
    /// Acknowledged data was marked (ECN).
    Marked,
}

/// Evidence in an acknowledgement about second copies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    /// The range whose second copy it reports.
    pub(super) dsacked: Option<Range>,
    /// Time at which the copy that it answers was sent.
    pub(super) echoed: Option<Instant>,
    /// True if it newly delivers data from before the time-out that was sent only once.
    pub(super) original: bool,
    /// True if it is a duplicate.
    pub(super) duplicate: bool,
}
