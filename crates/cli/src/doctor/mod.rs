//! `tailwater doctor`: what this machine has of what Tailwater needs, one line each.
//!
//! Owns both ways to print the findings, and `--repair`. [`requirements`] has what Tailwater does
//! not run without, [`quota`] the limits of control groups, [`optional`] ports, locked memory and
//! hyperthreads, [`clients`] ordinary programs in the wrong place, [`network`] an interface.

use std::io::{Write, stdout};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tailwater_iokernel::Config;
use tailwater_testbed::machine::{self, Machine, commit};
use tailwater_testbed::requirements::{self, Finding};
use tailwater_testbed::socket::IokernelArg;

mod clients;
mod network;
mod optional;
mod part;
mod quota;
mod rights;

use crate::iokernel::read_configuration;
use crate::nat;
use part::{Part, Status};

/// Check whether this machine has what Tailwater needs
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater doctor            one line per requirement; exit status 2 when a needed one is missing
  tailwater doctor --json     the same for programs
  tailwater doctor --iokernel /run/tailwater/socket
  tailwater doctor --config /etc/tailwater.toml   what other programs get beside that IOKernel
  tailwater doctor --interface eth1   whether an interface suits `iokernel --xdp`, and what to set
  tailwater doctor --repair   after an IOKernel, or a `tailwater run --batch` as root, was killed

The first word of a line:
  ok       is there, or as it should be
  missing  is not there, and needed: `tailwater demo` does not start without it
  absent   is not there, and only what its line names needs it
  caution  is there, and costs latency")]
pub struct DoctorArgs {
    #[command(flatten)]
    iokernel: IokernelArg,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Examine an interface for an AF_XDP port, too: channels, MTU, offloads, other XDP programs
    #[arg(long, value_name = "INTERFACE")]
    interface: Option<String>,
    /// Repair instead of checking: after an IOKernel or a `tailwater run --batch` was killed, put
    /// back the cpusets, clock rates and control groups that it had changed, and withdraw the ports
    /// it had published. The next IOKernel does this, too, but not for batch jobs
    #[arg(long, conflicts_with_all = ["json", "interface", "iokernel"])]
    repair: bool,
    /// Configuration of the IOKernel: its cores and `neighbour-share`, or, with --repair, its state
    /// files; the default settings without it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl DoctorArgs {
    fn configuration(&self) -> anyhow::Result<Config> {
        self.config.as_deref().map_or_else(|| Ok(Config::default()), read_configuration)
    }
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document {
    machine: Machine,
    commit: String,
    /// True if nothing is missing.
    supported: bool,
    parts: Vec<Part>,
}

/// Prints every finding, or repairs.
///
/// # Errors
/// [`requirements::Unsupported`] if something is missing, or standard output is closed; what is
/// wrong in the configuration; or why something cannot be put back.
pub fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    if args.repair {
        return repair(args);
    }
    let findings = requirements::examine();
    let verdict = requirements::judge(&findings);
    let mut parts = parts(findings, &args.iokernel, &args.configuration()?);
    if let Some(name) = &args.interface {
        parts.extend(network::examine(name).map_err(anyhow::Error::msg)?);
    }
    if args.json {
        let supported = parts.iter().all(|part| part.status != Status::Missing);
        let document = Document { machine: Machine::describe(), commit: commit(), supported, parts };
        writeln!(stdout(), "{}", serde_json::to_string_pretty(&document)?)?;
    } else {
        write!(stdout(), "{}", lines(&parts))?;
    }
    Ok(verdict?)
}

/// Returns what is printed of a machine with this IOKernel and configuration.
pub fn examine(iokernel: &str, config: &Config) -> String {
    lines(&parts(requirements::examine(), iokernel, config))
}

fn parts(required_ones: Vec<Finding>, iokernel: &str, config: &Config) -> Vec<Part> {
    let cores = machine::usable_cores();
    let mut parts: Vec<Part> = required_ones.into_iter().map(required).collect();
    parts.push(quota::examine(cores.len()));
    parts.extend(optional::examine(&cores, config));
    parts.push(rights::examine(iokernel));
    parts.extend(clients::examine(iokernel, config));
    parts
}

fn lines(parts: &[Part]) -> String {
    parts
        .iter()
        .map(|Part { name, status, found }| format!("{:<8} {name}: {found}\n", status.name()))
        .collect()
}

/// Puts back what a killed IOKernel has left changed.
fn repair(args: &DoctorArgs) -> anyhow::Result<()> {
    let config = args.configuration()?;
    let mut failures = Vec::new();
    let settings = tailwater_host::repair(&config.reserve.state_file, &config.ix.state_file);
    let others = [tailwater_batch::group::repair(), repair_ports(), nat::repair()];
    for result in settings.into_iter().chain(others) {
        match result {
            Ok(done) => writeln!(stdout(), "{done}")?,
            Err(why) => failures.push(why),
        }
    }
    anyhow::ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

/// Puts back reserved ports, except as a unit's `ExecStopPost`, which systemd tells by
/// `SERVICE_RESULT`: an IOKernel without programs has put them back, and programs of another one
/// wait for the next, with these ports.
fn repair_ports() -> Result<String, String> {
    match std::env::var_os("SERVICE_RESULT").filter(|result| !result.is_empty()) {
        Some(_) => Ok("reserved ports: any that there are stay for the next start of the service".to_owned()),
        None => tailwater_host::repair_reserved_ports(),
    }
}

fn required(Finding { name, found }: Finding) -> Part {
    let (status, found) = match found {
        Ok(what) => (Status::Ok, what),
        Err(what) => (Status::Missing, what),
    };
    Part { name, status, found }
}
