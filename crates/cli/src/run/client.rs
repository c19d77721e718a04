//! `tailwater run --client`: an ordinary program that talks to services of this machine.
//!
//! Owns the program's place: this process moves off the lent cores and, where another one remains,
//! off the IOKernel's, and then becomes the program, whose threads and children inherit that. The
//! program's sockets stay Linux's. [`connected`] finds clients that Linux may put on lent cores.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use rustix::thread::sched_setaffinity;
use serde_json::Value;
use tailwater_testbed::clients::Place;
use tailwater_testbed::machine::{cpu_set, usable_cores};
use tailwater_testbed::note;
use tailwater_testbed::statistics::lent_cores;

use super::{find_program, wait};
use crate::query;

pub mod connected;

/// Becomes the program, off the cores of the IOKernel at this socket.
///
/// # Errors
/// If no IOKernel answers, or the program cannot be started.
pub fn run(iokernel: &str, program: &[OsString]) -> anyhow::Result<()> {
    let (name, arguments) = program.split_first().context("no program is given")?;
    let file = find_program(name)?;
    wait::for_iokernel(iokernel);
    let statistics = query::statistics(iokernel).context("a client is kept off the cores of an IOKernel")?;
    let (polling, lent) = cores_of(&statistics)?;
    let place = Place::new(&usable_cores(), polling, &lent);
    match &place {
        Place::Free(_) => {}
        Place::Polling(core) => note!(
            "tailwater run: all cores but the IOKernel's are managed: the client shares core {core} with it, which yields"
        ),
        Place::Lent => note!(
            "tailwater run: all cores that this process may use are managed: the client stays there, behind the \
             programs that they are lent to"
        ),
    }
    if !place.cores().is_empty() {
        sched_setaffinity(None, &cpu_set(place.cores())).context("cannot leave the managed cores")?;
    }
    Err(Command::new(&file).args(arguments).exec())
        .with_context(|| format!("cannot start {}", file.display()))
}

/// Reads the polling thread's core and the lent ones.
///
/// # Errors
/// If they are not there.
pub fn cores_of(statistics: &Value) -> anyhow::Result<(usize, Vec<usize>)> {
    let polling = statistics["iokernel"]["iokernel_core"].as_u64();
    polling
        .and_then(|core| usize::try_from(core).ok())
        .zip(lent_cores(statistics))
        .context("the IOKernel does not say which cores it uses: it is of another version")
}
