//! Permits for the places in the dispatcher's queue: a request of a connection that gets none waits
//! in its connection, a datagram is dropped.
//!
//! Each class has an equal share of the queue, so that requests of one class do not wait for those
//! of another before the policy has them. All shares together are at most the queue.

use super::shares::{divide, share_of};
use crate::sync::Semaphore;

/// See the module documentation.
#[derive(Debug)]
pub struct QueuePermits(Box<[Semaphore]>);

/// The permit of a request, which takes a place in the queue.
#[derive(Debug)]
pub struct QueuePermit(usize);

impl QueuePermits {
    /// Divides a queue of `queue` requests. A queue with fewer places than there are classes is not
    /// divided.
    pub fn new(queue: usize, classes: usize) -> Self {
        let (shares, permits) = divide(queue, classes);
        Self((0..shares).map(|_| Semaphore::new(permits)).collect())
    }

    /// Waits for a permit for a request of this class; classes beyond the last are the last.
    #[cfg(feature = "tcp")]
    pub fn take(&self, class: usize) -> QueuePermit {
        let share = share_of(class, self.0.len());
        self.0[share].acquire().forget();
        QueuePermit(share)
    }

    /// Returns a permit for a request of this class, if there is one.
    pub fn try_take(&self, class: usize) -> Option<QueuePermit> {
        let share = share_of(class, self.0.len());
        self.0[share].try_acquire().map(|permit| {
            permit.forget();
            QueuePermit(share)
        })
    }

    /// Gives a permit back.
    #[expect(clippy::needless_pass_by_value, reason = "it is used up")]
    pub fn give_back(&self, permit: QueuePermit) {
        self.0[permit.0].add_permits(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_equal_shares_that_do_not_exceed_the_queue() {
        let free =
            |permits: &QueuePermits| permits.0.iter().map(Semaphore::available_permits).collect::<Vec<_>>();
        for (queue, classes, shares) in
            [(10, 3, vec![3, 3, 3]), (3, 3, vec![1, 1, 1]), (2, 3, vec![2]), (5, 0, vec![5]), (0, 2, vec![0])]
        {
            assert_eq!(free(&QueuePermits::new(queue, classes)), shares);
        }
        let permits = QueuePermits::new(4, 2);
        let of_last = permits.try_take(7).unwrap();
        assert_eq!(free(&permits), [2, 1]);
        let other = permits.try_take(1).unwrap();
        assert!(permits.try_take(2).is_none());
        permits.give_back(other);
        permits.give_back(of_last);
        assert_eq!(free(&permits), [2, 2]);
    }
}
