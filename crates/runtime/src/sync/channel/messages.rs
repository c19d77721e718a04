//! The messages in a channel: a queue that never moves its messages to a larger buffer.
//!
//! The queue is changed under a spin lock, with preemption off, where moving a million messages to
//! a larger buffer would stall all other threads. So it is a list of blocks: a new one is added
//! when the last is full, the first is dropped when it is empty, one is kept for reuse. While the
//! messages fit the first block, that block serves as a ring, nothing is allocated, and the list of
//! the others is not looked into.

use core::mem;
use std::collections::VecDeque;

/// Messages per block of an unbounded channel.
const BLOCK: usize = 64;
/// Maximum number of messages per block of a bounded channel, which has one block if its capacity
/// is not larger.
const LARGEST_BLOCK: usize = 1024;

/// See the module documentation.
#[derive(Debug)]
pub struct Messages<T> {
    /// The oldest messages. Empty only if there are none.
    first: VecDeque<T>,
    /// Later messages; none of these blocks is empty.
    others: VecDeque<VecDeque<T>>,
    spare: Option<VecDeque<T>>,
    block_size: usize,
    len: usize,
}

impl<T> Messages<T> {
    /// Returns an empty queue for up to `capacity` messages; `None` means unbounded.
    pub fn new(capacity: Option<usize>) -> Self {
        let block_size = capacity.map_or(BLOCK, |capacity| capacity.clamp(1, LARGEST_BLOCK));
        let first = VecDeque::with_capacity(capacity.map_or(0, |capacity| capacity.min(block_size)));
        Self { first, others: VecDeque::new(), spare: None, block_size, len: 0 }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn push_back(&mut self, message: T) {
        // All messages are in the first block, which has room.
        if self.len == self.first.len() && self.len < self.block_size {
            self.first.push_back(message);
        } else {
            self.last_with_room().push_back(message);
        }
        self.len += 1;
    }

    #[inline]
    pub fn pop_front(&mut self) -> Option<T> {
        let message = self.first.pop_front()?;
        self.len -= 1;
        if self.first.is_empty() && self.len > 0 {
            self.drop_first();
        }
        Some(message)
    }

    /// Returns the last of the other blocks; a new one if that is full or missing.
    #[inline(never)]
    fn last_with_room(&mut self) -> &mut VecDeque<T> {
        if self.others.back().is_none_or(|last| last.len() >= self.block_size) {
            let block = self.spare.take().unwrap_or_else(|| VecDeque::with_capacity(self.block_size));
            self.others.push_back(block);
        }
        self.others.back_mut().expect("there is one, or was added")
    }

    /// Goes on with the second block; keeps the first, which is empty, for reuse.
    #[cold]
    fn drop_first(&mut self) {
        let second = self.others.pop_front().expect("the messages left are in other blocks");
        self.spare = Some(mem::replace(&mut self.first, second));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_leave_in_the_order_they_came(
            capacity in prop::option::of(0..3000usize),
            bursts in prop::collection::vec((0..300usize, 0..300usize), 1..20),
        ) {
            let (mut messages, mut model) = (Messages::new(capacity), VecDeque::new());
            let mut next = 0;
            for (pushes, pops) in bursts {
                for _ in 0..pushes {
                    messages.push_back(next);
                    model.push_back(next);
                    next += 1;
                }
                for _ in 0..pops {
                    prop_assert_eq!(messages.pop_front(), model.pop_front());
                    prop_assert_eq!(messages.len(), model.len());
                }
                prop_assert!(messages.others.len() <= model.len() / messages.block_size + 1);
                prop_assert!(!messages.first.is_empty() || model.is_empty());
            }
        }
    }

    #[test]
    fn what_fits_one_block_never_takes_another() {
        for capacity in [Some(1), Some(100), None] {
            let mut messages = Messages::new(capacity);
            let most = capacity.unwrap_or(BLOCK);
            (0..most - 1).for_each(|i| messages.push_back(i));
            for i in 0..10 * most {
                messages.push_back(i);
                messages.pop_front().unwrap();
                assert!(messages.others.capacity() == 0 && messages.spare.is_none());
            }
        }
    }
}
