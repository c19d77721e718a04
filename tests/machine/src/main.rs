//! Boots an emulated x86-64 machine with chosen sockets, cores, hyperthreads and network cards, and
//! runs a program of this machine in it.
//!
//! ```text
//! run     kernel + modules ── initramfs ─┐
//!         program, folder, environment ──┴─ QEMU ── guest (this program as process 1) ── program
//!                                            │            output through a virtio console ─┘
//!         status, out/ ◄── folder of both ◄──┘
//! ```
//!
//! The guest sees the files of the host and writes to none but those of `--out`. Needs no root;
//! cards of several queues do where users may make no namespaces (user_namespaces(7)).
//! [`topology`] and [`kernel`] are what it is made of, [`qemu`] runs it, [`guest`] is inside, and
//! [`errand`] is what both sides share.

mod errand;
mod guest;
mod initramfs;
mod kernel;
mod modules;
mod qemu;
mod topology;

use crate::errand::Errand;
use crate::kernel::Kernel;
use crate::qemu::{Card, Machine};
use crate::topology::Topology;
use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Modules of every guest: its files, its output, its devices for tests.
const MODULES: [&str; 8] =
    ["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console", "tun", "veth", "8021q"];

/// Boots an emulated machine and runs a program in it
#[derive(Debug, Parser)]
#[command(
    name = "tailwater-machine",
    after_help = "Needs: apt install qemu-system-x86 kmod iproute2 util-linux"
)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Download the distribution's kernel into target/machine
    Fetch,
    /// Run a program of this machine in an emulated one; ends with its exit status
    Run(Run),
}

#[derive(Debug, Args)]
struct Run {
    /// Sockets, cores of each, and hyperthreads of each core; each socket is a NUMA node
    #[arg(long, value_name = "SxCxT", default_value = "1x4x1")]
    topology: Topology,
    /// Memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(512..))]
    memory_mib: u32,
    /// A network card; the first and second are joined by a cable, the third and fourth, ...
    #[arg(long = "card", value_name = "MODEL")]
    cards: Vec<Card>,
    /// Queues of each card; several need virtio, and root or namespaces of users here
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    queues: u32,
    /// Use KVM: faster, but some hosts that are virtual machines cannot boot a guest with it
    #[arg(long)]
    kvm: bool,
    /// End the guest after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit_s: u64,
    /// Folder for what the program leaves in $MACHINE_OUT, and for the kernel's messages
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

fn main() -> ExitCode {
    if std::process::id() == 1 && std::env::args().len() == 1 {
        guest::main();
    }
    let done = match Cli::parse().action {
        Action::Fetch => cache().and_then(|cache| kernel::fetch(&cache)).map(|()| 0),
        Action::Run(run) => run.run(),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns the folder of the downloaded kernel: beside this build.
fn cache() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.parent().and_then(Path::parent).context("this program is not in a target folder")?;
    Ok(target.join("machine"))
}

impl Run {
    fn run(&self) -> Result<u8> {
        if self.queues > 1 && self.cards.contains(&Card::E1000e) {
            bail!("an e1000e has one queue: --queues {} is for virtio", self.queues);
        }
        let kernel = Kernel::find(&cache()?)?;
        let cards = self.cards.iter().map(|card| card.module());
        let names: Vec<&str> = MODULES.into_iter().chain(cards).collect();
        let modules = modules::in_order(&kernel.modules, &names)?;
        let temporary = tempfile::tempdir()?;
        let folder = self.folder(temporary.path())?;
        let errand = Errand {
            command: self.command.clone(),
            folder: std::env::current_dir()?,
            variables: std::env::vars().collect(),
        };
        errand.write(&folder)?;
        let initramfs = temporary.path().join("initramfs");
        initramfs::write(&initramfs, &modules)?;
        let machine = Machine {
            topology: self.topology,
            memory_mib: self.memory_mib,
            cards: &self.cards,
            queues: self.queues,
            kernel: &kernel.image,
            initramfs: &initramfs,
            folder: &folder,
            kvm: self.kvm,
            limit: Duration::from_secs(self.limit_s),
        };
        machine.run()
    }

    /// Makes the folder that both sides see, without the status of an earlier run.
    fn folder(&self, temporary: &Path) -> Result<PathBuf> {
        let folder = self.out.as_deref().unwrap_or(temporary);
        let made = std::fs::create_dir_all(folder).and_then(|()| folder.canonicalize());
        let folder = made.with_context(|| folder.display().to_string())?;
        errand::forget(&folder)?;
        Ok(folder)
    }
}
