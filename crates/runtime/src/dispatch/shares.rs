//! A number of places that classes share equally, so that one class leaves the others theirs.
//!
//! Owns the arithmetic of the division. The places of preempted requests are counted here under the
//! dispatcher's lock; those of the queue are semaphores (`QueuePermits`), for which threads wait.

use tailwater_sched::dispatch::ClassId;

/// Divides `places` among `classes`: returns the number of shares and the places in each. Fewer
/// places than classes are not divided.
pub fn divide(places: usize, classes: usize) -> (usize, usize) {
    let shares = if classes <= places { classes.max(1) } else { 1 };
    (shares, places / shares)
}

/// Returns the index of a class's share; classes beyond the last are the last.
pub fn share_of(class: usize, shares: usize) -> usize {
    class.min(shares - 1)
}

/// Places that are taken and given back. A share may be exceeded by a bounded number.
#[derive(Debug)]
pub struct Shares {
    /// Those taken of each share.
    taken: Box<[usize]>,
    share: usize,
    beyond: usize,
    /// Places of each share that may be retaken beyond these.
    retaken: usize,
}

impl Shares {
    /// Divides `places` among `classes`; `beyond` a share so many more may be taken, unless there
    /// are none.
    pub fn new(places: usize, classes: usize, beyond: usize) -> Self {
        let (shares, share) = divide(places, classes);
        let beyond = if share == 0 { 0 } else { beyond };
        Self { taken: vec![0; shares].into(), share, beyond, retaken: 0 }
    }

    /// Sets how many places may be [retaken](Self::retake) at once.
    pub fn with_retaken(mut self, places: usize) -> Self {
        self.retaken = places;
        self
    }

    /// Returns the most places that are taken at once.
    pub fn most(&self) -> usize {
        self.taken.len() * self.most_of_one()
    }

    /// Returns the most places of one share that are taken at once.
    fn most_of_one(&self) -> usize {
        self.share + self.beyond + self.retaken
    }

    /// Returns the index of a class's share.
    pub fn of(&self, class: ClassId) -> usize {
        share_of(class.index(), self.taken.len())
    }

    /// Returns whether this class has taken its share.
    pub fn is_full(&self, class: ClassId) -> bool {
        self.taken[self.of(class)] >= self.share
    }

    /// Returns whether this class may take a place, in its share or beyond.
    pub fn has_room(&self, class: ClassId) -> bool {
        self.taken[self.of(class)] < self.share + self.beyond
    }

    /// Takes a place, which the caller knows is there.
    pub fn take(&mut self, class: ClassId) {
        debug_assert!(self.has_room(class));
        self.taken[self.of(class)] += 1;
    }

    /// Takes a place for a request that had given its own back, whether one is free or not.
    pub fn retake(&mut self, class: ClassId) {
        self.taken[self.of(class)] += 1;
    }

    /// Gives a place back.
    pub fn give_back(&mut self, class: ClassId) {
        self.taken[self.of(class)] -= 1;
    }

    /// Returns how many places are taken, of all shares.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        assert!(self.taken.iter().all(|&taken| taken <= self.most_of_one()));
        self.taken.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_that_has_taken_its_share_leaves_the_others_theirs() {
        let (first, second, beyond) = (ClassId(0), ClassId(1), ClassId(9));
        let mut shares = Shares::new(5, 2, 1).with_retaken(1);
        (0..2).for_each(|_| shares.take(first));
        assert!(shares.is_full(first) && shares.has_room(first) && !shares.is_full(second));
        shares.take(first);
        assert!(!shares.has_room(first));
        (0..3).for_each(|_| shares.take(beyond));
        assert!(!shares.has_room(second), "a class beyond the last is the last");
        assert_eq!((shares.taken(), shares.most()), (6, 8));
        shares.retake(second);
        assert_eq!(shares.taken(), 7);
        shares.give_back(second);
        (0..2).for_each(|_| shares.give_back(first));
        assert!(!shares.is_full(first));
        assert!(!Shares::new(0, 2, 1).has_room(first), "no place is none beyond");
    }

    #[test]
    fn shares_are_equal_and_at_most_what_there_is() {
        for (places, classes, divided) in
            [(10, 3, (3, 3)), (3, 3, (3, 1)), (2, 3, (1, 2)), (5, 0, (1, 5)), (0, 2, (1, 0))]
        {
            assert_eq!(divide(places, classes), divided);
        }
    }
}
