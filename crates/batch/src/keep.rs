//! The conditions of a job's processes while it runs.
//!
//! Descendants inherit rank, cores and I/O priority. Two conditions a program may change without a
//! privilege: a session that it leads (setsid(2), as daemons do) has the default weight where Linux
//! groups sessions, and a thread may choose cores that are not the job's (sched_setaffinity(2)). In
//! either case it would take turns with services as any other program. Owns the look at all
//! descendants that puts both back. It never raises a thread, and never touches a process or a
//! session outside the job.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::conditions::{set_of, try_to_lower_session};
use crate::proc::{Stat, descendants, threads};

/// Shortest time between two looks. One takes about 10 us for each thread of the job.
const PERIOD: Duration = Duration::from_secs(1);

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

    /// Looks at all descendants, unless the last look was just now.
    pub(crate) fn look(&mut self) {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + PERIOD;
            self.put_back();
        }
    }

    fn put_back(&self) {
        let mut sessions: HashSet<_> = self.outside.into_iter().collect();
        for pid in descendants(self.root).into_iter().skip(1) {
            threads(pid).into_iter().for_each(|tid| self.confine(tid));
            if Stat::of_process(pid).is_some_and(|stat| sessions.insert(stat.session)) {
                // The next look repeats what Linux refuses for now.
                let _ = try_to_lower_session(pid);
            }
        }
    }

    /// Takes cores that are not the job's from a thread; one that has no other gets the job's.
    fn confine(&self, tid: i32) {
        let Ok(chosen) = sched_getaffinity(Pid::from_raw(tid)) else { return };
        let mut left = CpuSet::new();
        let of_job = |&core: &usize| self.cores.is_set(core);
        (0..CpuSet::MAX_CPU)
            .filter(of_job)
            .filter(|&core| chosen.is_set(core))
            .for_each(|core| left.set(core));
        if left == chosen || self.cores.count() == 0 {
            return;
        }
        let left = if left.count() > 0 { left } else { self.cores };
        // One that has ended, or is another user's now, is not this job's.
        let _ = sched_setaffinity(Pid::from_raw(tid), &left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;
    use tailwater_testkit::{eventually, until};

    #[test]
    fn a_session_and_cores_that_a_process_has_chosen_are_put_back_and_no_others() {
        let own = sched_getaffinity(None).unwrap();
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| own.is_set(core)).collect();
        let mut shell = Command::new("sh").args(["-c", "sleep 60 & setsid sleep 60 & wait"]).spawn().unwrap();
        let first = shell.id().cast_signed();
        let session = |pid| Stat::of_process(pid).map(|stat| stat.session);
        let child = eventually("a child leads a session", || {
            descendants(first).into_iter().find(|&child| child != first && session(child) == Some(child))
        });
        let weight = |pid| fs::read_to_string(format!("/proc/{pid}/autogroup")).ok();
        let outside = weight(first);
        let mut keeper = Keeper::of_descendants(first, &cores[..1]);
        let is_confined = || sched_getaffinity(Pid::from_raw(child)).unwrap() == set_of(&cores[..1]);
        // Linux refuses a weight for 100 ms after another one, of any process.
        until("the session has the lowest weight", || {
            keeper.next = Instant::now();
            keeper.look();
            weight(child).is_none_or(|weight| weight.trim_end().ends_with("nice 19"))
        });
        let confined = is_confined();
        sched_setaffinity(Pid::from_raw(child), &own).unwrap();
        keeper.next = Instant::now() + Duration::from_secs(3_600);
        keeper.look();
        let is_between_looks = is_confined();
        Keeper::of_descendants(first, &[]).look();
        let left_alone = sched_getaffinity(Pid::from_raw(child)).unwrap();
        let outside_after = weight(first);
        for child in descendants(first).into_iter().skip(1).filter_map(Pid::from_raw) {
            rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
        }
        shell.wait().unwrap();
        assert!(confined);
        assert!(!is_between_looks || cores.len() == 1, "no look is due");
        assert_eq!(left_alone, own, "without cores of the job");
        assert_eq!(outside_after, outside, "the session around the job");
    }
}
