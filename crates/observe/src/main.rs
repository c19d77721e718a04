//! `tailwater-observe`: shows what an IOKernel does.
//!
//! Owns the list of its two commands. It needs no privileges: it asks the IOKernel for its
//! statistics, as `tailwater stats` does, and changes nothing. With privileges `top` also names
//! what ran on the lent cores. Exit codes are those of `tailwater`.

#![forbid(unsafe_code)]

mod http;
mod metrics;
mod page;
mod serve;
mod source;
mod top;
mod view;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tailwater_testbed::observe::{MetricsArgs, TopArgs};
use tailwater_testbed::{exit, machine};

/// Show what an IOKernel does, on a terminal, as a web page and as metrics
///
/// `tailwater top` and `tailwater metrics` start this program, which is installed beside
/// `tailwater`. It needs no privileges.
#[derive(Debug, Parser)]
#[command(
    name = "tailwater-observe",
    version = machine::version(),
    max_term_width = 100,
    after_help = "Examples:
  tailwater top                                   starts `tailwater-observe top`
  tailwater-observe top --once                    one look of a second, as lines
  tailwater-observe metrics --once                what Prometheus would read

Each command has --help with more of them."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Top(TopArgs),
    Metrics(MetricsArgs),
}

fn main() -> ExitCode {
    exit::report(match Cli::parse().command {
        Command::Top(args) => top::run(&args),
        Command::Metrics(args) => serve::run(&args),
    })
}
