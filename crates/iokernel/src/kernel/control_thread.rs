//! The control thread from its start to its end.
//!
//! Owns its place and rank among Linux's threads. It is started before the IOKernel serves, so that
//! nothing is left to fail once another one has ended for it, and waits until its work begins.

use rustix::io::Errno;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::sched_setaffinity;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};
use tailwater_host::cpu_set;

use super::start_error::StartError;
use crate::control::watch::Heartbeat;
use crate::control::{Control, Notice, Outbox};
use crate::machine::Cores;

/// What the thread works with.
pub(super) struct Work {
    pub(super) control: Control,
    pub(super) heartbeat: Option<Heartbeat>,
    /// The polling thread, which it watches.
    pub(super) polling: Pid,
}

/// The control thread; stopped and joined on drop.
pub(super) struct ControlThread {
    handle: Option<JoinHandle<()>>,
    /// `None` after its work has begun.
    gate: Option<Sender<Work>>,
    notices: Outbox<Notice>,
    /// The polling thread's core is the only one that it may use.
    pub(super) shares_core: bool,
}

impl ControlThread {
    /// Starts the thread, which waits for [`begin`](Self::begin).
    ///
    /// # Errors
    /// If Linux refuses it.
    pub(super) fn start(cores: &Cores, notices: Outbox<Notice>) -> Result<Self, StartError> {
        // Not on the managed cores, and not on the polling thread's if there is another.
        let elsewhere: Vec<_> = cores
            .allowed
            .iter()
            .filter(|&&core| cores.managed.position(core).is_none() && core != cores.iokernel)
            .copied()
            .collect();
        let shares_core = elsewhere.is_empty();
        let set = if elsewhere.is_empty() { cores.unmanaged() } else { cpu_set(&elsewhere) };
        let (gate, begun) = channel::<Work>();
        let handle = Builder::new()
            .name("tailwater-control".to_owned())
            .spawn(move || {
                // The thread inherits the core and the priority of the one that starts it. A
                // refused change costs only speed.
                let _ = sched_setaffinity(None, &set);
                let _ = setpriority_process(None, 0);
                // Without work if the IOKernel is dropped before it runs.
                if let Ok(Work { control, heartbeat, polling }) = begun.recv() {
                    control.run(polling, heartbeat);
                }
            })
            .map_err(|e| StartError::System {
                what: "start the control thread",
                source: Errno::from_io_error(&e).unwrap_or(Errno::AGAIN),
            })?;
        Ok(Self { handle: Some(handle), gate: Some(gate), notices, shares_core })
    }

    /// Begins its work.
    pub(super) fn begin(&mut self, work: Work) {
        if let Some(gate) = self.gate.take() {
            // The thread waits for this.
            let _ = gate.send(work);
        }
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        self.gate = None;
        self.notices.send(Notice::Stop);
        if let Some(handle) = self.handle.take() {
            // Fails only if the thread panicked, which it has reported itself.
            let _ = handle.join();
        }
    }
}
