//! One value for each attached runtime, found by its number in one step.
//!
//! Owns the slots. Runtimes are numbered densely and their numbers are used again, so there are as
//! many slots as there were runtimes at one time.

use crate::ids::RuntimeId;
use heap::vec::Vec;

/// See the module header.
#[derive(Clone, Debug)]
pub(super) struct PerRuntime<T> {
    slots: Vec<Option<T>>,
}

impl<T> Default for PerRuntime<T> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<T> PerRuntime<T> {
    /// Stores a runtime's value in place of the previous one.
    pub(super) fn insert(&mut self, runtime: RuntimeId, value: T) {
        let slot = runtime.0 as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(value);
    }

    /// Forgets a runtime; an unknown one is ignored.
    pub(super) fn remove(&mut self, runtime: RuntimeId) {
        if let Some(slot) = self.slots.get_mut(runtime.0 as usize) {
            *slot = None;
        }
    }

    pub(super) fn get(&self, runtime: RuntimeId) -> Option<&T> {
        self.slots.get(runtime.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, runtime: RuntimeId) -> Option<&mut T> {
        self.slots.get_mut(runtime.0 as usize)?.as_mut()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    /// Returns one more than the highest number ever stored.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of slots that fit without allocating; for tests.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.capacity()
    }
}
