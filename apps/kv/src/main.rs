//! `tailwater-kv`: a memcached-compatible store until a signal ends it.

use std::io::{Write, stderr};
use std::process::ExitCode;

use clap::Parser;
use tailwater_kv::cli::{EXAMPLES, Options, run};

tailwater::allocator!();

/// Keep items in memory for clients of memcached
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
