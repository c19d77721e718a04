//! The spin service, over sockets of both kinds.

mod command;
mod loopback;
mod user_threads;

tailwater::allocator!();
