//! A set of workers as a two-level bitmap: constant-time insert, remove, and "first one at or
//! after".
//!
//! Owns only the bits. Policies use it for idle workers and for workers whose queue holds
//! something. Both are read at every event, so a lookup must not scan: one summary word says which
//! of up to 64 words are non-zero.
//!
//! Invariants: bit `i` of the summary is set exactly when word `i` is non-zero; `len` is the number
//! of set bits.

use super::protocol::{Broken, WorkerId};
use heap::vec;
use heap::vec::Vec;

/// Maximum number of workers one dispatcher can serve: 64 words of 64 bits.
pub const MAX_WORKERS: usize = 64 * 64;

/// A set of workers below a fixed capacity.
#[derive(Clone, Debug)]
pub struct WorkerSet {
    words: Vec<u64>,
    summary: u64,
    len: usize,
    capacity: usize,
}

impl WorkerSet {
    /// Creates an empty set for workers `0..capacity`.
    ///
    /// # Panics
    ///
    /// If `capacity` is 0 or above [`MAX_WORKERS`].
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        assert!((1..=MAX_WORKERS).contains(&capacity), "{capacity} workers: use 1 to {MAX_WORKERS}");
        Self { words: vec![0; capacity.div_ceil(64)], summary: 0, len: 0, capacity }
    }

    /// Returns the number of workers in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no worker is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of workers the set was made for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds a worker; returns true if it was absent.
    ///
    /// # Panics
    ///
    /// If the worker is not below the capacity.
    pub fn insert(&mut self, worker: WorkerId) -> bool {
        let i = worker.index();
        assert!(i < self.capacity, "worker {i} of {}", self.capacity);
        let (word, bit) = (i / 64, 1u64 << (i % 64));
        let absent = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.summary |= 1 << word;
        self.len += usize::from(absent);
        absent
    }

    /// Removes a worker; returns true if it was present.
    ///
    /// # Panics
    ///
    /// If the worker is not below the capacity.
    pub fn remove(&mut self, worker: WorkerId) -> bool {
        let i = worker.index();
        assert!(i < self.capacity, "worker {i} of {}", self.capacity);
        let (word, bit) = (i / 64, 1u64 << (i % 64));
        let present = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        if self.words[word] == 0 {
            self.summary &= !(1 << word);
        }
        self.len -= usize::from(present);
        present
    }

    /// Returns true if a worker is in the set.
    #[must_use]
    pub fn contains(&self, worker: WorkerId) -> bool {
        let i = worker.index();
        i < self.capacity && self.words[i / 64] & (1 << (i % 64)) != 0
    }

    /// Returns the lowest-numbered worker.
    #[must_use]
    pub fn first(&self) -> Option<WorkerId> {
        if self.summary == 0 {
            return None;
        }
        let word = self.summary.trailing_zeros();
        Some(WorkerId(word * 64 + self.words[word as usize].trailing_zeros()))
    }

    /// Returns the first worker at or after `start`, wrapping around to 0.
    #[must_use]
    pub fn first_from(&self, start: WorkerId) -> Option<WorkerId> {
        let (word, shift) = (start.index() / 64, start.index() % 64);
        if let Some(&bits) = self.words.get(word) {
            let here = bits & (u64::MAX << shift);
            if here != 0 {
                return Some(WorkerId((word * 64) as u32 + here.trailing_zeros()));
            }
            let later = if word == 63 { 0 } else { self.summary & (u64::MAX << (word + 1)) };
            if later != 0 {
                let w = later.trailing_zeros();
                return Some(WorkerId(w * 64 + self.words[w as usize].trailing_zeros()));
            }
        }
        self.first()
    }

    /// Verifies the invariants in the module header.
    ///
    /// # Errors
    ///
    /// The first one broken.
    pub fn check(&self) -> Result<(), Broken> {
        let count: u32 = self.words.iter().map(|w| w.count_ones()).sum();
        if count as usize != self.len {
            return Err(Broken::SetLength);
        }
        let agrees = |(i, w): (usize, &u64)| (*w != 0) == (self.summary >> i & 1 == 1);
        if !self.words.iter().enumerate().all(agrees) {
            return Err(Broken::SetSummary);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use heap::collections::BTreeSet;

    use super::*;

    #[test]
    fn agrees_with_an_ordered_set_under_random_operations() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for capacity in [1, 2, 63, 64, 65, 512, MAX_WORKERS] {
            let (mut set, mut model) = (WorkerSet::new(capacity), BTreeSet::new());
            for step in 0..4000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let worker = WorkerId(((state >> 33) % capacity as u64) as u32);
                if state >> 20 & 1 == 0 {
                    assert_eq!(set.insert(worker), model.insert(worker), "capacity {capacity} step {step}");
                } else {
                    assert_eq!(set.remove(worker), model.remove(&worker), "capacity {capacity} step {step}");
                }
                assert_eq!(set.first(), model.first().copied());
                let wrapped = model.range(worker..).next().or_else(|| model.first()).copied();
                assert_eq!(set.first_from(worker), wrapped, "capacity {capacity} step {step}");
                assert_eq!(set.len(), model.len());
                set.check().unwrap();
            }
        }
    }
}
