//! Bytes received beyond the next expected one: ranges in order, none touching another, bounded in
//! number.
//!
//! Owns positions only; the bytes lie in the receive ring. A range beyond the bound is refused and
//! its segment counts as lost, so a flood of small pieces costs the peer, not this side. The order
//! of growth is kept, because SACK names the ranges that grew last first (RFC 2018 section 4).

use crate::segment::{MAX_SACK_BLOCKS, SackBlock, SackBlocks};
use crate::seq::{Range, Seq};
use alloc::vec::Vec;

/// Most ranges remembered. A window of 1 MiB with every twentieth segment lost needs fewer.
pub(crate) const MAX_RANGES: usize = 32;

#[derive(Debug, Clone, Copy)]
struct Held {
    range: Range,
    /// Rank of its last growth among all growths.
    stamp: u32,
}

/// The ranges held out of order.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    held: Vec<Held>,
    clock: u32,
}

/// The range was refused: there are [`MAX_RANGES`] already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany;

impl Assembler {
    /// Returns true if nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the end of the last range; `next` if there is none.
    pub fn end(&self, next: Seq) -> Seq {
        self.held.last().map_or(next, |held| held.range.end)
    }

    /// Adds `range`, which is not empty; returns the range it is now part of.
    pub fn insert(&mut self, range: Range) -> Result<Range, TooMany> {
        debug_assert!(!range.is_empty());
        // Ranges that overlap or touch the new one become one with it.
        let first = self.held.partition_point(|held| held.range.end < range.start);
        let behind = self.held.partition_point(|held| held.range.start <= range.end);
        if first == behind && self.held.len() >= MAX_RANGES {
            return Err(TooMany);
        }
        self.clock = self.clock.wrapping_add(1);
        let mut merged = range;
        if let [from, .., to] | [from @ to] = &self.held[first..behind] {
            merged = Range { start: range.start.min(from.range.start), end: range.end.max(to.range.end) };
        }
        self.held.splice(first..behind, [Held { range: merged, stamp: self.clock }]);
        Ok(merged)
    }

    /// Returns the first gapless part of `range` that is held already, which its segment repeats
    /// (RFC 2883 section 4).
    pub fn overlap(&self, range: Range) -> Option<Range> {
        let first = self.held.partition_point(|held| held.range.end <= range.start);
        let held = self.held.get(first)?.range;
        let again = Range { start: held.start.max(range.start), end: held.end.min(range.end) };
        (!again.is_empty()).then_some(again)
    }

    /// Forgets everything before `next`; returns the end of the gapless bytes that begin at `next`.
    pub fn advance(&mut self, next: Seq) -> Seq {
        let mut end = next;
        let mut passed = 0;
        for held in &self.held {
            if held.range.start > end {
                break;
            }
            end = end.max(held.range.end);
            passed += 1;
        }
        self.held.drain(..passed);
        end
    }

    /// Returns the ranges that grew last, most recent first.
    pub fn sack(&self) -> SackBlocks {
        let mut recent: [Option<Held>; MAX_SACK_BLOCKS] = [None; MAX_SACK_BLOCKS];
        for &held in &self.held {
            let mut held = Some(held);
            for slot in &mut recent {
                let age = |h: &Held| self.clock.wrapping_sub(h.stamp);
                if slot.as_ref().map_or(u32::MAX, age) > held.as_ref().map_or(u32::MAX, age) {
                    core::mem::swap(slot, &mut held);
                }
            }
        }
        recent.into_iter().flatten().map(|h| SackBlock { start: h.range.start, end: h.range.end }).collect()
    }

    /// Returns the bytes of heap memory in use.
    pub fn heap_bytes(&self) -> usize {
        self.held.capacity() * size_of::<Held>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    fn range(start: u32, end: u32) -> Range {
        Range { start: Seq(start), end: Seq(end) }
    }

    fn blocks(assembler: &Assembler) -> Vec<(u32, u32)> {
        assembler.sack().as_slice().iter().map(|b| (b.start.0, b.end.0)).collect()
    }

    #[test]
    fn sack_names_the_latest_first() {
        let mut assembler = Assembler::default();
        for start in [10, 30, 50, 70, 90] {
            assembler.insert(range(start, start + 5)).unwrap();
        }
        assembler.insert(range(35, 40)).unwrap();
        assert_eq!(blocks(&assembler), [(30, 40), (90, 95), (70, 75), (50, 55)]);
    }

    #[test]
    fn a_flood_of_pieces_is_refused_and_the_gap_still_closes() {
        let mut assembler = Assembler::default();
        for i in 0..MAX_RANGES as u32 {
            assembler.insert(range(10 + 2 * i, 11 + 2 * i)).unwrap();
        }
        assert_eq!(assembler.insert(range(1000, 1001)), Err(TooMany));
        assert_eq!(assembler.insert(range(11, 12)), Ok(range(10, 13)), "what joins others is taken");
        assert_eq!(assembler.advance(Seq(10)), Seq(13));
        assert!(assembler.insert(range(1000, 1001)).is_ok());
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_bytes(
            start: u32,
            pieces in prop::collection::vec((1_u32..200, 1_u32..30, any::<bool>()), 1..60),
        ) {
            let (mut assembler, mut model, mut next) = (Assembler::default(), BTreeSet::new(), 0);
            for (offset, len, advance) in pieces {
                let (from, to) = (next + offset, next + offset + len);
                if advance {
                    model.extend(next..from);
                    let end = assembler.advance(Seq(start) + from) - Seq(start);
                    while model.remove(&next) {
                        next += 1;
                    }
                    prop_assert_eq!(end, next);
                } else {
                    let piece = Range { start: Seq(start) + from, end: Seq(start) + to };
                    let first = (from..to).find(|byte| model.contains(byte));
                    let again = first.map(|first| {
                        let end = (first..to).find(|byte| !model.contains(byte)).unwrap_or(to);
                        Range { start: Seq(start) + first, end: Seq(start) + end }
                    });
                    prop_assert_eq!(assembler.overlap(piece), again);
                    if assembler.insert(piece).is_ok() {
                        model.extend(from..to);
                        let first = assembler.sack().as_slice()[0];
                        prop_assert!(first.start <= piece.start && piece.end <= first.end);
                    }
                }
                prop_assert!(assembler.held.len() <= MAX_RANGES);
                prop_assert!(assembler.held.is_sorted_by(|a, b| a.range.end < b.range.start));
            }
        }
    }
}
