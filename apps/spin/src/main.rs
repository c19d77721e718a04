//! `tailwater-spin`: serves spin requests until a signal ends it.

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

fn main() -> anyhow::Result<()> {
    run(&Command::parse().options)
}
