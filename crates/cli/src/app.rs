//! The services inside this program: how `demo` and `bench` start them without other files.
//!
//! Owns the conditions a child runs under: which cores, and that it dies with the process that started it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use clap::{Args, Subcommand};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setpriority_process};
use rustix::thread::sched_setaffinity;
use tailwater::net::UdpSocket;
use tailwater_shm::priority;

use crate::bench::{tcp, threads};
use crate::machine::cpu_set;
use crate::testbed::tokio_spin;

/// Run one of the services that `demo` and `bench` use
#[derive(Debug, Args)]
pub struct AppArgs {
    /// Die with this process, which started this one
    #[arg(long, value_name = "PID")]
    parent: Option<i32>,
    /// Cores that all threads may use
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Take the highest priority, if it can be had
    #[arg(long)]
    raise: bool,
    #[command(subcommand)]
    app: App,
}

#[derive(Debug, Subcommand)]
enum App {
    /// Serve spin requests
    Spin(tailwater_spin::cli::Options),
    /// Keep items in memory for clients of memcached
    Kv(tailwater_kv::cli::Options),
    /// Price swaptions
    Swaptions(tailwater_swaptions::cli::Options),
    /// Serve zones
    Dns(tailwater_dns::cli::Options),
    /// Send back what reaches UDP port 7
    Echo,
    /// Serve spin requests on Tokio
    TokioSpin(tokio_spin::Options),
    Tcp(tcp::ServiceArgs),
    Threads(threads::ChildArgs),
    /// Become another program, under the same conditions
    Exec {
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

/// Runs the service until it ends.
///
/// # Errors
/// The service's, or when the conditions cannot be had.
pub fn run(args: &AppArgs) -> anyhow::Result<()> {
    if let Some(parent) = args.parent {
        set_parent_process_death_signal(Some(Signal::KILL))
            .context("cannot bind this process to its parent")?;
        // It may have died before the call.
        anyhow::ensure!(getppid() == Pid::from_raw(parent), "the process that started this one is gone");
    }
    if !args.cores.is_empty() {
        sched_setaffinity(None, &cpu_set(&args.cores))
            .with_context(|| format!("cannot use cores {:?}", args.cores))?;
    }
    if args.raise {
        // Refused without the privilege; threads started from here on inherit it.
        let _ = setpriority_process(None, priority::HIGHEST);
    }
    match &args.app {
        App::Spin(options) => tailwater_spin::cli::run(options),
        App::Kv(options) => tailwater_kv::cli::run(options),
        App::Swaptions(options) => tailwater_swaptions::cli::run(options),
        App::Dns(options) => tailwater_dns::cli::run(options),
        App::Echo => Ok(tailwater::Builder::new().run(echo)??),
        App::TokioSpin(options) => tokio_spin::run(options),
        App::Tcp(args) => tcp::run_service(args),
        App::Threads(args) => threads::run_child(args),
        App::Exec { command } => {
            let (program, words) = command.split_first().context("no program")?;
            Err(Command::new(program).args(words).exec())
                .with_context(|| format!("cannot run {}", program.display()))
        }
    }
}

/// The simplest service there is, for `bench switch`.
fn echo() -> std::io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 7))?;
    let mut datagram = [0; 2048];
    loop {
        let (len, client) = socket.recv_from(&mut datagram)?;
        match socket.send_to(&datagram[..len], client) {
            // One client that cannot be reached is no reason to leave the others without an answer.
            Err(error) if error.kind() != ErrorKind::HostUnreachable => return Err(error),
            _ => {}
        }
    }
}
