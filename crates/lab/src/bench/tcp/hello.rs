//! hyper's "hello" over 64 connections, for `bench events`: both ends on Tailwater, both on Tokio
//! over the kernel's loopback device, and the server on Tailwater with a client on Tokio behind a
//! TAP device.
//!
//! Owns the processes of a measurement. Server and client are `tailwater-hello`, a program of its
//! own (`tests/hello`), so that this one builds without hyper. On Tailwater both have one kthread
//! and share the managed core, and the IOKernel has the other; on Tokio each has a core and one
//! thread.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tailwater_iokernel::Config;
use tailwater_ports::tap::{TapPort, TapSpec};
use tailwater_testbed::child::{ChildProcess, Service, Spec};
use tailwater_testbed::embedded::Embedded;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::program::find_own;

use super::host::Host;
use super::rounds::pair;
use super::terms::{CONNECTIONS, SERVICE_IP, value_of};
use crate::bench::ports::network::Namespace;

/// How to build the program, printed where it is missing.
pub(super) const BUILD: &str =
    "cargo build --release --manifest-path tests/hello/Cargo.toml --target-dir target";

/// Port of HTTP.
const HTTP: u16 = 80;
/// Linux's side of the TAP device.
const GATEWAY: &str = "10.77.0.1";
/// hyper's buffers and the pools of allocators take a while to get their size.
const WARM_UP: Duration = Duration::from_millis(300);
const LASTS: Duration = Duration::from_millis(700);

/// What a client measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answers {
    pub(super) rps: f64,
    pub(super) p50_us: f64,
}

/// The program.
pub(super) struct Hello {
    path: PathBuf,
}

impl Hello {
    /// Returns the program, beside this one or in PATH; `None` where it is not built.
    pub(super) fn find() -> Option<Self> {
        Some(Self { path: find_own("tailwater-hello")? })
    }

    /// Measures with both ends on Tailwater.
    pub(super) fn on_tailwater(&self, interrupt: &Interrupt) -> Result<Answers> {
        let host = Host::start()?;
        let _server = self.serve_on_tailwater(host.service_settings(), interrupt)?;
        let to = SocketAddr::from((SERVICE_IP, HTTP));
        let client = Spec { settings: host.client_settings(), ..self.asking("tailwater", to) };
        answers(&client, interrupt)
    }

    /// Measures with both ends on Linux, on a core each.
    pub(super) fn on_tokio(&self, interrupt: &Interrupt) -> Result<Answers> {
        let [client, server] = pair()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).to_string();
        let spec = self.spec(&["tokio", "serve", &address]);
        let service = Service::start(&Spec { cores: vec![server], raise: true, ..spec }, interrupt)?;
        let client = Spec { cores: vec![client], raise: true, ..self.asking("tokio", service.address) };
        answers(&client, interrupt)
    }

    /// Measures a server on Tailwater and a client on Tokio behind a TAP device, on the IOKernel's
    /// core.
    ///
    /// # Errors
    /// As [`on_tailwater`](Self::on_tailwater); without the privileges for a network namespace and
    /// a device.
    pub(super) fn over_tap(&self, interrupt: &Interrupt) -> Result<Answers> {
        let measure = || -> Result<Answers> {
            // The namespace is this thread's, and the device ends with it.
            let here = Namespace::new(interrupt)?;
            here.enter()?;
            let [polling, managed] = pair()?;
            let socket = format!("@tailwater-bench-hello-{}", std::process::id());
            let config = Config {
                socket: socket.clone(),
                iokernel_core: Some(polling as u16),
                managed_cores: Some(vec![managed as u16]),
                neighbour_share: 0,
                ..Config::default()
            };
            let tap: TapSpec = "tw0".parse()?;
            let port = TapPort::with_spec(tap, GATEWAY.parse()?);
            let _iokernel = Embedded::start(config, Box::new(port), None)?;
            let _server =
                self.serve_on_tailwater(Host::settings_at(&socket, "hello", SERVICE_IP), interrupt)?;
            let to = SocketAddr::from((SERVICE_IP, HTTP));
            answers(&Spec { cores: vec![polling], ..self.asking("tokio", to) }, interrupt)
        };
        let measured = std::thread::scope(|scope| scope.spawn(measure).join());
        interrupt.check()?;
        measured.map_err(|_| anyhow::anyhow!("a measurement panicked"))?
    }

    fn serve_on_tailwater(
        &self,
        settings: Vec<(&'static str, String)>,
        interrupt: &Interrupt,
    ) -> Result<Service> {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, HTTP)).to_string();
        let spec = self.spec(&["tailwater", "serve", &address]);
        Service::start(&Spec { settings, ..spec }, interrupt)
    }

    fn asking(&self, host: &str, to: SocketAddr) -> Spec {
        let words = [to.to_string(), CONNECTIONS.to_string()];
        let times = [WARM_UP, LASTS].map(|time| time.as_millis().to_string());
        let words: Vec<&str> =
            [host, "ask"].into_iter().chain(words.iter().chain(&times).map(String::as_str)).collect();
        self.spec(&words)
    }

    fn spec(&self, words: &[&str]) -> Spec {
        let path = self.path.display().to_string();
        let arguments = [path.as_str()].iter().chain(words).map(|&word| word.to_owned()).collect();
        Spec { app: "exec", arguments, ..Spec::default() }
    }
}

/// Runs a client and returns what it prints.
fn answers(client: &Spec, interrupt: &Interrupt) -> Result<Answers> {
    let mut client = ChildProcess::start(client)?;
    let rps = value_of(&client.read_line(interrupt)?, "rps").context("hyper's client")?;
    let p50_us = value_of(&client.read_line(interrupt)?, "p50_us")?;
    Ok(Answers { rps, p50_us })
}
