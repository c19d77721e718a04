//! The store on Tailwater: sockets of the runtime's own network stack.
//!
//! Connections have a user thread each, or an event loop on each kthread serves them (`--events`,
//! `events`). A thread waits in `read` without holding a core, and the runtime steals it like any
//! other. Every socket call is a poll point, and between two of them lies at most a batch of
//! requests that fit a connection's buffers. The service runs until its process ends: the IOKernel
//! takes back what a process held.

use std::io;
use std::sync::Arc;

use super::{Running, Turns, events, serve_by_threads};
use crate::clock::Clock;
use crate::service::{Mode, Service};
use crate::system::Tailwater;

/// Opens the ports that the service's settings name and serves on them until the process ends. Call
/// it on a user thread.
///
/// # Errors
/// If an address is in use or not local, no thread can be started, or the settings exclude one
/// another.
pub fn start(service: &Arc<Service>, clock: Clock) -> io::Result<Running> {
    let settings = &service.settings;
    let refused = |message| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    let turns = match settings.mode {
        Mode::Events if service.replication.get().is_some() => {
            return refused("an event loop does not wait for backups: leave --events or the backups out");
        }
        Mode::Dispatch(_) if settings.udp_port != 0 => {
            return refused("datagrams are not served by a dispatcher: leave -U or --dispatch out");
        }
        Mode::Dispatch(sizes) => Some(Arc::new(Turns::start(sizes, settings.max_connections)?)),
        Mode::Threads | Mode::Events => None,
    };
    let tcp = match settings.mode {
        Mode::Events => events::start(service, clock)?,
        _ => serve_by_threads::<Tailwater>(service, clock, turns.clone())?,
    };
    super::start::<Tailwater>(service, clock, tcp, turns)
}
