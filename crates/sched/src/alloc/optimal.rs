//! The best a core allocator could do with perfect knowledge, per interval: the reference of
//! Shenango (NSDI'19) figure 1.
//!
//! Owns the search for the smallest number of cores with which every request of the coming interval
//! can still meet its deadline, by trial over an exact simulation of the interval. It is not a
//! [`Policy`](super::Policy): it needs arrivals and service times in advance, which no observation
//! holds. Simulators use it as a bound.
//!
//! There are two forms: [`Clairvoyant`] carries requests from interval to interval (the 5 us
//! allocator); [`fewest_for_tail`] is the paper's simplification for 1 ms, where every interval
//! starts empty.

use crate::ids::Nanos;
use heap::vec::Vec;

/// Deadline that a trial assigns to a request that cannot meet its own.
const NEVER: Nanos = Nanos(u64::MAX);

/// A request as a clairvoyant allocator knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Time of arrival.
    pub arrived: Nanos,
    /// Time by which it must be finished.
    pub deadline: Nanos,
    /// Work left.
    pub remaining: Nanos,
}

impl Known {
    /// Returns the latest time at which it can start and still finish in time if it runs without a
    /// break.
    fn latest_start(&self) -> Nanos {
        self.deadline - self.remaining
    }
}

/// The result of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Cores allocated.
    pub cores: usize,
    /// Core time used by requests.
    pub busy: Nanos,
}

/// Allocates the fewest cores per interval for which no request becomes late unnecessarily.
///
/// Requests run in the order of their latest possible start and are preempted at interval
/// boundaries. A number of cores is enough if, after the interval, every unfinished request could
/// still meet its deadline on a core of its own. A request that cannot meet its deadline in any
/// case, because its service alone takes too long, gets a core at once and does not count as late.
#[derive(Clone, Debug, Default)]
pub struct Clairvoyant {
    pending: Vec<Known>,
    trial: Vec<Known>,
    cursors: Vec<Nanos>,
}

impl Clairvoyant {
    /// Creates an allocator with nothing pending.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Plans and runs the interval from `start` to `end` on at most `limit` cores. `arrivals` are
    /// the requests that arrive in the interval; every request finished in it is appended to `done`
    /// with the time at which it finished.
    pub fn run(
        &mut self,
        start: Nanos,
        end: Nanos,
        arrivals: &[Known],
        limit: usize,
        done: &mut Vec<(Known, Nanos)>,
    ) -> Interval {
        self.pending.extend_from_slice(arrivals);
        self.pending.sort_by_key(|r| (r.latest_start(), r.arrived));
        let mut cores = 0;
        while cores < limit.min(self.pending.len()) && !self.suffices(cores, start, end) {
            cores += 1;
        }
        let mut busy = Nanos::ZERO;
        execute(&mut self.pending, &mut self.cursors, cores, start, end, |request, ran, finished| {
            busy = busy + ran;
            done.extend(finished.map(|at| (*request, at)));
        });
        self.pending.retain(|r| r.remaining > Nanos::ZERO);
        Interval { cores, busy }
    }

    fn suffices(&mut self, cores: usize, start: Nanos, end: Nanos) -> bool {
        self.trial.clone_from(&self.pending);
        for request in &mut self.trial {
            if start.max(request.arrived) + request.remaining > request.deadline {
                request.deadline = NEVER;
            }
        }
        let mut late = false;
        execute(&mut self.trial, &mut self.cursors, cores, start, end, |request, _, finished| {
            late |= finished.is_some_and(|at| at > request.deadline);
        });
        // Every unfinished request must fit on a core of its own afterwards; one that cannot meet
        // its deadline must at least be running.
        let unfinished =
            self.trial.iter().zip(&self.pending).filter(|(after, _)| after.remaining > Nanos::ZERO);
        let mut strands = unfinished.filter(|(after, before)| match after.deadline {
            NEVER => before.remaining == after.remaining && before.arrived < end,
            deadline => end + after.remaining > deadline,
        });
        !late && strands.next().is_none()
    }
}

/// Runs `requests`, in their order, on `cores` cores (list scheduling). Calls `each` for every
/// request that ran, with the time it got and, if it finished, the time at which it did.
fn execute(
    requests: &mut [Known],
    cursors: &mut Vec<Nanos>,
    cores: usize,
    start: Nanos,
    end: Nanos,
    mut each: impl FnMut(&Known, Nanos, Option<Nanos>),
) {
    cursors.clear();
    cursors.resize(cores, start);
    for request in requests {
        let Some(free) = cursors.iter_mut().min_by_key(|c| **c).filter(|c| **c < end) else { return };
        let from = (*free).max(request.arrived);
        if from >= end {
            continue;
        }
        let ran = request.remaining.min(end - from);
        *free = from + ran;
        request.remaining = request.remaining - ran;
        let finished = (request.remaining == Nanos::ZERO).then_some(*free);
        each(request, ran, finished);
    }
}

/// Returns the fewest cores, from `least` up to `most`, for which `tail(cores)` stays within
/// `limit`; `None` if `most` do not suffice.
///
/// `tail` measures the tail latency with that many cores over whole intervals that start empty
/// (Shenango section 2).
pub fn fewest_for_tail(
    least: usize,
    most: usize,
    limit: Nanos,
    mut tail: impl FnMut(usize) -> Nanos,
) -> Option<usize> {
    (least.max(1)..=most).find(|&cores| tail(cores) <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use heap::vec;

    fn known(arrived: u64, deadline: u64, remaining: u64) -> Known {
        Known { arrived: Nanos(arrived), deadline: Nanos(deadline), remaining: Nanos(remaining) }
    }

    fn run(c: &mut Clairvoyant, start: u64, arrivals: &[Known]) -> (usize, Vec<u64>) {
        let mut done = Vec::new();
        let interval = c.run(Nanos(start), Nanos(start + 5), arrivals, 8, &mut done);
        (interval.cores, done.iter().map(|(_, at)| at.0).collect())
    }

    #[test]
    fn a_request_waits_without_a_core_until_it_must_start() {
        let mut c = Clairvoyant::new();
        assert_eq!(run(&mut c, 0, &[known(0, 20, 8)]), (0, vec![]), "at 5 there are 15 left for 8");
        assert_eq!(run(&mut c, 5, &[]), (0, vec![]));
        assert_eq!(run(&mut c, 10, &[]), (1, vec![]), "at 15 only 5 would be left");
        assert_eq!(run(&mut c, 15, &[]), (1, vec![18]));
        assert_eq!(run(&mut c, 20, &[]), (0, vec![]));
    }

    #[test]
    fn requests_that_must_run_together_get_a_core_each_and_those_that_fit_behind_one_another_share() {
        let mut c = Clairvoyant::new();
        assert_eq!(run(&mut c, 0, &[known(0, 5, 5), known(0, 5, 5), known(0, 50, 5)]).0, 2);
        let mut c = Clairvoyant::new();
        assert_eq!(run(&mut c, 0, &[known(0, 2, 2), known(0, 5, 3)]), (1, vec![2, 5]));
    }

    #[test]
    fn a_hopeless_request_runs_at_once_and_does_not_ask_for_every_core() {
        let mut c = Clairvoyant::new();
        assert_eq!(run(&mut c, 0, &[known(0, 10, 100), known(0, 200, 1)]).0, 1);
        for start in (5..100).step_by(5) {
            assert_eq!(run(&mut c, start, &[]).0, 1, "at {start}");
        }
    }

    #[test]
    fn trial_and_error_stops_at_the_first_number_that_meets_the_limit() {
        let tail = |cores: usize| Nanos(100 / cores as u64);
        assert_eq!(fewest_for_tail(1, 9, Nanos(30), tail), Some(4));
        assert_eq!(fewest_for_tail(6, 9, Nanos(30), tail), Some(6));
        assert_eq!(fewest_for_tail(1, 3, Nanos(30), tail), None);
    }
}
