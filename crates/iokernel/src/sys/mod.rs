//! The system calls that have no safe wrapper, and the prefetch instruction: all `unsafe` code of
//! this crate.
//!
//! Owns thin functions with checked arguments; no policy, no state.

#![allow(unsafe_code)]

pub(crate) mod accounts;
pub(crate) mod holder;
pub(crate) mod passed;
pub(crate) mod peer;
pub(crate) mod stack;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use tailwater_shm::grant::PREEMPT_SIGNAL;
use tailwater_shm::last_error;
use tailwater_shm::priority::{self, Rank};

/// Sends signal `signal` to thread `tid` of process `tgid` (tgkill(2)). Signal 0 only checks that
/// the thread exists.
///
/// # Errors
/// [`Errno::SRCH`] if the process no longer has such a thread, [`Errno::PERM`] if it belongs to
/// another user.
pub(crate) fn signal_thread(tgid: i32, tid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: tgkill takes three integers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, tgid, tid, signal) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Binds thread `tid` of process `tgid` to `cores`. First checks that the thread belongs to the
/// process: thread ids are reused, and `sched_setaffinity(2)` accepts any thread of the machine.
///
/// # Errors
/// [`Errno::SRCH`] if the thread is gone, [`Errno::INVAL`] if it may use none of the cores.
pub(crate) fn bind_thread(tgid: i32, tid: i32, cores: &CpuSet) -> Result<(), Errno> {
    signal_thread(tgid, tid, 0)?;
    sched_setaffinity(Some(Pid::from_raw(tid).ok_or(Errno::SRCH)?), cores)
}

/// Gives thread `tid` of process `tgid` a rank; checks like [`bind_thread`] whose thread it is.
///
/// # Errors
/// [`Errno::SRCH`] if the thread is gone, [`Errno::PERM`] if Linux refuses the rank.
pub(crate) fn set_rank(tgid: i32, tid: i32, rank: Rank) -> Result<(), Errno> {
    signal_thread(tgid, tid, 0)?;
    priority::set_rank(tid, rank).then_some(()).ok_or(Errno::PERM)
}

/// What the allocator does to threads; tests substitute a recorder.
pub(crate) trait Threads: Send {
    /// See [`bind_thread`].
    fn bind(&mut self, tgid: i32, tid: i32, cores: &CpuSet) -> Result<(), Errno>;
    /// Sends the preempt signal.
    fn preempt(&mut self, tgid: i32, tid: i32) -> Result<(), Errno>;
    /// See [`set_rank`].
    fn set_rank(&mut self, tgid: i32, tid: i32, rank: Rank) -> Result<(), Errno>;
    /// Returns the processor time of a thread in nanoseconds; of one that runs, as of the last tick
    /// or later. `None` if the thread is gone or Linux does not show it. Takes 5 us.
    fn ran_ns(&mut self, tgid: i32, tid: i32) -> Option<u64>;
}

/// Acts on threads of this machine.
pub(crate) struct LinuxThreads;

impl Threads for LinuxThreads {
    fn bind(&mut self, tgid: i32, tid: i32, cores: &CpuSet) -> Result<(), Errno> {
        bind_thread(tgid, tid, cores)
    }
    fn preempt(&mut self, tgid: i32, tid: i32) -> Result<(), Errno> {
        signal_thread(tgid, tid, PREEMPT_SIGNAL)
    }
    fn set_rank(&mut self, tgid: i32, tid: i32, rank: Rank) -> Result<(), Errno> {
        set_rank(tgid, tid, rank)
    }
    fn ran_ns(&mut self, tgid: i32, tid: i32) -> Option<u64> {
        // Linux keeps no such account where it says 0.
        tailwater_batch::proc::thread_ns(tgid, tid).filter(|&ns| ns > 0)
    }
}
