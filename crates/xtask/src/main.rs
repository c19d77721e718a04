//! `cargo xtask`: see the library.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::Command;
use tailwater_xtask::{install, root, run};

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
    let archive = build()?;
    install(&archive, &prefix)?;
    println!("installed libtailwater under {}", prefix.display());
    println!("programs find it with PKG_CONFIG_PATH={}/lib/pkgconfig", prefix.display());
    Ok(())
}

/// Builds the archive; returns its path.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").context("start this as `cargo xtask`")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    run(Command::new(cargo)
        .args(["rustc", "--release", "-p", "tailwater-capi", "--lib", "--crate-type=staticlib", "--target-dir"])
        .arg(&target)
        .current_dir(root()))?;
    Ok(Path::new(&target).join("release/libtailwater_capi.a"))
}
