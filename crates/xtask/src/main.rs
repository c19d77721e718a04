//! `cargo xtask`: see the library.

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use tailwater_xtask::{build, install};

#[derive(Parser)]
#[command(about = "Tasks of the workspace that cargo has no command for")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Builds libtailwater for C and C++, and installs it under a prefix
    Install {
        /// Folder that gets `lib` and `include`
        #[arg(long)]
        prefix: PathBuf,
    },
}

fn main() -> Result<()> {
    let Task::Install { prefix } = Arguments::parse().task;
    let prefix = std::path::absolute(&prefix)?;
    install(&build()?, &prefix)?;
    println!("installed libtailwater under {}", prefix.display());
    println!("programs find it with PKG_CONFIG_PATH={}/lib/pkgconfig", prefix.display());
    Ok(())
}
