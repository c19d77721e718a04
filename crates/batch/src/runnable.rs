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
    let threads = runnable(polling, own);
    let batch = threads.iter().filter(|(_, is_batch)| *is_batch).count();
    Runnable { batch, others: threads.len() - batch }
}

/// Returns these threads, and whether each is a batch job's.
fn runnable(polling: usize, own: &[i32]) -> Vec<(i32, bool)> {
    let caller = gettid().as_raw_nonzero().get();
    let mut found = Vec::new();
    let mut add = |tid: i32, stat: &Stat| {
        if stat.is_runnable && tid != caller && !own.contains(&tid) {
            found.push((tid, is_of_batch_job(tid, stat, polling)));
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use tailwater_testkit::until;

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
    fn a_thread_that_computes_is_found_unless_it_is_excluded() {
        let stop = Arc::new(AtomicBool::new(false));
        let (started, tid) = channel();
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            started.send(gettid().as_raw_nonzero().get()).unwrap();
            while !flag.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let tid = tid.recv().unwrap();
        let finds = |own: &[i32]| runnable(0, own).into_iter().any(|(found, _)| found == tid);
        until("it is found", || finds(&[]));
        assert!(!finds(&[tid]));
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    }
}
