//! `tailwater-dns`: serves zones until a signal ends it.

use clap::Parser;
use tailwater_dns::cli::{EXAMPLES, Options, run};

tailwater::allocator!();

/// Serve zones: an authoritative DNS server over UDP and TCP
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Command {
    #[command(flatten)]
    options: Options,
}

fn main() -> anyhow::Result<()> {
    run(&Command::parse().options)
}
