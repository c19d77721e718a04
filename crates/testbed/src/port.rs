//! The generator as the IOKernel's port: datagrams, or requests over TCP connections.
//!
//! Owns the steps before a run (connections, first contact, preload) and the wait for its
//! measurement. Over either medium the same requests are due at the same times.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::Context;
use tailwater_loadgen::kernel_tcp::Connections;
use tailwater_loadgen::kernel_udp::Load;
use tailwater_loadgen::lanes::DEFAULT_PIPELINE;
use tailwater_loadgen::protocol::Medium;
use tailwater_loadgen::station::{self, Progress, StationHandle};
use tailwater_loadgen::tcp::{LoadProgress, Order, TcpError, TcpHandle, TcpLoad, tcp_station};
use tailwater_loadgen::{Measurement, Plan};
use tailwater_ports::Port;
use tailwater_tcp::Config;

use crate::bed::{START_TIMEOUT, Testbed};
use crate::child::Service;
use crate::on_linux::CONTACT_TURN;

/// The generator's address, above those that the IOKernel chooses, which begin at .2.
pub const GENERATOR_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 250);

/// Connections of a generator, on every system: of the order of the connections for each hardware
/// thread in the papers (IX section 5.2.4: 2,752 for 16; Arachne table 3: 1,288 for 16), with as
/// many requests on each as IX allows.
pub const CONNECTIONS: Connections = Connections { count: 128, pipeline: DEFAULT_PIPELINE };

/// Time between two checks for a signal, or attempts to connect.
const TURN: Duration = Duration::from_millis(10);

/// The measuring side of the port.
#[derive(Debug)]
pub enum Generator {
    /// Requests in UDP datagrams.
    Datagrams(StationHandle),
    /// Requests over TCP connections.
    Connections(TcpHandle),
}

/// Returns a generator at `ip`, and its port.
///
/// # Errors
/// As [`named_port`].
pub fn port(medium: Medium, ip: Ipv4Addr) -> anyhow::Result<(Box<dyn Port>, Generator)> {
    named_port("generator", medium, ip)
}

/// Returns a generator at `ip`, and its port, whose name differs from those of the IOKernel's other
/// ports.
///
/// # Errors
/// If the kernel gives no descriptor or no random numbers.
pub fn named_port(name: &str, medium: Medium, ip: Ipv4Addr) -> anyhow::Result<(Box<dyn Port>, Generator)> {
    match medium {
        Medium::Datagram => {
            let (port, handle) = station::station(name, ip).context("cannot make the generator")?;
            Ok((Box::new(port), Generator::Datagrams(handle)))
        }
        Medium::Stream => {
            let (port, handle) = tcp_port(name, ip)?;
            Ok((port, Generator::Connections(handle)))
        }
    }
}

/// Returns a TCP client at `ip`, and its port.
///
/// # Errors
/// As [`port`].
pub fn tcp_port(name: &str, ip: Ipv4Addr) -> anyhow::Result<(Box<dyn Port>, TcpHandle)> {
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
        .context("no random numbers")?;
    let (port, handle) = tcp_station(name, ip, secret).context("cannot make the TCP client")?;
    Ok((Box::new(port), handle))
}

impl Generator {
    /// Waits until a server that does not say so takes connections: it has its address a moment
    /// before it listens, and refuses them until then. Over datagrams nothing is to be waited for.
    ///
    /// # Errors
    /// If the server ends or takes none for [`START_TIMEOUT`], or on a signal.
    pub(crate) fn await_server(
        &self,
        testbed: &Testbed,
        service: &mut Service,
        server: SocketAddrV4,
    ) -> anyhow::Result<()> {
        let Self::Connections(handle) = self else { return Ok(()) };
        let give_up = Instant::now() + START_TIMEOUT;
        loop {
            match handle.run(opening(server, 1, CONTACT_TURN), START_TIMEOUT) {
                Ok(outcome) if outcome.completed == 1 => return Ok(()),
                Ok(_) | Err(TcpError::NoServer { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            testbed.interrupt.check()?;
            service.check()?;
            anyhow::ensure!(Instant::now() < give_up, "{server} takes no connections");
            std::thread::sleep(TURN);
        }
    }

    /// Contacts the server, has it store what it is asked for, begins the run, and returns the
    /// start of its schedule.
    ///
    /// # Errors
    /// If the server does not answer or does not store, or on a signal.
    pub fn begin(
        &self,
        testbed: &Testbed,
        plan: &Plan,
        load: &Load,
        server: SocketAddrV4,
    ) -> anyhow::Result<Instant> {
        match self {
            Self::Datagrams(handle) => {
                handle.start(station::Order {
                    plan: plan.clone(),
                    protocol: load.protocol.clone(),
                    preload: load.preload,
                    seed: load.seed,
                    server,
                    wait: START_TIMEOUT,
                })?;
                wait_started(handle, testbed)
            }
            Self::Connections(handle) => {
                open(handle, server)?;
                if load.preload {
                    preload(handle, load, START_TIMEOUT)?;
                }
                testbed.interrupt.check()?;
                handle.start_load(TcpLoad {
                    plan: plan.clone(),
                    protocol: load.protocol.clone(),
                    seed: load.seed,
                    pipeline: CONNECTIONS.pipeline,
                })?;
                Ok(Instant::now() + Duration::from_millis(1))
            }
        }
    }

    /// Waits for the last replies and returns the measurement.
    ///
    /// # Errors
    /// If the IOKernel is gone, if the run does not end, or on a signal.
    pub fn finish(&self, testbed: &Testbed, plan: &Plan) -> anyhow::Result<Measurement> {
        let deadline = Instant::now() + Duration::from_nanos(plan.timeout_ns) + START_TIMEOUT;
        while Instant::now() < deadline {
            testbed.interrupt.check()?;
            let measurement = match self {
                Self::Datagrams(handle) => match handle.wait(TURN)? {
                    Some(Progress::Finished(measurement)) => Some(*measurement),
                    _ => None,
                },
                Self::Connections(handle) => match handle.wait_load(TURN)? {
                    Some(LoadProgress::Finished(measurement)) => Some(*measurement),
                    Some(LoadProgress::Interval(_)) | None => None,
                },
            };
            if let Some(measurement) = measurement {
                return Ok(measurement);
            }
        }
        anyhow::bail!("the generator did not end in time");
    }
}

fn wait_started(handle: &StationHandle, testbed: &Testbed) -> anyhow::Result<Instant> {
    loop {
        testbed.interrupt.check()?;
        match handle.wait(TURN)? {
            Some(Progress::Started(at)) => return Ok(at),
            Some(Progress::Finished(_)) => anyhow::bail!("the generator ended before it began"),
            Some(Progress::Interval(_)) | None => {}
        }
    }
}

fn open(handle: &TcpHandle, server: SocketAddrV4) -> anyhow::Result<()> {
    let connections = CONNECTIONS.count;
    let opened = handle.run(opening(server, connections, START_TIMEOUT), 2 * START_TIMEOUT)?.completed;
    anyhow::ensure!(
        opened == u64::from(connections),
        "{opened} of {connections} connections to {server} were established"
    );
    Ok(())
}

/// Returns the order to open connections whose requests leave at once, as over kernel sockets with
/// TCP_NODELAY.
pub fn opening(server: SocketAddrV4, connections: u32, wait: Duration) -> Order {
    let config = Box::new(Config { nodelay: true, ..Config::default() });
    Order::Open { server, connections, config, loss_per_million: 0, wait }
}

/// Makes the server store the items that the protocol reads, within `wait`.
///
/// # Errors
/// If the server does not take all of it, or the IOKernel is gone.
pub fn preload(handle: &TcpHandle, load: &Load, wait: Duration) -> anyhow::Result<()> {
    let order = Order::Preload { protocol: load.protocol.clone(), wait };
    let missing = handle.run(order, 2 * wait)?.failed;
    anyhow::ensure!(missing == 0, "the server did not take {missing} requests before the measurement");
    Ok(())
}
