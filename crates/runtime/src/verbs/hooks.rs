//! Functions of the layers above that the scheduler calls.
//!
//! [`boot`](crate::boot) sets those of the network before the first kthread runs, and the first
//! background thread sets the keeper's. Each is called at most once per visit to the scheduler, so
//! an indirect call costs nothing that can be measured.

use crate::records::ingress::Taken;
use std::sync::OnceLock;
use tailwater_shm::ring::Consumer;

/// The network's part of a visit to the scheduler. Both functions run in the scheduler context with
/// preemption off.
#[derive(Debug)]
pub struct Network {
    /// Processes frames of kthread `ring`'s ingress ring, at most `limit`.
    pub take_frames: fn(consumer: &mut Consumer, ring: u16, limit: u64) -> Taken,
    /// Postpones timers that are not needed any more, before the core is given up. True if that
    /// made a thread runnable.
    pub prune_timers: fn() -> bool,
}

static NETWORK: OnceLock<Network> = OnceLock::new();

/// Sets the network's functions. The first call counts.
pub fn install(network: Network) {
    NETWORK.get_or_init(|| network);
}

/// Returns the network's functions, `None` before the runtime has booted.
pub fn network() -> Option<&'static Network> {
    NETWORK.get()
}

static ROUSE_KEEPER: OnceLock<fn()> = OnceLock::new();

/// Sets what ends the rest of the [keeper](super::background). The first call counts.
pub fn install_keeper(rouse: fn()) {
    ROUSE_KEEPER.get_or_init(|| rouse);
}

/// Ends the rest of the keeper, if there is one.
pub fn rouse_keeper() {
    if let Some(rouse) = ROUSE_KEEPER.get() {
        rouse();
    }
}
