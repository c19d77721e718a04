//! The state of all data sent and not yet acknowledged: in flight, delivered out of order, or lost.
//!
//! A queue of ranges in sequence order. Data sent in one go, and data delivered, is one range
//! however many segments it was, so that an ordinary window takes few of them. A split that would
//! make more than [`MAX_RANGES`] does not happen; the range is then treated as not covered (RFC
//! 2018 section 5 allows a sender to forget SACKs). The times of all ranges sent once are in order.

#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;

use crate::seq::{Range, Seq};
use crate::time::Instant;

/// Most ranges, 24 bytes each.
pub(super) const MAX_RANGES: usize = 4096;
/// Number of ranges from which new data joins the range before it, although that was sent earlier.
const COARSE_FROM: usize = 1024;
/// Longest range joined in that way.
const COARSE_BYTES: u32 = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    InFlight,
    /// The peer holds it, and may still drop it (RFC 2018 section 8).
    Delivered,
    /// It waits to be sent again.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    pub(super) start: Seq,
    pub(super) end: Seq,
    /// Time at which it was last sent.
    pub(super) at: Instant,
    pub(super) fate: Fate,
    pub(super) again: bool,
    /// True if parts of it were sent before `at`, so that it gives no round-trip time.
    pub(super) coarse: bool,
}

impl Sent {
    fn len(&self) -> u32 {
        self.end - self.start
    }

    fn joins(&self, next: &Self) -> bool {
        self.fate == next.fate
            && (self.fate == Fate::Delivered
                || self.at == next.at && self.again == next.again && self.coarse == next.coarse)
    }
}

#[derive(Debug)]
pub(super) struct Scoreboard {
    ranges: VecDeque<Sent>,
    una: Seq,
    nxt: Seq,
    /// Start of the newest range that was sent for the first time.
    newest: Seq,
    in_flight: u32,
    lost: u32,
    /// Nothing before it is lost.
    lost_from: Seq,
}

impl Scoreboard {
    pub(super) fn new(iss: Seq) -> Self {
        Self {
            ranges: VecDeque::new(),
            una: iss,
            nxt: iss,
            newest: iss,
            in_flight: 0,
            lost: 0,
            lost_from: iss,
        }
    }

    pub(super) fn una(&self) -> Seq {
        self.una
    }

    pub(super) fn nxt(&self) -> Seq {
        self.nxt
    }

    /// Returns the bytes sent and not acknowledged.
    pub(super) fn outstanding(&self) -> u32 {
        self.nxt - self.una
    }

    /// Returns true if data older than the newest segment is not acknowledged.
    #[inline]
    pub(super) fn has_several(&self) -> bool {
        self.una < self.newest
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    /// Returns the bytes delivered out of order.
    pub(super) fn delivered(&self) -> u32 {
        self.outstanding() - self.in_flight - self.lost
    }

    pub(super) fn is_full(&self) -> bool {
        self.ranges.len() >= MAX_RANGES
    }

    pub(super) fn first(&self) -> Option<&Sent> {
        self.ranges.front()
    }

    pub(super) fn last(&self) -> Option<&Sent> {
        self.ranges.back()
    }

    pub(super) fn push(&mut self, range: Range, at: Instant) {
        assert!(range.start == self.nxt && !range.is_empty(), "{range:?} sent, after {:?}", self.nxt);
        let crowded = self.ranges.len() >= COARSE_FROM;
        let sent = Sent {
            start: range.start,
            end: range.end,
            at,
            fate: Fate::InFlight,
            again: false,
            coarse: false,
        };
        (self.newest, self.nxt) = (range.start, range.end);
        self.in_flight += sent.len();
        match self.ranges.back_mut() {
            Some(last) if last.joins(&sent) => last.end = sent.end,
            Some(last)
                if crowded
                    && last.fate == Fate::InFlight
                    && !last.again
                    && last.len() + sent.len() <= COARSE_BYTES =>
            {
                (last.end, last.at, last.coarse) = (sent.end, at, true);
            }
            _ => self.ranges.push_back(sent),
        }
    }

    /// Moves `una` to `ack`; calls `each` for data that was not delivered before. Returns how far
    /// `una` moved.
    pub(super) fn acknowledge(&mut self, ack: Seq, mut each: impl FnMut(&Sent)) -> u32 {
        debug_assert!(ack <= self.nxt);
        if ack <= self.una {
            return 0;
        }
        let moved = ack - self.una;
        while let Some(first) = self.ranges.front_mut() {
            if first.start >= ack {
                break;
            }
            let part = Sent { end: first.end.min(ack), ..*first };
            if part.end == first.end {
                self.ranges.pop_front();
            } else {
                first.start = part.end;
            }
            self.take_from_count(&part);
            if part.fate != Fate::Delivered {
                each(&part);
            }
        }
        self.una = ack;
        self.lost_from = self.lost_from.max(ack);
        if self.ranges.is_empty() {
            self.ranges = VecDeque::new();
        }
        moved
    }

    /// Marks `range` as delivered; calls `each` for the newly delivered parts. Returns their bytes.
    pub(super) fn deliver(&mut self, range: Range, mut each: impl FnMut(&Sent)) -> u32 {
        let range = Range { start: range.start.max(self.una), end: range.end };
        if range.is_empty() || range.end > self.nxt {
            return 0;
        }
        let (from, to) = self.cut_out(range);
        let mut new = 0;
        for index in from..to {
            let before = self.ranges[index];
            if before.fate != Fate::Delivered {
                each(&before);
                new += before.len();
                self.take_from_count(&before);
                self.ranges[index].fate = Fate::Delivered;
            }
        }
        if new > 0 {
            self.join(from.saturating_sub(1), to + 1);
        }
        new
    }

    /// Records that `range` was sent again.
    pub(super) fn retransmit(&mut self, range: Range, at: Instant) {
        assert!(
            !range.is_empty() && range.start >= self.una && range.end <= self.nxt,
            "{range:?} sent again, of {:?}..{:?}",
            self.una,
            self.nxt
        );
        if self.next_lost().is_some_and(|lost| lost.start == range.start) {
            self.lost_from = range.end;
        }
        let (mut from, mut to) = self.cut_out(range);
        if from >= to {
            // There is no room for a split. The whole range counts as sent again; the part that was
            // not is detected as lost later.
            from = self.index_of(range.start);
            to = from + 1;
        }
        for index in from..to {
            let before = self.ranges[index];
            if before.fate == Fate::Delivered {
                continue;
            }
            self.take_from_count(&before);
            self.in_flight += before.len();
            self.ranges[index] = Sent { at, fate: Fate::InFlight, again: true, coarse: false, ..before };
        }
        self.join(from.saturating_sub(1), to + 1);
    }

    /// Calls `judge` for data in flight in sequence order: `Some(true)` marks it as lost, `None`
    /// ends the search. Returns the bytes lost.
    pub(super) fn mark_lost(&mut self, mut judge: impl FnMut(&Sent) -> Option<bool>) -> u32 {
        let before = self.lost;
        for sent in &mut self.ranges {
            if sent.fate != Fate::InFlight {
                continue;
            }
            match judge(sent) {
                None => break,
                Some(false) => {}
                Some(true) => {
                    sent.fate = Fate::Lost;
                    self.in_flight -= sent.len();
                    self.lost += sent.len();
                    self.lost_from = self.lost_from.min(sent.start);
                }
            }
        }
        self.lost - before
    }

    /// Marks the first `bytes` as lost if they are in flight and were sent once, and none if the
    /// first is delivered. Returns how many were marked.
    pub(super) fn mark_first_lost(&mut self, bytes: u32) -> u32 {
        let head = Range::new(self.una, bytes.min(self.outstanding()));
        // A delivered range no longer records whether it was sent again.
        let not_it = |first: &Sent| first.fate == Fate::Delivered || first.again;
        if head.is_empty() || self.first().is_none_or(not_it) {
            return 0;
        }
        let (from, to) = self.cut_out(head);
        let end = if from < to { self.ranges[to - 1].end } else { head.end };
        self.mark_lost(|sent| (sent.start < end).then_some(!sent.again))
    }

    /// Marks everything as lost that was delivered out of order, because the peer dropped it (RFC
    /// 2018 section 8).
    pub(super) fn renege(&mut self) {
        for sent in &mut self.ranges {
            if sent.fate == Fate::Delivered {
                (sent.fate, sent.again) = (Fate::Lost, true);
                self.lost += sent.len();
                self.lost_from = self.lost_from.min(sent.start);
            }
        }
    }

    /// Marks lost data as in flight again.
    pub(super) fn unmark_lost(&mut self) {
        for sent in self.ranges.iter_mut().filter(|sent| sent.fate == Fate::Lost) {
            sent.fate = Fate::InFlight;
        }
        self.in_flight += self.lost;
        self.lost = 0;
    }

    /// Returns the first range that waits to be sent again.
    pub(super) fn next_lost(&self) -> Option<Range> {
        if self.lost == 0 {
            return None;
        }
        let from = self.index_of(self.lost_from);
        let lost = self.ranges.range(from..).find(|sent| sent.fate == Fate::Lost)?;
        Some(Range { start: lost.start, end: lost.end })
    }

    /// Returns all ranges, in order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = &Sent> {
        self.ranges.iter()
    }

    /// Checks the invariants of this module.
    ///
    /// # Panics
    /// If one does not hold.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let (mut at, mut in_flight, mut lost) = (self.una, 0, 0);
        for sent in &self.ranges {
            assert!(sent.start == at && sent.start < sent.end, "gap, overlap or nothing at {at:?}: {self:?}");
            assert!(
                sent.fate != Fate::Lost || sent.start >= self.lost_from,
                "lost before the hint: {self:?}"
            );
            match sent.fate {
                Fate::InFlight => in_flight += sent.len(),
                Fate::Lost => lost += sent.len(),
                Fate::Delivered => {}
            }
            at = sent.end;
        }
        assert_eq!((at, in_flight, lost), (self.nxt, self.in_flight, self.lost), "counters: {self:?}");
        assert!(self.newest <= self.nxt, "newer than what was sent: {self:?}");
        assert!(self.ranges.len() <= MAX_RANGES + 1 && (at != self.una || self.ranges.capacity() == 0));
    }

    fn take_from_count(&mut self, sent: &Sent) {
        match sent.fate {
            Fate::InFlight => self.in_flight -= sent.len(),
            Fate::Lost => self.lost -= sent.len(),
            Fate::Delivered => {}
        }
    }

    /// Returns the index of the range that holds `seq`.
    fn index_of(&self, seq: Seq) -> usize {
        self.ranges.partition_point(|sent| sent.end <= seq)
    }

    /// Returns the indices of the ranges that lie within `range`, after splitting those across its
    /// ends if there is room. A range that is delivered as a whole is not split, because its parts
    /// would not differ.
    fn cut_out(&mut self, range: Range) -> (usize, usize) {
        let from = self.split(range.start);
        let to = self.split(range.end);
        // If the end could not be split, its index is that of the range that holds it; if the start
        // could not, the next one.
        (from.unwrap_or_else(|within| within + 1), to.unwrap_or_else(|within| within))
    }

    /// Returns the index of the range that begins at `seq`, splitting one if necessary; else, as
    /// the error, the index of the range that holds it.
    fn split(&mut self, seq: Seq) -> Result<usize, usize> {
        let index = self.index_of(seq);
        let full = self.is_full();
        match self.ranges.get_mut(index) {
            Some(sent) if sent.start < seq => {
                if full || sent.fate == Fate::Delivered {
                    return Err(index);
                }
                let rest = Sent { start: seq, ..*sent };
                sent.end = seq;
                self.ranges.insert(index + 1, rest);
                Ok(index + 1)
            }
            _ => Ok(index),
        }
    }

    /// Joins neighbours of equal fate among the ranges from `from` to `to`.
    fn join(&mut self, from: usize, to: usize) {
        let to = to.min(self.ranges.len());
        let mut kept = from;
        for index in from + 1..to {
            let next = self.ranges[index];
            if self.ranges[kept].joins(&next) {
                self.ranges[kept].end = next.end;
            } else {
                kept += 1;
                self.ranges[kept] = next;
            }
        }
        if kept + 1 < to {
            self.ranges.drain(kept + 1..to);
        }
    }
}
