//! Bytes that all connections may hold together.
//!
//! Only the readers of connections wait for room, neither the dispatcher nor writers: each request
//! that has room goes on without more, and a wait ends at the latest when clients that do not read
//! are closed.

use crate::sync::Semaphore;
use core::mem::take;
use std::sync::Arc;

/// See the module documentation. Without a bound no room is counted.
#[derive(Debug)]
pub struct Budget {
    most: Option<usize>,
    free: Semaphore,
}

/// Room for a request and its reply; given back on drop.
#[derive(Debug)]
pub struct Room {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    /// Makes a budget of `most` bytes.
    pub fn new(most: Option<usize>) -> Arc<Self> {
        Arc::new(Self { most, free: Semaphore::new(most.unwrap_or_default()) })
    }

    /// Waits for room for `bytes`, or for all there is if that is less.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Room {
        let bytes = self.most.map_or(0, |most| bytes.min(most));
        if bytes > 0 {
            self.free.acquire_many(bytes).forget();
        }
        Room { budget: Arc::clone(self), bytes }
    }

    /// Gives back what a [room](Room::keep) was kept for.
    pub fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.free.add_permits(bytes);
        }
    }

    /// Returns the bytes that are taken.
    pub fn held(&self) -> usize {
        self.most.map_or(0, |most| most - self.free.available_permits())
    }
}

impl Room {
    /// Keeps the room until it is [given back](Budget::give_back); returns its bytes.
    pub fn keep(mut self) -> usize {
        take(&mut self.bytes)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_counted_from_taking_to_giving_back() {
        let budget = Budget::new(Some(100));
        let dropped = budget.take(30);
        let kept = budget.take(20).keep();
        assert_eq!((kept, budget.held()), (20, 50));
        drop(dropped);
        assert_eq!(budget.held(), 20);
        budget.give_back(kept);
        assert_eq!(budget.take(1_000).keep(), 100, "more than there is");
        let unbounded = Budget::new(None);
        assert_eq!((unbounded.take(1_000).keep(), unbounded.held()), (0, 0));
    }
}
