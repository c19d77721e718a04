//! TCP sockets as programs use them: `std::net`'s names over the stack's connections.
//!
//! Owns: waiting, timeouts, the translation to `std::io`. Where `std` on Linux reports an errno, so does this.

mod error;
mod listener;
mod options;
mod settings;
mod stream;

pub use listener::{Incoming, TcpListener};
pub use options::{Congestion, TcpOptions};
pub use stream::TcpStream;
pub use tailwater_tcp::{Keepalive as TcpKeepalive, Stats as TcpStats};

use crate::runtime::deadline_after;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::io;
use tailwater_shm::Cycles;

fn set_timeout(cell: &AtomicU64, timeout: Option<Duration>) -> io::Result<()> {
    if timeout == Some(Duration::ZERO) {
        let why = "a timeout of zero: use None to wait for ever";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    // More than 584 years is for ever in all but name.
    let nanos = timeout.map_or(0, |t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
    cell.store(nanos, Relaxed);
    Ok(())
}

fn timeout(cell: &AtomicU64) -> Option<Duration> {
    match cell.load(Relaxed) {
        0 => None,
        nanos => Some(Duration::from_nanos(nanos)),
    }
}

/// When a call that starts to wait now has waited long enough.
fn deadline_in(cell: &AtomicU64) -> Option<Cycles> {
    timeout(cell).map(deadline_after)
}

fn valid_ttl(ttl: u32) -> io::Result<u8> {
    u8::try_from(ttl).ok().filter(|&ttl| ttl > 0).ok_or_else(|| {
        let why = format!("a time to live of {ttl}: 1 to 255 are possible");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}
