//! Which bytes beyond the next expected one are there: ranges in order, none touching another, bounded in number.
//!
//! Owns positions only; the bytes lie in the receive ring. A range that would be one too many is refused, and its segment
//! counts as lost: a flood of small pieces costs the peer, not us. Remembers which ranges grew last, for SACK names those
//! first (RFC 2018 section 4).

use crate::segment::{MAX_SACK_BLOCKS, SackBlock, SackBlocks};
use crate::{Range, Seq};

/// Ranges remembered at most: a window of 1 MiB with every twentieth segment lost needs fewer.
pub(crate) const MAX_RANGES: usize = 32;

#[derive(Debug, Clone, Copy)]
struct Held {
    range: Range,
    /// Order of the last growth.
    stamp: u32,
}

/// What is held out of order.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    held: Vec<Held>,
    clock: u32,
}

/// There are [`MAX_RANGES`] already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany;

impl Assembler {
    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Adds `range`, which is not empty, to what is held, and returns the range it is part of now.
    pub fn insert(&mut self, range: Range) -> Result<Range, TooMany> {
        debug_assert!(!range.is_empty());
        // Those that overlap or touch the new one become one with it.
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

    /// Whether all of `range` is held already; then it is a duplicate (RFC 2883 section 4).
    pub fn contains(&self, range: Range) -> bool {
        self.held.iter().any(|held| held.range.start <= range.start && range.end <= held.range.end)
    }

    /// Forgets what is before `next` and returns up to where bytes are there without a gap from `next` on.
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

    /// The ranges that grew last, most recent first.
    pub fn sack(&self) -> SackBlocks {
        let mut recent: [Option<Held>; MAX_SACK_BLOCKS] = [None; MAX_SACK_BLOCKS];
        for &held in &self.held {
            let mut held = Some(held);
            for slot in &mut recent {
                let age = |h: &Held| self.clock.wrapping_sub(h.stamp);
                if slot.as_ref().map_or(u32::MAX, age) > held.as_ref().map_or(u32::MAX, age) {
                    std::mem::swap(slot, &mut held);
                }
            }
        }
        recent.into_iter().flatten().map(|h| SackBlock { start: h.range.start, end: h.range.end }).collect()
    }

    /// Bytes of memory behind the struct.
    pub fn heap_bytes(&self) -> usize {
        self.held.capacity() * size_of::<Held>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

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
                    prop_assert_eq!(assembler.contains(piece), (from..to).all(|byte| model.contains(&byte)));
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
