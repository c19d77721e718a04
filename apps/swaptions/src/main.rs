//! `tailwater-swaptions`: prices a portfolio of swaptions for a given time or number of trials and
//! reports the speed.

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

fn main() -> anyhow::Result<()> {
    run(&Command::parse().options)
}
