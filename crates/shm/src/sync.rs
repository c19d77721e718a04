//! The atomics this crate is written against: `core`'s, or loom's when compiled with `--cfg loom`.
//!
//! Everything that crosses a process boundary is built from these names only, so that the loom models run the very code
//! that ships. Spin hints go through [`spin_hint`], which loom must see as a yield.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Tells the processor (or loom's scheduler) that this is a spin loop.
#[inline(always)]
pub fn spin_hint() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
