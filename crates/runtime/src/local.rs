//! Idle kthreads of a standalone runtime: who sleeps, and who wakes whom.
//!
//! Without an IOKernel nobody watches the queues, so whoever queues work that no polling kthread took wakes a sleeper, if there is one
//! and none is on its way already; a thief that finds more than one thread wakes the next.
//!
//! The race is store-load: the producer queues, then looks for sleepers; the sleeper announces itself, then looks at the queues.
//! The producer is hot and the sleeper is not, so the sleeper pays: `membarrier(2)` makes every running thread of the
//! process pass a full barrier. Where the kernel lacks it, the producer fences.

use crate::handover::{self, Found};
use crate::kthread::Kthread;
use crate::runtime::Runtime;
use crate::uthread::Uthread;
use crate::worker::work_visible;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;
use tailwater_shm::{Cycles, clock};

/// Most kthreads of a standalone runtime: bits of the sleepers' mask.
pub const MAX_KTHREADS: u16 = 64;

const MEMBARRIER_CMD_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(command: i32) -> bool {
    // SAFETY: membarrier has no memory operands.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// The sleepers of one runtime.
#[derive(Debug, Default)]
pub struct Sleepers {
    /// Bit k: kthread k sleeps or is about to. Set by k, cleared by whoever wakes it (or by k itself).
    mask: AtomicU64,
    /// Kthreads that were woken and do not poll yet.
    waking: AtomicU32,
    /// Whether sleepers can fence on behalf of producers.
    has_membarrier: AtomicBool,
}

impl Sleepers {
    /// Registers with the kernel. Call before the first kthread runs.
    pub fn prepare(&self) {
        self.has_membarrier.store(membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED), Ordering::Relaxed);
    }

    /// Wakes a sleeper if there is one and none is on its way. `fenced` says the caller has fenced after queuing.
    fn wake_one(&self, runtime: &Runtime, fenced: bool) {
        if !fenced && !self.has_membarrier.load(Ordering::Relaxed) {
            // Pairs with the fence in `idle`.
            fence(Ordering::SeqCst);
        }
        let mask = self.mask.load(Ordering::Relaxed);
        if mask == 0 || self.waking.load(Ordering::Relaxed) > 0 {
            return;
        }
        let bit = mask & mask.wrapping_neg();
        // AcqRel: whoever clears the bit owns the wake, and counts it for the sleeper to discount.
        if self.mask.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
            self.waking.fetch_add(1, Ordering::Relaxed);
            runtime.kthreads[bit.trailing_zeros() as usize].slot.wake();
        }
    }
}

/// A user thread was queued on a kthread.
#[inline]
pub fn work_added(runtime: &Runtime) {
    if runtime.kthreads.len() > 1 && !runtime.is_attached() {
        runtime.sleepers.wake_one(runtime, false);
    }
}

/// A user thread was injected by an ordinary thread.
pub fn work_injected(runtime: &Runtime) {
    // Pairs with the fence in `idle`.
    fence(Ordering::SeqCst);
    runtime.sleepers.wake_one(runtime, true);
}

/// Polls for a while, then sleeps until woken or a timer is due. Returns the thread that was handed over, if one was; else there may
/// be work to find.
pub fn idle(kthread: &Kthread, runtime: &Runtime) -> Option<&'static Uthread> {
    match handover::poll(kthread, runtime, runtime.idle_deadline(clock::now()), || false) {
        Found::Thread(uthread) => return Some(uthread),
        Found::Work | Found::Stop => return None,
        Found::Nothing => {}
    }
    let sleepers = &runtime.sleepers;
    let ticket = kthread.slot.ticket();
    let bit = 1u64 << kthread.index;
    sleepers.mask.fetch_or(bit, Ordering::AcqRel);
    // Pairs with `wake_one`: either we see the work queued before it looked, or it sees our bit.
    if !sleepers.has_membarrier.load(Ordering::Relaxed) || !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        sleepers.has_membarrier.store(false, Ordering::Relaxed);
    }
    fence(Ordering::SeqCst);
    if !work_visible(kthread, runtime, clock::now()) {
        kthread.slot.wait(ticket, until_next_timer(runtime));
        keep_apart(kthread, runtime);
    }
    // AcqRel: as in `wake_one`. A waker that cleared the bit has counted us.
    if sleepers.mask.fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
        sleepers.waking.fetch_sub(1, Ordering::Relaxed);
    }
    None
}

/// Moves the calling kthread off a CPU that another one of the runtime was last seen on, to one that none was, if there is one.
///
/// Linux wakes a thread where its waker runs if the CPU the thread ran on last shares no cache with any idle one, as between
/// virtual CPUs that a host declares as sockets. Once two kthreads have met so they stay together: each runs while the other
/// sleeps, the load balancer sees nothing to balance, and a wake costs the waker its core for as long as the other one polls.
pub fn keep_apart(kthread: &Kthread, runtime: &Runtime) {
    let here = rustix::thread::sched_getcpu();
    kthread.cpu.store(here, Ordering::Relaxed);
    let taken = |cpu| {
        runtime.kthreads.iter().any(|k| k.index != kthread.index && k.cpu.load(Ordering::Relaxed) == cpu)
    };
    if !taken(here) {
        return;
    }
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let free = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu) && !taken(cpu));
    if let Some(cpu) = free {
        let mut only = rustix::thread::CpuSet::new();
        only.set(cpu);
        // Refused or not, the kthread may run wherever it might before: this was a move, not a tie.
        let moved = rustix::thread::sched_setaffinity(None, &only).is_ok();
        if moved && rustix::thread::sched_setaffinity(None, &allowed).is_ok() {
            kthread.cpu.store(cpu, Ordering::Relaxed);
        }
    }
}

/// Time to the earliest timer of any kthread; `None` when there is none.
fn until_next_timer(runtime: &Runtime) -> Option<Duration> {
    let next = runtime.kthreads.iter().map(|k| k.shared.status.next_timer.load(Ordering::Relaxed)).min()?;
    (next != Cycles::MAX)
        .then(|| Duration::from_nanos(runtime.clock.to_ns(next.saturating_sub(clock::now()))))
}
