//! The scheduling of kthreads by Linux. On a dedicated machine, the default, all kthreads rank
//! ahead of other threads and run in short turns; on a shared one (`neighbour-share` above 0) those
//! of services do, and those of best-effort programs rank behind all others.
//!
//! A **latency-critical** kthread has the core only while its program has work. Cores change hands
//! every few microseconds, so a kthread must not wait behind another program's time slice, and
//! giving the core away with `sched_yield` must not cost it its place: Linux's EEVDF scheduler puts
//! a thread that yields behind by a whole slice (1.4 ms of virtual time on two cores). With the
//! shortest slice it allows and nice -20 a yield costs a microsecond of virtual time. Measured with
//! another program computing on the same core: a hand-off takes 1.6 us at the mean instead of 9.3
//! us with the default slice, and its p99.9 falls from 2.1 ms to 11 us.
//!
//! A **best-effort** kthread holds its core for as long as no service needs it, so on a shared
//! machine ordinary programs must not wait for it: its policy is `SCHED_IDLE`. Linux counts a core
//! on which only such threads run as idle when it places a waking thread, and preempts them at once
//! (sched(7)). It keeps the default slice: a thread with a shorter one preempts at its wake
//! (`PREEMPT_SHORT`, Linux 6.12). Among kthreads the grant decides: a kthread without a core
//! sleeps, or yields to those that are awake ([`yields`]).
//!
//! Both rank within a session, where Linux groups sessions (sched(7), "The autogroup feature"), and
//! within a control group.

use crate::control::Class;

/// The nice value of the highest priority.
pub const HIGHEST: i32 = -20;
/// Maximum number of yields in a row before a kthread without a grant sleeps.
const MAX_YIELDS: u32 = 2;
/// The nice value of the lowest priority.
pub const LOWEST: i32 = 19;
/// The shortest slice Linux accepts (6.12 and later; `kernel/sched/syscalls.c`), in nanoseconds.
const SHORTEST_SLICE_NS: u64 = 100_000;

/// Gives the calling OS thread the highest priority and the shortest slice it can have. What is
/// refused (the priority without `CAP_SYS_NICE`; the slice by kernels that do not know it) only
/// costs speed on cores that others use as well.
pub fn raise_thread() {
    // Of the calling thread, on Linux (setpriority(2), "C library/kernel differences").
    let _ = rustix::process::setpriority_process(None, HIGHEST);
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    let _ = set_policy(libc::SCHED_OTHER, nice, SHORTEST_SLICE_NS);
}

/// Gives the calling OS thread the rank of a kthread of this class; on a `dedicated` machine all
/// classes have the rank of services.
pub fn rank_kthread(class: Class, dedicated: bool) {
    match class {
        Class::BestEffort if !dedicated => lower_thread(),
        _ => raise_thread(),
    }
}

/// Returns how often a kthread of this class that has ceded its core to another one yields before
/// it sleeps. On a shared machine a service's kthread ranks above a best-effort successor: Linux
/// would resume it after each yield, so it sleeps at once, and its wake preempts such a kthread.
#[must_use]
pub fn yields(class: Class, dedicated: bool) -> u32 {
    match class {
        Class::LatencyCritical if !dedicated => 0,
        _ => MAX_YIELDS,
    }
}

/// Makes the calling OS thread run only when no ordinary thread wants its core. Needs no privilege;
/// where a sandbox refuses the policy, the lowest nice value takes its place.
fn lower_thread() {
    if !set_policy(libc::SCHED_IDLE, 0, 0) {
        let _ = rustix::process::setpriority_process(None, LOWEST);
    }
}

/// Sets policy, nice value and slice (0: the default) of the calling OS thread; returns whether the
/// kernel accepted them.
fn set_policy(policy: i32, nice: i32, slice_ns: u64) -> bool {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: slice_ns,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: sched_setattr(2) reads `size` bytes of the structure and nothing else; thread 0 is
    // the caller; flags are 0.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy of the calling thread.
    fn policy() -> i32 {
        // SAFETY: takes a thread id (0: the caller) and touches no memory.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_best_effort_kthread_runs_behind_ordinary_threads_and_a_service_does_not() {
        if policy() != libc::SCHED_OTHER {
            return eprintln!("skipped: these threads inherit another policy than SCHED_OTHER");
        }
        std::thread::spawn(|| {
            rank_kthread(Class::BestEffort, false);
            // A sandbox may refuse the policy.
            let nice = rustix::process::getpriority_process(None);
            assert!(policy() == libc::SCHED_IDLE || nice == Ok(LOWEST));
        })
        .join()
        .unwrap();
        for (class, dedicated) in [(Class::LatencyCritical, false), (Class::BestEffort, true)] {
            std::thread::spawn(move || {
                rank_kthread(class, dedicated);
                assert_eq!(policy(), libc::SCHED_OTHER);
            })
            .join()
            .unwrap();
        }
    }
}
