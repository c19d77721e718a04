//! `tailwater-lab sim` without the rest of the `tailwater` binary.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tailwater_sim::cli::{SimArgs, run_sim};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Simulate policies, allocators and machines.
    Sim(Box<SimArgs>),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Sim(args) => run_sim(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
