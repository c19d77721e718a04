//! Whether other programs of the machine compete for Tailwater's cores.
//!
//! Owns [`ContentionDetector`], a pure decision: times and counts are arguments. Kthreads, and the
//! polling thread, have one rank while they have the cores for themselves, and another beside
//! programs that want them (`tailwater_shm::priority`). Linux says how many threads are runnable
//! (`/proc/loadavg`). A look finds *more* if they are more than Tailwater's own and than other
//! cores can take. A running average says which part of the looks did: half of them begin a
//! contest, after 22 ms if all do, and less than a quarter, or none for
//! [a second](Durations::hold), end it. So a compiler that starts one process after the other is
//! one contest, and a daemon that wakes for a moment is none. A thread of Linux itself that needs
//! the polling thread's core for microseconds stays runnable for some timer ticks, and in a contest
//! until the next slice.
//!
//! A look at a core that changes hands leaves it open: both kthreads may be runnable. It counts as
//! an eighth of a look that finds no more.
//!
//! Threads that may not run on Tailwater's cores count as well, once they are more than the other
//! cores: Linux does not say where a runnable thread may run.
//!
//! Threads that may only run on Tailwater's cores, in a container perhaps, compete although another
//! core is free. Linux does not say for which core a thread waits, but it says for how long the
//! polling thread has waited behind one: [a millisecond](Durations::waited) is a contest, too.

use tailwater_shm::Cycles;

use crate::bounds::bounds;

/// Interval of the looks in a contest, as a multiple of the other one.
const SELDOM: Cycles = 20;
/// Weight of a look in the running average, as a power of two, and of one that leaves it open.
const SHIFT: u32 = 6;
const OPEN_SHIFT: u32 = SHIFT + 3;
/// One in that average.
const ALL: u32 = 1 << 16;
/// Parts of the looks that have to find more threads before a contest begins, and while it lasts.
/// Those of Linux itself are found by a sixth of them on an idle machine of two cores.
const BEGIN: u32 = ALL / 2;
const END: u32 = ALL / 4;

bounds! {
    /// Times of the looks and of a contest.
    pub(super) struct Durations {
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
    durations: Durations,
    /// Cores that are not Tailwater's.
    elsewhere: usize,
    is_on: bool,
    next: Cycles,
    /// The last look that has found more.
    last: Cycles,
    /// Part of the looks that have found more.
    average: u32,
}

impl ContentionDetector {
    /// `elsewhere`: how many cores other programs have beside Tailwater's.
    pub(super) fn new(elsewhere: usize, durations: Durations) -> Self {
        Self { durations, elsewhere, is_on: false, next: 0, last: 0, average: 0 }
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
        let has_waited = look.waited >= self.durations.waited;
        if has_waited || look.runnable > most + free {
            self.last = now;
            self.average += (ALL - self.average) >> SHIFT;
        } else {
            let is_open = look.runnable > least + free;
            self.average -= self.average >> if is_open { OPEN_SHIFT } else { SHIFT };
        }
        let lasts = now.saturating_sub(self.last) < self.durations.hold && self.average >= END;
        let is_on = if self.is_on { lasts } else { has_waited || self.average >= BEGIN };
        let has_changed = core::mem::replace(&mut self.is_on, is_on) != is_on;
        if has_changed {
            self.average = if is_on { ALL } else { 0 };
        }
        self.next = now + self.durations.look * if is_on { SELDOM } else { 1 };
        has_changed.then_some(is_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATIONS: Durations = Durations { look: 500, hold: 1_000_000, waited: 1_000 };
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
        let mut contest = ContentionDetector::new(0, DURATIONS);
        assert_eq!(until_change(&mut contest, 0, 3), Some(BEGINS));
        assert!(contest.is_on());
        // It stays on while threads come and go.
        for now in [40_000, 500_000, 1_000_000] {
            assert_eq!(contest.judge(found(2), now), None);
            assert_eq!(contest.judge(found(3), now + 10_000), None);
        }
        assert_eq!(until_change(&mut contest, 1_020_000, 2), Some(1_870_000));
        assert!(!contest.is_on());
    }

    #[test]
    fn a_thread_that_runs_for_a_moment_is_none() {
        let mut contest = ContentionDetector::new(0, DURATIONS);
        for (look, now) in (0..2_000).zip((0..).step_by(500)) {
            // For two timer ticks of 4 ms, once in 20 ms.
            let runnable = if look % 40 < 16 { 3 } else { 2 };
            assert_eq!(contest.judge(found(runnable), now), None);
        }
    }

    #[test]
    fn a_contest_ends_although_some_looks_find_a_thread_that_runs_for_a_moment() {
        let mut contest = ContentionDetector::new(0, DURATIONS);
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
        let mut contest = ContentionDetector::new(0, DURATIONS);
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
        let mut contest = ContentionDetector::new(0, DURATIONS);
        for round in 0..1_000 {
            let look = if round % 18 == 0 { found(3) } else { open };
            assert_eq!(contest.judge(look, round * 500), None);
        }
    }

    #[test]
    fn threads_that_other_cores_can_take_are_none() {
        let mut contest = ContentionDetector::new(2, DURATIONS);
        assert_eq!(until_change(&mut contest, 0, 4), None);
        let asleep = Look { polls: false, ..found(5) };
        assert_eq!(contest.judge(asleep, 4_000_000), None, "the polling thread's core is free");
        assert_eq!(contest.judge(asleep, 4_010_000), None);
        assert_eq!(until_change(&mut contest, 4_020_000, 5), Some(4_020_000 + BEGINS));
    }

    #[test]
    fn a_polling_thread_that_has_waited_for_its_core_is_in_a_contest_wherever_others_are_free() {
        let mut contest = ContentionDetector::new(9, DURATIONS);
        assert_eq!(contest.judge(Look { waited: 999, ..found(3) }, 500), None);
        assert_eq!(contest.judge(Look { waited: 1_000, ..found(3) }, 5_000), Some(true));
        assert_eq!(contest.judge(found(3), 1_000_000), None);
        assert_eq!(contest.judge(found(3), 1_005_000), Some(false));
    }
}
