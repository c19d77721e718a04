//! Which runnable threads of the machine are batch jobs', and which belong to other programs.
//!
//! Owns one look at all threads. Linux tells cheaply how many threads are runnable
//! (`/proc/loadavg`), but not in which rank. A thread of the policy `SCHED_IDLE`, or of a control
//! group with `cpu.idle`, that may not run on the polling thread's core runs only where kthreads
//! leave it time, so it is no competitor. That is read from Linux, not from what a program says,
//! and an unprivileged thread has no way back from that policy. Such a thread that may run on the
//! polling thread's core competes there with the weight of its session, and counts as any other.
//!
//! A look takes about 8 us for each thread of the machine.

use rustix::process::Pid;
use rustix::thread::{gettid, sched_getaffinity};

use crate::group;
use crate::proc::{Stat, numbers, threads};

/// Runnable threads of the machine that are neither Linux's own nor excluded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Runnable {
    /// Those of batch jobs.
    pub batch: usize,
    /// All others.
    pub others: usize,
}

/// Counts the runnable threads of the machine, without the calling thread and those in `own`.
/// Threads of batch jobs may not run on the core `polling`.
#[must_use]
pub fn count(polling: usize, own: &[i32]) -> Runnable {
    let caller = gettid().as_raw_nonzero().get();
    let mut found = Runnable::default();
    let mut add = |tid: i32, stat: &Stat| {
        if !stat.is_runnable || tid == caller || own.contains(&tid) {
            return;
        }
        match is_of_batch_job(tid, stat, polling) {
            true => found.batch += 1,
            false => found.others += 1,
        }
    };
    for pid in numbers("/proc") {
        let Some(first) = Stat::of_process(pid).filter(|stat| !stat.is_kernel) else { continue };
        if first.threads == 1 {
            add(pid, &first);
            continue;
        }
        for tid in threads(pid) {
            if let Some(stat) = Stat::of_thread(pid, tid) {
                add(tid, &stat);
            }
        }
    }
    found
}

fn is_of_batch_job(tid: i32, stat: &Stat, polling: usize) -> bool {
    !may_run_on(tid, polling) && (stat.is_idle_class || group::is_idle(tid))
}

/// Returns whether a thread may run on a core; true if Linux does not say.
fn may_run_on(tid: i32, core: usize) -> bool {
    sched_getaffinity(Pid::from_raw(tid)).map_or(true, |allowed| allowed.is_set(core))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Conditions;
    use std::sync::mpsc::channel;

    #[test]
    fn a_thread_of_a_batch_job_is_told_apart_unless_it_may_use_the_polled_core() {
        let allowed = sched_getaffinity(None).unwrap();
        let core = (0..1_024).find(|&core| allowed.is_set(core)).unwrap();
        let (started, tid) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let conditions = Conditions { cores: vec![core], own_session: false };
            started.send(conditions.apply().map(|()| gettid().as_raw_nonzero().get())).unwrap();
            // Until the other side has looked.
            let _ = ended.recv();
        });
        let own = std::process::id().cast_signed();
        match tid.recv().unwrap() {
            Err(error) => eprintln!("skipped: {error}"),
            Ok(tid) => {
                let stat = Stat::of_thread(own, tid).unwrap();
                assert!(is_of_batch_job(tid, &stat, core + 1));
                assert!(!is_of_batch_job(tid, &stat, core), "it competes there");
                let first = Stat::of_process(own).unwrap();
                assert!(!is_of_batch_job(own, &first, core + 1), "an ordinary thread");
            }
        }
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn excluded_threads_are_not_counted() {
        // The caller runs, and is not counted either.
        let own = std::process::id().cast_signed();
        let everything: Vec<i32> = numbers("/proc").into_iter().flat_map(threads).chain([own]).collect();
        let all = count(0, &everything);
        assert!(all.others + all.batch <= 16, "only threads that have just started: {all:?}");
    }
}
