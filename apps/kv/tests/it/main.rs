//! The store against a model, memcached and its clients.

mod command;
mod differential;
mod memory;
mod replication;
mod replication_processes;
mod user_threads;

tailwater::allocator!();
