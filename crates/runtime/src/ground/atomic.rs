//! The atomics that the modelled parts of this layer use: `core`'s, or loom's with `--cfg loom`.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8};
pub use tailwater_shm::sync::{AtomicU32, AtomicU64, Ordering, spin_hint};
