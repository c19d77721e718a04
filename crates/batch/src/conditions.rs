//! The conditions of a batch job: what its first process takes on before it becomes the program.
//!
//! Owns the order of the steps. All of them are inherited through fork and exec, none needs a
//! privilege, and none leaves anything to undo: they end with the processes.
//!
//! Linux compares `SCHED_IDLE` threads with others of the same group only. Where it groups sessions
//! (sched(7), "The autogroup feature") a job in the session of a shell would take turns with other
//! sessions as the shell does. So a job leads a session of its own, of the lowest weight.

use std::fs;
use std::io;
use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::setsid;
use rustix::thread::{CpuSet, sched_setaffinity};
use tailwater_shm::priority::{LOWEST, Rank, set_rank};

use crate::sys;

/// Linux lets unprivileged users of the machine change one weight in 100 ms (`kernel/sched/
/// autogroup.c`): attempts and the time between them.
const ATTEMPTS: u32 = 20;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(25);

/// What cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The cores.
    #[error("cannot use cores {cores:?}: {source}; the cpuset of this process has to contain one of them")]
    Cores {
        /// Those asked for.
        cores: Vec<usize>,
        /// Linux's reason.
        source: io::Error,
    },
    /// The rank.
    #[error("Linux refuses the lowest rank (SCHED_IDLE, nice 19): a sandbox may forbid sched_setattr(2)")]
    Rank,
    /// The session.
    #[error("cannot lead a session: {source}")]
    Session {
        /// Linux's reason.
        source: io::Error,
    },
}

/// The conditions of a batch job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The cores it may use; empty: as the caller.
    pub cores: Vec<usize>,
    /// Whether it leads a session of its own, of the lowest weight.
    pub own_session: bool,
}

impl Conditions {
    /// Puts the calling process, which has one thread, under these conditions.
    ///
    /// A session whose weight cannot be changed, or I/O that cannot be ranked, is no error: the job
    /// is batch work all the same.
    ///
    /// # Errors
    /// [`Refused`]. The caller must not become the program then.
    pub fn apply(&self) -> Result<(), Refused> {
        if self.own_session {
            setsid().map_err(|error| Refused::Session { source: error.into() })?;
            lower_session();
        }
        confine(0, &self.cores).map_err(|source| Refused::Cores { cores: self.cores.clone(), source })?;
        if !set_rank(0, Rank::Last) {
            return Err(Refused::Rank);
        }
        let _ = sys::set_idle_io(0);
        Ok(())
    }
}

/// Puts one thread (0: the calling one) under the conditions that a thread has; returns whether it
/// has the rank. A thread that has ended is no error.
pub(crate) fn apply_to(tid: i32, cores: &[usize]) -> bool {
    let _ = confine(tid, cores);
    let _ = sys::set_idle_io(tid);
    set_rank(tid, Rank::Last)
}

/// Confines a thread to cores; to none: leaves it where it is.
fn confine(tid: i32, cores: &[usize]) -> io::Result<()> {
    if cores.is_empty() {
        return Ok(());
    }
    Ok(sched_setaffinity(rustix::process::Pid::from_raw(tid), &set_of(cores))?)
}

/// Returns cores as Linux takes them.
pub(crate) fn set_of(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| set.set(core));
    set
}

/// Gives the caller's session the lowest weight, where Linux groups sessions.
fn lower_session() {
    for _ in 0..ATTEMPTS {
        if try_to_lower_session("self") {
            return;
        }
        sleep(BETWEEN_ATTEMPTS);
    }
}

/// Gives the session of a process, by its name in `/proc`, the lowest weight
/// (proc_pid_autogroup(5)), unless it has that. Returns false if Linux refuses it for the next
/// 100 ms.
pub(crate) fn try_to_lower_session(process: &str) -> bool {
    let file = format!("/proc/{process}/autogroup");
    let has_lowest = |weight: String| weight.trim_end().ends_with(&format!(" nice {LOWEST}"));
    // There is none where Linux does not group sessions, or the process has ended.
    if fs::read_to_string(&file).map_or(true, has_lowest) {
        return true;
    }
    let refused = fs::write(file, LOWEST.to_string()).err();
    refused.and_then(|error| Errno::from_io_error(&error)) != Some(Errno::AGAIN)
}
