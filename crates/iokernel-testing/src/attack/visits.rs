//! Attackers by the control socket: they connect, register, take memory and leave.

use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater_shm::control::{self, ClientMessage, ServerMessage};
use tailwater_shm::ring::{LINE, MIN_LINES};

use super::behaviours::Fickle;
use super::{Event, LOOK, Puppet, sleeping_threads};
use crate::runtime::{RawError, RawRuntime, RawSpec, register};

/// How long an idle connection is kept.
const KEPT: Duration = Duration::from_secs(1);
/// Length of a name that is refused, and quoted.
const LONG_NAME: usize = 1_000;
/// Number of kthreads of [`hoard`].
const HOARDERS: u16 = 16;
/// Size of its rings, two for each kthread: the default of `max-ring-bytes`, and the minimum.
const LARGEST_RING: u32 = 4 << 20;
const SMALLEST_RING: u32 = MIN_LINES * LINE as u32;
/// Number of regions that it keeps.
const KEPT_REGIONS: usize = 4;

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
            // The name may not be free yet, or it is too soon: then the IOKernel may also have hung
            // up before it was asked.
            Ok(_) | Err(RawError::Refused(_) | RawError::Control(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Registers a program that is lent a core in vain, and hangs up, over and over.
pub(super) fn come_and_go(
    socket: &str,
    spec: &RawSpec,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
) -> Result<(), RawError> {
    report(Event::UnderWay);
    while !stop.load(Ordering::Relaxed) {
        match RawRuntime::start(socket, spec, |_| Box::new(Fickle)) {
            Ok(runtime) => {
                runtime.submit(0);
                // The time for which it stays, unless it is expelled.
                runtime.farewell(LOOK);
            }
            // As in `churn`.
            Err(RawError::Refused(_) | RawError::Control(_)) => {}
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

/// Asks for as much memory as it gets and makes none of it. Of what it is offered it takes one half
/// and never answers the other; it keeps both for as long as the IOKernel does.
pub(super) fn hoard(socket: &str, spec: &RawSpec, stop: &AtomicBool, report: &mut impl FnMut(Event)) {
    let mut request = spec.clone().kthreads(HOARDERS).register;
    request.ring_bytes = LARGEST_RING;
    let (tids, _alive) = sleeping_threads(HOARDERS);
    report(Event::UnderWay);
    let (mut kept, mut offers) = (VecDeque::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        request.name = format!("{}-{offers}", spec.register.name);
        let Ok((connection, _, files)) = register(socket, &request) else {
            // Less, until it gets some: its user may not have more. Later on it is too soon.
            if offers == 0 {
                request.ring_bytes = (request.ring_bytes / 2).max(SMALLEST_RING);
            }
            continue;
        };
        offers += 1;
        if offers % 2 == 0 {
            let tids = tids.clone();
            // The answer is that it has made no memory.
            let answer = control::send(&connection, &ClientMessage::Kthreads { tids }, &[])
                .and_then(|()| control::receive::<ServerMessage>(&connection));
            drop(answer);
        }
        kept.push_back((connection, files));
        // For users whose memory the IOKernel makes, that is half a gigabyte.
        if kept.len() > KEPT_REGIONS {
            kept.pop_front();
        }
    }
}

/// Asks for what is refused, and has the reason logged, with a long name and control characters.
pub(super) fn refusals(socket: &str, spec: &RawSpec, stop: &AtomicBool, report: &mut impl FnMut(Event)) {
    let mut request = spec.register.clone();
    request.name = "\x1b[2J\n".chars().cycle().take(LONG_NAME).collect();
    report(Event::UnderWay);
    while !stop.load(Ordering::Relaxed) {
        let Ok(connection) = control::dial(socket) else { continue };
        if control::send(&connection, &ClientMessage::Register(request.clone()), &[]).is_ok() {
            let _ = control::receive::<ServerMessage>(&connection);
        }
    }
}
