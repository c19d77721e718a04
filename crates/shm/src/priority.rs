//! The ranks in which Linux runs kthreads.
//!
//! Kthreads start with the highest rank of ordinary threads ([`raise_thread`]) and keep it for as
//! long as no other program competes for the cores. While one does, the IOKernel gives those of
//! services real-time rank and those of best-effort programs the lowest there is ([`Rank`]), on a
//! machine that is not dedicated. Those of best-effort programs have it also while the IOKernel
//! sleeps beside them, and for good where Linux does not let the IOKernel raise a thread again.
//!
//! A **latency-critical** kthread has the core only while its program has work. Cores change hands
//! every few microseconds, so a kthread must not wait behind another program's time slice, and
//! giving the core away with `sched_yield` must not cost it its place: Linux's EEVDF scheduler puts
//! a thread that yields behind by a whole slice (1.4 ms of virtual time on two cores). With the
//! shortest slice it allows and nice -20 a yield costs a microsecond of virtual time. Measured with
//! another program computing on the same core: a hand-off takes 1.6 us at the mean instead of 9.3
//! us with the default slice, and its p99.9 falls from 2.1 ms to 11 us. An ordinary thread of
//! another session takes turns of a timer tick, whatever the nice value, but not from a real-time
//! thread.
//!
//! A **best-effort** kthread holds its core for as long as no service needs it, so ordinary
//! programs must not wait for it: its policy is `SCHED_IDLE` then. Linux counts a core on which
//! only such threads run as idle when it places a waking thread, and preempts them at once
//! (sched(7)). Its slice goes back to the default: a thread with a shorter one preempts at its wake
//! (`PREEMPT_SHORT`, Linux 6.12). Among kthreads the grant decides: a kthread without a core
//! sleeps, at first after some yields ([`yields`]).
//!
//! Ordinary threads and those in `SCHED_IDLE` rank within a session, where Linux groups sessions
//! (sched(7), "The autogroup feature"), and within a control group.

use core::ptr;

use rustix::process::Pid;

use crate::control::ProgramClass;
use crate::grant::NextOwner;

/// The nice value of the highest priority.
pub const HIGHEST: i32 = -20;
/// Yields to a successor that is awake, if the caller has not waited for its core. Each moves the
/// caller back by a slice, and Linux switches once the successor has had less of the core.
const YIELDS: u32 = 4;
/// One extra yield per this much time waited: half of [`SHORTEST_SLICE_NS`], so there are two
/// yields for each slice that the successor had meanwhile. Where Linux does not switch at a yield,
/// and the IOKernel has not told the caller so, wasted yields take 1 % of the time.
const WAIT_FOR_A_YIELD_NS: u64 = 50_000;
/// Maximum number of yields to a successor that is awake: some 16 us.
const MOST_YIELDS: u32 = 32;
/// Yields to a successor that sleeps. More would delay its wake, which needs the lock of the core's
/// run queue, too.
const YIELDS_TO_SLEEPER: u32 = 2;
/// The nice value of the lowest priority.
pub const LOWEST: i32 = 19;
/// The real-time rank of services' kthreads: the lowest.
const SERVICE_RANK: u32 = 1;
/// The real-time rank of the polling thread.
const POLLING_RANK: u32 = 2;
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

/// How Linux ranks a kthread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// As an ordinary thread, by its nice value.
    Ordinary,
    /// Ahead of all ordinary threads, which a wake preempts at once: the lowest real-time rank. The
    /// threads and processes that it starts do not inherit the rank.
    ///
    /// Linux limits the time of real-time threads on each core, so the process that gives this rank
    /// must make the thread rest before. Up to Linux 6.11, and later with
    /// `CONFIG_RT_GROUP_SCHED`, they are stopped for the rest of each second after
    /// `sched_rt_runtime_us` (0.95 s; sched(7), "Limiting the CPU usage"). From 6.12 on without
    /// that option the fair server, a deadline reservation, runs waiting ordinary threads for 50 ms
    /// of each second. On Linux 6.18 with the option a `SCHED_FIFO` spinner beside an ordinary one
    /// got 94.7 % of a core, with pauses of 50 to 54 ms, and the kernel logged that it throttled.
    RealTime,
    /// Behind all ordinary threads.
    Behind,
    /// The same, or the lowest nice value where that policy is refused. Any user may give it to own
    /// threads; without a privilege there is no way back.
    Last,
}

/// Returns how often a kthread of this class that has ceded its core to `successor` yields before
/// it sleeps; `waited_ns` is how long it waited for the core, in nanoseconds, while others had it.
/// A successor that it has woken at the board is awake. While ranks differ a service's kthread is
/// above a best-effort successor: Linux would resume it after each yield, so it sleeps at once, and
/// its wake preempts such a kthread.
#[must_use]
pub fn yields(class: ProgramClass, ranks_differ: bool, successor: NextOwner, waited_ns: u64) -> u32 {
    match (class, successor) {
        (_, NextOwner::None | NextOwner::Apart | NextOwner::AtBoard { apart: true, .. }) => 0,
        (ProgramClass::LatencyCritical, _) if ranks_differ => 0,
        (_, NextOwner::Asleep) => YIELDS_TO_SLEEPER,
        (_, NextOwner::Awake | NextOwner::AtBoard { apart: false, .. }) => {
            let more = (waited_ns / WAIT_FOR_A_YIELD_NS).min(u64::from(MOST_YIELDS - YIELDS));
            YIELDS + more as u32
        }
    }
}

/// Gives the OS thread `tid` (0: the calling one) a rank; its nice value stays. Returns false if
/// there is no such thread, or Linux refuses it: any rank of another user's thread, and of own ones
/// real-time rank without `CAP_SYS_NICE` or
/// `RLIMIT_RTPRIO`, or in a control group without real-time time; the way back from
/// [`Rank::Behind`] without `CAP_SYS_NICE`.
pub fn set_rank(tid: i32, rank: Rank) -> bool {
    match rank {
        Rank::Ordinary => end_real_time(tid),
        Rank::RealTime => set_real_time(tid, SERVICE_RANK),
        Rank::Behind => {
            // In `SCHED_IDLE` a thread keeps the slice that it had; refused, it only keeps that.
            let nice = rustix::process::getpriority_process(Pid::from_raw(tid)).unwrap_or(0);
            let _ = set_attributes(tid, &libc::sched_attr { sched_nice: nice, ..NO_ATTRIBUTES });
            set_attributes(tid, &libc::sched_attr { sched_policy: libc::SCHED_IDLE as u32, ..NO_ATTRIBUTES })
        }
        Rank::Last => {
            set_rank(tid, Rank::Behind)
                || rustix::process::setpriority_process(Pid::from_raw(tid), LOWEST).is_ok()
        }
    }
}

/// Puts the calling OS thread into the real-time rank of the polling thread, above that of
/// services; see [`Rank::RealTime`]. Returns false where Linux refuses it.
pub fn rank_polling_thread() -> bool {
    set_real_time(0, POLLING_RANK)
}

fn set_real_time(tid: i32, rank: u32) -> bool {
    let attributes =
        libc::sched_attr { sched_policy: libc::SCHED_FIFO as u32, sched_priority: rank, ..RESET_ON_FORK };
    set_attributes(tid, &attributes)
}

/// Puts a thread back among ordinary ones, with the nice value that it has kept.
fn end_real_time(tid: i32) -> bool {
    // Without a privilege the flag cannot be taken back.
    let rank = |nice| libc::sched_attr {
        sched_policy: libc::SCHED_OTHER as u32,
        sched_nice: nice,
        sched_runtime: SHORTEST_SLICE_NS,
        ..RESET_ON_FORK
    };
    // A thread below 0 may not rise without a privilege.
    let own = rustix::process::getpriority_process(Pid::from_raw(tid)).unwrap_or(0);
    [own, 0].into_iter().any(|nice| set_attributes(tid, &rank(nice)))
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
    use crate::board::WakePlace;

    /// The policy of the calling thread.
    fn policy() -> i32 {
        // SAFETY: takes a thread id (0: the caller) and touches no memory.
        unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK }
    }

    /// Runs `body` on a thread of its own, unless Linux refuses such calls as `raise_thread`.
    fn on_a_thread(body: impl FnOnce() + Send + 'static) {
        if policy() != libc::SCHED_OTHER {
            return eprintln!("skipped: these threads inherit another policy than SCHED_OTHER");
        }
        if !set_policy(libc::SCHED_OTHER, rustix::process::getpriority_process(None).unwrap_or(0), 0) {
            return eprintln!("skipped: sched_setattr(2) is refused");
        }
        std::thread::spawn(body).join().unwrap();
    }

    #[test]
    fn real_time_rank_ends_as_an_ordinary_one_with_the_same_nice_value() {
        on_a_thread(|| {
            let nice = rustix::process::getpriority_process(None);
            // Refused without a privilege.
            if set_rank(0, Rank::RealTime) {
                assert_eq!(policy(), libc::SCHED_FIFO);
                let child = std::thread::spawn(policy).join().unwrap();
                assert_eq!(child, libc::SCHED_OTHER, "inherited");
            }
            assert!(set_rank(0, Rank::Ordinary));
            assert_eq!((policy(), rustix::process::getpriority_process(None)), (libc::SCHED_OTHER, nice));
        });
    }

    #[test]
    fn a_kthread_yields_for_as_long_as_it_waited_to_one_that_is_awake_only() {
        use ProgramClass::{BestEffort, LatencyCritical};
        for (class, ranks_differ) in [(BestEffort, false), (BestEffort, true), (LatencyCritical, false)] {
            let of = |successor, waited_ns| yields(class, ranks_differ, successor, waited_ns);
            assert_eq!([of(NextOwner::None, u64::MAX), of(NextOwner::Asleep, u64::MAX)], [0, 2]);
            let awake = [0, 49_999, 1_000_000, u64::MAX].map(|waited_ns| of(NextOwner::Awake, waited_ns));
            assert_eq!(awake, [4, 4, 24, 32]);
            let sleeper = |apart| NextOwner::AtBoard { place: WakePlace::new(0).unwrap(), apart };
            assert_eq!(of(sleeper(false), 1_000_000), 24, "it is awake by then");
            assert_eq!([of(NextOwner::Apart, u64::MAX), of(sleeper(true), u64::MAX)], [0, 0]);
        }
        assert_eq!(yields(LatencyCritical, true, NextOwner::Awake, 0), 0, "Linux would resume it at once");
    }

    #[test]
    fn any_thread_may_be_the_last() {
        on_a_thread(|| {
            assert!(set_rank(0, Rank::Last));
            let nice = rustix::process::getpriority_process(None);
            assert!(policy() == libc::SCHED_IDLE || nice == Ok(LOWEST), "{} {nice:?}", policy());
        });
    }

    #[test]
    fn a_thread_behind_all_others_comes_back_with_the_same_nice_value() {
        on_a_thread(|| {
            let nice = rustix::process::getpriority_process(None);
            // A sandbox may refuse the policy.
            if !set_rank(0, Rank::Behind) {
                return eprintln!("skipped: SCHED_IDLE is refused");
            }
            assert_eq!(policy(), libc::SCHED_IDLE);
            // Refused without a privilege.
            if set_rank(0, Rank::Ordinary) {
                let now = (policy(), rustix::process::getpriority_process(None));
                assert_eq!(now, (libc::SCHED_OTHER, nice));
            }
        });
    }
}
