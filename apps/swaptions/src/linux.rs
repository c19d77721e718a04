//! The job on ordinary kernel threads, the baseline for Tailwater.
//!
//! Owns starting, placing and joining the threads. The one unsafe block of this crate is here:
//! `sched_setscheduler`, which no safe library offers.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::job::{Job, Tally};

/// Cores and scheduling class of worker threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// Cores they may use, by the kernel's numbers; empty for all.
    pub cores: Vec<usize>,
    /// Use scheduling class `SCHED_IDLE` (sched(7)): run if no other thread in the same scheduling
    /// group needs the core. With autogroup on, that is only the processes of the same session.
    pub idle_class: bool,
    /// Added to their nice value, as by nice(1): the higher, the less of a core they get beside
    /// other threads. As with the class, within a session.
    pub nice: u8,
}

impl Placement {
    /// Applies this to the calling thread.
    ///
    /// # Errors
    /// The kernel's error, with what was attempted: a core that does not exist or that this process
    /// may not use.
    pub fn apply(&self) -> io::Result<()> {
        if !self.cores.is_empty() {
            let mut set = CpuSet::new();
            for &core in &self.cores {
                if core >= CpuSet::MAX_CPU {
                    let message =
                        format!("core {core} is beyond the {} that Linux can number", CpuSet::MAX_CPU);
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
                }
                set.set(core);
            }
            sched_setaffinity(None, &set)
                .map_err(|e| explain(&e.into(), &format!("to use cores {:?}", self.cores)))?;
        }
        if self.nice > 0 {
            // Of the calling thread: Linux has a nice value for each.
            let nice = getpriority_process(None)
                .and_then(|now| setpriority_process(None, now.saturating_add(self.nice.into())));
            nice.map_err(|e| explain(&e.into(), &format!("{} nicer", self.nice)))?;
        }
        if self.idle_class {
            enter_idle_class().map_err(|e| explain(&e, "to enter SCHED_IDLE"))?;
        }
        Ok(())
    }
}

fn explain(error: &io::Error, attempt: &str) -> io::Error {
    io::Error::new(error.kind(), format!("a worker could not be set {attempt}: {error}"))
}

fn enter_idle_class() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel only reads `parameters`, which is initialised and outlives the call; 0
    // means this thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Worker threads of one job.
#[derive(Debug)]
pub struct Workers {
    job: Arc<Job>,
    threads: Vec<JoinHandle<io::Result<Tally>>>,
}

/// Starts `count` threads on `job`, at least one.
///
/// # Errors
/// If a thread cannot be created; those already started are stopped and joined. [`Workers::join`]
/// reports a failure to place a thread.
pub fn run_threads(job: &Arc<Job>, count: usize, placement: &Placement) -> io::Result<Workers> {
    let mut workers = Workers { job: Arc::clone(job), threads: Vec::with_capacity(count) };
    for index in 0..count.max(1) {
        let (job, placement) = (Arc::clone(job), placement.clone());
        let body = move || {
            placement.apply().inspect_err(|_| job.stop())?;
            Ok(job.work(&mut || {}))
        };
        match std::thread::Builder::new().name(format!("swaptions-{index}")).spawn(body) {
            Ok(thread) => workers.threads.push(thread),
            Err(error) => {
                workers.job.stop();
                workers.join()?;
                return Err(error);
            }
        }
    }
    Ok(workers)
}

impl Workers {
    /// Returns whether every worker has returned.
    #[must_use]
    pub fn are_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits for the workers and returns the sum of their results. Call [`Job::stop`] first if the
    /// job is endless.
    ///
    /// # Errors
    /// The error of the first worker that could not be placed; the job is then stopped.
    ///
    /// # Panics
    /// If a worker panicked.
    pub fn join(self) -> io::Result<Tally> {
        let mut tally = Tally::default();
        let mut failed = None;
        for thread in self.threads {
            match thread.join().expect("a worker panicked") {
                Ok(part) => tally.add(&part),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(tally), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Portfolio;

    fn job(trials: Option<u64>) -> Arc<Job> {
        Arc::new(Job::new(&Portfolio::generate(3, 1).unwrap(), trials, 2))
    }

    /// Returns whether a sandbox refuses `SCHED_IDLE`.
    fn is_refusal(error: &io::Error) -> bool {
        use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
        matches!(error.kind(), PermissionDenied | Unsupported | InvalidInput)
    }

    #[test]
    fn threads_compute_what_one_worker_computes() {
        let expected = job(Some(320)).work(&mut || {});
        for idle_class in [false, true] {
            let placement = Placement { idle_class, nice: 3, ..Placement::default() };
            match run_threads(&job(Some(320)), 2, &placement).unwrap().join() {
                Ok(tally) => assert_eq!(tally, expected),
                Err(error) if idle_class && is_refusal(&error) => eprintln!("skipped: {error}"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn an_impossible_core_ends_the_job_with_its_number() {
        for core in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU] {
            let placement = Placement { cores: vec![core], ..Placement::default() };
            let error = run_threads(&job(None), 1, &placement).unwrap().join().unwrap_err();
            assert!(error.to_string().contains(&core.to_string()), "{error}");
        }
    }
}
