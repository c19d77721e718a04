//! `tailwater-lab`: benchmarks of single mechanisms, the papers' figures, simulations, and the
//! pages that publish their results.
//!
//! Owns the list of subcommands; each has a module or a crate. Exit codes: 0 success, 1 failure, 2
//! wrong usage or a machine that lacks something, 130 interrupted, 141 closed output.
//!
//! What measures fails if a process does not start, fails or ends early, and on a signal, by
//! [`Interrupted`](tailwater_testbed::interrupt::Interrupted); `# Errors` names others only.

#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tailwater_testbed::machine;

mod app;
mod bench;
mod go;
mod measure;
mod name_server;
mod publish;
mod reproduce;
mod rocks;
mod tokio_spin;

// The services that measurements start are this program.
tailwater::allocator!();

/// Measure Tailwater's mechanisms, reproduce the papers' figures, simulate policies
#[derive(Debug, Parser)]
#[command(
    name = "tailwater-lab",
    version = machine::version(),
    max_term_width = 100,
    after_help = "Examples:
  tailwater-lab measure                         everything that is published, in one session
  tailwater-lab publish                         writes the results into the book
  tailwater-lab bench handoff                   how fast a core changes hands
  tailwater-lab reproduce shenango-fig4 --quick one figure of a paper, on this machine
  tailwater-lab sim policies                    request-dispatch policies on virtual cores

Every subcommand has --help with examples."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::BenchArgs),
    Measure(measure::MeasureArgs),
    Publish(publish::PublishArgs),
    Reproduce(reproduce::ReproduceArgs),
    Pareto(Box<tailwater_sim::cli::pareto::ParetoArgs>),
    /// Simulate policies, allocators and machines
    Sim(Box<tailwater_sim::cli::SimArgs>),
    #[command(hide = true)]
    App(Box<app::AppArgs>),
}

fn main() -> ExitCode {
    // Benchmarks start copies of this program as raw runtimes.
    if let Some(code) = tailwater_iokernel_testing::child::run_if_asked() {
        return code;
    }
    tailwater_testbed::exit::report(match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Measure(args) => measure::run(&args),
        Command::Publish(args) => publish::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Pareto(args) => tailwater_sim::cli::pareto::run_pareto(&args),
        Command::Sim(args) => tailwater_sim::cli::run_sim(&args),
        Command::App(args) => app::run(&args),
    })
}
