//! `tailwater-rocks`: serves an ordered store until a signal ends it.

use std::io::{Write, stderr};
use std::process::ExitCode;

use clap::Parser;
use tailwater_rocks::cli::{EXAMPLES, Options, run};

tailwater::allocator!();

/// Serve GET, SCAN and PUT of a RocksDB store
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
