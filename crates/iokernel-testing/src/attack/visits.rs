//! Attackers by the control socket: they connect, register and leave.

use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater_shm::control::{self, ClientMessage, ServerMessage};

use super::{Event, LOOK, Puppet};
use crate::runtime::{RawError, RawSpec};

/// How long an idle connection is kept.
const KEPT: Duration = Duration::from_secs(1);
/// Length of a name that is refused, and quoted.
const LONG_NAME: usize = 1_000;

/// Registers and hangs up, over and over.
pub(super) fn churn(
    socket: &str,
    spec: &RawSpec,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
) -> Result<(), RawError> {
    drop(Puppet::register(socket, spec)?);
    report(Event::UnderWay);
    while !stop.load(Ordering::Relaxed) {
        match Puppet::register(socket, spec) {
            // The name may not be free yet, or it is too soon.
            Ok(_) | Err(RawError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Keeps as many connections as it gets, without a word, and replaces them now and then.
pub(super) fn idle_connections(socket: &str, stop: &AtomicBool, report: &mut impl FnMut(Event)) {
    report(Event::UnderWay);
    let (mut kept, mut began): (Vec<OwnedFd>, _) = (Vec::new(), Instant::now());
    while !stop.load(Ordering::Relaxed) {
        match control::dial(socket) {
            // Also one that will be refused stays open on this side.
            Ok(connection) if kept.len() < 256 => kept.push(connection),
            _ => std::thread::sleep(LOOK),
        }
        if began.elapsed() > KEPT {
            kept.clear();
            began = Instant::now();
        }
    }
}

/// Asks for what is refused, and has the reason logged, with a long name and control characters.
pub(super) fn refusals(socket: &str, spec: &RawSpec, stop: &AtomicBool, report: &mut impl FnMut(Event)) {
    let mut wish = spec.register.clone();
    wish.name = "\x1b[2J\n".chars().cycle().take(LONG_NAME).collect();
    report(Event::UnderWay);
    while !stop.load(Ordering::Relaxed) {
        let Ok(connection) = control::dial(socket) else { continue };
        if control::send(&connection, &ClientMessage::Register(wish.clone()), &[]).is_ok() {
            let _ = control::receive::<ServerMessage>(&connection);
        }
    }
}
