//! Sequence numbers: 32 bits that wrap, compared by their distance (RFC 9293 section 3.4).

use core::cmp::Ordering;
use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A point in one direction's stream of bytes. SYN and FIN take a number each.
///
/// Two numbers are compared by the shorter way around. That is meaningful while they are less than
/// 2^31 apart, which windows of at most 2^30 bytes (RFC 7323 section 2.3) ensure for everything
/// that a connection accepts.
///
/// # Examples
/// ```
/// use tailwater_tcp::Seq;
///
/// let last = Seq(u32::MAX);
/// assert!(last < last + 1);
/// assert_eq!((last + 10) - last, 10);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// Returns how far `self` is ahead of `other`; negative when it is behind.
    #[inline]
    pub fn distance(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Returns the later of two.
    #[inline]
    pub fn max(self, other: Self) -> Self {
        if self < other { other } else { self }
    }

    /// Returns the earlier of two.
    #[inline]
    pub fn min(self, other: Self) -> Self {
        if other < self { other } else { self }
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Compares by the shorter way around, which is not a total order; hence no `Ord`.
impl PartialOrd for Seq {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.distance(*other).cmp(&0))
    }
}

impl Add<u32> for Seq {
    type Output = Self;
    #[inline]
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

/// The distance from `other` to `self`, which is not before it.
impl Sub for Seq {
    type Output = u32;
    #[inline]
    fn sub(self, other: Self) -> u32 {
        debug_assert!(self >= other, "{self:?} is before {other:?}");
        self.0.wrapping_sub(other.0)
    }
}

/// Sequence numbers from `start` up to, not including, `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first number.
    pub start: Seq,
    /// The number after the last.
    pub end: Seq,
}

impl Range {
    /// Creates the range of `bytes` numbers from `start` on.
    pub fn new(start: Seq, bytes: u32) -> Self {
        Self { start, end: start + bytes }
    }

    /// Returns the number of sequence numbers; zero if `end` is not after `start`.
    pub fn len(self) -> u32 {
        u32::try_from(self.end.distance(self.start)).unwrap_or(0)
    }

    /// Returns true if there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_survives_the_wrap(start: u32, ahead in 1_u32..=1 << 30) {
            let (a, b) = (Seq(start), Seq(start) + ahead);
            prop_assert_eq!(a.partial_cmp(&b), Some(Ordering::Less));
            prop_assert_eq!(b.partial_cmp(&a), Some(Ordering::Greater));
            prop_assert_eq!((b - a, b.distance(a), a.distance(b)), (ahead, ahead as i32, -(ahead as i32)));
            prop_assert_eq!((a.max(b), a.min(b)), (b, a));
        }
    }
}
