//! What ordinary threads get of the polling thread's core while it must poll.
//!
//! Owns [`Share`], which decides when the polling thread steps aside and for how long, and
//! [`Waiting`], what Linux says about threads that wait for this core. The first is pure: times are
//! arguments.
//!
//! Linux cannot be asked which threads wait for a core, but it says how long this thread has waited
//! for it itself (`/proc/thread-self/schedstat`, second field): that grows when an ordinary thread
//! has had the core for a turn. From then on this thread sleeps for a slice at a time, so that the
//! ordinary threads have their share without taking it in turns of a timer tick (4 ms at 250 Hz).
//! Once a second it compares how long the core was idle (`/proc/stat`) with the time it gave: when
//! it was idle for half of it, there is no thread left that wants the core.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tailwater_shm::Cycles;

use crate::sys::SchedStat;

/// Length of a slice in microseconds; no request waits longer for the polling thread.
pub(super) const SLICE_US: u64 = 200;
/// Interval of the looks at the time this thread has waited, in microseconds. A look takes 1.
pub(super) const LOOK_US: u64 = 10_000;
/// Interval of the looks at the idle time of the core. A look takes 40 on two cores.
pub(super) const IDLE_LOOK_US: u64 = 1_000_000;
/// Smallest part of the time between two looks, as its inverse, that the thread has waited if
/// another one wants the core: 5 %. The kernel's own threads take far less.
const WANTED_PART: u64 = 20;

/// When the polling thread steps aside.
#[derive(Debug, Clone)]
pub(super) struct Share {
    slice: Cycles,
    /// Time polled between two slices.
    between: Cycles,
    look: Cycles,
    idle_look: Cycles,
    /// Time of the last look at the time waited; looks are late when the thread has slept.
    looked: Cycles,
    next_slice: Cycles,
    /// `None` while no ordinary thread wants the core.
    wanted: Option<Wanted>,
}

#[derive(Debug, Clone, Copy)]
struct Wanted {
    /// Slices given since the last look at the idle time.
    given: Cycles,
    next_idle_look: Cycles,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Poll on.
    Poll,
    /// Report the time waited to [`Share::waited`].
    LookAtWaiting,
    /// Report the idle time of the core to [`Share::idled`].
    LookAtIdle,
    /// Sleep for a slice and report it to [`Share::gave`].
    Yield,
}

/// Durations of [`Share`], in cycles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Durations {
    pub(super) slice: Cycles,
    pub(super) look: Cycles,
    pub(super) idle_look: Cycles,
}

impl Share {
    /// `percent` of the core for others, 1 to 99.
    pub(super) fn new(percent: u8, durations: Durations) -> Self {
        let Durations { slice, look, idle_look } = durations;
        let percent = u64::from(percent.clamp(1, 99));
        let between = slice * (100 - percent) / percent;
        Self { slice, between, look, idle_look, looked: 0, next_slice: 0, wanted: None }
    }

    /// Returns what to do at `now`, while the thread has to poll.
    #[inline(always)]
    pub(super) fn step(&self, now: Cycles) -> Step {
        match self.wanted {
            None if now >= self.looked + self.look => Step::LookAtWaiting,
            Some(wanted) if now >= wanted.next_idle_look => Step::LookAtIdle,
            Some(_) if now >= self.next_slice => Step::Yield,
            _ => Step::Poll,
        }
    }

    /// Takes in for how long the thread has waited for its core since the last look; returns true
    /// if slices begin.
    pub(super) fn waited(&mut self, waited: Cycles, now: Cycles) -> bool {
        let since = now.saturating_sub(core::mem::replace(&mut self.looked, now));
        if waited.saturating_mul(WANTED_PART) < since.max(self.look) {
            return false;
        }
        self.next_slice = now + self.between;
        self.wanted = Some(Wanted { given: 0, next_idle_look: now + self.idle_look });
        true
    }

    /// Takes in how long the core was idle since the last such look; ends the slices if it was for
    /// half of them.
    pub(super) fn idled(&mut self, idle: Cycles, now: Cycles) {
        let Some(wanted) = &mut self.wanted else { return };
        if idle >= wanted.given / 2 {
            self.wanted = None;
            self.looked = now;
        } else {
            *wanted = Wanted { given: 0, next_idle_look: now + self.idle_look };
        }
    }

    /// Takes in a slice that was given and has ended at `now`.
    pub(super) fn gave(&mut self, now: Cycles) {
        if let Some(wanted) = &mut self.wanted {
            wanted.given += self.slice;
        }
        self.next_slice = now + self.between;
    }
}

/// What Linux says about the calling thread and its core.
#[derive(Debug)]
pub(super) struct Waiting {
    own: File,
    all: File,
    /// Beginning of the line of this core in `/proc/stat`.
    line: String,
    waited_ns: u64,
    idle_ns: u64,
}

/// Unit of times in `/proc/stat` (proc_stat(5)): USER_HZ is 100 on x86-64.
const STAT_UNIT_NS: u64 = 10_000_000;

impl Waiting {
    /// Opens the accounts of the calling thread and of its core; `None` where Linux keeps none.
    pub(super) fn of_this_thread(core: u16) -> Option<Self> {
        let (own, all) = (File::open("/proc/thread-self/schedstat").ok()?, File::open("/proc/stat").ok()?);
        let mut waiting = Self { own, all, line: format!("cpu{core} "), waited_ns: 0, idle_ns: 0 };
        waiting.waited_ns = waiting.read_waited()?;
        waiting.idle_ns = waiting.read_idle()?;
        Some(waiting)
    }

    /// Returns the nanoseconds waited since the last call.
    pub(super) fn waited(&mut self) -> u64 {
        let now = self.read_waited().unwrap_or(self.waited_ns);
        now.saturating_sub(core::mem::replace(&mut self.waited_ns, now))
    }

    /// Returns the nanoseconds for which the core was idle since the last call.
    pub(super) fn idled(&mut self) -> u64 {
        let now = self.read_idle().unwrap_or(self.idle_ns);
        now.saturating_sub(core::mem::replace(&mut self.idle_ns, now))
    }

    fn read_waited(&self) -> Option<u64> {
        let mut text = [0; 96];
        let len = self.own.read_at(&mut text, 0).ok()?;
        Some(SchedStat::parse(std::str::from_utf8(&text[..len]).ok()?)?.waited_ns)
    }

    fn read_idle(&self) -> Option<u64> {
        // The lines of the cores come first; 64 of them fit.
        let mut text = [0; 8192];
        let len = self.all.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..len]).ok()?;
        let line = text.lines().find(|line| line.starts_with(&self.line))?;
        Some(field(line, 4)? * STAT_UNIT_NS)
    }
}

fn field(text: &str, number: usize) -> Option<u64> {
    text.split_ascii_whitespace().nth(number)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATIONS: Durations = Durations { slice: 200, look: 10_000, idle_look: 1_000_000 };

    /// The least time waited that counts at a look in time.
    const WANTED: Cycles = DURATIONS.look / WANTED_PART;

    /// Runs a share from a look that found others waiting, for `length`; returns the slices given.
    fn slices(percent: u8, length: Cycles) -> u64 {
        let mut share = Share::new(percent, DURATIONS);
        share.waited(WANTED, 0);
        let (mut now, mut given) = (0, 0);
        while now < length {
            match share.step(now) {
                Step::Yield => {
                    now += DURATIONS.slice;
                    share.gave(now);
                    given += 1;
                }
                _ => now += 1,
            }
        }
        given
    }

    #[test]
    fn others_get_their_percentage_in_slices() {
        for percent in [1, 10, 50] {
            let given = slices(percent, 500_000) * DURATIONS.slice;
            let aim = 500_000 * u64::from(percent) / 100;
            assert!(given.abs_diff(aim) <= 2 * DURATIONS.slice, "{given} of {aim} at {percent} %");
        }
    }

    #[test]
    fn nothing_is_given_while_no_thread_waits() {
        let mut share = Share::new(10, DURATIONS);
        assert_eq!(share.step(10_000), Step::LookAtWaiting);
        assert!(!share.waited(WANTED - 1, 10_000));
        assert_eq!(share.step(19_999), Step::Poll);
        assert_eq!(share.step(20_000), Step::LookAtWaiting);
        assert!(share.waited(WANTED, 20_000));
    }

    #[test]
    fn what_was_waited_after_many_sleeps_is_no_sign_of_another_thread() {
        let mut share = Share::new(10, DURATIONS);
        share.waited(0, 0);
        assert!(!share.waited(10 * WANTED, 1_000_000), "1 % of the time");
        assert!(share.waited(2 * WANTED, 1_020_000), "5 % of the time");
    }

    #[test]
    fn slices_end_when_the_core_idles_in_them() {
        let mut share = Share::new(10, DURATIONS);
        share.waited(WANTED, 0);
        share.gave(10_000);
        share.gave(20_000);
        assert_eq!(share.step(1_000_000), Step::LookAtIdle);
        share.idled(199, 1_000_000);
        assert_eq!(share.step(1_000_000), Step::Yield, "half of the time was used");
        share.gave(1_100_000);
        share.idled(100, 2_000_000);
        assert_eq!(share.step(2_000_001), Step::Poll);
        assert_eq!(share.step(2_010_000), Step::LookAtWaiting);
    }

    #[test]
    fn linux_keeps_account_of_this_thread_and_its_core() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let core = (0..1024u16).find(|&core| allowed.is_set(core.into())).unwrap();
        let Some(mut waiting) = Waiting::of_this_thread(core) else { return };
        waiting.waited();
        waiting.idled();
        assert_eq!(field("cpu0 1 2 3 4 5", 4), Some(4));
    }
}
