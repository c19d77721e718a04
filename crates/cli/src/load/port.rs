//! `--over port`: an IOKernel in this process, with the generator as its port.
//!
//! Owns the IOKernel's start and end, and the orders to the station inside it. The server is a
//! program that attaches to this IOKernel, before or after the generator starts.

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Context;
use tailwater_iokernel::Config;
use tailwater_loadgen::control::LEAD_NS;
use tailwater_loadgen::kernel_tcp::Connections;
use tailwater_loadgen::kernel_udp::{Load, Target};
use tailwater_loadgen::protocol::Medium;
use tailwater_loadgen::station::{self, Progress, StationHandle};
use tailwater_loadgen::tcp::{LoadProgress, Order, Outcome, TcpError, TcpHandle, TcpLoad};
use tailwater_loadgen::{Control, Measurement, Plan};

use tailwater_testbed::embedded::Embedded;
use tailwater_testbed::port::{self, GENERATOR_IP, Generator};

/// Time between two checks for an interrupt.
const TURN: Duration = Duration::from_millis(10);

/// How long the server may take to store what is read later.
const PRELOAD_PATIENCE: Duration = Duration::from_secs(60);

/// How long an order is waited for beyond its own limit.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The error of a run that is interrupted before its schedule starts.
const STOPPED: &str = "stopped before the run began";

/// Pause between two attempts to connect while the server does not listen.
const RETRY: Duration = Duration::from_millis(50);

/// An IOKernel with the generator as its port.
pub struct PortHost {
    _embedded: Embedded,
    generator: Generator,
}

impl PortHost {
    /// Starts an IOKernel that polls on `core` and that programs attach to at `socket`.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(socket: &str, core: Option<usize>, tcp: bool) -> anyhow::Result<Self> {
        let medium = if tcp { Medium::Stream } else { Medium::Datagram };
        let (port, generator) = port::port(medium, GENERATOR_IP)?;
        let iokernel_core = core.map(u16::try_from).transpose().context("no core has such a number")?;
        let config = Config { socket: socket.to_owned(), iokernel_core, ..Config::default() };
        Ok(Self { _embedded: Embedded::start(config, port, None)?, generator })
    }

    /// Runs `plan` until its end, under `control`, which cannot choose the schedule's start here.
    ///
    /// # Errors
    /// If the server does not answer or the run could not start.
    pub fn run(
        &self,
        plan: &Plan,
        load: &Load,
        connections: Option<Connections>,
        target: &Target,
        control: &Control<'_>,
    ) -> anyhow::Result<Measurement> {
        let SocketAddr::V4(server) = target.server else {
            anyhow::bail!("the generator as a port uses IPv4, and {} is no IPv4 address", target.server)
        };
        match (&self.generator, connections) {
            (Generator::Datagrams(handle), _) => run_udp(handle, plan, load, (server, target.wait), control),
            (Generator::Connections(handle), Some(connections)) => {
                open(handle, connections.count, (server, target.wait), control)?;
                if load.preload {
                    preload(handle, load, control)?;
                }
                let load = TcpLoad {
                    plan: plan.clone(),
                    protocol: Arc::clone(&load.protocol),
                    seed: load.seed,
                    pipeline: connections.pipeline,
                };
                run_tcp(handle, load, control)
            }
            (Generator::Connections(_), None) => {
                anyhow::bail!("this IOKernel's generator was started for TCP")
            }
        }
    }
}

fn run_udp(
    handle: &StationHandle,
    plan: &Plan,
    load: &Load,
    (server, wait): (SocketAddrV4, Duration),
    control: &Control<'_>,
) -> anyhow::Result<Measurement> {
    handle.start(station::Order {
        plan: plan.clone(),
        protocol: Arc::clone(&load.protocol),
        preload: load.preload,
        seed: load.seed,
        server,
        wait,
    })?;
    loop {
        if control.stop.load(Relaxed) {
            handle.stop();
        }
        match handle.wait(TURN)? {
            Some(Progress::Finished(measurement)) => return Ok(*measurement),
            Some(Progress::Interval(interval)) => control.hand_out(&interval),
            Some(Progress::Started(at)) => control.tell_start(at),
            None => {}
        }
    }
}

/// Makes the server store the items that the protocol reads.
fn preload(handle: &TcpHandle, load: &Load, control: &Control<'_>) -> anyhow::Result<()> {
    let order = Order::Preload { protocol: Arc::clone(&load.protocol), wait: PRELOAD_PATIENCE };
    let missing = carry_out(handle, order, PRELOAD_PATIENCE, control)?.failed;
    anyhow::ensure!(missing == 0, "the server did not take {missing} requests before the measurement");
    Ok(())
}

/// Carries out an order that takes at most `wait`, or stops it on an interrupt.
fn carry_out(
    handle: &TcpHandle,
    order: Order,
    wait: Duration,
    control: &Control<'_>,
) -> anyhow::Result<Outcome> {
    handle.start(order)?;
    let deadline = Instant::now() + wait + END_PATIENCE;
    while Instant::now() < deadline {
        if control.stop.load(Relaxed) {
            handle.stop_order();
        }
        match handle.poll_outcome(TURN) {
            Ok(Some(outcome)) => return Ok(outcome),
            Ok(None) => {}
            Err(TcpError::Stopped) => anyhow::bail!(STOPPED),
            Err(error) => return Err(error.into()),
        }
    }
    Err(TcpError::Ended.into())
}

/// Opens the connections; repeats the attempt while the server does not listen.
fn open(
    handle: &TcpHandle,
    connections: u32,
    (server, wait): (SocketAddrV4, Duration),
    control: &Control<'_>,
) -> anyhow::Result<()> {
    let give_up = Instant::now() + wait;
    loop {
        let rest = give_up.saturating_duration_since(Instant::now());
        let order = port::opening(server, connections, rest.max(RETRY));
        let outcome = carry_out(handle, order, rest.max(RETRY), control)?;
        if outcome.completed == u64::from(connections) {
            return Ok(());
        }
        anyhow::ensure!(!control.stop.load(Relaxed), STOPPED);
        anyhow::ensure!(
            Instant::now() < give_up,
            "{} of {connections} connections to {server} could be opened; does a server listen there, on TCP?",
            outcome.completed
        );
        std::thread::sleep(RETRY);
    }
}

fn run_tcp(handle: &TcpHandle, load: TcpLoad, control: &Control<'_>) -> anyhow::Result<Measurement> {
    handle.start_load(load)?;
    // The station starts the schedule this long after it has taken the order.
    control.tell_start(Instant::now() + Duration::from_nanos(LEAD_NS));
    loop {
        if control.stop.load(Relaxed) {
            handle.stop_load()?;
        }
        match handle.wait_load(TURN)? {
            Some(LoadProgress::Finished(measurement)) => return Ok(*measurement),
            Some(LoadProgress::Interval(interval)) => control.hand_out(&interval),
            None => {}
        }
    }
}
