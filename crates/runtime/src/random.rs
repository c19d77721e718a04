//! Numbers for choices that need to be spread, not secret: whom to steal from, which operation to try first.

use core::cell::Cell;

/// A generator of 64 random bits; never in state 0.
#[derive(Debug)]
pub struct Random(Cell<u64>);

impl Random {
    /// A generator that begins with `seed`, 0 standing for 1.
    pub const fn new(seed: u64) -> Self {
        Self(Cell::new(if seed == 0 { 1 } else { seed }))
    }

    /// A number below `below`; 0 if that is 0.
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
