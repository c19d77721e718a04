//! Decides when best-effort kthreads drop to the lowest rank although no competing program was
//! detected.
//!
//! Owns [`Calm`], a pure decision: times and counts are arguments. Linux does not show that a
//! thread waits for one particular core. A thread that may run only on a lent core, or a kernel
//! thread of that core, waits behind a best-effort kthread at nice -20 without being noticed. So
//! while the polling thread sleeps beside a batch job, which needs no fast hand-offs, best-effort
//! kthreads have the lowest rank. This state ends when cores change hands more than
//! [`MOST_CHANGES`] times within [`WINDOW_US`], because a hand-off between kthreads of different
//! ranks takes a wake instead of a yield. It does not begin again for [`HOLD_US`], so ranks change
//! at most once in that time.

use tailwater_shm::Cycles;

/// Time in which changes of hands are counted, in microseconds.
pub(super) const WINDOW_US: u64 = 100_000;
/// Time after its end in which it does not begin again, in microseconds.
pub(super) const HOLD_US: u64 = 1_000_000;
/// Maximum number of changes of hands in that window: 100 requests that find a batch job on the
/// core move it there and back.
const MOST_CHANGES: u64 = 200;

/// [`WINDOW_US`] and [`HOLD_US`] in cycles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Durations {
    pub(super) window: Cycles,
    pub(super) hold: Cycles,
}

/// See the module documentation.
#[derive(Debug, Clone)]
pub(super) struct Calm {
    durations: Durations,
    is_on: bool,
    not_before: Cycles,
    window_began: Cycles,
    /// Changes of hands before the window.
    changes: u64,
}

impl Calm {
    pub(super) fn new(durations: Durations) -> Self {
        Self { durations, is_on: false, not_before: 0, window_began: 0, changes: 0 }
    }

    /// Records that the polling thread falls asleep beside a batch job; returns true if the calm
    /// begins. `changes` is the number of times that cores have changed hands.
    pub(super) fn begins(&mut self, changes: u64, now: Cycles) -> bool {
        let begins = !self.is_on && now >= self.not_before;
        if begins {
            (self.is_on, self.window_began, self.changes) = (true, now, changes);
        }
        begins
    }

    /// Returns whether it ends; to be called many times in a window while the thread polls.
    #[inline]
    pub(super) fn ends(&mut self, changes: u64, now: Cycles) -> bool {
        if !self.is_on {
            return false;
        }
        if now.saturating_sub(self.window_began) >= self.durations.window {
            (self.window_began, self.changes) = (now, changes);
        }
        let ends = changes.saturating_sub(self.changes) > MOST_CHANGES;
        if ends {
            (self.is_on, self.not_before) = (false, now.saturating_add(self.durations.hold));
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATIONS: Durations = Durations { window: 100, hold: 1_000 };

    #[test]
    fn it_begins_with_a_sleep_and_ends_when_cores_change_hands_often() {
        let mut calm = Calm::new(DURATIONS);
        assert!(!calm.ends(0, 0));
        assert!(calm.begins(0, 10));
        assert!(!calm.begins(0, 20), "it has begun");
        assert!(!calm.ends(MOST_CHANGES, 60));
        assert!(calm.ends(MOST_CHANGES + 1, 61));
        assert!(!calm.ends(MOST_CHANGES + 2, 62), "it has ended");
        assert!(!calm.begins(MOST_CHANGES + 2, 1_060), "too soon");
        assert!(calm.begins(MOST_CHANGES + 2, 1_061));
    }

    #[test]
    fn changes_of_hands_that_are_rare_do_not_end_it() {
        let mut calm = Calm::new(DURATIONS);
        assert!(calm.begins(0, 0));
        assert!((0..10_000).all(|now| !calm.ends(now * MOST_CHANGES / 110, now)));
        assert!((10_000..20_000).any(|now| calm.ends(10_000 * MOST_CHANGES / 110 + (now - 10_000) * 3, now)));
    }
}
