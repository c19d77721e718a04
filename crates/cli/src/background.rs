//! `tailwater iokernel --takeover --background`: the takeover by a process of its own.
//!
//! Owns that process until it has replaced the previous IOKernel, and then leaves it alone. The
//! process has the same arguments except `--background`, and the same environment, standard output
//! and standard error.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tailwater_shm::control;

/// Time between two looks at the process.
const LOOK: Duration = Duration::from_millis(10);

/// Starts the process; returns once it is the one that listens at `socket`.
///
/// # Errors
/// If it ends before, which has left its reason on standard error.
pub fn start(socket: &str) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let words = std::env::args_os().skip(1).filter(|word| word != "--background");
    let mut child = Command::new(&program)
        .args(words)
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    while !listens(&child, socket) {
        if let Some(status) = child.try_wait().context("cannot wait for the new process")? {
            bail!("the new process {}; the IOKernel before goes on unless it says otherwise", how(status));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Returns whether the process is the one that has called listen(2) at `socket` last.
fn listens(child: &Child, socket: &str) -> bool {
    // Fails while neither accepts: then not yet.
    let peer = control::dial_within(socket, LOOK).ok().and_then(|socket| control::Peer::of(&socket).ok());
    peer.and_then(|peer| peer.pid).is_some_and(|pid| pid.cast_unsigned() == child.id())
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("has ended with status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "has ended".to_owned(),
    }
}
