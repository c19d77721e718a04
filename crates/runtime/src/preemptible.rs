//! Functions that the expansion of [`preemptible`](crate::preemptible) calls: back-edges that
//! count, and loops in chunks. No part of the API.

use crate::verbs::switch::{poll_at_edge, poll_at_entry};
use core::hint::cold_path;
use core::ops::Range;
use core::slice;

/// What a count of back-edges begins with: `FULL` of the macro's `weight` module.
pub const FULL: u32 = 1024;

/// Parts of ranges and slices are longer than others by this: loops over them are vector code, if
/// any are, which does more at a time. With parts of 1,024 the sum of an array took 9 % longer.
const SPLIT: u32 = 4;

/// A poll point at the entry of a function, or where a loop polls each time.
#[inline(always)]
pub fn entry() {
    poll_at_entry();
}

/// A poll point that is reached now and then.
#[inline(always)]
pub fn edge() {
    poll_at_edge();
}

/// Counts a back-edge whose body costs `WEIGHT`; polls when the count is used up.
#[inline(always)]
pub fn back_edge<const WEIGHT: u32>(left: &mut u32) {
    // One subtraction, whose carry is the condition.
    let (now, spent) = left.overflowing_sub(WEIGHT);
    *left = now;
    if spent {
        cold_path();
        *left = FULL;
        edge();
    }
}

/// Returns whether an iterator is known to have at most `most` items.
#[inline(always)]
pub fn is_short<I: Iterator>(iterator: &I, most: usize) -> bool {
    iterator.size_hint().1.is_some_and(|items| items <= most)
}

/// An iterator that a loop runs over. `chunks` is an inherent method for the iterators that can be
/// split beforehand, and that of [`AnyChunks`] for all others.
#[derive(Debug)]
pub struct Loop<I>(pub I);

/// An iterator in parts.
pub trait Chunks {
    /// A part.
    type Part<'a>: Iterator
    where
        Self: 'a;

    /// Returns the next part: `len` items, or four times as many where that is cheap.
    fn next_part(&mut self, len: u32) -> Self::Part<'_>;

    /// Returns whether the parts so far, each run to its end, were all.
    fn is_done(&self) -> bool;
}

/// Gives all iterators chunks.
pub trait AnyChunks: Sized {
    /// The iterator.
    type Inner: Iterator;

    /// Returns the iterator in parts.
    fn chunks(self) -> Counted<Self::Inner>;
}

impl<I: Iterator> AnyChunks for Loop<I> {
    type Inner = I;

    #[inline(always)]
    fn chunks(self) -> Counted<I> {
        Counted { iterator: self.0, done: false }
    }
}

/// An iterator whose parts count their items.
#[derive(Debug)]
pub struct Counted<I> {
    iterator: I,
    done: bool,
}

/// A part of [`Counted`].
#[derive(Debug)]
pub struct Part<'a, I> {
    whole: &'a mut Counted<I>,
    left: u32,
}

impl<I: Iterator> Chunks for Counted<I> {
    type Part<'a>
        = Part<'a, I>
    where
        I: 'a;

    #[inline(always)]
    fn next_part(&mut self, len: u32) -> Part<'_, I> {
        Part { whole: self, left: len }
    }

    #[inline(always)]
    fn is_done(&self) -> bool {
        self.done
    }
}

impl<I: Iterator> Iterator for Part<'_, I> {
    type Item = I::Item;

    #[inline(always)]
    fn next(&mut self) -> Option<I::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let item = self.whole.iterator.next();
        self.whole.done = item.is_none();
        item
    }
}

/// Integers of ranges that are split.
pub trait Step: Copy + PartialOrd {
    /// Returns the number `len` above this one, `None` if there is none.
    fn forward(self, len: u32) -> Option<Self>;
}

macro_rules! steps {
    ($($integer:ty)*) => {$(
        impl Step for $integer {
            #[inline(always)]
            fn forward(self, len: u32) -> Option<Self> {
                self.checked_add(Self::try_from(len).ok()?)
            }
        }
    )*};
}
steps!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);

/// A range in parts.
#[derive(Debug)]
pub struct Ranges<T>(Range<T>);

impl<T: Step> Loop<Range<T>> {
    /// Returns the range in parts.
    #[inline(always)]
    pub fn chunks(self) -> Ranges<T> {
        Ranges(self.0)
    }
}

impl<T: Step> Chunks for Ranges<T>
where
    Range<T>: Iterator,
{
    type Part<'a>
        = Range<T>
    where
        T: 'a;

    #[inline(always)]
    fn next_part(&mut self, len: u32) -> Range<T> {
        let Range { start, end } = self.0;
        let split = start.forward(SPLIT * len).filter(|split| *split < end).unwrap_or(end);
        self.0.start = split;
        start..split
    }

    #[inline(always)]
    fn is_done(&self) -> bool {
        self.0.start >= self.0.end
    }
}

/// A slice in parts.
#[derive(Debug)]
pub struct Slices<'s, T>(&'s [T]);

impl<'s, T> Loop<slice::Iter<'s, T>> {
    /// Returns the slice in parts.
    #[inline(always)]
    pub fn chunks(self) -> Slices<'s, T> {
        Slices(self.0.as_slice())
    }
}

impl<'s, T> Chunks for Slices<'s, T> {
    type Part<'a>
        = slice::Iter<'s, T>
    where
        Self: 'a;

    #[inline(always)]
    fn next_part(&mut self, len: u32) -> slice::Iter<'s, T> {
        let (part, rest) = self.0.split_at(self.0.len().min((SPLIT * len) as usize));
        self.0 = rest;
        part.iter()
    }

    #[inline(always)]
    fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}

/// A slice in parts that can be changed.
#[derive(Debug)]
pub struct MutSlices<'s, T>(&'s mut [T]);

impl<'s, T> Loop<slice::IterMut<'s, T>> {
    /// Returns the slice in parts.
    #[inline(always)]
    pub fn chunks(self) -> MutSlices<'s, T> {
        MutSlices(self.0.into_slice())
    }
}

impl<'s, T> Chunks for MutSlices<'s, T> {
    type Part<'a>
        = slice::IterMut<'s, T>
    where
        Self: 'a;

    #[inline(always)]
    fn next_part(&mut self, len: u32) -> slice::IterMut<'s, T> {
        let whole = core::mem::take(&mut self.0);
        let middle = whole.len().min((SPLIT * len) as usize);
        let (part, rest) = whole.split_at_mut(middle);
        self.0 = rest;
        part.iter_mut()
    }

    #[inline(always)]
    fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}
