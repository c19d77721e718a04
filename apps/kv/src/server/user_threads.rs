//! The store on Tailwater: user threads on sockets of the runtime's own network stack.
//!
//! A user thread per connection: it waits in `read` without holding a core, and the runtime steals
//! it like any other. Every socket call is a poll point, and between two of them lies at most a
//! batch of requests that fit a connection's buffers. The service runs until its process ends: the
//! IOKernel takes back what a process held.

use std::io;
use std::sync::Arc;

use super::system::Tailwater;
use super::{Clock, Listening, Turns};
use crate::service::Service;

/// Opens the ports that the service's settings name and serves on them until the process ends. Call
/// it on a user thread.
///
/// # Errors
/// If an address is in use or not local, no thread can be started, or the settings ask for a
/// dispatcher that is not possible.
pub fn start(service: &Arc<Service>, clock: Clock) -> io::Result<Listening> {
    let settings = &service.settings;
    if let Some(sizes) = settings.dispatch {
        if settings.udp_port != 0 {
            let message = "datagrams are not served by a dispatcher: leave -U or --dispatch out";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let turns = Turns::start(sizes, settings.max_connections)?;
        let twice = |_| io::Error::other("the service has been started before: make another");
        service.turns.set(turns).map_err(twice)?;
    }
    super::start::<Tailwater>(service, clock)
}
