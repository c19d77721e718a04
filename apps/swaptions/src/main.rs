//! `tailwater-swaptions`: prices a portfolio of swaptions for a given time or number of trials and
//! reports the speed.

use std::io::{Write, stderr};
use std::process::ExitCode;

use clap::Parser;
use tailwater_swaptions::cli::{EXAMPLES, Options, run};

tailwater::allocator!();

/// Price a portfolio of European swaptions by Monte Carlo under a three-factor HJM model
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
