//! A memcached-compatible key-value store.
//!
//! Owns the [store] itself, the [protocols](protocol) as state machines over byte buffers, the
//! [servers](server) on Tailwater and on kernel sockets, [replication](replicate), and the
//! [command line](cli). The protocol follows memcached 1.6 and its protocol.txt to the byte;
//! differences are listed in the book.
//!
//! Both servers run the same [`protocol::Connection`] over the same [`store::Store`], one thread
//! per connection; they differ only in whose threads and sockets these are.

#![forbid(unsafe_code)]

mod accepted;
pub mod cli;
pub mod clock;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod pid_file;
pub mod protocol;
pub mod replicate;
pub mod server;
pub mod service;
pub mod store;
mod system;

// Some tests run the runtime.
#[cfg(test)]
tailwater::allocator!();
