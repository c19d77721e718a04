//! An attacker that has two programs: one that sends frames, and one that is stopped and to which
//! they are sent.

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicBool;

use super::behaviours::Pings;
use super::{Event, runtimes};
use crate::child::{self, RawChild};
use crate::runtime::{RawError, RawRuntime, RawSpec};

/// Only as a process of its own, of which the stopped program is a copy.
pub(super) fn disturb(
    socket: &str,
    spec: &RawSpec,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
) -> Result<(), RawError> {
    let start = || {
        let stopped = stopped(socket, spec)?;
        let to = address_of(socket, &stopped)?;
        let pings = |_| Box::new(Pings { to, next: 0 }) as Box<_>;
        Ok((RawRuntime::start(socket, spec, pings)?, stopped))
    };
    runtimes(stop, report, start, |_| ())
}

/// Starts a program that registers and then stops itself.
fn stopped(socket: &str, spec: &RawSpec) -> Result<RawChild, RawError> {
    let mut spec = spec.clone();
    spec.register.name += "-stopped";
    let why = match RawChild::start_stopped(child::copy_of_this()?, socket, &spec) {
        Ok(child) => return Ok(child),
        Err(why) => why,
    };
    Err(match why.strip_prefix("refused: ") {
        Some(why) => RawError::Refused(why.to_owned()),
        None => RawError::Unexpected(why),
    })
}

/// Returns the address of a program, by its process.
fn address_of(socket: &str, program: &RawChild) -> Result<Ipv4Addr, RawError> {
    let document = crate::stats(socket)?;
    let runtimes = document["runtimes"].as_array();
    let own = runtimes.into_iter().flatten().find(|runtime| runtime["pid"] == program.pid());
    own.and_then(|own| own["ip"].as_str()?.parse().ok())
        .ok_or_else(|| RawError::Refused("the stopped program is not in the statistics".to_owned()))
}
