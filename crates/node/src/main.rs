//! `tailwater-node`: see the library.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Parser;
use tailwater_node::{Settings, serve};
use tokio::signal::unix::{SignalKind, signal};

/// Tell Kubernetes about the cores that the IOKernel of this node lends
///
/// Runs beside the kubelet of each node: device plugins tailwater.io/core and
/// tailwater.io/batch-core, and for batch pods a plugin of NRI, the Node Resource Interface, by
/// which containerd 2 and CRI-O let plugins change a container before it starts.
#[derive(Debug, Parser)]
#[command(
    name = "tailwater-node",
    version,
    max_term_width = 100,
    after_help = "Examples:
  tailwater iokernel --socket /run/tailwater/socket   first: the IOKernel of the node
  tailwater-node                                      pods request cores, batch pods have none
  tailwater-node --no-nri                             without batch pods
  tailwater-node --nri /run/nri/nri.sock              another container runtime's socket

contrib/kubernetes has it as a DaemonSet, with the IOKernel beside it."
)]
struct Cli {
    /// Control socket of the IOKernel: a file in a folder of its own, which is mounted into pods at
    /// the same path
    #[arg(long, value_name = "FILE", default_value = "/run/tailwater/socket")]
    iokernel: PathBuf,
    /// The kubelet's folder of device plugins
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/kubelet/device-plugins")]
    plugins: PathBuf,
    /// The socket of the container runtime's NRI
    #[arg(long, value_name = "FILE", default_value = "/var/run/nri/nri.sock")]
    nri: PathBuf,
    /// Leave containers as they are: no batch pods, no names, no CPU limit removed
    #[arg(long)]
    no_nri: bool,
    /// Time over which the cores that services leave over are averaged, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..=3600))]
    window: u64,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let Cli { iokernel, plugins, nri, no_nri, window } = cli;
    ensure!(
        iokernel.is_absolute() && iokernel.parent().is_some_and(|folder| folder.parent().is_some()),
        "--iokernel {}: is no file in a folder that pods can mount; start the IOKernel with \
         --socket /run/tailwater/socket",
        iokernel.display()
    );
    let nri = (!no_nri).then_some(nri);
    let settings = Settings { iokernel, plugins, nri, window: std::time::Duration::from_secs(window) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start")?.block_on(async {
        let mut term = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let mut int = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
        tokio::select! {
            error = serve(settings) => return Err(error),
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        Ok(())
    })
}
