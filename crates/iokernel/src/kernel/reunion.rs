//! The polling thread's naps while programs come over from another IOKernel.
//!
//! Owns when they begin and end. On a machine that leaves the control thread no core but the
//! polling thread's, the two compete while programs register: the first of them has work at once,
//! for which this thread polls without rest, and Linux runs the control thread beside it once a
//! timer tick. A takeover of three programs took ten such waits of 4 ms, for whatever rank the
//! control thread had. So this thread naps after each iteration until all that are expected have
//! been sent `Ready`, for [`LONGEST_US`] at most. The programs that are served already notice the
//! length of a nap. Pure: time is an argument.

use tailwater_shm::Cycles;

/// Length of a nap, in microseconds.
pub(super) const NAP_US: u64 = 50;
/// For how long there are naps if a program does not come, in microseconds.
pub(super) const LONGEST_US: u64 = 100_000;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Reunion {
    until: Option<Cycles>,
}

impl Reunion {
    /// Begins one that lasts for `longest` at most, if there is anything to nap for.
    pub(super) fn new(naps: bool, now: Cycles, longest: Cycles) -> Self {
        Self { until: naps.then(|| now.saturating_add(longest)) }
    }

    /// Returns whether to nap now.
    #[inline(always)]
    pub(super) fn wants_nap(&mut self, now: Cycles) -> bool {
        let Some(until) = self.until else { return false };
        if now >= until {
            self.until = None;
        }
        self.until.is_some()
    }

    /// Ends it: all programs are there.
    pub(super) fn end(&mut self) {
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_naps_until_all_are_there_or_the_time_is_over() {
        assert!(!Reunion::new(false, 0, 100).wants_nap(0));
        let mut late = Reunion::new(true, 5, 100);
        assert!(late.wants_nap(5) && late.wants_nap(104));
        assert!(!late.wants_nap(105));
        assert!(!late.wants_nap(5), "it is over");
        let mut complete = Reunion::new(true, 5, 100);
        complete.end();
        assert!(!complete.wants_nap(6));
    }
}
