//! The errors of a start.
//!
//! Owns [`StartError`], which the parts of a start share.

use rustix::io::Errno;
use tailwater_ports::PortError;
use tailwater_shm::control::ControlError;
use tailwater_shm::memory::MemoryError;

use crate::config::ConfigError;
use crate::machine::CoreError;

/// Why an IOKernel could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cores cannot be used as configured.
    #[error(transparent)]
    Cores(#[from] CoreError),
    /// The control socket cannot be opened.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A port cannot work.
    #[error(transparent)]
    Port(#[from] PortError),
    /// There is no memory for the record of events.
    #[error("no record of core events: {0}")]
    Memory(MemoryError),
    /// The running IOKernel keeps its place.
    #[error("cannot take over from the IOKernel at {socket}: {why}")]
    Takeover {
        /// The control socket.
        socket: String,
        /// Its answer, and what to do.
        why: String,
    },
    /// The kernel has no descriptors or threads left.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's error.
        source: Errno,
    },
}
