//! `cargo xtask`: see the library.

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use tailwater_xtask::dist::dist;
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
    /// Packs programs, libtailwater, units, manual pages and completions into an archive for
    /// /usr/local, the same bytes for the same commit
    Dist {
        /// Folder for the archive and its checksum
        #[arg(long, default_value = "dist")]
        out: PathBuf,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().task {
        Task::Install { prefix } => run_install(&std::path::absolute(&prefix)?),
        Task::Dist { out } => {
            let archive = dist(&std::path::absolute(&out)?)?;
            println!("packed {}", archive.display());
            println!("install it by: sudo tar -C /usr/local --strip-components=1 -xf {}", archive.display());
            Ok(())
        }
    }
}

fn run_install(prefix: &Path) -> Result<()> {
    install(&build()?, prefix)?;
    println!("installed libtailwater under {}", prefix.display());
    println!("programs find it with PKG_CONFIG_PATH={}/lib/pkgconfig", prefix.display());
    Ok(())
}
