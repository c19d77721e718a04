//! An IOKernel with the TCP client as its port, and the services on its managed core.
//!
//! Owns their start and end. The control socket is an abstract address, so a killed process leaves
//! nothing in the file system.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use tailwater_iokernel::Config;
use tailwater_iokernel::stats::StatsHandle;
use tailwater_loadgen::tcp::{Order, Outcome, TcpHandle};

use super::terms::{SERVICE_IP, patience};
use tailwater_testbed::child::{ChildProcess, Spec};
use tailwater_testbed::embedded::Embedded;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::port::{GENERATOR_IP, tcp_port};

// Outside the addresses that the IOKernel chooses, as the services'.
const SENDER_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 201);

/// An IOKernel with the client as its port.
pub(super) struct Host {
    embedded: Embedded,
    socket: String,
    client: TcpHandle,
}

impl Host {
    pub(super) fn start() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (port, client) = tcp_port("client", GENERATOR_IP)?;
        let socket = format!("@tailwater-bench-tcp-{}-{number}", std::process::id());
        let config = Config { socket: socket.clone(), neighbour_share: 0, ..Config::default() };
        Ok(Self { embedded: Embedded::start(config, port, None)?, socket, client })
    }

    /// Returns the IOKernel's counters.
    pub(super) fn stats(&self) -> &StatsHandle {
        &self.embedded.stats
    }

    /// Makes the client carry out an order.
    pub(super) fn run(&self, order: Order) -> Result<Outcome> {
        let patience = patience(&order);
        Ok(self.client.run(order, patience)?)
    }

    /// Starts the services and waits until they listen. With `spins` their kthreads poll for ever.
    pub(super) fn serve(&self, spins: bool, interrupt: &Interrupt) -> Result<ChildProcess> {
        let more: &[_] = if spins { &[("TAILWATER_IDLE_TIMEOUT_US", "0")] } else { &[] };
        self.serve_with(more, interrupt)
    }

    /// Starts the services with so many kthreads, which poll for ever.
    pub(super) fn serve_on(&self, kthreads: usize, interrupt: &Interrupt) -> Result<ChildProcess> {
        let kthreads = kthreads.to_string();
        let more = [("TAILWATER_IDLE_TIMEOUT_US", "0"), ("TAILWATER_KTHREADS", &kthreads)];
        self.serve_with(&more, interrupt)
    }

    /// Starts the services with these variables in their environment, in the place of the defaults.
    pub(super) fn serve_with(
        &self,
        more: &[(&'static str, &str)],
        interrupt: &Interrupt,
    ) -> Result<ChildProcess> {
        let mut settings = self.settings("service", SERVICE_IP);
        settings.extend(more.iter().map(|&(name, value)| (name, value.to_owned())));
        let mut child = start(vec!["serve".to_owned()], settings)?;
        let line = child.read_line(interrupt)?;
        anyhow::ensure!(line == "ready", "the service printed {line:?}, not `ready`");
        Ok(child)
    }

    /// Starts a runtime that plays `role` and prints its results.
    pub(super) fn other(&self, role: &[&str]) -> Result<ChildProcess> {
        start(role.iter().map(|&word| word.to_owned()).collect(), self.settings("sender", SENDER_IP))
    }

    /// Returns the settings of another service, in the place of the services.
    pub(super) fn service_settings(&self) -> Vec<(&'static str, String)> {
        self.settings("service", SERVICE_IP)
    }

    /// Returns the settings of another client, beside the services.
    pub(super) fn client_settings(&self) -> Vec<(&'static str, String)> {
        self.settings("client", SENDER_IP)
    }

    fn settings(&self, name: &str, ip: Ipv4Addr) -> Vec<(&'static str, String)> {
        Self::settings_at(&self.socket, name, ip)
    }

    /// Returns the settings of a service with one kthread, for the IOKernel at `socket`.
    pub(super) fn settings_at(socket: &str, name: &str, ip: Ipv4Addr) -> Vec<(&'static str, String)> {
        vec![
            ("TAILWATER_IOKERNEL", socket.to_owned()),
            ("TAILWATER_NAME", name.to_owned()),
            ("TAILWATER_IP", ip.to_string()),
            ("TAILWATER_CLASS", "latency-critical".to_owned()),
            ("TAILWATER_KTHREADS", "1".to_owned()),
        ]
    }
}

fn start(arguments: Vec<String>, settings: Vec<(&'static str, String)>) -> Result<ChildProcess> {
    ChildProcess::start(&Spec { app: "tcp", arguments, settings, ..Spec::default() })
}
