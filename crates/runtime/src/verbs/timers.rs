//! Timers of kthreads: set, taken out, fired.

use super::local;
use crate::ground::timer::TimerNode;
use crate::records::kthread::{Kthread, ThisKthread};
use crate::records::runtime::runtime;
use core::sync::atomic::Ordering::Relaxed;
use tailwater_shm::Cycles;

/// Timers fired in one go.
const TIMER_BATCH: usize = 64;

/// A timer in a kthread's heap. Dropping it takes the timer out, and waits for one that is firing.
#[derive(Debug)]
#[must_use = "the timer is taken out at once if this is dropped"]
pub struct Armed<'n> {
    kthread: &'static Kthread,
    node: &'n TimerNode,
}

/// Starts a timer on the caller's kthread.
///
/// # Safety
/// 1. The node is in no heap.
/// 2. The result is dropped, not leaked, before the node dies.
pub unsafe fn arm<'n>(kthread: ThisKthread<'_>, node: &'n TimerNode, deadline: Cycles) -> Armed<'n> {
    let kthread = kthread.for_ever();
    let mut timers = kthread.timers.lock();
    // SAFETY: by point 1; `Armed` borrows the node, and its drop removes it.
    unsafe { timers.insert(node, deadline) };
    kthread.shared.status.next_timer.store(timers.next(), Relaxed);
    drop(timers);
    if kthread.waiting() > 0 {
        local::watch_timers(runtime());
    }
    Armed { kthread, node }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        let mut timers = self.kthread.timers.lock();
        // SAFETY: `arm` put it into this heap.
        if unsafe { timers.remove(self.node) } {
            self.kthread.shared.status.next_timer.store(timers.next(), Relaxed);
        }
    }
}

/// Fires a batch of `kthread`'s timers that are due at `now`, unless another kthread does so;
/// returns how many.
pub fn fire(kthread: &Kthread, now: Cycles) -> u64 {
    if kthread.shared.status.next_timer.load(Relaxed) > now {
        return 0;
    }
    let Some(mut timers) = kthread.timers.try_lock() else { return 0 };
    let fired = timers.fire_due(now, TIMER_BATCH);
    kthread.shared.status.next_timer.store(timers.next(), Relaxed);
    fired as u64
}
