//! Idle kthreads of a standalone runtime: who sleeps, and who wakes whom.
//!
//! Without an IOKernel nobody watches the queues, so whoever adds work wakes a sleeper, if there is one and nobody
//! is already searching (Go's and Tokio's rule: one searcher at a time is enough, and it wakes the next when it finds work).
//!
//! The race is store-load: the producer queues, then looks for sleepers; the sleeper announces itself, then looks at the queues.
//! The producer is hot and the sleeper is not, so the sleeper pays: `membarrier(2)` makes every running thread of the
//! process pass a full barrier. Where the kernel lacks it, the producer fences.

use crate::kthread::{Kthread, NoPreempt};
use crate::runtime::{Runtime, runtime};
use crate::worker::work_visible;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;
use tailwater_shm::sync::spin_hint;
use tailwater_shm::{Cycles, clock};

/// Most kthreads of a standalone runtime: bits of the sleepers' mask.
pub const MAX_KTHREADS: u16 = 64;

const MEMBARRIER_CMD_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(command: i32) -> bool {
    // SAFETY: membarrier has no memory operands.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Sleepers and searchers of one runtime.
#[derive(Debug, Default)]
pub struct Sleepers {
    /// Bit k: kthread k sleeps or is about to. Set by k, cleared by whoever wakes it (or by k itself).
    mask: AtomicU64,
    /// Kthreads polling without work.
    searching: AtomicU32,
    /// Whether sleepers can fence on behalf of producers.
    has_membarrier: AtomicBool,
}

impl Sleepers {
    /// Registers with the kernel. Call before the first kthread runs.
    pub fn prepare(&self) {
        self.has_membarrier.store(membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED), Ordering::Relaxed);
    }

    /// Wakes a sleeper if there is one and nobody searches. `fenced` says the caller has fenced after queuing.
    fn wake_one(&self, runtime: &Runtime, fenced: bool) {
        if !fenced && !self.has_membarrier.load(Ordering::Relaxed) {
            // Pairs with the fence in `idle`.
            fence(Ordering::SeqCst);
        }
        let mask = self.mask.load(Ordering::Relaxed);
        if mask == 0 || self.searching.load(Ordering::Relaxed) > 0 {
            return;
        }
        let bit = mask & mask.wrapping_neg();
        // AcqRel: whoever clears the bit owns the wake; the searcher count goes up on its behalf.
        if self.mask.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
            self.searching.fetch_add(1, Ordering::Relaxed);
            runtime.kthreads[bit.trailing_zeros() as usize].slot.wake();
        }
    }
}

/// A user thread became runnable on this kthread.
#[inline]
pub fn work_added(_guard: &NoPreempt) {
    let runtime = runtime();
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

/// Polls for a while, then sleeps until woken or a timer is due. Returns when there may be work.
pub fn idle(kthread: &Kthread, runtime: &Runtime) {
    let sleepers = &runtime.sleepers;
    sleepers.searching.fetch_add(1, Ordering::Relaxed);
    let deadline = runtime.idle_deadline(clock::now());
    loop {
        let now = clock::now();
        if work_visible(kthread, runtime, now) {
            stop_searching(runtime);
            return;
        }
        if now >= deadline {
            break;
        }
        spin_hint();
    }
    let ticket = kthread.slot.ticket();
    let bit = 1u64 << kthread.index;
    sleepers.mask.fetch_or(bit, Ordering::AcqRel);
    sleepers.searching.fetch_sub(1, Ordering::Relaxed);
    // Pairs with `wake_one`: either we see the work queued before it looked, or it sees our bit.
    if !sleepers.has_membarrier.load(Ordering::Relaxed) || !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        sleepers.has_membarrier.store(false, Ordering::Relaxed);
    }
    fence(Ordering::SeqCst);
    if !work_visible(kthread, runtime, clock::now()) {
        kthread.slot.wait(ticket, until_next_timer(runtime));
    }
    // AcqRel: as in `wake_one`. A waker that cleared the bit counted us as searching.
    if sleepers.mask.fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
        stop_searching(runtime);
    }
}

/// The last searcher to find work looks for a successor: there may be more work than it can do.
fn stop_searching(runtime: &Runtime) {
    if runtime.sleepers.searching.fetch_sub(1, Ordering::AcqRel) == 1 {
        runtime.sleepers.wake_one(runtime, false);
    }
}

/// Time to the earliest timer of any kthread; `None` when there is none.
fn until_next_timer(runtime: &Runtime) -> Option<Duration> {
    let next = runtime.kthreads.iter().map(|k| k.shared.status.next_timer.load(Ordering::Relaxed)).min()?;
    (next != Cycles::MAX)
        .then(|| Duration::from_nanos(runtime.clock.to_ns(next.saturating_sub(clock::now()))))
}
