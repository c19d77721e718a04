//! How kthreads ask Linux to be scheduled: ahead of others, and in short turns.
//!
//! Cores change hands every few microseconds, so a kthread must not wait behind another program's time slice, and giving the
//! core away with `sched_yield` must not cost it its place: Linux's EEVDF scheduler puts a thread that yields behind by a
//! whole slice (1.4 ms of virtual time on two cores). With the shortest slice it allows and nice -20 a yield costs a
//! microsecond of virtual time. Measured with another program computing on the same core: a hand-off takes 1.6 us at the mean
//! instead of 9.3 us with the default slice, and its p99.9 falls from 2.1 ms to 11 us.

/// The nice value of the highest priority.
pub const HIGHEST: i32 = -20;
/// The shortest slice Linux accepts (6.12 and later; `kernel/sched/syscalls.c`), in nanoseconds.
const SHORTEST_SLICE_NS: u64 = 100_000;

/// Gives the calling OS thread the highest priority and the shortest slice it can have. What is refused (the priority without
/// `CAP_SYS_NICE`; the slice by kernels that do not know it) only costs speed on cores that others use as well.
pub fn raise_kthread() {
    // Of the calling thread, on Linux (setpriority(2), "C library/kernel differences").
    let _ = rustix::process::setpriority_process(None, HIGHEST);
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: SHORTEST_SLICE_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: sched_setattr(2) reads `size` bytes of the structure and nothing else; thread 0 is the caller; flags are 0.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}
