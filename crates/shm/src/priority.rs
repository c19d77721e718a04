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
//! us with the default slice, and its p99.9 falls from 2.1 ms to 11 us. On a shared machine the
//! IOKernel puts it into the lowest real-time rank where it may ([`set_real_time`]): an ordinary
//! thread of another session takes turns of a timer tick, whatever the nice value.
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

use core::ptr;

use rustix::process::Pid;

use crate::control::Class;

/// The nice value of the highest priority.
pub const HIGHEST: i32 = -20;
/// Maximum number of yields in a row before a kthread without a grant sleeps.
const MAX_YIELDS: u32 = 2;
/// The nice value of the lowest priority.
pub const LOWEST: i32 = 19;
/// The real-time rank of services' kthreads: the lowest.
pub const SERVICE_RANK: u32 = 1;
/// The real-time rank of the polling thread.
pub const POLLING_RANK: u32 = 2;
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

/// Puts the OS thread `tid` (0: the calling one) into a real-time rank, 1 to 99: it runs ahead of
/// all ordinary threads and of lower ranks, and a wake preempts them at once. Threads and processes
/// that it starts do not inherit the rank. Returns false where Linux refuses it
/// (without `CAP_SYS_NICE` or `RLIMIT_RTPRIO`, or in a control group without real-time time).
///
/// Linux stops real-time threads that use more than `sched_rt_runtime_us` of a core for the rest of
/// the second, so the caller must see to it that the thread rests.
pub fn set_real_time(tid: i32, rank: u32) -> bool {
    let attributes =
        libc::sched_attr { sched_policy: libc::SCHED_FIFO as u32, sched_priority: rank, ..RESET_ON_FORK };
    set_attributes(tid, &attributes)
}

/// Puts the OS thread `tid` (0: the calling one) from another rank back to the highest priority of
/// ordinary threads that it may have; returns false if there is no such thread, or Linux refuses
/// it.
pub fn end_real_time(tid: i32) -> bool {
    // Without a privilege the flag cannot be taken back.
    let rank = |nice| libc::sched_attr {
        sched_policy: libc::SCHED_OTHER as u32,
        sched_nice: nice,
        sched_runtime: SHORTEST_SLICE_NS,
        ..RESET_ON_FORK
    };
    // A thread below 0 may not rise without a privilege.
    let own = rustix::process::getpriority_process(Pid::from_raw(tid)).unwrap_or(0);
    [HIGHEST, 0, own].into_iter().any(|nice| set_attributes(tid, &rank(nice)))
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
    let rank = libc::sched_attr {
        sched_policy: policy as u32,
        sched_nice: nice,
        sched_runtime: slice_ns,
        ..NO_ATTRIBUTES
    };
    set_attributes(0, &rank)
}

const NO_ATTRIBUTES: libc::sched_attr = libc::sched_attr {
    size: size_of::<libc::sched_attr>() as u32,
    sched_policy: 0,
    sched_flags: 0,
    sched_nice: 0,
    sched_priority: 0,
    sched_runtime: 0,
    sched_deadline: 0,
    sched_period: 0,
};

const RESET_ON_FORK: libc::sched_attr =
    libc::sched_attr { sched_flags: libc::SCHED_FLAG_RESET_ON_FORK as u64, ..NO_ATTRIBUTES };

fn set_attributes(tid: i32, attributes: &libc::sched_attr) -> bool {
    // SAFETY: sched_setattr(2) reads `size` bytes of the structure and nothing else; flags are 0.
    unsafe { libc::syscall(libc::SYS_sched_setattr, tid, ptr::from_ref(attributes), 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy of the calling thread.
    fn policy() -> i32 {
        // SAFETY: takes a thread id (0: the caller) and touches no memory.
        unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK }
    }

    #[test]
    fn real_time_rank_ends_as_the_highest_ordinary_one() {
        if policy() != libc::SCHED_OTHER {
            return eprintln!("skipped: these threads inherit another policy than SCHED_OTHER");
        }
        if !set_policy(libc::SCHED_OTHER, rustix::process::getpriority_process(None).unwrap_or(0), 0) {
            return eprintln!("skipped: sched_setattr(2) is refused");
        }
        std::thread::spawn(|| {
            // Refused without a privilege.
            if set_real_time(0, SERVICE_RANK) {
                assert_eq!(policy(), libc::SCHED_FIFO);
                let child = std::thread::spawn(policy).join().unwrap();
                assert_eq!(child, libc::SCHED_OTHER, "inherited");
            }
            assert!(end_real_time(0));
            assert_eq!(policy(), libc::SCHED_OTHER);
        })
        .join()
        .unwrap();
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
