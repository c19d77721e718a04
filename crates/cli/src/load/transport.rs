//! The transport of requests: kernel sockets, Tailwater's sockets, or frames from inside an
//! IOKernel.
//!
//! Owns this process's runtime, or its IOKernel with the generator as a port. Each is made for the
//! first run that needs it and stays for later runs.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tailwater_loadgen::attached::Attached;
use tailwater_loadgen::kernel_tcp::{self, Connections};
use tailwater_loadgen::kernel_udp::{self, Load, Target};
use tailwater_loadgen::protocol::Protocol;
use tailwater_loadgen::{Control, Measurement, Plan};

use super::port::PortHost;

/// See the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// Sockets of this machine's kernel
    Kernel,
    /// Tailwater's own sockets, as a program of an IOKernel
    Tailwater,
    /// Frames, as a port of an IOKernel that is started in this process
    Port,
}

/// How to reach the server, beside its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    /// How requests travel.
    pub over: Over,
    /// Control socket of the IOKernel to attach to, or to start; none over kernel sockets.
    pub iokernel: Option<String>,
    /// Number of TCP connections, and most unanswered requests on each; `None` for UDP.
    pub connections: Option<(u32, usize)>,
    /// How long the server may take to give its first answer, in nanoseconds.
    pub wait_ns: u64,
}

/// A run: which requests, to which server, when.
pub struct Question<'a> {
    /// The server.
    pub server: SocketAddr,
    /// The protocol of the requests.
    pub protocol: Arc<dyn Protocol>,
    /// True if the server first stores what the protocol reads.
    pub preload: bool,
    /// The seed of all requests.
    pub seed: u64,
    /// When requests are due.
    pub plan: &'a Plan,
}

/// The runtime or the IOKernel that this process generates with.
pub struct Transport {
    core: Option<usize>,
    made: Mutex<Made>,
}

enum Made {
    Nothing,
    /// A runtime, and the socket of its IOKernel: a process attaches to one IOKernel, once.
    Attached(Attached, String),
    Port(PortHost),
}

impl Transport {
    /// Returns a transport that polls kernel sockets, or has its IOKernel poll, on `core`.
    pub fn new(core: Option<usize>) -> Self {
        Self { core, made: Mutex::new(Made::Nothing) }
    }

    /// Makes what runs over this `way` need.
    ///
    /// # Errors
    /// If the IOKernel cannot be started or attached to, or this process is attached to another
    /// one.
    pub fn prepare(&self, way: &Way) -> anyhow::Result<()> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match (way.over, &*made) {
            (Over::Tailwater, Made::Nothing | Made::Port(_)) => {
                *made = Made::Attached(attach(way)?, socket_of(way));
            }
            (Over::Tailwater, Made::Attached(_, socket)) => {
                let wanted = socket_of(way);
                anyhow::ensure!(
                    *socket == wanted,
                    "this generator is attached to the IOKernel at {socket} and cannot change to the one at {wanted}: \
                     start another one"
                );
            }
            (Over::Port, Made::Nothing | Made::Attached(..)) => {
                let socket = way.iokernel.as_deref().unwrap_or(crate::socket::DEFAULT);
                *made = Made::Port(PortHost::start(socket, self.core, way.connections.is_some())?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Runs a plan; generates on the calling thread, or lets it wait.
    ///
    /// # Errors
    /// If the run could not start.
    pub fn run(
        &self,
        way: &Way,
        question: Question<'_>,
        control: &Control<'_>,
    ) -> anyhow::Result<Measurement> {
        self.prepare(way)?;
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let Question { server, protocol, preload, seed, plan } = question;
        let load = Load { protocol, seed, preload };
        let wait = Duration::from_nanos(way.wait_ns);
        let target = Target { server, core: self.core, wait };
        let connections = way.connections.map(|(count, pipeline)| Connections { count, pipeline });
        Ok(match (&*made, connections) {
            (Made::Attached(attached, _), None) if way.over == Over::Tailwater => {
                attached.run_udp(plan, &load, &target, control)?
            }
            (Made::Attached(attached, _), Some(connections)) if way.over == Over::Tailwater => {
                attached.run_tcp(plan, &load, connections, &target, control)?
            }
            (Made::Port(port), _) if way.over == Over::Port => {
                port.run(plan, &load, connections, &target, control)?
            }
            (_, None) => kernel_udp::run_under(plan, &load, &target, control)?,
            (_, Some(connections)) => kernel_tcp::run_under(plan, &load, connections, &target, control)?,
        })
    }
}

/// Returns the IOKernel's socket: the option's, the environment's, or the default.
fn socket_of(way: &Way) -> String {
    way.iokernel.clone().unwrap_or_else(crate::socket::found)
}

/// Returns a runtime with one kthread that polls until another program gets its core; `TAILWATER_*`
/// variables win.
fn attach(way: &Way) -> anyhow::Result<Attached> {
    let unset = |name: &str| std::env::var_os(name).is_none();
    let mut builder = tailwater::RuntimeBuilder::new();
    if way.iokernel.is_some() || unset("TAILWATER_IOKERNEL") {
        builder = builder.iokernel(socket_of(way));
    }
    if unset("TAILWATER_NAME") {
        builder = builder.name(format!("load-{}", std::process::id()));
    }
    if unset("TAILWATER_KTHREADS") {
        builder = builder.kthreads(1);
    }
    if unset("TAILWATER_IDLE_TIMEOUT_US") {
        builder = builder.idle_timeout(Duration::ZERO);
    }
    Attached::start(builder).context("cannot generate load over Tailwater")
}
