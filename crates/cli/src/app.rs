//! The services inside this program: how `demo` starts them without other files.

use clap::Args;
use tailwater_testbed::app::{Conditions, Service};

/// Run one of the services that `demo` uses
#[derive(Debug, Args)]
pub struct AppArgs {
    #[command(flatten)]
    conditions: Conditions,
    #[command(subcommand)]
    app: Service,
}

/// Runs the service until it ends.
///
/// # Errors
/// The service's, or when its conditions are refused.
pub fn run(args: &AppArgs) -> anyhow::Result<()> {
    args.conditions.apply()?;
    args.app.run()
}
