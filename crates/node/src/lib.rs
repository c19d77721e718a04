//! What `tailwater-node` is made of: the agent that tells Kubernetes about the cores of one node.
//!
//! | module | owns |
//! |---|---|
//! | [`cores`] | pure: what the statistics of an IOKernel mean for a node's resources |
//! | [`watch`] | asking for the statistics, once a second |
//! | [`api`] | messages of the kubelet's device-plugin interface, version v1beta1 |
//! | [`plugin`] | a device plugin: registration at the kubelet, and the answers to it |
//! | [`nri`] | the plugin of the container runtime, which changes containers before they start |
//!
//! The agent keeps nothing: what pods hold is the kubelet's record, and what a container was given
//! is the container's. So it may end and start at any time; a container that starts meanwhile gets
//! its limits at the agent's next start, and neither a name nor `cpu.idle`.
//!
//! # Crash and lie
//!
//! | what happens | then |
//! |---|---|
//! | the agent ends | pods run on; the kubelet starts no further pod with these resources until it is back; other containers start as they are, and get their limits then |
//! | the kubelet ends | pods run on; the agent registers again as soon as there is a new `kubelet.sock` |
//! | the IOKernel ends | after five seconds its cores are unhealthy, so that no pod is started with them; pods wait for it and attach again |
//! | the folder of the IOKernel's socket is deleted | the agent ends: it has a mount of that folder, in which no socket will appear; its next start has the new one |
//! | the container runtime ends | the agent connects again every few seconds |
//! | a pod is killed | the IOKernel lends its cores to others at once; the kubelet frees the devices |
//! | a peer sends a message that cannot be decoded, or too long a one | the call fails, or the connection ends and is made anew |
#![forbid(unsafe_code)]

pub mod api;
pub mod cores;
pub mod nri;
pub mod plugin;
pub mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use plugin::{Kind, Plugin};

/// What the agent is started with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Control socket of the IOKernel: a file, which containers see at the same path.
    pub iokernel: PathBuf,
    /// The kubelet's folder of device plugins.
    pub plugins: PathBuf,
    /// The socket of NRI; `None`: no pod is made a batch pod.
    pub nri: Option<PathBuf>,
    /// Time over which what services leave over is averaged.
    pub window: Duration,
}

impl Settings {
    /// Returns the folder of the control socket, which is mounted into pods.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.iokernel.parent().unwrap_or(Path::new("/")).to_owned()
    }
}

/// Serves the kubelet and the container runtime until the future is dropped, or returns why that
/// has no use.
pub async fn serve(settings: Settings) -> anyhow::Error {
    let (state, looks) = watch::channel(&settings);
    let core = Plugin::new(Kind::Core, &settings, looks.clone());
    let batch = Plugin::new(Kind::Batch, &settings, looks.clone());
    let plugins = async {
        tokio::join!(
            core.run(&settings.plugins),
            batch.run(&settings.plugins),
            nri::run(settings.nri.clone(), looks)
        )
    };
    tokio::select! {
        error = state.run() => error,
        ends = plugins => match ends.0 {},
    }
}
