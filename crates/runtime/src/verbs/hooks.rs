//! Functions of the layers above that the scheduler calls.
//!
//! [`boot`](crate::boot) sets the functions before the first kthread runs. Each is called at most
//! once per visit to the scheduler, so an indirect call costs nothing that can be measured.

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
