//! Whether other programs of the machine compete for Tailwater's cores.
//!
//! Owns [`ContentionDetector`], a pure decision: times and counts are arguments. Kthreads, and the
//! polling thread, have one rank while they have the cores for themselves, and another beside
//! programs that want them (`tailwater_shm::priority`). Linux says how many threads are runnable
//! (`/proc/loadavg`). A look finds *more* if they are more than Tailwater's own and than other
//! cores can take. A running average says for which part of the time the looks did: half of it
//! begins a contest, after 22 ms if all do, and less than a quarter, or none for
//! [a second](Bounds::hold), ends it. So a compiler that starts one process after the other is
//! one contest, and a daemon that wakes for a moment is none. A thread of Linux itself that needs
//! the polling thread's core for microseconds stays runnable for some timer ticks, and in a contest
//! until the next slice.
//!
//! A look counts for the time since the previous one, and before a contest for 12 ms at most: one
//! is no contest, but where the polling thread sleeps between its looks two or three are.
//!
//! A look at a core that changes hands leaves it open: both kthreads may be runnable. It counts as
//! an eighth of a look that finds no more; and a [row](MAX_OPEN) of them forgets a contest that has
//! not begun. So a thread that is found for a moment again and again while cores change hands is
//! none, and one that is found between is a contest.
//!
//! Threads that may not run on Tailwater's cores count as well, once they are more than the other
//! cores: Linux does not say where a runnable thread may run.
//!
//! Threads that may only run on Tailwater's cores, in a container perhaps, compete although another
//! core is free. Linux does not say for which core a thread waits, but it says for how long the
//! polling thread has waited behind one: [a millisecond](Bounds::waited) is a contest, too.

use tailwater_shm::Cycles;

use crate::bounds::bounds;

/// Interval of the looks in a contest, as a multiple of the other one.
const SELDOM: Cycles = 20;
/// Weight of a look in the running average, as a power of two, and of one that leaves it open.
const SHIFT: u32 = 6;
const OPEN_SHIFT: u32 = SHIFT + 3;
/// Maximum number of looks for which a look after a long pause counts: one such look is 31 % of the
/// average and begins no contest, two are 53 %.
const MAX_LOOKS: Cycles = 24;
/// Looks in a row that leave it open beyond which a contest that has not begun is forgotten: 8 ms.
const MAX_OPEN: u32 = 16;
/// One in that average.
const ALL: u32 = 1 << 16;
/// Parts of the time in which looks have to find more threads before a contest begins, and while it
/// lasts. Those of Linux itself are found by a sixth of them on an idle machine of two cores.
const BEGIN: u32 = ALL / 2;
const END: u32 = ALL / 4;

bounds! {
    /// Times of the looks and of a contest.
    pub(super) struct Bounds {
        /// Interval of the looks while there is no contest and the polling thread polls. A look
        /// takes 1.5 us. A thread that needs a core for a moment waits behind one at nice -20 for
        /// two timer ticks of 4 ms: 16 looks.
        look = 500 us,
        /// For how long a contest lasts after the last look that has found more.
        hold = 1_000 ms,
        /// Time that the polling thread has waited for its core since the last look which is a
        /// contest. A kernel thread takes a core for less.
        waited = 1 ms,
    }
}

/// The result of a look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// Runnable threads of the machine.
    pub(super) runnable: usize,
    /// Least and greatest number of Tailwater's own among them.
    pub(super) own: (usize, usize),
    /// True if the polling thread polls, and leaves its core to no other thread.
    pub(super) polls: bool,
    /// For how long the polling thread has waited for its core since the last look.
    pub(super) waited: Cycles,
}

/// See the module documentation.
#[derive(Debug, Clone)]
pub(super) struct ContentionDetector {
    bounds: Bounds,
    /// Cores that are not Tailwater's.
    elsewhere: usize,
    is_on: bool,
    next: Cycles,
    /// When the last look was.
    looked: Cycles,
    /// The last look that has found more.
    last: Cycles,
    /// Part of the time in which looks have found more.
    average: u32,
    /// Number of the latest looks in a row that have left it open.
    open: u32,
}

impl ContentionDetector {
    /// `elsewhere`: how many cores other programs have beside Tailwater's.
    pub(super) fn new(elsewhere: usize, bounds: Bounds) -> Self {
        Self { bounds, elsewhere, is_on: false, next: 0, looked: 0, last: 0, average: 0, open: 0 }
    }

    /// Returns whether other programs compete for the cores, as of the last look.
    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns whether a look is due.
    #[inline(always)]
    pub(super) fn is_due(&self, now: Cycles) -> bool {
        now >= self.next
    }

    /// Judges a look; returns the change, if there is one.
    pub(super) fn judge(&mut self, look: Look, now: Cycles) -> Option<bool> {
        let free = self.elsewhere + usize::from(!look.polls);
        let (least, most) = look.own;
        let has_waited = look.waited >= self.bounds.waited;
        let is_more = has_waited || look.runnable > most + free;
        let is_open = !is_more && look.runnable > least + free;
        if is_more {
            self.last = now;
        }
        self.open = if is_open { self.open.saturating_add(1) } else { 0 };
        if self.open > MAX_OPEN && !self.is_on {
            self.average = 0;
        }
        let looks = now.saturating_sub(self.looked) / self.interval();
        self.looked = now;
        for _ in 0..looks.clamp(1, MAX_LOOKS) {
            if is_more {
                self.average += (ALL - self.average) >> SHIFT;
            } else {
                self.average -= self.average >> if is_open { OPEN_SHIFT } else { SHIFT };
            }
        }
        let lasts = now.saturating_sub(self.last) < self.bounds.hold && self.average >= END;
        let is_on = if self.is_on { lasts } else { has_waited || self.average >= BEGIN };
        let has_changed = core::mem::replace(&mut self.is_on, is_on) != is_on;
        if has_changed {
            self.average = if is_on { ALL } else { 0 };
        }
        self.next = now + self.interval();
        has_changed.then_some(is_on)
    }

    /// Returns the time between two looks while the polling thread polls.
    fn interval(&self) -> Cycles {
        self.bounds.look * if self.is_on { SELDOM } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { look: 500, hold: 1_000_000, waited: 1_000 };
    /// When a contest begins of which each look from 0 on finds more.
    const BEGINS: Cycles = 44 * 500;

    /// What a look finds beside two threads of Tailwater, while it polls.
    fn found(runnable: usize) -> Look {
        Look { runnable, own: (2, 2), polls: true, waited: 0 }
    }

    /// Looks whenever one is due until the judgement changes; returns when it did.
    fn until_change(contest: &mut ContentionDetector, from: Cycles, runnable: usize) -> Option<Cycles> {
        let mut times = (from..from + 3_000_000).step_by(100);
        times.find(|&now| contest.is_due(now) && contest.judge(found(runnable), now).is_some())
    }

    #[test]
    fn a_program_that_computes_is_a_contest_until_a_second_or_less_after_its_end() {
        let mut contest = ContentionDetector::new(0, BOUNDS);
        assert_eq!(until_change(&mut contest, 0, 3), Some(BEGINS));
        assert!(contest.is_on());
        // It stays on while threads come and go.
        for now in [40_000, 500_000, 1_000_000] {
            assert_eq!(contest.judge(found(2), now), None);
            assert_eq!(contest.judge(found(3), now + 10_000), None);
        }
        assert_eq!(until_change(&mut contest, 1_020_000, 2), Some(1_420_000));
        assert!(!contest.is_on());
    }

    #[test]
    fn a_thread_that_runs_for_a_moment_is_none() {
        let mut contest = ContentionDetector::new(0, BOUNDS);
        for (look, now) in (0..2_000).zip((0..).step_by(500)) {
            // For two timer ticks of 4 ms, once in 20 ms.
            let runnable = if look % 40 < 16 { 3 } else { 2 };
            assert_eq!(contest.judge(found(runnable), now), None);
        }
    }

    #[test]
    fn a_contest_ends_although_some_looks_find_a_thread_that_runs_for_a_moment() {
        let mut contest = ContentionDetector::new(0, BOUNDS);
        assert_eq!(until_change(&mut contest, 0, 3), Some(BEGINS));
        let looks = |part: u64| (0..400).map(move |n| (n * 10_000, if n % part == 0 { 3 } else { 2 }));
        let ends = |contest: &mut ContentionDetector, part| {
            looks(part).find_map(|(at, runnable)| contest.judge(found(runnable), 40_000 + at))
        };
        assert_eq!(ends(&mut contest.clone(), 3), None, "a program that computes a third of the time");
        assert_eq!(ends(&mut contest, 6), Some(false));
    }

    #[test]
    fn looks_at_cores_that_change_hands_neither_begin_nor_prevent_a_contest() {
        let open = Look { own: (2, 4), ..found(3) };
        let mut contest = ContentionDetector::new(0, BOUNDS);
        for now in (0..100_000).step_by(500) {
            assert_eq!(contest.judge(open, now), None, "it never is one alone");
        }
        let mut looks = (0..).map(|look| if look % 3 == 0 { found(3) } else { open });
        let mut times = (100_000..300_000).step_by(500);
        let began = times.find(|&now| contest.judge(looks.next().unwrap(), now).is_some()).unwrap();
        assert!((150_000..200_000).contains(&began), "a third of the looks: {began}");
    }

    #[test]
    fn a_thread_that_runs_for_a_moment_now_and_then_is_none_while_cores_change_hands() {
        let open = Look { own: (2, 4), ..found(3) };
        let mut contest = ContentionDetector::new(0, BOUNDS);
        for round in 0..1_000 {
            let look = if round % 18 == 0 { found(3) } else { open };
            assert_eq!(contest.judge(look, round * 500), None);
        }
    }

    #[test]
    fn a_thread_that_runs_for_a_moment_again_and_again_is_none_while_cores_change_hands() {
        let open = Look { own: (2, 4), ..found(3) };
        let mut contest = ContentionDetector::new(0, BOUNDS);
        for round in 0..4_000 {
            // For two timer ticks of 4 ms, once in 20 ms.
            let look = if round % 40 < 16 { found(3) } else { open };
            assert_eq!(contest.judge(look, round * 500), None, "{round}");
        }
    }

    #[test]
    fn a_polling_thread_that_sleeps_between_its_looks_notices_after_two_or_three_and_not_at_one() {
        for apart in [8_000, 10_000, 12_000, 100_000] {
            let mut contest = ContentionDetector::new(0, BOUNDS);
            // One look of four finds a thread that runs for a moment.
            for round in 1..40 {
                let runnable = if round % 4 == 0 { 3 } else { 2 };
                assert_eq!(contest.judge(found(runnable), round * apart), None, "{apart}");
            }
            let began = (40..).find(|&round| contest.judge(found(3), round * apart).is_some());
            assert!(matches!(began, Some(41 | 42)), "{apart}: {began:?}");
        }
    }

    #[test]
    fn threads_that_other_cores_can_take_are_none() {
        let mut contest = ContentionDetector::new(2, BOUNDS);
        assert_eq!(until_change(&mut contest, 0, 4), None);
        let asleep = Look { polls: false, ..found(5) };
        assert_eq!(contest.judge(asleep, 4_000_000), None, "the polling thread's core is free");
        assert_eq!(contest.judge(asleep, 4_010_000), None);
        assert_eq!(until_change(&mut contest, 4_020_000, 5), Some(4_020_000 + BEGINS - 19 * 500));
    }

    #[test]
    fn a_polling_thread_that_has_waited_for_its_core_is_in_a_contest_wherever_others_are_free() {
        let mut contest = ContentionDetector::new(9, BOUNDS);
        assert_eq!(contest.judge(Look { waited: 999, ..found(3) }, 500), None);
        assert_eq!(contest.judge(Look { waited: 1_000, ..found(3) }, 5_000), Some(true));
        assert_eq!(contest.judge(found(3), 1_000_000), None);
        assert_eq!(contest.judge(found(3), 1_005_000), Some(false));
    }
}
