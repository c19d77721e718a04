//! The store on the kernel's sockets, as the baseline of comparisons.
//!
//! An ordinary thread per connection, blocked in `read(2)`: one system call per direction and batch
//! of requests, with all other code the same. It is a fair baseline up to some thousands of
//! connections; beyond that, stacks and the kernel's scheduler dominate, and memcached uses a few
//! threads with `epoll`.

use std::io;
use std::sync::Arc;

use super::{Running, serve_by_threads};
use crate::clock::Clock;
use crate::service::{Mode, Service};
use crate::system::Kernel;

/// Opens the ports that the service's settings name and serves on them until the process ends.
///
/// # Errors
/// If an address is in use or not local, no thread can be started, or the settings ask for a
/// dispatcher or event loops.
pub fn start(service: &Arc<Service>, clock: Clock) -> io::Result<Running> {
    if service.settings.mode != Mode::Threads {
        let message = "kernel sockets have no dispatcher and no event loops: leave --linux, or --dispatch and --events, out";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let tcp = serve_by_threads::<Kernel>(service, clock, None)?;
    super::start::<Kernel>(service, clock, tcp, None)
}
