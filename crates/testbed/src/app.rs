//! Child processes that are the running program itself, under its hidden subcommand `app`.
//!
//! Owns the conditions of such a child (its cores, its priority, its death with the process that
//! started it) and the services that every program with a testbed contains.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use clap::{Args, Subcommand};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setpriority_process};
use rustix::thread::sched_setaffinity;
use tailwater_shm::priority;

use crate::machine::{core_list, cpu_set};
use crate::repeat;

/// The conditions that a child runs under.
#[derive(Debug, Args)]
pub struct Conditions {
    /// Die with this process, which started this one
    #[arg(long, value_name = "PID")]
    parent: Option<i32>,
    /// Cores that all threads may use
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Take the highest priority, where that is allowed
    #[arg(long)]
    raise: bool,
    /// Lead a session, which Linux ranks as a whole
    #[arg(long)]
    own_session: bool,
    /// Be a batch job: the lowest rank, of all children as well
    #[arg(long)]
    batch: bool,
}

impl Conditions {
    /// Puts the calling process under these conditions.
    ///
    /// # Errors
    /// If the kernel refuses one of them.
    pub fn apply(&self) -> anyhow::Result<()> {
        if let Some(parent) = self.parent {
            set_parent_process_death_signal(Some(Signal::KILL))
                .context("cannot bind this process to its parent")?;
            // The parent may have died before the call.
            anyhow::ensure!(getppid() == Pid::from_raw(parent), "the process that started this one is gone");
        }
        if self.batch {
            let (cores, own_session) = (self.cores.clone(), self.own_session);
            return Ok(tailwater_batch::Conditions { cores, own_session }.apply()?);
        }
        if self.own_session {
            rustix::process::setsid().context("cannot lead a session")?;
        }
        if !self.cores.is_empty() {
            sched_setaffinity(None, &cpu_set(&self.cores))
                .with_context(|| format!("cannot use cores {:?}", self.cores))?;
        }
        if self.raise {
            // Refused without CAP_SYS_NICE. Threads that start from here on inherit the priority.
            let _ = setpriority_process(None, priority::HIGHEST);
        }
        Ok(())
    }
}

/// Returns this program as a child under `cores`, if there are any, that dies with this process.
/// The service's conditions, name and arguments are still to be added. The child inherits no
/// variable named `TAILWATER_*`.
pub fn command(cores: &[usize]) -> Command {
    // Not by path: a newer build may have replaced the file.
    let mut command = Command::new("/proc/self/exe");
    command.args(["app", "--parent", &std::process::id().to_string()]);
    if !cores.is_empty() {
        command.args(["--cores", &core_list(cores)]);
    }
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"TAILWATER_") {
            command.env_remove(name);
        }
    }
    command
}

/// The services of every testbed.
#[derive(Debug, Subcommand)]
pub enum Service {
    /// Serve spin requests
    Spin(tailwater_spin::cli::Options),
    /// Price swaptions
    Swaptions(tailwater_swaptions::cli::Options),
    /// Run another program again and again as a batch job, and report its progress
    Repeat(repeat::Options),
    /// Become another program, under the same conditions
    Exec {
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

impl Service {
    /// Runs the service until it ends.
    ///
    /// # Errors
    /// The service's.
    pub fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Spin(options) => tailwater_spin::cli::run(options),
            Self::Swaptions(options) => tailwater_swaptions::cli::run(options),
            Self::Repeat(options) => repeat::run(options),
            Self::Exec { command } => {
                let (program, words) = command.split_first().context("no program")?;
                Err(Command::new(program).args(words).exec())
                    .with_context(|| format!("cannot run {}", program.display()))
            }
        }
    }
}
