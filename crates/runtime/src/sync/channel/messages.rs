//! The messages in a channel: a queue that never moves its messages to a larger buffer.
//!
//! The queue is changed under a spin lock, with preemption off, where moving a million messages to
//! a larger buffer would stall all other threads. So it is a list of blocks: a new one is added
//! when the last is full, the first is dropped when it is empty, one is kept for reuse. While the
//! messages fit one block, that block serves as a ring and nothing is allocated.

use std::collections::VecDeque;

/// Messages per block of an unbounded channel.
const BLOCK: usize = 64;
/// Maximum number of messages per block of a bounded channel, which has one block if its capacity
/// is not larger.
const LARGEST_BLOCK: usize = 1024;

/// See the module documentation.
#[derive(Debug)]
pub struct Messages<T> {
    /// At least one; only the last may be empty.
    blocks: VecDeque<VecDeque<T>>,
    spare: Option<VecDeque<T>>,
    block_size: usize,
    len: usize,
}

impl<T> Messages<T> {
    /// Returns an empty queue for up to `capacity` messages; `None` means unbounded.
    pub fn new(capacity: Option<usize>) -> Self {
        let block_size = capacity.map_or(BLOCK, |capacity| capacity.clamp(1, LARGEST_BLOCK));
        let first = VecDeque::with_capacity(capacity.map_or(0, |capacity| capacity.min(block_size)));
        Self { blocks: VecDeque::from([first]), spare: None, block_size, len: 0 }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn push_back(&mut self, message: T) {
        match self.blocks.back_mut().filter(|block| block.len() < self.block_size) {
            Some(block) => block.push_back(message),
            None => self.add_block().push_back(message),
        }
        self.len += 1;
    }

    #[inline]
    pub fn pop_front(&mut self) -> Option<T> {
        let first = self.blocks.front_mut()?;
        let message = first.pop_front()?;
        self.len -= 1;
        if first.is_empty() && self.blocks.len() > 1 {
            self.spare = self.blocks.pop_front();
        }
        Some(message)
    }

    #[cold]
    fn add_block(&mut self) -> &mut VecDeque<T> {
        let block = self.spare.take().unwrap_or_else(|| VecDeque::with_capacity(self.block_size));
        self.blocks.push_back(block);
        self.blocks.back_mut().expect("just added")
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
                prop_assert!(messages.blocks.len() <= model.len() / messages.block_size + 2);
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
                assert!(messages.blocks.len() == 1 && messages.spare.is_none());
            }
        }
    }
}
