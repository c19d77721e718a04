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
    /// Makes a release, the same bytes for the same commit: an archive for /usr/local, a Debian
    /// package, an image for containers, the list of crates, checksums
    Dist {
        /// Folder for the files
        #[arg(long, default_value = "dist")]
        out: PathBuf,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().task {
        Task::Install { prefix } => run_install(&std::path::absolute(&prefix)?),
        Task::Dist { out } => {
            for file in dist(&std::path::absolute(&out)?)? {
                let kibibytes = file.metadata()?.len().div_ceil(1024);
                println!("{kibibytes:>6} KiB  {}", file.display());
            }
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
