//! How busy a kthread is, and how many user threads wait for it: measured at its visits to the
//! scheduler, while a [core policy](crate::cores) asks for it.
//!
//! A visit adds the time since the last one to the busy time, and the same time for each thread
//! that is runnable now. Between visits the kthread runs user threads: it visits after 64 switches
//! at the latest, or when a thread has nothing after it. Time without a core or without work is
//! left out.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `since`, `busy`, `runnable` | the kthread's OS thread | any thread |
//!
//! All accesses are Relaxed. A reader may see one word without the other, which moves one visit's
//! time from one interval to the next, or counts it twice.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tailwater_shm::Cycles;

/// `since` while the kthread idles or has no core.
const PAUSED: Cycles = 0;

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Meter {
    since: AtomicU64,
    busy: AtomicU64,
    runnable: AtomicU64,
}

/// Sums of a kthread since it began: busy time, and that time multiplied by the runnable threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Cycles in which it ran user threads or looked for one.
    pub busy: u64,
    /// The same, times the threads that ran or waited.
    pub runnable: u64,
}

impl Meter {
    /// Adds the time since the last visit, in which one thread ran, and `waiting` threads waited at
    /// the end. On the kthread's OS thread, as [`pause`](Self::pause) and [`resume`](Self::resume).
    pub fn visit(&self, now: Cycles, waiting: u32) {
        let since = self.since.load(Relaxed);
        if since != PAUSED {
            let more = spent(now.saturating_sub(since), waiting);
            self.busy.store(self.busy.load(Relaxed).wrapping_add(more.busy), Relaxed);
            self.runnable.store(self.runnable.load(Relaxed).wrapping_add(more.runnable), Relaxed);
        }
        self.resume(now);
    }

    /// Leaves the time from now on out, until [`resume`](Self::resume) or the next visit.
    pub fn pause(&self) {
        self.since.store(PAUSED, Relaxed);
    }

    /// Begins to count.
    pub fn resume(&self, now: Cycles) {
        self.since.store(now.max(PAUSED + 1), Relaxed);
    }

    /// Returns the sums up to now. `waiting` threads wait for the kthread at this moment.
    pub fn totals(&self, now: Cycles, waiting: u32) -> Totals {
        let since = self.since.load(Relaxed);
        let more = if since == PAUSED { 0 } else { now.saturating_sub(since) };
        let more = spent(more, waiting);
        Totals {
            busy: self.busy.load(Relaxed).wrapping_add(more.busy),
            runnable: self.runnable.load(Relaxed).wrapping_add(more.runnable),
        }
    }
}

impl Totals {
    /// Returns what was added since `before`. Sums that were read amid a visit may have fallen.
    pub fn since(self, before: Self) -> Self {
        let more = |now: u64, before: u64| u64::try_from(now.wrapping_sub(before) as i64).unwrap_or(0);
        Self { busy: more(self.busy, before.busy), runnable: more(self.runnable, before.runnable) }
    }
}

fn spent(cycles: Cycles, waiting: u32) -> Totals {
    Totals { busy: cycles, runnable: cycles.saturating_mul(1 + u64::from(waiting)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_with_and_without_waiting_threads_adds_up_and_pauses_are_left_out() {
        let meter = Meter::default();
        assert_eq!(meter.totals(50, 9), Totals::default(), "it has had no core yet");
        meter.visit(100, 3);
        meter.visit(130, 1);
        assert_eq!(meter.totals(130, 0), Totals { busy: 30, runnable: 60 });
        assert_eq!(meter.totals(140, 2), Totals { busy: 40, runnable: 90 }, "a thread that runs on");
        meter.pause();
        assert_eq!(meter.totals(500, 2), Totals { busy: 30, runnable: 60 });
        meter.resume(600);
        meter.visit(610, 0);
        assert_eq!(meter.totals(610, 0), Totals { busy: 40, runnable: 70 });
    }

    #[test]
    fn sums_that_fell_have_added_nothing() {
        let totals = |busy, runnable| Totals { busy, runnable };
        assert_eq!(totals(5, 9).since(totals(7, 2)), totals(0, 7));
        assert_eq!(totals(3, 3).since(totals(u64::MAX, 3)), totals(4, 0), "across the wrap");
    }
}
