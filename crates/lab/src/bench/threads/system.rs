//! The systems that are measured, the operations of each, and its process.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;

use super::operation::Operation;
use tailwater_testbed::child::{ChildProcess, Spec};
use tailwater_testbed::machine::Machine;

/// A library of threads, or the bare machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// User threads by default, each with its own thread-local storage
    Tailwater,
    /// User threads that share their core's thread-local storage, as in Shenango and Arachne
    TailwaterSharedTls,
    /// Kernel threads
    Std,
    /// Tasks: a current-thread runtime on one core, a multi-thread one on more
    Tokio,
    /// Stackful coroutines
    May,
    /// Goroutines; needs a Go toolchain
    Go,
    /// Instructions and cache lines
    #[value(skip)]
    Machine,
}

impl System {
    /// All systems that can be chosen, in the order of the table.
    pub const CHOICE: [Self; 6] =
        [Self::Tailwater, Self::TailwaterSharedTls, Self::Std, Self::Tokio, Self::May, Self::Go];

    /// Returns its name in arguments and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tailwater => "tailwater",
            Self::TailwaterSharedTls => "tailwater-shared-tls",
            Self::Std => "std",
            Self::Tokio => "tokio",
            Self::May => "may",
            Self::Go => "go",
            Self::Machine => "machine",
        }
    }

    /// Returns the system of that name, the machine included.
    ///
    /// # Errors
    /// If there is none.
    pub fn of_name(name: &str) -> Result<Self, String> {
        let mut all = Self::CHOICE.into_iter().chain([Self::Machine]);
        all.find(|system| system.name() == name).ok_or_else(|| format!("{name} is not a system of threads"))
    }

    /// Returns whether the system has the operation.
    pub fn has(self, op: Operation) -> bool {
        match op {
            Operation::Line | Operation::CasPair | Operation::Rdtsc => self == Self::Machine,
            Operation::RcuRead | Operation::RcuReplace | Operation::DispatchPlaced => {
                matches!(self, Self::Tailwater | Self::TailwaterSharedTls)
            }
            Operation::ChannelMany => matches!(self, Self::Tailwater | Self::TailwaterSharedTls | Self::Go),
            Operation::Select => !matches!(self, Self::Machine | Self::Std | Self::May),
            // The others have no thread that waits for nothing but its own handle.
            Operation::UnparkRemote | Operation::UnparkAmong(_) => {
                matches!(self, Self::Tailwater | Self::TailwaterSharedTls | Self::Std | Self::May)
            }
            // The kernel decides when and where the next thread runs.
            Operation::ExitTurnaround => !matches!(self, Self::Machine | Self::Std),
            _ => self != Self::Machine,
        }
    }

    /// Maximum number of idle threads that the system can have.
    pub fn max_idle(self) -> u64 {
        match self {
            // Limits of the kernel: `threads-max`, `pid_max`, control groups.
            Self::Std => 4000,
            // A mapping and a guard page each, against `vm.max_map_count` (65,530 by default).
            Self::May => 20_000,
            _ => u64::MAX,
        }
    }

    /// Starts its process on `cores`, which runs standalone with default settings, whatever the
    /// environment says. `go` is the compiled Go program.
    pub fn start(self, cores: &[usize], machine: &Machine, go: Option<&Path>) -> Result<ChildProcess> {
        let (app, first) = match go.filter(|_| self == Self::Go) {
            Some(program) => ("exec", program.display().to_string()),
            None => ("threads", self.name().to_owned()),
        };
        let arguments = vec![first, cores.len().to_string(), machine.tsc_hz.to_string()];
        ChildProcess::start(&Spec { app, arguments, cores: cores.to_vec(), ..Spec::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_the_words_of_the_command_line() {
        for system in System::CHOICE {
            assert_eq!(System::from_str(system.name(), false), Ok(system));
            assert_eq!(System::of_name(system.name()), Ok(system));
        }
        assert!(System::from_str("machine", false).is_err(), "the floor is always measured");
    }

    #[test]
    fn every_operation_has_a_peer_but_those_that_only_tailwater_has() {
        for op in Operation::ROUNDS.into_iter().filter(|&op| System::Tailwater.has(op)) {
            let own = matches!(op, Operation::RcuRead | Operation::RcuReplace);
            let peers = [System::Std, System::Tokio, System::May, System::Go];
            assert_eq!(peers.into_iter().any(|system| system.has(op)), !own, "{op:?}");
        }
    }

    #[test]
    fn the_floor_is_the_machines_alone() {
        for op in Operation::ROUNDS {
            let floor = matches!(op, Operation::Line | Operation::CasPair | Operation::Rdtsc);
            assert_eq!(System::Machine.has(op), floor, "{op:?}");
            assert_eq!(System::Tailwater.has(op), !floor, "{op:?}");
        }
    }
}
