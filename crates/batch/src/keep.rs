//! The conditions of a job's processes while it runs.
//!
//! Descendants inherit rank, cores and I/O priority. Three conditions a program may change without
//! a privilege: a session that it leads (setsid(2), as daemons do) has the default weight where
//! Linux groups sessions, a thread may choose cores that are not the job's (sched_setaffinity(2)),
//! and another class of I/O (ioprio_set(2)). It would then take turns with services as any other
//! program. Owns the look at all descendants that puts these back. It never raises a thread, and
//! leaves processes and sessions outside the job alone.
//!
//! Threads are listed, and put back by their numbers a moment later: a thread that was given the
//! number of one that ended in between would be taken for the job's. Linux gives a number again
//! only after all others.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::conditions::{set_of, try_to_lower_session};
use crate::proc::{Stat, descendants, threads};
use crate::sys;

/// Time between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// The same after Linux has refused a weight: it takes one in 100 ms.
const AFTER_REFUSAL: Duration = Duration::from_millis(100);

/// A look takes some 10 us for each thread, and a job may have any number: looks take at most one
/// part in so many of a core, and so do samples of the job's account, and looks at a group.
pub(crate) const PART: u32 = 100;

/// Keeps the descendants of a process under the conditions of a job.
#[derive(Debug)]
pub(crate) struct Keeper {
    root: i32,
    /// The session of that process, in which the job's first process is until it leads one.
    outside: Option<i32>,
    /// Those that the job may use; none: all.
    cores: CpuSet,
    next: Instant,
}

impl Keeper {
    /// Keeps the descendants of process `root` on these cores; on any if there are none.
    pub(crate) fn of_descendants(root: i32, cores: &[usize]) -> Self {
        let outside = Stat::of_process(root).map(|stat| stat.session);
        Self { root, outside, cores: set_of(cores), next: Instant::now() }
    }

    /// Returns the time until the next look is due.
    pub(crate) fn remaining(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Looks at all descendants, if a look is due.
    pub(crate) fn look(&mut self) {
        if self.remaining().is_zero() {
            let begun = Instant::now();
            let is_taken = self.put_back();
            self.next = begun + period(is_taken, begun.elapsed());
        }
    }

    /// Puts all back; returns false if Linux refuses a weight for now.
    fn put_back(&self) -> bool {
        let mut sessions: HashSet<_> = self.outside.into_iter().collect();
        let mut is_taken = true;
        for pid in descendants(self.root).into_iter().skip(1) {
            threads(pid).into_iter().for_each(|tid| self.confine(tid));
            if is_taken && Stat::of_process(pid).is_some_and(|stat| sessions.insert(stat.session)) {
                is_taken = try_to_lower_session(&pid.to_string());
            }
        }
        is_taken
    }

    /// Gives a thread idle I/O, and takes cores that are not the job's from it; one that has no
    /// other gets the job's.
    fn confine(&self, tid: i32) {
        // One that has ended, or is another user's now, is not this job's.
        let _ = sys::set_idle_io(tid);
        let Ok(chosen) = sched_getaffinity(Pid::from_raw(tid)) else { return };
        if chosen == self.cores {
            return;
        }
        let mut left = CpuSet::new();
        let both = (0..CpuSet::MAX_CPU).filter(|&core| self.cores.is_set(core) && chosen.is_set(core));
        both.for_each(|core| left.set(core));
        if left == chosen || self.cores.count() == 0 {
            return;
        }
        let left = if left.count() > 0 { left } else { self.cores };
        // As above.
        let _ = sched_setaffinity(Pid::from_raw(tid), &left);
    }
}

/// Returns the time from a look to the next: whether Linux took all weights, and how long it took.
fn period(is_taken: bool, took: Duration) -> Duration {
    let least = if is_taken { PERIOD } else { AFTER_REFUSAL };
    least.max(took * PART)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, kill_process};
    use std::fs;
    use std::process::{Child, Command};
    use tailwater_testkit::{eventually, until};

    /// A shell, which is killed on drop with all that it has started.
    struct Shell(Child);

    impl Drop for Shell {
        fn drop(&mut self) {
            for pid in descendants(self.0.id().cast_signed()).into_iter().filter_map(Pid::from_raw) {
                // Fails if it has ended.
                let _ = kill_process(pid, Signal::KILL);
            }
            let _ = self.0.wait();
        }
    }

    /// The class of I/O of a process, as ionice(1) prints it.
    fn io(pid: i32) -> String {
        let output = Command::new("ionice").args(["-p", &pid.to_string()]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    #[test]
    fn what_a_process_has_chosen_is_put_back_and_nothing_outside() {
        let own = sched_getaffinity(None).unwrap();
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| own.is_set(core)).collect();
        let script = "sleep 1000 & ionice -c 2 -n 0 setsid sleep 1000 & wait";
        let shell = Shell(Command::new("sh").args(["-c", script]).spawn().unwrap());
        let first = shell.0.id().cast_signed();
        let session = |pid| Stat::of_process(pid).map(|stat| stat.session);
        let child = eventually("a child leads a session", || {
            descendants(first).into_iter().find(|&child| child != first && session(child) == Some(child))
        });
        let weight = |pid| fs::read_to_string(format!("/proc/{pid}/autogroup")).ok();
        let before = (weight(first), io(first));
        let mut keeper = Keeper::of_descendants(first, &cores[..1]);
        let is_confined = || sched_getaffinity(Pid::from_raw(child)).unwrap() == set_of(&cores[..1]);
        // Linux refuses a weight for 100 ms after another one, of any process.
        until("the session has the lowest weight", || {
            keeper.next = Instant::now();
            keeper.look();
            weight(child).is_none_or(|weight| weight.trim_end().ends_with("nice 19"))
        });
        assert!(is_confined());
        assert_eq!(io(child), "idle");
        sched_setaffinity(Pid::from_raw(child), &own).unwrap();
        keeper.next = Instant::now() + Duration::from_secs(3_600);
        keeper.look();
        assert!(!is_confined() || cores.len() == 1, "no look is due");
        Keeper::of_descendants(first, &[]).look();
        let left_alone = sched_getaffinity(Pid::from_raw(child)).unwrap();
        assert_eq!(left_alone, own, "without cores of the job");
        assert_eq!((weight(first), io(first)), before, "what is around the job");
    }

    #[test]
    fn a_refused_weight_is_tried_again_soon_and_long_looks_are_seldom() {
        let ms = Duration::from_millis;
        assert_eq!(period(true, ms(1)), PERIOD);
        assert_eq!(period(false, Duration::from_micros(50)), AFTER_REFUSAL);
        assert_eq!((period(true, ms(200)), period(false, ms(200))), (ms(20_000), ms(20_000)));
    }
}
