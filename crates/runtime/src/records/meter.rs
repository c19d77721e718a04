//! Measures how busy a kthread is and how many user threads wait for it: at its visits to the
//! scheduler, while a [core policy](crate::cores) asks for it, and at each look of a reader.
//!
//! Time is counted in *slices*. A slice begins at the last visit or look, whichever was later, and
//! ends at the next one, which adds it to the busy time, and once more to the runnable time for
//! each thread that waits at that moment. So a thread that runs on without a visit is counted up
//! to each look, and no time is counted twice, however many readers there are. Between visits the
//! kthread runs user threads: it visits after 64 switches at the latest, or when a thread has
//! nothing after it. Time without a core or without work is left out.
//!
//! Slices in which the kthread is the [host](crate::verbs::host) of an exclusive thread are counted
//! apart: they are neither busy nor runnable time.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `marked` | the kthread's OS thread, and readers while it counts | both |
//! | `visits` | the kthread's OS thread | readers |
//! | `looks` | readers | readers |
//!
//! The thread that moves `marked` forward adds the slice. A reader that looks between the two finds
//! the slice in its next interval: [`Totals::over`] bounds what that one may hold.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use tailwater_shm::Cycles;

/// `marked` while the kthread idles or has no core.
const PAUSED: Cycles = 0;
/// `marked` of a kthread that began to run while nothing was measured: the first visit or look
/// begins to count.
const UNMARKED: Cycles = 1;

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Meter {
    /// Beginning of the present slice.
    marked: AtomicU64,
    visits: Sums,
    looks: Sums,
}

/// Sums of slices. The runnable time is written first and read last: a reader finds it with each
/// busy time that it finds.
#[derive(Debug, Default)]
struct Sums {
    busy: AtomicU64,
    runnable: AtomicU64,
    hosted: AtomicU64,
}

/// Sums of a kthread since it began: busy time, and that time multiplied by the runnable threads;
/// and the time in which it hosted an exclusive thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Cycles in which it ran user threads or looked for one.
    pub busy: u64,
    /// The same, times the threads that ran or waited.
    pub runnable: u64,
    /// Cycles in which it ran an exclusive thread, none of which are in `busy`.
    pub hosted: u64,
}

/// Averages over an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Averages {
    /// Busy kthreads.
    pub busy: f64,
    /// Runnable threads.
    pub runnable: f64,
    /// Kthreads that ran an exclusive thread.
    pub hosted: f64,
}

impl Meter {
    /// Ends a slice, in which one thread ran, and at the end of which `waiting` others wait: `None`
    /// if the kthread was the host of that thread. Begins to count if the kthread was paused. On
    /// the kthread's OS thread, as [`pause`](Self::pause) and [`resume`](Self::resume).
    pub fn visit(&self, now: Cycles, waiting: Option<u32>) {
        // Not backwards: a reader may have looked since `now` was read.
        let began = self.marked.fetch_max(now, Relaxed);
        self.visits.add_alone(slice(began, now, waiting));
    }

    /// Leaves out the time from the last visit or look on, until [`resume`](Self::resume) or the
    /// next visit.
    pub fn pause(&self) {
        self.marked.store(PAUSED, Relaxed);
    }

    /// Begins to count now; without a time, at the next visit or look.
    pub fn resume(&self, now: Option<Cycles>) {
        self.marked.store(now.unwrap_or(UNMARKED).max(UNMARKED), Relaxed);
    }

    /// Ends a slice if the kthread counts, and returns the sums up to now. `waiting` threads wait
    /// for the kthread at this moment; `None` if it is a host. On any thread.
    pub fn look(&self, now: Cycles, waiting: Option<u32>) -> Totals {
        let began = self.marked.load(Relaxed);
        // If it fails, the kthread has paused, or ended the slice itself just now.
        let is_ended = began != PAUSED
            && began < now
            && self.marked.compare_exchange(began, now, Relaxed, Relaxed).is_ok();
        if is_ended {
            self.looks.add(slice(began, now, waiting));
        }
        let (visits, looks) = (self.visits.read(), self.looks.read());
        Totals {
            busy: visits.busy.wrapping_add(looks.busy),
            runnable: visits.runnable.wrapping_add(looks.runnable),
            hosted: visits.hosted.wrapping_add(looks.hosted),
        }
    }
}

impl Sums {
    /// Adds a slice, where no other thread does.
    fn add_alone(&self, slice: Totals) {
        self.hosted.store(self.hosted.load(Relaxed).wrapping_add(slice.hosted), Relaxed);
        self.runnable.store(self.runnable.load(Relaxed).wrapping_add(slice.runnable), Relaxed);
        // Release: pairs with the Acquire in `read`.
        self.busy.store(self.busy.load(Relaxed).wrapping_add(slice.busy), Release);
    }

    /// Adds a slice.
    fn add(&self, slice: Totals) {
        self.hosted.fetch_add(slice.hosted, Relaxed);
        self.runnable.fetch_add(slice.runnable, Relaxed);
        // Release: as above.
        self.busy.fetch_add(slice.busy, Release);
    }

    fn read(&self) -> Totals {
        // Acquire: pairs with the Release of each addition.
        let mut busy = self.busy.load(Acquire);
        loop {
            // Acquire: `busy` is read again after it.
            let runnable = self.runnable.load(Acquire);
            let again = self.busy.load(Acquire);
            if again == busy {
                return Totals { busy, runnable, hosted: self.hosted.load(Relaxed) };
            }
            // Linux may have kept the reader from its core in between, for more than an interval.
            busy = again;
        }
    }
}

impl Totals {
    /// Returns what was added since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            busy: self.busy.wrapping_sub(before.busy),
            runnable: self.runnable.wrapping_sub(before.runnable),
            hosted: self.hosted.wrapping_sub(before.hosted),
        }
    }

    /// Returns the averages over the time in which this was added: at most one kthread is busy or
    /// hosts. A slice that belongs to the interval before is left out in proportion.
    pub fn over(self, time: Cycles) -> Averages {
        let time = time.max(self.busy.saturating_add(self.hosted)).max(1) as f64;
        Averages {
            busy: self.busy as f64 / time,
            runnable: self.runnable as f64 / time,
            hosted: self.hosted as f64 / time,
        }
    }
}

/// Returns what a slice adds.
fn slice(began: Cycles, now: Cycles, waiting: Option<u32>) -> Totals {
    let time = if began <= UNMARKED { 0 } else { now.saturating_sub(began) };
    let Some(waiting) = waiting else { return Totals { hosted: time, ..Totals::default() } };
    Totals { busy: time, runnable: time.saturating_mul(1 + u64::from(waiting)), hosted: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(busy: u64, runnable: u64) -> Totals {
        Totals { busy, runnable, hosted: 0 }
    }

    #[test]
    fn time_with_and_without_waiting_threads_adds_up_and_pauses_are_left_out() {
        let meter = Meter::default();
        assert_eq!(meter.look(50, Some(9)), Totals::default(), "it has had no core yet");
        meter.visit(100, Some(3));
        meter.visit(130, Some(1));
        assert_eq!(meter.look(130, Some(0)), totals(30, 60));
        assert_eq!(meter.look(140, Some(2)), totals(40, 90), "a thread that runs on");
        meter.pause();
        assert_eq!(meter.look(500, Some(2)), totals(40, 90), "what was counted stays counted");
        meter.resume(Some(600));
        meter.visit(610, Some(0));
        assert_eq!(meter.look(610, Some(0)), totals(50, 100));
    }

    #[test]
    fn a_long_run_is_counted_up_to_each_look_with_the_threads_that_wait_then() {
        let meter = Meter::default();
        meter.visit(1_000, Some(0));
        let first = meter.look(11_000, Some(0));
        let second = meter.look(11_050, Some(1));
        assert_eq!(second.since(first), totals(50, 100), "one thread waits now: not for 10,000");
        let third = meter.look(11_100, Some(0));
        assert_eq!(third.since(second), totals(50, 50), "nor is it subtracted when it has gone");
        meter.visit(11_110, Some(7));
        assert_eq!(meter.look(11_110, Some(0)).since(third), totals(10, 80), "nor at the visit");
    }

    #[test]
    fn the_run_before_a_cede_is_counted_once_whether_or_not_a_reader_has_looked() {
        let meter = Meter::default();
        let mut before = Totals::default();
        for began in [1_000, 2_000, 3_000] {
            meter.resume(Some(began));
            if began == 2_000 {
                before = meter.look(began + 400, Some(1));
                assert_eq!(before, totals(900, 1_300));
            }
            meter.visit(began + 500, Some(0));
            meter.pause();
        }
        assert_eq!(meter.look(4_000, Some(9)).since(before), totals(600, 600));
    }

    #[test]
    fn the_time_of_a_host_is_counted_apart_by_visits_and_by_looks() {
        let meter = Meter::default();
        meter.visit(1_000, Some(0));
        meter.visit(1_100, Some(2));
        // It hosts from here on.
        let first = meter.look(1_400, None);
        assert_eq!(first, Totals { hosted: 300, ..totals(100, 300) });
        meter.visit(1_500, None);
        meter.visit(1_510, Some(0));
        let second = meter.look(1_510, Some(7));
        assert_eq!(second.since(first), Totals { hosted: 100, ..totals(10, 10) });
    }

    #[test]
    fn two_readers_find_the_same_time_each_over_its_own_interval() {
        let meter = Meter::default();
        meter.visit(100, Some(0));
        let (one, other) = (meter.look(200, Some(3)), meter.look(250, Some(1)));
        meter.visit(300, Some(1));
        assert_eq!(meter.look(350, Some(1)).since(one), totals(150, 300));
        assert_eq!(meter.look(400, Some(1)).since(other), totals(150, 300));
    }

    #[test]
    fn a_meter_made_amid_a_long_run_counts_from_its_first_look() {
        let meter = Meter::default();
        // The kthread began to run while nothing was measured.
        meter.resume(None);
        let first = meter.look(1_000_000, Some(5));
        assert_eq!(first, Totals::default());
        assert_eq!(meter.look(1_000_100, Some(0)), totals(100, 100));
        // The last reader goes, and visits are not counted; later another one comes.
        let again = meter.look(9_000_000, Some(5));
        meter.visit(9_000_050, Some(1));
        assert_eq!(meter.look(9_000_050, Some(0)).since(again), totals(50, 100));
    }

    #[test]
    fn time_is_not_counted_again_by_a_visit_that_read_the_clock_before_a_look() {
        let meter = Meter::default();
        meter.visit(100, Some(0));
        meter.look(200, Some(0));
        meter.visit(150, Some(9));
        meter.visit(300, Some(0));
        assert_eq!(meter.look(250, Some(9)), totals(200, 200), "nor by a look before a visit");
    }

    #[test]
    fn no_average_exceeds_one_busy_kthread_and_the_threads_that_waited() {
        let averages = |busy, runnable, hosted| Averages { busy, runnable, hosted };
        assert_eq!(totals(50, 150).over(100), averages(0.5, 1.5, 0.0));
        assert_eq!(
            totals(400, 1_200).over(100),
            averages(1.0, 3.0, 0.0),
            "most of it is of the interval before"
        );
        assert_eq!(Totals { hosted: 300, ..totals(100, 200) }.over(200), averages(0.25, 0.5, 0.75));
        assert_eq!(totals(0, 0).over(0), averages(0.0, 0.0, 0.0));
        assert_eq!(totals(3, 3).since(totals(u64::MAX, 3)), totals(4, 0), "across the wrap");
    }
}
