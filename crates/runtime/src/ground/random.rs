//! Numbers for choices that need to be spread but not secret: the victim of a steal, the first case
//! of a select.

use core::cell::Cell;

/// A generator of 64-bit pseudo-random numbers. Its state is never 0.
#[derive(Debug)]
pub struct Random(Cell<u64>);

impl Random {
    /// Returns a generator that starts from `seed`; 0 counts as 1.
    pub const fn new(seed: u64) -> Self {
        Self(Cell::new(if seed == 0 { 1 } else { seed }))
    }

    /// Returns a number below `below`, or 0 if `below` is 0.
    pub fn below(&self, below: usize) -> usize {
        // Xorshift (Marsaglia 2003).
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.set(x);
        // The upper half of the product is uniform below `below` (Lemire 2019).
        ((u128::from(x) * below as u128) >> 64) as usize
    }
}
