//! Gives ordinary threads a share of the polling thread's core while they compete for it, and sets
//! the thread's real-time rank meanwhile.
//!
//! Owns [`CpuShare`], which decides when the polling thread steps aside, and [`Waiting`], which
//! reads from Linux how many threads wait for a core. The first is pure: times are arguments.
//!
//! In a steady rhythm the polling thread reads how many threads are runnable (`/proc/loadavg`).
//! When there are more than itself and the kthreads that own cores, it sleeps for a slice, which
//! ends after its first part if there are no more by then. A kthread that has just ceded its core
//! may be the one more: that costs the first part of a slice, and only while others compete. A
//! slice that is due while frames move or a core changes hands waits, for the length of a slice at
//! most: a request that has arrived must not wait for the end of a slice because its service still
//! has to be woken. In a quiet time, after which the thread sleeps in any case, only a slice that
//! has waited is given.
//!
//! # Real time
//! Ordinary threads of other sessions would take the rest in turns of a timer tick (4 ms at 250
//! Hz), whatever the polling thread's nice value, so its policy is `SCHED_FIFO`, as far as Linux
//! allows it. Linux limits real-time threads to 95 % of a core ([`Rank::RealTime`]); one that
//! reaches the limit pauses for about 50 ms. When no other thread is runnable, the thread therefore
//! *rests* instead of sleeping: it polls on as an ordinary thread for as long as a slice.
//!
//! [`Rank::RealTime`]: tailwater_shm::priority::Rank::RealTime

use std::fs::File;
use std::os::unix::fs::FileExt;

use tailwater_shm::Cycles;

use super::quiet;

/// Length of a slice and of a rest in microseconds, and how long a slice waits; no request waits
/// longer for the polling thread.
pub(super) const SLICE_US: u64 = 100;

/// First part of a slice in microseconds. It is about what a thread needs that looks at something
/// each 100 ms: on an AMD EPYC with `sched_switch` traced, 11 to 46 us for the stall detector of a
/// runtime, 25 to 37 for the control thread.
pub(super) const FIRST_PART_US: u64 = 25;

/// Decides when the polling thread sleeps to leave its core to ordinary threads.
#[derive(Debug, Clone)]
pub(super) struct CpuShare {
    slice: Cycles,
    /// Time polled between two slices.
    between: Cycles,
    next: Cycles,
    resting: bool,
    /// Since when the slice that is due waits.
    put_off: Option<Cycles>,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Poll on.
    Poll,
    /// Look whether threads wait. If so, sleep for a slice and call [`CpuShare::gave`]; else
    /// [`CpuShare::rest`], or [`CpuShare::resume`] without real-time rank.
    Look,
    /// End the rest.
    EndRest,
}

impl CpuShare {
    /// `percent` of the core for others, 1 to 99, in slices of this length.
    pub(super) fn new(percent: u8, slice: Cycles) -> Self {
        let percent = u64::from(percent.clamp(1, 99));
        let between = slice * (100 - percent) / percent;
        Self { slice, between, next: 0, resting: false, put_off: None }
    }

    /// Returns whether [`step`](Self::step) may return anything but [`Step::Poll`].
    #[inline(always)]
    pub(super) fn is_due(&self, now: Cycles) -> bool {
        now >= self.next
    }

    /// Returns what to do at `now`, at this step of a quiet time. `busy`: frames have just moved,
    /// or a core changes hands.
    #[inline(always)]
    pub(super) fn step(&mut self, step: quiet::Step, busy: bool, now: Cycles) -> Step {
        if !self.is_due(now) {
            return Step::Poll;
        }
        if self.resting {
            return Step::EndRest;
        }
        let waits = match (busy, step) {
            (true, _) => now.saturating_sub(*self.put_off.get_or_insert(now)) < self.slice,
            (false, quiet::Step::GiveShare) => false,
            (false, quiet::Step::Poll | quiet::Step::Sleep) => self.put_off.is_none(),
        };
        if waits { Step::Poll } else { Step::Look }
    }

    /// Records a slice that began at `from` and ends. The next one comes sooner by as much as this
    /// one has waited, and by what it was shorter than a slice.
    pub(super) fn gave(&mut self, from: Cycles, now: Cycles) {
        // After a sleep or a stall the wait and the slice may seem longer.
        let given = now.saturating_sub(from).min(self.slice);
        let waited = self.put_off.take().map_or(0, |since| now.saturating_sub(since + given));
        let between = self.between * given / self.slice;
        self.next = now + between.saturating_sub(waited.min(self.slice));
    }

    /// Records the beginning of a rest.
    pub(super) fn rest(&mut self, now: Cycles) {
        (self.resting, self.put_off) = (true, None);
        self.next = now + self.slice;
    }

    /// Records that the thread continues to poll: no slice is due before the next look. Returns
    /// true if a rest has ended.
    pub(super) fn resume(&mut self, now: Cycles) -> bool {
        self.next = now + self.between;
        self.put_off = None;
        core::mem::take(&mut self.resting)
    }
}

/// The files of Linux that show runnable threads and how long the polling thread has waited.
#[derive(Debug)]
pub(super) struct Waiting {
    load: File,
    /// The account of the thread that has opened it; `None` where Linux keeps none.
    own: Option<File>,
    waited_ns: u64,
}

impl Waiting {
    /// Opens the accounts of the machine and of the calling thread; `None` where the first cannot
    /// be read.
    pub(super) fn new() -> Option<Self> {
        let load = File::open("/proc/loadavg").ok()?;
        let own = File::open("/proc/thread-self/schedstat").ok();
        let mut waiting = Self { load, own, waited_ns: 0 };
        waiting.runnable()?;
        waiting.waited();
        Some(waiting)
    }

    /// Returns how many threads of the machine are runnable. Takes 1.5 us.
    pub(super) fn runnable(&self) -> Option<usize> {
        let mut text = [0; 96];
        let len = self.load.read_at(&mut text, 0).ok()?;
        parse_runnable(std::str::from_utf8(&text[..len]).ok()?)
    }

    /// Returns the nanoseconds for which the calling thread, which has opened this, waited for its
    /// core since the last call, runnable behind other threads; 0 where Linux does not say it.
    /// Takes 1 us.
    pub(super) fn waited(&mut self) -> u64 {
        let now = self.read_waited().unwrap_or(self.waited_ns);
        now.saturating_sub(core::mem::replace(&mut self.waited_ns, now))
    }

    fn read_waited(&self) -> Option<u64> {
        let mut text = [0; 96];
        let len = self.own.as_ref()?.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    }
}

/// Parses the fourth field of `/proc/loadavg`, in `0.20 0.18 0.12 1/80 11206` (proc_loadavg(5)).
fn parse_runnable(text: &str) -> Option<usize> {
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quiet::Step::{GiveShare, Poll};

    const SLICE: Cycles = 100;

    /// Runs a share for `length` while others wait for slices of this time; returns the time given.
    /// `busy` returns whether frames move at a time.
    fn given(percent: u8, time: Cycles, length: Cycles, busy: impl Fn(Cycles) -> bool) -> Cycles {
        let mut share = CpuShare::new(percent, SLICE);
        let (mut now, mut given) = (0, 0);
        while now < length {
            match share.step(GiveShare, busy(now), now) {
                Step::Look => {
                    share.gave(now, now + time);
                    now += time;
                    given += time;
                }
                _ => now += 1,
            }
        }
        given
    }

    #[test]
    fn others_get_their_percentage_in_slices() {
        let times: [fn(Cycles) -> bool; 3] = [|_| false, |_| true, |now| now % 71 < 60];
        for (percent, busy) in [1, 10, 50].into_iter().flat_map(|n| times.map(|busy| (n, busy))) {
            let (given, aim) = (given(percent, SLICE, 500_000, busy), 500_000 * u64::from(percent) / 100);
            assert!(given.abs_diff(aim) <= 3 * SLICE, "{given} of {aim} at {percent} %");
        }
    }

    #[test]
    fn others_get_their_percentage_in_slices_that_end_early() {
        for percent in [1, 10, 50] {
            let (given, aim) = (given(percent, SLICE / 4, 500_000, |_| false), 5_000 * u64::from(percent));
            assert!(given.abs_diff(aim) <= 3 * SLICE, "{given} of {aim} at {percent} %");
        }
    }

    #[test]
    fn a_slice_waits_while_frames_move_and_no_longer_than_it_lasts() {
        let mut share = CpuShare::new(10, SLICE);
        for now in 0..100 {
            assert_eq!(share.step(GiveShare, true, now), Step::Poll);
        }
        assert_eq!(share.step(GiveShare, true, 100), Step::Look);
        share.gave(100, 200);
        assert_eq!(share.step(GiveShare, false, 999), Step::Poll);
        // 1,000 after the one before was due.
        assert_eq!(share.step(GiveShare, true, 1_000), Step::Poll);
        assert_eq!(share.step(GiveShare, false, 1_001), Step::Look);
    }

    #[test]
    fn in_a_quiet_time_only_a_slice_that_has_waited_is_given() {
        let mut share = CpuShare::new(10, SLICE);
        assert_eq!(share.step(Poll, false, 5), Step::Poll);
        assert_eq!(share.step(GiveShare, true, 10), Step::Poll);
        // The counter has stepped back.
        assert_eq!(share.step(GiveShare, true, 9), Step::Poll);
        assert_eq!(share.step(Poll, false, 11), Step::Look);
        share.gave(11, 111);
        assert_eq!(share.step(Poll, false, 5_000), Step::Poll, "the next has not");
        // Nor has one that became due in a sleep, before which a rest ends.
        assert_eq!(share.step(GiveShare, true, 5_001), Step::Poll);
        share.resume(5_002);
        assert_eq!(share.step(Poll, false, 9_000), Step::Poll);
    }

    #[test]
    fn a_rest_lasts_as_long_as_a_slice_comes_as_often_and_ends_on_time() {
        for (step, busy) in [(GiveShare, true), (GiveShare, false), (Poll, true), (Poll, false)] {
            let mut share = CpuShare::new(10, SLICE);
            assert_eq!(share.step(GiveShare, false, 0), Step::Look);
            share.rest(0);
            assert_eq!(share.step(step, busy, 99), Step::Poll);
            assert_eq!(share.step(step, busy, 100), Step::EndRest);
            assert!(share.resume(100));
            assert_eq!(share.step(GiveShare, false, 999), Step::Poll);
            assert_eq!(share.step(GiveShare, false, 1_000), Step::Look);
            assert!(!share.resume(1_000), "no rest has ended");
        }
    }

    #[test]
    fn linux_counts_runnable_threads() {
        let Some(waiting) = Waiting::new() else { return eprintln!("skipped: no /proc/loadavg") };
        assert!(waiting.runnable().unwrap() >= 1, "this thread is");
        assert_eq!(parse_runnable("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(parse_runnable("0.20"), None);
    }
}
