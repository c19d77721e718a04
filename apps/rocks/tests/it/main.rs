//! The RocksDB service on user threads, attached and restarted.

mod attached;
mod common;
mod preemption;
mod quantum;
mod restart;
mod user_threads;

tailwater::allocator!();
