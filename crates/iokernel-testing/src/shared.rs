//! The state that all kthreads of a raw runtime share: its memory and its end.

use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use tailwater_shm::board::{WakeBoard, WakePlace};
use tailwater_shm::control::{ProgramClass, Welcome};
use tailwater_shm::layout::{AWAKE, Region};

/// What all kthreads of a raw runtime share.
#[derive(Debug)]
pub struct Shared {
    /// The region; hostile tests overwrite it.
    pub region: Region,
    /// The IOKernel's answer to the registration.
    pub welcome: Welcome,
    pub(crate) class: ProgramClass,
    pub(crate) doorbell: OwnedFd,
    /// Where its kthreads wake those of others and sleep, and the place of the first.
    pub(crate) wake_places: Option<(WakeBoard, u16)>,
    pub(crate) stop: AtomicBool,
    pub(crate) spin_us: u64,
    pub(crate) idle_us: u64,
}

impl Shared {
    /// Rings the IOKernel's doorbell if it sleeps. Call after the work is visible.
    pub fn ring_if_asleep(&self) {
        // SeqCst: pairs with the IOKernel's fence between setting `asleep` and looking at our
        // queues.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if self.region.asleep().load(Ordering::Relaxed) != AWAKE {
            // Fails only if its counter is at the maximum, and then it is readable already.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// Returns the board and the place of kthread `index` there.
    pub fn wake_place(&self, index: u16) -> Option<(&WakeBoard, WakePlace)> {
        let (board, first) = self.wake_places.as_ref()?;
        Some((board, WakePlace::new(first.checked_add(index)?)?))
    }

    /// Returns whether the runtime is ending.
    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
