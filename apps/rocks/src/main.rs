//! `tailwater-rocks`: serves an ordered store until a signal ends it.

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

fn main() -> anyhow::Result<()> {
    run(&Command::parse().options)
}
