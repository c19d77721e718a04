//! Gives ordinary threads a share of the polling thread's core while they compete for it, and sets
//! the thread's real-time rank meanwhile.
//!
//! Owns [`Share`], which decides when the polling thread steps aside and for how long, and
//! [`Waiting`], which reads from Linux how many threads wait for a core. The first is pure: times
//! are arguments.
//!
//! In a steady rhythm the polling thread reads how many threads are runnable (`/proc/loadavg`).
//! When there are more than itself and the kthreads on lent cores, it sleeps for a slice, so that
//! ordinary threads have their share. A slice that is due waits for a good [`Moment`], for the
//! length of a slice at most, and the next one comes sooner by as much: a request that has arrived
//! must not wait for the end of a slice because its service still has to be woken.
//!
//! A kthread that has ceded its core may still be runnable. When the number leaves open whether the
//! surplus thread is such a kthread, the polling thread looks again a slice later, and sleeps after
//! [`MAX_POSTPONED`] such looks. Once a second it compares how long the core was idle
//! (`/proc/stat`) with the time it gave: when it was idle for half of it, the other threads run on
//! other cores, and it gives none for a second, doubled each time in a row.
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

/// Length of a slice and of a rest in microseconds, and how long a slice waits for a good moment;
/// no request waits longer for the polling thread.
pub(super) const SLICE_US: u64 = 100;
/// Interval of the looks at the idle time of the core. A look takes 40 us on two cores.
pub(super) const IDLE_LOOK_US: u64 = 1_000_000;

/// Maximum number of doublings of the time for which nothing is given: 8 s.
const UNUSED_DOUBLINGS: u32 = 3;

/// Maximum number of looks in a row after which nothing is given: at 10 % the thread uses 93 % of
/// its core then.
const MAX_POSTPONED: u32 = 4;

/// Decides when the polling thread sleeps to leave its core to ordinary threads.
#[derive(Debug, Clone)]
pub(super) struct Share {
    slice: Cycles,
    /// Time polled between two slices.
    between: Cycles,
    idle_look: Cycles,
    next: Cycles,
    resting: bool,
    /// Since when the slice that is due waits for a good moment.
    put_off: Option<Cycles>,
    /// For how long the slice that is given now has waited.
    waited: Cycles,
    /// Looks in a row that did not show whether other threads wait.
    postponed: u32,
    /// Slices given since the last look at the idle time.
    given: Cycles,
    next_idle_look: Cycles,
    /// No slices are given before this time: those before it were not used.
    unused_until: Cycles,
    /// Number of times in a row that they were not.
    unused: u32,
}

/// The work that the polling thread would put off in a slice that begins now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// Frames have just moved, or a core changes hands: the next steps follow within microseconds.
    Busy,
    /// It would only notice late what happens in the slice.
    Good,
    /// The same, and nothing has happened of late: it sleeps soon, so that no slice becomes due.
    /// One that has waited is given.
    Quiet,
}

impl Moment {
    /// Returns what the present moment is, at this step of a quiet time; `None` if the thread
    /// sleeps. `moved`: frames moved in this iteration; `hands_over`: a core changes hands.
    pub(super) fn of(step: quiet::Step, moved: bool, hands_over: bool) -> Option<Self> {
        match step {
            quiet::Step::Sleep => None,
            quiet::Step::Poll | quiet::Step::GiveShare if moved || hands_over => Some(Self::Busy),
            quiet::Step::Poll => Some(Self::Quiet),
            quiet::Step::GiveShare => Some(Self::Good),
        }
    }
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Poll on.
    Poll,
    /// Look whether threads wait, and do as [`Share::judge`] says.
    Look,
    /// End the rest.
    EndRest,
}

/// The decision after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Sleep for a slice and report it to [`Share::gave`].
    Give,
    /// Rest, if in real time, and report it to [`Share::rest`]; else go on with [`Share::resume`].
    Rest,
    /// Poll on.
    Postpone,
}

/// Durations of [`Share`], in cycles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Durations {
    pub(super) slice: Cycles,
    pub(super) idle_look: Cycles,
}

impl Share {
    /// `percent` of the core for others, 1 to 99.
    pub(super) fn new(percent: u8, durations: Durations) -> Self {
        let Durations { slice, idle_look } = durations;
        let percent = u64::from(percent.clamp(1, 99));
        let between = slice * (100 - percent) / percent;
        Self {
            slice,
            between,
            idle_look,
            next: 0,
            resting: false,
            put_off: None,
            waited: 0,
            postponed: 0,
            given: 0,
            next_idle_look: 0,
            unused_until: 0,
            unused: 0,
        }
    }

    /// Returns whether [`Self::step`] may have anything to do at `now` but poll on, at this step of
    /// a quiet time.
    #[inline(always)]
    pub(super) fn is_due(&self, step: quiet::Step, now: Cycles) -> bool {
        now >= self.next && (step != quiet::Step::Poll || self.resting || self.put_off.is_some())
    }

    /// Returns what to do at `now`, while the thread polls.
    pub(super) fn step(&mut self, moment: Moment, now: Cycles) -> Step {
        if now < self.next {
            return Step::Poll;
        }
        if self.resting {
            return Step::EndRest;
        }
        match moment {
            Moment::Quiet if self.put_off.is_none() => Step::Poll,
            Moment::Busy if now.saturating_sub(*self.put_off.get_or_insert(now)) < self.slice => Step::Poll,
            Moment::Busy | Moment::Good | Moment::Quiet => Step::Look,
        }
    }

    /// Returns true if it is time to read the idle time of the core.
    pub(super) fn wants_idle_look(&self, now: Cycles) -> bool {
        self.given > 0 && now >= self.next_idle_look
    }

    /// Judges a look that found `runnable` threads. `own` is the least and the greatest number of
    /// Tailwater's own among them.
    pub(super) fn judge(&mut self, runnable: usize, own: (usize, usize), now: Cycles) -> Verdict {
        let (least, most) = own;
        if runnable <= least || now < self.unused_until {
            return Verdict::Rest;
        }
        if runnable <= most && self.postponed < MAX_POSTPONED {
            self.postponed += 1;
            self.next = now + self.slice;
            return Verdict::Postpone;
        }
        let waited = self.put_off.take().map_or(0, |since| now.saturating_sub(since));
        // After a sleep or a stall the wait may seem longer.
        self.waited = waited.min(self.slice);
        Verdict::Give
    }

    /// Records the time that the core was idle since the previous such look. If it was idle for
    /// half of the slices, none are given for a while.
    pub(super) fn idled(&mut self, idle: Cycles, now: Cycles) {
        self.unused = if idle >= self.given / 2 { self.unused + 1 } else { 0 };
        if let Some(doublings) = self.unused.checked_sub(1) {
            self.unused_until = now + (self.idle_look << doublings.min(UNUSED_DOUBLINGS));
        }
        self.given = 0;
    }

    /// Records the end of a slice. Returns true if it is the first since the idle time was last
    /// read.
    pub(super) fn gave(&mut self, now: Cycles) -> bool {
        let first = self.given == 0;
        if first {
            self.next_idle_look = now + self.idle_look;
        }
        self.given += self.slice;
        self.postponed = 0;
        self.next = now + self.between.saturating_sub(self.waited);
        first
    }

    /// Records the beginning of a rest.
    pub(super) fn rest(&mut self, now: Cycles) {
        self.resting = true;
        (self.postponed, self.put_off) = (0, None);
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

/// The files of Linux that show runnable threads and the time of this core.
#[derive(Debug)]
pub(super) struct Waiting {
    load: File,
    /// `None` where there is none.
    all: Option<File>,
    /// The account of the thread that has opened it; `None` where Linux keeps none.
    own: Option<File>,
    waited_ns: u64,
    /// Beginning of the line of this core in `/proc/stat`.
    line: String,
    /// Room for that file up to the line.
    text: Vec<u8>,
    idle_ns: u64,
}

/// Unit of times in `/proc/stat` (proc_stat(5)): USER_HZ is 100 on x86-64.
const STAT_UNIT_NS: u64 = 10_000_000;

/// Longest line of a core in `/proc/stat`: ten numbers of up to 20 digits.
const STAT_LINE_BYTES: usize = 224;

impl Waiting {
    /// Opens the accounts of the machine and of one core; `None` where the first cannot be read.
    pub(super) fn of_core(core: u16) -> Option<Self> {
        let load = File::open("/proc/loadavg").ok()?;
        let all = File::open("/proc/stat").ok();
        let own = File::open("/proc/thread-self/schedstat").ok();
        // One line for all cores, and one for each up to this one.
        let text = vec![0; STAT_LINE_BYTES * (usize::from(core) + 2)];
        let mut waiting =
            Self { load, all, own, waited_ns: 0, line: format!("cpu{core} "), text, idle_ns: 0 };
        waiting.runnable()?;
        waiting.idled();
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

    /// Returns the nanoseconds for which the core was idle since the last call; 0 where Linux does
    /// not say it (containers may number their cores otherwise): then slices count as used.
    pub(super) fn idled(&mut self) -> u64 {
        let now = self.read_idle().unwrap_or(self.idle_ns);
        now.saturating_sub(core::mem::replace(&mut self.idle_ns, now))
    }

    fn read_idle(&mut self) -> Option<u64> {
        let len = self.all.as_ref()?.read_at(&mut self.text, 0).ok()?;
        parse_idle(std::str::from_utf8(&self.text[..len]).ok()?, &self.line)
    }
}

/// Returns the idle time of a core in nanoseconds, from the beginning of `/proc/stat` in which the
/// lines of cores come first.
fn parse_idle(text: &str, core: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(core))?;
    let ticks: u64 = line.split_ascii_whitespace().nth(4)?.parse().ok()?;
    ticks.checked_mul(STAT_UNIT_NS)
}

/// Parses the fourth field of `/proc/loadavg`, in `0.20 0.18 0.12 1/80 11206` (proc_loadavg(5)).
fn parse_runnable(text: &str) -> Option<usize> {
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATIONS: Durations = Durations { slice: 100, idle_look: 1_000_000 };

    /// Runs a share for `length` while others wait; returns the time given. `moment` returns how
    /// good a time is.
    fn given(percent: u8, length: Cycles, moment: impl Fn(Cycles) -> Moment) -> Cycles {
        let mut share = Share::new(percent, DURATIONS);
        let (mut now, mut given) = (0, 0);
        while now < length {
            match share.step(moment(now), now) {
                Step::Look => {
                    assert_eq!(share.judge(3, (1, 2), now), Verdict::Give);
                    now += DURATIONS.slice;
                    share.gave(now);
                    given += DURATIONS.slice;
                }
                _ => now += 1,
            }
        }
        given
    }

    #[test]
    fn others_get_their_percentage_in_slices() {
        let moments: [fn(Cycles) -> Moment; 3] = [
            |_| Moment::Good,
            |_| Moment::Busy,
            |now| if now % 71 < 60 { Moment::Busy } else { Moment::Good },
        ];
        for (percent, moment) in [1, 10, 50].into_iter().flat_map(|n| moments.map(|moment| (n, moment))) {
            let (given, aim) = (given(percent, 500_000, moment), 500_000 * u64::from(percent) / 100);
            assert!(given.abs_diff(aim) <= 3 * DURATIONS.slice, "{given} of {aim} at {percent} %");
        }
    }

    #[test]
    fn a_moment_is_busy_while_frames_move_or_a_core_changes_hands_and_else_as_good_as_the_step() {
        use quiet::Step::{GiveShare, Poll, Sleep};
        for (moved, hands_over) in [(false, false), (false, true), (true, false), (true, true)] {
            let busy = moved || hands_over;
            let of = |step| Moment::of(step, moved, hands_over);
            assert_eq!(of(Poll), Some(if busy { Moment::Busy } else { Moment::Quiet }));
            assert_eq!(of(GiveShare), Some(if busy { Moment::Busy } else { Moment::Good }));
            assert_eq!(of(Sleep), None);
        }
    }

    #[test]
    fn in_a_quiet_time_nothing_is_due_but_the_end_of_a_rest_and_a_slice_that_has_waited() {
        use quiet::Step::{GiveShare, Poll};
        let mut share = Share::new(10, DURATIONS);
        assert!(!share.is_due(Poll, 5) && share.is_due(GiveShare, 5));
        assert_eq!(share.step(Moment::Busy, 10), Step::Poll);
        assert!(share.is_due(Poll, 11));
        // The counter has stepped back.
        assert_eq!(share.step(Moment::Busy, 9), Step::Poll);
        assert_eq!(share.judge(3, (1, 2), 11), Verdict::Give);
        share.gave(111);
        assert!(!share.is_due(Poll, 5_000) && share.is_due(GiveShare, 5_000));
        share.rest(5_000);
        assert!(!share.is_due(Poll, 5_099) && share.is_due(Poll, 5_100));
    }

    #[test]
    fn a_slice_waits_for_a_good_moment_and_no_longer_than_it_lasts() {
        let mut share = Share::new(10, DURATIONS);
        for now in 0..100 {
            assert_eq!(share.step(Moment::Busy, now), Step::Poll);
        }
        assert_eq!(share.step(Moment::Busy, 100), Step::Look);
        assert_eq!(share.judge(3, (1, 2), 100), Verdict::Give);
        share.gave(200);
        assert_eq!(share.step(Moment::Good, 999), Step::Poll);
        // 1,000 after the one before was due.
        assert_eq!(share.step(Moment::Busy, 1_000), Step::Poll);
        assert_eq!(share.step(Moment::Good, 1_001), Step::Look);
    }

    #[test]
    fn in_a_quiet_time_only_a_slice_that_has_waited_is_given() {
        let mut share = Share::new(10, DURATIONS);
        assert_eq!(share.step(Moment::Quiet, 5), Step::Poll);
        assert_eq!(share.step(Moment::Busy, 10), Step::Poll);
        assert_eq!(share.step(Moment::Quiet, 11), Step::Look);
        assert_eq!(share.judge(3, (1, 2), 11), Verdict::Give);
        share.gave(111);
        assert_eq!(share.step(Moment::Quiet, 5_000), Step::Poll, "the next has not");
        // Nor has one that became due in a sleep, before which a rest ends.
        assert_eq!(share.step(Moment::Busy, 5_001), Step::Poll);
        share.resume(5_002);
        assert_eq!(share.step(Moment::Quiet, 9_000), Step::Poll);
    }

    #[test]
    fn a_rest_ends_on_time_whatever_the_moment() {
        for moment in [Moment::Busy, Moment::Good, Moment::Quiet] {
            let mut share = Share::new(10, DURATIONS);
            share.rest(0);
            assert_eq!(share.step(moment, 99), Step::Poll);
            assert_eq!(share.step(moment, 100), Step::EndRest, "{moment:?}");
        }
    }

    #[test]
    fn a_rest_lasts_as_long_as_a_slice_and_comes_as_often() {
        let mut share = Share::new(10, DURATIONS);
        assert_eq!(share.step(Moment::Good, 0), Step::Look);
        share.rest(0);
        assert_eq!(share.step(Moment::Good, 99), Step::Poll);
        assert_eq!(share.step(Moment::Good, 100), Step::EndRest);
        assert!(share.resume(100));
        assert_eq!(share.step(Moment::Good, 999), Step::Poll);
        assert_eq!(share.step(Moment::Good, 1_000), Step::Look);
        assert!(!share.resume(1_000), "no rest has ended");
    }

    #[test]
    fn a_thread_that_may_be_a_kthread_is_judged_by_the_looks_that_follow() {
        let mut share = Share::new(10, DURATIONS);
        assert_eq!(share.judge(2, (2, 3), 0), Verdict::Rest);
        for look in 0..u64::from(MAX_POSTPONED) {
            assert_eq!(share.judge(3, (2, 3), look * 100), Verdict::Postpone);
            assert_eq!(share.step(Moment::Good, look * 100 + 99), Step::Poll);
        }
        assert_eq!(share.judge(3, (2, 3), 400), Verdict::Give);
        share.gave(500);
        assert_eq!(share.judge(3, (2, 3), 1_400), Verdict::Postpone);
        assert_eq!(share.judge(4, (2, 3), 1_500), Verdict::Give);
    }

    #[test]
    fn slices_end_for_a_while_when_the_core_idles_in_them() {
        let mut share = Share::new(10, DURATIONS);
        assert!(share.gave(10_000), "the first");
        assert!(!share.gave(20_000));
        assert!(!share.wants_idle_look(1_009_999));
        assert!(share.wants_idle_look(1_010_000));
        share.idled(99, 1_010_000);
        assert_eq!(share.judge(9, (1, 1), 1_010_000), Verdict::Give, "half of the time was used");
        assert!(share.gave(1_020_000), "the first after the look");
        share.idled(50, 2_020_000);
        assert_eq!(share.judge(9, (1, 1), 3_019_999), Verdict::Rest);
        assert_eq!(share.judge(9, (1, 1), 3_020_000), Verdict::Give);
        assert!(!share.wants_idle_look(9_000_000), "none was given since");
    }

    #[test]
    fn linux_counts_runnable_threads_and_the_idle_time_of_this_core() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let core = (0..1024u16).find(|&core| allowed.is_set(core.into())).unwrap();
        let Some(mut waiting) = Waiting::of_core(core) else { return };
        assert!(waiting.runnable().unwrap() >= 1, "this thread is");
        waiting.idled();
        assert_eq!(parse_runnable("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(parse_runnable("0.20"), None);
    }

    #[test]
    fn the_line_of_a_core_of_a_large_machine_fits() {
        let numbers = |core: u64| (0..10).map(|n| format!(" {}", u64::MAX - core - n)).collect::<String>();
        let mut text = format!("cpu {}\n", numbers(0));
        text.extend((0..191).map(|core| format!("cpu{core}{}\n", numbers(core))));
        text += "cpu191 1 2 3 77 5 6 7 8 9 10\n";
        assert!(text.len() <= STAT_LINE_BYTES * (191 + 2), "{} bytes", text.len());
        assert_eq!(parse_idle(&text, "cpu191 "), Some(770_000_000));
        assert_eq!(parse_idle(&text, "cpu19 "), None, "no such number of ticks");
        assert_eq!(parse_idle("cpu 1 2 3 4\n", "cpu191 "), None);
    }
}
