//! Processing of an acknowledgement, step by step: delivery, timing, second copies, loss, and the
//! window.

use core::time::Duration;

use super::congestion::Delivery;
use super::recovery::{Evidence, Frto, Phase, Signal};
use super::scoreboard::Sent;
use super::{AckError, AckInfo, Acked, Forced, NO_TIMESTAMPS, Probe, Sender};
use crate::seq::{Range, Seq};
use crate::time::Instant;

/// SACK blocks that fit in an option (RFC 2018 section 3); further ones are ignored.
const MAX_SACK_BLOCKS: usize = 4;
/// Number of duplicates that indicates loss (RFC 5681 section 3.2).
const DUP_THRESH: u8 = 3;

/// Newly delivered data, and when it was sent.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    bytes: u32,
    /// Times at which the first and the last of the data that was sent only once was sent. The
    /// first includes a delayed acknowledgement, the last does not.
    first: Option<Instant>,
    last: Option<Instant>,
    /// True if some of it was sent again, or shares a range with data sent earlier: Karn's
    /// algorithm (RFC 6298 section 3).
    ambiguous: bool,
}

impl News {
    fn note(&mut self, sent: &Sent) {
        self.bytes += sent.end - sent.start;
        if sent.again || sent.coarse {
            self.ambiguous = true;
        } else {
            self.first = Some(self.first.map_or(sent.at, |at| at.min(sent.at)));
            self.last = self.last.max(Some(sent.at));
        }
    }
}

impl Sender {
    /// Handles an acceptable ACK. An old one, below [`una`](Self::una), is useful for its SACK
    /// blocks.
    ///
    /// # Errors
    /// If it acknowledges data that was never sent. The sender is unchanged.
    pub fn on_ack(&mut self, ack: &AckInfo<'_>, now: Instant) -> Result<Acked, AckError> {
        let nxt = self.board.nxt();
        if ack.ack > nxt {
            return Err(AckError::Unsent { ack: ack.ack, nxt });
        }
        let outstanding = self.board.outstanding();
        let duplicated = self.duplicated;
        let (mut acked, news, mut evidence) = self.deliver(ack, now);
        self.time(&acked, &news, ack, now);
        self.count_duplicates(ack, &acked, outstanding, &mut evidence);

        let answered = self.answer_probe(ack, &evidence);
        acked.spurious = self.is_spurious(&acked, &evidence);
        if acked.spurious {
            self.undo();
        }
        acked.lost = self.find_lost(&acked, now);
        if acked.lost > 0 && !self.in_recovery() {
            self.enter_recovery();
        }
        if (ack.ecn_echo || answered == Some(Answer::Repaired)) && !self.in_recovery() {
            let sign = if ack.ecn_echo { Signal::Marked } else { Signal::Repaired };
            acked.send_cwr = self.cut(sign) && ack.ecn_echo;
            self.congestion.cwnd = self.congestion.cwnd.min(self.congestion.ssthresh);
        }
        self.resize(ack, &acked, &news, duplicated, now);
        self.leave_if_done();

        if acked.acked > 0 {
            self.consecutive = 0;
            if self.forced == Forced::Probe {
                self.forced = Forced::No;
            }
            self.rearm(now);
            self.arm_probe(now);
        } else if acked.sacked > 0 {
            self.arm_probe(now);
        }
        acked.in_recovery = self.in_recovery();
        acked.all_acked = self.board.outstanding() == 0;
        Ok(acked)
    }

    /// Returns the tick of this side's timestamp clock.
    pub(super) fn tick(&self) -> Duration {
        Duration::from_micros(u64::from(self.tick_us))
    }

    /// Removes delivered data from the scoreboard.
    fn deliver(&mut self, ack: &AckInfo<'_>, now: Instant) -> (Acked, News, Evidence) {
        let (mut acked, mut news) = (Acked::default(), News::default());
        let min_rtt = self.rtt.min().unwrap_or_default();
        let tick = self.tick();
        let echoed = ack.echoed.filter(|_| self.tick_us != NO_TIMESTAMPS);
        let before_timeout = self.episode.as_ref().map(|episode| episode.until);
        let mut original = false;
        let rack = &mut self.rack;
        let mut each = |sent: &Sent| {
            news.note(sent);
            original |= !sent.again && before_timeout.is_some_and(|until| sent.end <= until);
            rack.on_delivered(sent, now, min_rtt, echoed.is_some_and(|echoed| echoed + tick <= sent.at));
        };
        acked.acked = self.board.acknowledge(ack.ack, &mut each);
        let mut dsacked = None;
        if self.sack {
            for (index, block) in ack.sack.iter().take(MAX_SACK_BLOCKS).enumerate() {
                let next = ack.sack.get(index + 1);
                if index == 0 && is_dsack(*block, next, ack.ack) {
                    dsacked = Some(*block);
                } else {
                    acked.sacked += self.board.deliver(*block, &mut each);
                }
            }
        }
        if dsacked.is_some() {
            self.rack.on_dsack(self.board.una(), self.board.nxt());
        }
        (acked, news, Evidence { dsacked, echoed, original, duplicate: false })
    }

    /// Measures a round trip by data that was sent once, else by the timestamp (RFC 7323 section
    /// 4.1).
    fn time(&mut self, acked: &Acked, news: &News, ack: &AckInfo<'_>, now: Instant) {
        let in_window = (self.board.outstanding() + acked.acked).div_ceil(2 * self.mss);
        let own = news.first.filter(|_| !news.ambiguous);
        let echoed =
            ack.echoed.filter(|echoed| self.tick_us != NO_TIMESTAMPS && acked.acked > 0 && *echoed <= now);
        if let Some(sent) = own.or(echoed) {
            self.rtt.on_sample(now - sent, in_window);
        }
        if let Some(sent) = news.last.filter(|_| !news.ambiguous).or(echoed) {
            self.rtt.on_least(now - sent, now);
        }
    }

    /// Without SACK, counts duplicates as delivered segments (RFC 5681 section 3.2).
    fn count_duplicates(
        &mut self,
        ack: &AckInfo<'_>,
        acked: &Acked,
        outstanding: u32,
        evidence: &mut Evidence,
    ) {
        if acked.acked > 0 {
            // The data that duplicates stood for is acknowledged now, except for the one segment
            // that was missing.
            self.duplicated = self.duplicated.saturating_sub(acked.acked.saturating_sub(self.mss));
            if !self.in_recovery() {
                (self.duplicated, self.duplicates) = (0, 0);
            }
        } else if ack.may_be_duplicate && ack.ack == self.board.una() && outstanding > 0 {
            evidence.duplicate = true;
            if !self.sack {
                self.duplicates = self.duplicates.saturating_add(1);
                self.duplicated = self.duplicated.saturating_add(self.mss);
            }
        }
        // At least the first segment is missing.
        self.duplicated = self.duplicated.min(self.board.in_flight().saturating_sub(self.mss));
    }

    /// Handles the answer to a tail loss probe (RFC 8985 section 7.4).
    fn answer_probe(&mut self, ack: &AckInfo<'_>, evidence: &Evidence) -> Option<Answer> {
        let answer = match self.probe {
            Probe::None => return None,
            Probe::New => Answer::Nothing,
            Probe::Again(end) if ack.ack < end => return None,
            Probe::Again(end) if evidence.dsacked.is_some_and(|copy| copy.end == end) => Answer::Nothing,
            Probe::Again(end) if ack.ack > end => Answer::Repaired,
            Probe::Again(_) if evidence.duplicate && ack.sack.is_empty() => Answer::Nothing,
            Probe::Again(_) => return None,
        };
        self.probe = Probe::None;
        Some(answer)
    }

    /// Marks lost data; returns how many bytes.
    fn find_lost(&mut self, acked: &Acked, now: Instant) -> u32 {
        if self.sack {
            return self.detect(now);
        }
        let (una, mss) = (self.board.una(), self.mss);
        let lost = match self.phase() {
            None if self.duplicates == DUP_THRESH && una > self.recover => self.board.mark_first_lost(mss),
            // After a partial acknowledgement the segment at which it ends is lost too (RFC 6582
            // section 3.2 step 3).
            Some(Phase::Recovery)
                if acked.acked > 0 && self.episode.as_ref().is_some_and(|episode| una < episode.until) =>
            {
                self.forced = Forced::Retransmission;
                self.board.mark_first_lost(mss)
            }
            _ => 0,
        };
        self.duplicated = self.duplicated.min(self.board.in_flight());
        lost
    }

    /// Moves the numbers that lie behind `una` along with it, so that comparisons with them stay
    /// meaningful when more than 2^31 bytes are sent between two losses.
    fn keep_up(&mut self) {
        let behind = self.board.una() + u32::MAX;
        self.recover = self.recover.max(behind);
        self.cut_until = self.cut_until.max(behind);
        self.rack.keep_up(behind);
    }

    /// Grows the window, or lowers it gradually in fast recovery.
    fn resize(&mut self, ack: &AckInfo<'_>, acked: &Acked, news: &News, duplicated: u32, now: Instant) {
        let new_round = acked.acked > 0 && self.board.una() > self.round_end;
        if new_round {
            self.round_end = self.board.nxt();
            self.peak = [self.in_flight(), self.peak[0]];
            self.keep_up();
        }
        let peak = self.peak[0].max(self.peak[1]);
        let phase = self.phase();
        if phase == Some(Phase::Recovery) {
            let delivered = if self.sack {
                news.bytes
            } else {
                // A duplicate delivers a segment; a partial acknowledgement delivers the bytes not
                // counted before.
                acked.acked.saturating_sub(duplicated.saturating_sub(self.duplicated))
                    + self.duplicated.saturating_sub(duplicated)
            };
            if delivered > 0 || acked.lost > 0 {
                self.reduce_rate(delivered, acked.acked > 0 && acked.lost == 0);
            }
            return;
        }
        let testing = matches!(phase, Some(Phase::Timeout(Frto::First | Frto::Second)));
        if acked.acked == 0 || testing {
            return;
        }
        let limit = if self.congestion.in_slow_start() {
            peak.saturating_mul(2)
        } else {
            peak.saturating_add(self.mss.saturating_mul(2))
        };
        let delivery = Delivery {
            bytes: acked.acked,
            marked: ack.ecn_echo,
            window_limited: limit >= self.congestion.cwnd || phase.is_some(),
            new_round,
            after_timeout: phase.is_some(),
            rtt: news.last.filter(|_| !news.ambiguous).map(|sent| now - sent),
            srtt: self.rtt.srtt().unwrap_or_default(),
            mss: self.mss,
        };
        self.congestion.on_delivered(&delivery, now);
    }
}

/// The result of a tail loss probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// Nothing was lost.
    Nothing,
    /// The probe repaired a loss, for which the window must be reduced.
    Repaired,
}

/// Returns true if a first block reports a second copy: it is acknowledged already, or lies within
/// the next block (RFC 2883 section 4).
fn is_dsack(block: Range, next: Option<&Range>, ack: Seq) -> bool {
    !block.is_empty()
        && (block.end <= ack || next.is_some_and(|next| block.start >= next.start && block.end <= next.end))
}
