//! The lock-free protocols of the runtime: one atomic word each, except the mailbox of a worker.
//!
//! They know nothing of threads, kthreads and queues, so the loom models in
//! [`models`](super::models) run them as they ship.

pub mod join;
pub mod mailbox;
pub mod mutex;
pub mod polled;
pub mod rwlock;
pub mod section;
pub mod worker_mailbox;
