//! `tailwater`: everything a person does with Tailwater from a shell.
//!
//! Owns the list of subcommands and how errors end the process; each subcommand has a module. Exit codes: 0 success, 1
//! failure, 2 wrong usage or a machine that lacks something, 130 interrupted.

#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod app;
mod bench;
mod capture;
mod demo;
mod doctor;
mod interrupt;
mod iokernel;
mod load;
mod machine;
mod run;
mod stats;
mod table;

// The services that `demo` starts are this same program.
#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc;

/// Microsecond tail latency for services, every other cycle for batch work, on the cores of one machine
#[derive(Debug, Parser)]
#[command(
    name = "tailwater",
    version,
    max_term_width = 100,
    after_help = "Examples:
  tailwater demo                                what it is for, in 90 seconds
  tailwater iokernel &                          start the IOKernel
  tailwater run --kthreads 1 -- spin            start a service on it
  tailwater stats                               see who has which core

Every subcommand has --help with examples."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(Box<demo::DemoArgs>),
    Iokernel(Box<iokernel::IokernelArgs>),
    Run(Box<run::RunArgs>),
    Load(Box<load::LoadArgs>),
    Stats(stats::StatsArgs),
    Capture(Box<capture::CaptureArgs>),
    Bench(bench::BenchArgs),
    Doctor(doctor::DoctorArgs),
    /// Serve GET, SCAN and PUT of a RocksDB store
    #[command(after_help = tailwater_rocks::cli::EXAMPLES)]
    Rocks(Box<tailwater_rocks::cli::Options>),
    /// Simulate policies, allocators and machines
    Sim(Box<tailwater_sim::cli::SimArgs>),
    /// Reproduce the papers' simulated figures
    Reproduce(tailwater_sim::cli::ReproduceArgs),
    #[command(hide = true)]
    App(Box<app::AppArgs>),
}

fn main() -> ExitCode {
    // Benchmarks start copies of this program as raw runtimes.
    if let Some(code) = tailwater_iokernel::testing::child::run_if_asked() {
        return code;
    }
    let result = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Iokernel(args) => iokernel::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Rocks(options) => tailwater_rocks::cli::run(&options),
        Command::Sim(args) => tailwater_sim::cli::run_sim(&args),
        Command::Reproduce(args) => tailwater_sim::cli::run_reproduce(&args),
        Command::App(args) => app::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<interrupt::Interrupted>() => {
            eprintln!("{error}");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.is::<doctor::Unsupported>() { 2 } else { 1 })
        }
    }
}
