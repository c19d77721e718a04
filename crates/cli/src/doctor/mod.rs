//! `tailwater doctor`: what this machine has of what Tailwater needs, one line each.
//!
//! Owns both ways to print the findings. [`requirements`] has what Tailwater does not run without,
//! [`quota`] the limits of control groups, [`optional`] ports, locked memory and hyperthreads.

use std::io::{Write, stdout};

use clap::Args;
use serde::Serialize;
use tailwater_testbed::machine::{self, Machine, commit};
use tailwater_testbed::requirements::{self, Finding};

mod optional;
mod part;
mod quota;
mod rights;

use part::{Part, Status};

/// Check whether this machine has what Tailwater needs
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater doctor            one line per requirement; exit code 2 when something is missing that is not optional
  tailwater doctor --json     the same for programs
  tailwater doctor --iokernel /run/tailwater.sock

ok       is there, or as it should be
missing  is not there, and Tailwater does not run without it
absent   is not there, and only what its line names needs it
caution  is there, and costs latency")]
pub struct DoctorArgs {
    /// Control socket of the IOKernel that is asked what this user may register; @NAME is an
    /// abstract address
    #[arg(long, value_name = "SOCKET", default_value = "@tailwater")]
    iokernel: String,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document {
    machine: Machine,
    commit: String,
    /// Whether nothing is missing.
    supported: bool,
    parts: Vec<Part>,
}

/// Prints every finding.
///
/// # Errors
/// [`requirements::Unsupported`] if something is missing, or standard output is closed.
pub fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let findings = requirements::examine();
    let verdict = requirements::judge(&findings);
    let mut parts: Vec<Part> = findings.into_iter().map(required).collect();
    let cores = machine::usable_cores();
    parts.push(quota::examine(cores.len()));
    parts.extend(optional::examine(&cores));
    parts.push(rights::examine(&args.iokernel));
    if args.json {
        let supported = parts.iter().all(|part| part.status != Status::Missing);
        let document = Document { machine: Machine::describe(), commit: commit(), supported, parts };
        writeln!(stdout(), "{}", serde_json::to_string_pretty(&document)?)?;
    } else {
        for Part { name, status, found } in &parts {
            writeln!(stdout(), "{:<8} {name}: {found}", status.name())?;
        }
    }
    Ok(verdict?)
}

fn required(Finding { name, found }: Finding) -> Part {
    let (status, found) = match found {
        Ok(what) => (Status::Ok, what),
        Err(what) => (Status::Missing, what),
    };
    Part { name, status, found }
}
