//! A running process, its threads and descendants as a batch job, for users who are not root.
//!
//! Owns the loop that reaches all of them: threads and children that appear meanwhile are born
//! under the conditions of those that started them, so the rounds end with one that finds no new
//! thread. Linux takes a thread back from `SCHED_IDLE` only for `CAP_SYS_NICE`: there is no way
//! back.

use std::collections::HashSet;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::conditions::apply_to;
use crate::proc::{descendants, threads};

/// Maximum number of rounds.
const ROUNDS: u32 = 100;

/// Puts a process, its threads and descendants in the lowest rank, on these cores; returns the
/// number of threads that are, and of those that Linux refused.
#[must_use]
pub fn lower(pid: i32, cores: &[usize]) -> (usize, usize) {
    let (mut lowered, mut refused) = (0, 0);
    each_thread(pid, |tid| match apply_to(tid, cores) {
        true => lowered += 1,
        false => refused += 1,
    });
    (lowered, refused)
}

/// Keeps a process, its threads and descendants off these cores. Threads that could use no other
/// core stay where they are. Returns the cores that the process may use then.
#[must_use]
pub fn keep_off(pid: i32, cores: &[usize]) -> Vec<usize> {
    each_thread(pid, |tid| {
        let Ok(now) = sched_getaffinity(Pid::from_raw(tid)) else { return };
        let mut left = now;
        cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| left.unset(core));
        if left.count() > 0 {
            // A thread that has ended needs no core.
            let _ = sched_setaffinity(Pid::from_raw(tid), &left);
        }
    });
    let left = sched_getaffinity(Pid::from_raw(pid)).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&core| left.is_set(core)).collect()
}

/// Calls `act` once for each thread of a process and its descendants.
fn each_thread(pid: i32, mut act: impl FnMut(i32)) {
    let mut seen = HashSet::new();
    for _ in 0..ROUNDS {
        let before = seen.len();
        for tid in descendants(pid).into_iter().flat_map(threads) {
            if seen.insert(tid) {
                act(tid);
            }
        }
        if seen.len() == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::Stat;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use tailwater_testkit::until;

    /// A shell with a child of its own.
    fn tree() -> std::process::Child {
        let shell = Command::new("sh").args(["-c", "sleep 60 & wait"]).process_group(0).spawn().unwrap();
        until("the shell has a child", || descendants(shell.id().cast_signed()).len() == 2);
        shell
    }

    fn end(mut tree: std::process::Child) {
        let group = Pid::from_child(&tree);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        tree.wait().unwrap();
    }

    #[test]
    fn descendants_of_a_running_process_are_lowered_with_it() {
        let tree = tree();
        let first = tree.id().cast_signed();
        let own = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).find(|&core| own.is_set(core)).unwrap();
        let (lowered, refused) = lower(first, &[core]);
        let found: Vec<_> = descendants(first)
            .into_iter()
            .map(|pid| {
                (Stat::of_process(pid).unwrap().is_idle_class, sched_getaffinity(Pid::from_raw(pid)).unwrap())
            })
            .collect();
        end(tree);
        if refused > 0 {
            return eprintln!("skipped: SCHED_IDLE is refused");
        }
        assert_eq!(lowered, 2);
        assert!(found.iter().all(|(idle, cores)| *idle && cores.count() == 1 && cores.is_set(core)));
    }

    #[test]
    fn a_process_is_kept_off_cores_unless_it_has_no_others() {
        let own = sched_getaffinity(None).unwrap();
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| own.is_set(core)).collect();
        let tree = tree();
        let first = tree.id().cast_signed();
        assert_eq!(keep_off(first, &cores), cores, "there are no others");
        if let [_, lent, ..] = cores[..] {
            let left: Vec<usize> = cores.iter().copied().filter(|&core| core != lent).collect();
            assert_eq!(keep_off(first, &[lent]), left);
            let child = descendants(first)[1];
            assert!(!sched_getaffinity(Pid::from_raw(child)).unwrap().is_set(lent));
        }
        end(tree);
    }
}
