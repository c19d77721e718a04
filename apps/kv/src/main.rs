//! `tailwater-kv`: a memcached-compatible store until a signal ends it.

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

fn main() -> anyhow::Result<()> {
    run(&Command::parse().options)
}
