//! Whether other programs of the machine compete for Tailwater's cores.
//!
//! Owns [`ContentionDetector`], a pure decision: times and counts are arguments. Kthreads, and the
//! polling thread, have one rank while they have the cores for themselves, and another beside
//! programs that want them (`tailwater_shm::priority`). Linux says how many threads are runnable
//! (`/proc/loadavg`). When there are more than Tailwater's own and than other cores can take, for
//! [20 ms](Durations::confirm), there is a contest. It ends when no look has found any for [a
//! second](Durations::hold), or few looks do. A compiler that starts one process after the other is
//! one contest, and a daemon that wakes for a moment is none. A thread of Linux itself that needs
//! the polling thread's core for microseconds stays runnable for some timer ticks, and in a contest
//! until the next slice.
//!
//! Threads that may not run on Tailwater's cores count as well, once they are more than the other
//! cores: Linux does not say where a runnable thread may run.
//!
//! Threads that may only run on Tailwater's cores, in a container perhaps, compete although another
//! core is free. Linux does not say for which core a thread waits, but it says for how long the
//! polling thread has waited behind one: [a millisecond](Durations::waited) is a contest, too.

use tailwater_shm::Cycles;

use crate::bounds::bounds;

/// Looks in a row that may leave it open whether more threads are runnable, without a new
/// beginning. One that does is a look at a core that changes hands: both kthreads may be runnable.
const UNDECIDED: u32 = 16;
/// Number of looks that have to find more threads, if others leave it open.
const ENOUGH: u32 = 4;
/// Interval of the looks in a contest, as a multiple of the other one.
const SELDOM: Cycles = 20;
/// Weight of a look in the running average of those that find more threads, as a power of two: it
/// is over the last 640 ms or so.
const AVERAGE_SHIFT: u32 = 6;
/// One in that average.
const WHOLE: u32 = 1 << 16;
/// Part of the looks in a contest that have to find more threads. Those of Linux itself are found
/// by a sixth of them on an idle machine of two cores.
const LEAST: u32 = WHOLE / 4;

bounds! {
    /// Times of the looks and of a contest.
    pub(super) struct Durations {
        /// Interval of the looks while there is no contest and the polling thread polls. A look
        /// takes 1.5 us.
        look = 500 us,
        /// For how long more threads have to be runnable, at every look, before that is a contest:
        /// longer than a thread that needs a core for a moment waits behind one at nice -20, two
        /// timer ticks of 4 ms.
        confirm = 20 ms,
        /// For how long a contest lasts after the last look that has found one.
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
    /// The looks that have found more runnable threads, since the last one that has found no more.
    found: Option<Found>,
    /// The last one that has found more.
    last: Cycles,
    /// Part of the looks of this contest that have found more, as a running average.
    average: u32,
}

#[derive(Debug, Clone, Copy)]
struct Found {
    first: Cycles,
    looks: u32,
    /// A look between them has left it open.
    doubtful: bool,
    /// Number of looks that left it open since the last of them.
    undecided: u32,
}

impl ContentionDetector {
    /// `elsewhere`: how many cores other programs have beside Tailwater's.
    pub(super) fn new(elsewhere: usize, durations: Durations) -> Self {
        Self { durations, elsewhere, is_on: false, next: 0, found: None, last: 0, average: 0 }
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
        let before = self.is_on;
        let (least, most) = look.own;
        let (more, open) = (look.runnable > most + free, look.runnable > least + free);
        if more {
            let found =
                self.found.get_or_insert(Found { first: now, looks: 0, doubtful: false, undecided: 0 });
            found.looks += 1;
            found.undecided = 0;
            let lasts = now.saturating_sub(found.first) >= self.durations.confirm;
            self.is_on |= lasts && (!found.doubtful || found.looks >= ENOUGH);
        } else {
            self.found = self.found.filter(|found| open && found.undecided < UNDECIDED);
            if let Some(found) = &mut self.found {
                found.doubtful = true;
                found.undecided += 1;
            }
        }
        let has_waited = look.waited >= self.durations.waited;
        self.is_on |= has_waited;
        if !before {
            self.average = WHOLE;
        }
        if more || has_waited {
            self.last = now;
            self.average += (WHOLE - self.average) >> AVERAGE_SHIFT;
        } else if !open {
            self.average -= self.average >> AVERAGE_SHIFT;
        }
        let lasts = now.saturating_sub(self.last) < self.durations.hold;
        self.is_on &= lasts && self.average >= LEAST;
        let seldom = if self.is_on { SELDOM } else { 1 };
        self.next = now + self.durations.look * seldom;
        (self.is_on != before).then_some(self.is_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATIONS: Durations = Durations { look: 500, confirm: 1_500, hold: 1_000_000, waited: 1_000 };

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
        assert_eq!(until_change(&mut contest, 0, 3), Some(1_500));
        assert!(contest.is_on());
        // It stays on while threads come and go.
        for now in [10_000, 500_000, 1_000_000] {
            assert_eq!(contest.judge(found(2), now), None);
            assert_eq!(contest.judge(found(3), now + 10_000), None);
        }
        assert_eq!(until_change(&mut contest, 1_020_000, 2), Some(1_870_000));
        assert!(!contest.is_on());
    }

    #[test]
    fn a_thread_that_runs_for_a_moment_is_none() {
        let mut contest = ContentionDetector::new(0, DURATIONS);
        for now in (0..1_000_000).step_by(1_500) {
            assert_eq!(contest.judge(found(3), now), None);
            assert_eq!(contest.judge(found(3), now + 500), None);
            assert_eq!(contest.judge(found(2), now + 1_000), None);
        }
    }

    #[test]
    fn a_contest_ends_although_some_looks_find_a_thread_that_runs_for_a_moment() {
        let mut contest = ContentionDetector::new(0, DURATIONS);
        assert_eq!(until_change(&mut contest, 0, 3), Some(1_500));
        let looks = |part: u64| (0..400).map(move |n| (n * 10_000, if n % part == 0 { 3 } else { 2 }));
        let ends = |contest: &mut ContentionDetector, part| {
            looks(part).find_map(|(at, runnable)| contest.judge(found(runnable), 10_000 + at))
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
        let looks = [found(3), open, open, found(3), open, open, open, found(3), open];
        for (look, now) in looks.into_iter().zip((100_000..).step_by(500)) {
            assert_eq!(contest.judge(look, now), None);
        }
        assert_eq!(contest.judge(found(3), 104_500), Some(true), "the fourth");
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
        assert_eq!(until_change(&mut contest, 4_020_000, 5), Some(4_021_500));
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
