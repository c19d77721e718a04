//! The spin service, over sockets of both kinds.

mod command;
mod loopback;
mod user_threads;

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc::new();
