//! `tailwater-spin`: serves spin requests until a signal ends it.

use std::io::{Write, stderr};
use std::process::ExitCode;

use clap::Parser;
use tailwater_spin::cli::{EXAMPLES, Options, run};

tailwater::allocator!();

/// Serve spin requests: compute for as long as each asks, then answer
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Command {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let Err(error) = run(&Command::parse().options) else { return ExitCode::SUCCESS };
    // Without a backtrace, which RUST_BACKTRACE=1 would add to a typing mistake.
    let _ = stderr().write_all(format!("error: {error:#}\n").as_bytes());
    ExitCode::FAILURE
}
