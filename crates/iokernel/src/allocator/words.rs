//! Reading the status words of one runtime, all of them or a part.
//!
//! Owns the bound on what a look at one runtime costs; [`status_cache`](crate::status_cache) keeps
//! the words beside the policy's observation. A program can rewrite its words all the time, and
//! then each read is a cache miss (50 to 100 ns for each of a kthread's two lines). So at a look in
//! part
//!
//! - the kthreads that hold cores are read each time: theirs are the words that change;
//! - of the others, if the runtime has more than [`WHOLE`](crate::status_cache::WHOLE) kthreads, up
//!   to [`SLICE`](crate::status_cache::SLICE) in turn, and with them up to [`WAITING`] at which
//!   something may wait: it did when they were last read, or frames were put into their rings
//!   since. After a slice that took a time `c`, the next one comes after `SPACING` times `c`, which
//!   is the next look if the lines are in the cache.
//!
//! The policy compares a look with the previous one to find work that waits. Slices of a runtime
//! with cores are read only at looks after which the policy runs: one read at another look would be
//! compared with nothing, and would put off the next one.
//!
//! So the words of a kthread without a core are as of a look up to `kthreads / SLICE` slices ago,
//! and the observation says that this look left it out. Both ends of a queue are as of one reading:
//! a later tail beside an earlier head would show work that other kthreads of the program have
//! taken. A timer found once is known from then on. The mark, the earliest timer and the lost wakes
//! are sums over the words of all kthreads, each as last read. A whole look, before the polling
//! thread sleeps and before a verdict, is up to date; one before a verdict is charged to the
//! program.

use core::sync::atomic::Ordering;
use tailwater_sched::alloc::KthreadLook;
use tailwater_shm::Cycles;

use crate::runtime::Runtime;
use crate::status_cache::Status;

/// Maximum number of others read with a slice because something may wait there.
pub(super) const WAITING: usize = 4;

/// Copies the words of a kthread into the observation.
#[inline(always)]
pub(super) fn read(runtime: &Runtime, index: usize, look: &mut KthreadLook, now: Cycles) -> Status {
    let kthread = &runtime.kthreads[index];
    let is_held = runtime.held.is_some_and(|held| usize::from(held.kthread) == index);
    let status = &runtime.region.kthread(index as u16).status;
    (look.runq_head, look.runq_tail) = status.runq_ends();
    // Relaxed: hints; a stale value is read again at a later look.
    look.overflow =
        status.overflow.load(Ordering::Relaxed).saturating_add(status.injected.load(Ordering::Relaxed));
    look.hosted = status.hosted.load(Ordering::Relaxed) != 0;
    let timer = status.next_timer.load(Ordering::Relaxed);
    look.timer_due = timer <= now;
    let lost_wakes = status.lost_wakes.load(Ordering::Relaxed);
    look.ingress_head = kthread.ingress.unchecked_tail();
    look.ingress_tail = if is_held { look.ingress_head } else { kthread.ingress.head() };
    look.left_out = false;
    // The position of the IOKernel in the ingress ring is among them: frames may come in for a
    // kthread that has just parked, because the polling thread did not run in between.
    let positions = [look.runq_head, look.runq_tail, look.ingress_head, kthread.ingress.head()];
    let positions = positions.map(u64::from).iter().sum::<u64>();
    // The overflow list shrinks when the queue grows.
    let mark = positions.wrapping_add(u64::from(look.overflow) << 32).wrapping_add(timer);
    // Each kthread has its factor: what moves to another one is news.
    let mark = mark.wrapping_mul(2 * index as u64 + 1);
    Status { mark, timer, lost_wakes }
}

/// Marks all kthreads as left out, until they are read. Returns some of those at which something
/// may wait.
pub(super) fn leave_out(runtime: &Runtime, looks: &mut [KthreadLook]) -> [Option<usize>; WAITING] {
    let held = runtime.held.map(|held| usize::from(held.kthread));
    let (mut waiting, mut free) = ([None; WAITING], 0);
    for (index, (kthread, look)) in runtime.kthreads.iter().zip(looks).enumerate() {
        look.left_out = true;
        let is_held = held == Some(index);
        if is_held {
            look.ingress_tail = look.ingress_head;
        }
        // Whether frames that were put in since are still there, only the program's own position
        // shows.
        let may_wait = look.has_work() || !is_held && kthread.ingress.head() != look.ingress_head;
        // Those with cores are read anyway.
        if free < WAITING && !kthread.may_run && may_wait {
            waiting[free] = Some(index);
            free += 1;
        }
    }
    waiting
}
