//! The generator over Tailwater's own sockets: user threads of a runtime, attached to an IOKernel
//! like any other program.
//!
//! Owns the runtime that the generator runs in ([`Attached`]), and the wait between two requests.
//! `udp` and `tcp` are the transports: one user thread sends due requests and sleeps until the next
//! one, and one thread per flow or connection waits for answers. The measurement includes what a
//! program on Tailwater experiences, its own wake-ups too. The engine is shared under a lock that
//! is never held during a wait.
//!
//! No thread spins: on a core shared with the service, the spinning would be measured instead. A
//! request is late if no core was lent in time.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use tailwater::{RuntimeBuilder, StartError};

use crate::clock::Clock;
use crate::control::Control;
use crate::generator::Generator;
use crate::kernel_tcp::{Connections, TcpLoadError};
use crate::kernel_udp::{Load, Target, UdpError};
use crate::plan::Plan;
use crate::report::Measurement;

mod tcp;
#[cfg(test)]
mod tests;
mod udp;

/// Maximum number of requests sent before the lock is released.
const SEND_BATCH: usize = 16;

/// Longest wait of a reader, and of the sender, before it checks whether the run is over.
const GLANCE: Duration = Duration::from_millis(20);

/// Write timeout of all sockets: shorter than any wait, so that a request without room is not
/// waited for. Reads do wait, and blocking cannot be set for one direction alone.
const NO_WAIT: Duration = Duration::from_nanos(1);

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AttachedError {
    /// The runtime did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The runtime's thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// Over UDP.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// Over TCP.
    #[error(transparent)]
    Tcp(#[from] TcpLoadError),
}

/// The runtime of this process, of which there can be one. It ends with the process; dropping this
/// lets its first thread end.
#[derive(Debug)]
pub struct Attached {
    _end: Sender<()>,
}

impl Attached {
    /// Starts a runtime as `builder` says.
    ///
    /// # Errors
    /// [`AttachedError::Start`] if it cannot be had, [`AttachedError::Thread`].
    pub fn start(builder: RuntimeBuilder) -> Result<Self, AttachedError> {
        let (end, ended) = channel::<()>();
        let (told, started) = channel();
        let first = told.clone();
        let main = move || {
            // Both ends exist until this thread has reported or ended.
            let _ = first.send(None);
            let _ = tailwater::blocking(move || ended.recv());
        };
        // An ordinary thread, since the caller continues.
        std::thread::Builder::new()
            .name("runtime".to_owned())
            .spawn(move || drop(told.send(builder.run(main).err())))
            .map_err(AttachedError::Thread)?;
        match started.recv() {
            Ok(Some(error)) => Err(error.into()),
            // Its thread reports before it ends.
            Ok(None) | Err(_) => Ok(Self { _end: end }),
        }
    }

    /// Runs `plan` over UDP until it is over, under `control`. The target's core has no effect:
    /// cores are lent.
    ///
    /// # Errors
    /// [`AttachedError::Udp`], as [`kernel_udp::run_under`](crate::kernel_udp::run_under).
    pub fn run_udp(
        &self,
        plan: &Plan,
        load: &Load,
        target: &Target,
        control: &Control<'_>,
    ) -> Result<Measurement, AttachedError> {
        Ok(in_user_thread(|| udp::run(plan, load, target, control))?)
    }

    /// Runs `plan` over TCP until it is over, under `control`. The target's core has no effect.
    ///
    /// # Errors
    /// [`AttachedError::Tcp`], as [`kernel_tcp::run_under`](crate::kernel_tcp::run_under).
    pub fn run_tcp(
        &self,
        plan: &Plan,
        load: &Load,
        connections: Connections,
        target: &Target,
        control: &Control<'_>,
    ) -> Result<Measurement, AttachedError> {
        Ok(in_user_thread(|| tcp::run(plan, load, connections, target, control))?)
    }
}

/// Runs `f` as a user thread while the calling thread, an ordinary one, waits for it.
fn in_user_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    let joined = tailwater::thread::scope(|scope| scope.spawn(f).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Waits for the other generators, if there are any; returns the reading at which the schedule
/// starts.
fn start_ns(control: &Control<'_>, clock: &Clock) -> std::io::Result<u64> {
    // The gate may block in the kernel.
    tailwater::blocking(|| control.start_ns(clock))
}

/// Returns when the sender must check again: when a request is due, and after [`GLANCE`] at the
/// latest.
fn next_look(generator: &Generator, clock: &Clock) -> Instant {
    let latest = Instant::now() + GLANCE;
    let due = generator.next_event_ns().and_then(|due_ns| clock.instant_at(due_ns));
    due.map_or(latest, |due| due.min(latest))
}
