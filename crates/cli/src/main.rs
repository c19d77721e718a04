//! `tailwater`: everything a person does with Tailwater from a shell.
//!
//! Owns the list of subcommands and how errors end the process; each subcommand has a module. Exit codes: 0 success, 1
//! failure, 2 wrong usage or a machine that lacks something, 130 interrupted.

#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

mod app;
mod bench;
mod capture;
mod compare;
mod demo;
mod doctor;
mod embedded;
mod interrupt;
mod iokernel;
mod load;
mod machine;
mod reproduce;
mod run;
mod stats;
mod table;
mod testbed;
mod trace;

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
  tailwater kv -m 1024                          a store for clients of memcached

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
    Compare(compare::CompareArgs),
    Stats(stats::StatsArgs),
    /// Serve zones: an authoritative DNS server over UDP and TCP
    #[command(after_help = tailwater_dns::cli::EXAMPLES)]
    Dns(tailwater_dns::cli::Options),
    Capture(Box<capture::CaptureArgs>),
    Trace(Box<trace::TraceArgs>),
    /// Keep items in memory for clients of memcached
    #[command(after_help = tailwater_kv::cli::EXAMPLES)]
    Kv(Box<KvArgs>),
    Bench(bench::BenchArgs),
    Doctor(doctor::DoctorArgs),
    /// Serve GET, SCAN and PUT of a RocksDB store
    #[command(after_help = tailwater_rocks::cli::EXAMPLES)]
    Rocks(Box<tailwater_rocks::cli::Options>),
    /// Simulate policies, allocators and machines
    Sim(Box<tailwater_sim::cli::SimArgs>),
    Reproduce(reproduce::ReproduceArgs),
    #[command(hide = true)]
    App(Box<app::AppArgs>),
}

#[derive(Debug, Args)]
struct KvArgs {
    #[command(flatten)]
    options: tailwater_kv::cli::Options,
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
        Command::Compare(args) => compare::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Dns(options) => tailwater_dns::cli::run(&options),
        Command::Capture(args) => capture::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Kv(args) => tailwater_kv::cli::run(&args.options),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Rocks(options) => tailwater_rocks::cli::run(&options),
        Command::Sim(args) => tailwater_sim::cli::run_sim(&args),
        Command::Reproduce(args) => reproduce::run(&args),
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
