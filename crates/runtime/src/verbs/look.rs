//! Looks at a kthread for work: what idle kthreads and watchers poll. Every answer may be stale.

use crate::records::kthread::{Kthread, NO_CORE};
use crate::records::runtime::Runtime;
use core::sync::atomic::Ordering::Relaxed;
use tailwater_shm::Cycles;

/// Returns whether there is anything that `kthread`, no [host](super::host), could do, a background
/// thread included.
pub fn any_work_visible(kthread: &Kthread, runtime: &Runtime, now: Cycles) -> bool {
    runtime.background.waits() || work_visible(kthread, runtime, now)
}

/// Returns whether there is anything that `kthread` could do before a background thread, be it
/// another kthread's.
pub fn work_visible(kthread: &Kthread, runtime: &Runtime, now: Cycles) -> bool {
    waits_for(kthread, runtime, now)
        || (runtime.kthreads.len() > 1 && runtime.kthreads.iter().any(|k| has_stealable(k, runtime, now)))
}

/// Returns whether something waits that `kthread` would turn to before it looked at others.
pub fn waits_for(kthread: &Kthread, runtime: &Runtime, now: Cycles) -> bool {
    kthread.has_frame() || has_threads(kthread, now) || runtime.injected() > 0 || kthread.has_pinned()
}

/// Returns whether other kthreads may take the frames in this kthread's ring: unless that is turned
/// off, and always while the kthread has no core, for it may not get one while others idle, or is
/// the host of a thread that may compute without end.
pub fn lets_take_frames(kthread: &Kthread, runtime: &Runtime) -> bool {
    runtime.steals_packets || kthread.core.load(Relaxed) == NO_CORE || kthread.hosts()
}

/// Returns whether there is anything that `kthread`, a [host](super::host), would do.
pub fn host_work_visible(kthread: &Kthread, runtime: &Runtime, now: Cycles) -> bool {
    kthread.has_frame() || has_threads(kthread, now) || host_shares(kthread, runtime, now)
}

/// Returns whether this host is the only kthread that could do other work that is visible.
pub fn host_shares(kthread: &Kthread, runtime: &Runtime, now: Cycles) -> bool {
    let lent = runtime.is_attached();
    let serves =
        |k: &&Kthread| k.index != kthread.index && !k.hosts() && !(lent && k.core.load(Relaxed) == NO_CORE);
    !runtime.kthreads.iter().any(serves) && work_visible(kthread, runtime, now)
}

fn has_stealable(kthread: &Kthread, runtime: &Runtime, now: Cycles) -> bool {
    (kthread.has_frame() && lets_take_frames(kthread, runtime)) || has_threads(kthread, now)
}

/// Returns whether user threads are runnable, or a timer that may wake one is due.
pub fn has_threads(kthread: &Kthread, now: Cycles) -> bool {
    !kthread.runq.is_empty()
        || kthread.overflowed() > 0
        || kthread.shared.status.next_timer.load(Relaxed) <= now
}
