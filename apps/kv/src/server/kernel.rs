//! The store on the kernel's sockets: what Tailwater is compared with.
//!
//! An ordinary thread per connection, blocked in `read(2)`: one system call per direction and batch of requests, the same
//! code everywhere else, and simple enough to be believed. It is a fair baseline up to some thousands of connections; beyond,
//! stacks and the kernel's scheduler weigh, where memcached has a few threads with `epoll`.

use std::io;
use std::sync::Arc;

use super::system::Kernel;
use super::{Clock, Listening};
use crate::service::Service;

/// Stack of a thread, in bytes; a connection's uses a few kibibytes.
pub(super) const STACK: usize = 128 << 10;

/// Opens the ports that the service's settings name and serves on them until the process ends.
///
/// # Errors
/// When an address is taken or not ours, or no thread can be started.
pub fn start(service: &Arc<Service>, clock: Clock) -> io::Result<Listening> {
    super::start::<Kernel>(service, clock)
}
