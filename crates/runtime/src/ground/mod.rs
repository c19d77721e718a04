//! The ground layer: machine, memory and data structures. It knows nothing of kthreads and user
//! threads.
//!
//! Layers of this crate, from the bottom; imports point down only:
//!
//! | layer | holds |
//! |---|---|
//! | `ground` | assembly, thread-local blocks, the preemption guard, locks, lists, queues, caches |
//! | [`records`](crate::records) | user thread, kthread, runtime: what exists |
//! | [`verbs`](crate::verbs) | ready, block, wait, steal, lease: what happens |
//! | above | `sync`, `thread`, `time`, `net`, `debug`, `config`; `boot` puts it all together |
//!
//! This layer also builds with `--cfg loom`, and [`words`] is what the models check.

pub mod arch;
pub mod atomic;
pub mod blocks;
#[cfg(not(loom))]
pub mod edge;
pub mod guard;
pub mod halt;
pub mod list;
pub mod membarrier;
pub mod memory;
pub mod owner_cell;
pub mod pollers;
pub mod random;
pub mod rseq;
pub mod runq;
pub mod sleepers;
pub mod slice;
pub mod spin;
pub mod stderr;
pub mod timer;
pub mod tls;
pub mod words;

#[cfg(all(test, loom))]
mod models;
