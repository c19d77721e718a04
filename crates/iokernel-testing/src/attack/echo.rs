//! An attacker with an honest service, which it floods from Linux's side of a TAP device.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use super::Event;
use crate::roles::Echo;
use crate::runtime::{RawError, RawRuntime, RawSpec};

/// Frames between two looks whether to stop.
const FRAMES: usize = 64;

/// Starts an echo service and sends it datagrams without end. The answers go back through the
/// device: to the polling thread a frame to it costs as much as twenty between programs.
pub(super) fn flood(socket: &str, stop: &AtomicBool, report: &mut impl FnMut(Event)) -> Result<(), RawError> {
    let service = RawRuntime::start(socket, &RawSpec::new("attacker"), |_| Box::<Echo>::default())?;
    let client = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|client| client.connect((service.ip(), 7)).map(|()| client))
        .map_err(|error| RawError::Unexpected(format!("no socket of Linux's: {error}")))?;
    report(Event::UnderWay);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..FRAMES {
            // Fails while the device's queue is full.
            let _ = client.send(&[0; 32]);
        }
    }
    Ok(())
}
