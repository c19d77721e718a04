//! The generator as the IOKernel's port: datagrams, or requests over TCP connections.
//!
//! Owns what comes before a run (connections, first contact, what is stored) and the wait for its measurement; either way the same
//! requests fall due at the same times.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::Context;
use tailwater_iokernel::port::Port;
use tailwater_loadgen::kernel_tcp::Connections;
use tailwater_loadgen::kernel_udp::Load;
use tailwater_loadgen::lanes::DEFAULT_PIPELINE;
use tailwater_loadgen::protocol::Medium;
use tailwater_loadgen::station::{self, Progress, StationHandle};
use tailwater_loadgen::tcp::{LoadProgress, Order, TcpHandle, TcpLoad, tcp_station};
use tailwater_loadgen::{Measurement, Plan};
use tailwater_tcp::Config;

use super::{START_TIMEOUT, Testbed};

/// Connections of a generator, on every system: of the order of what each of the papers' servers has for a hardware thread (IX section
/// 5.2.4: 2,752 for 16; Arachne table 3: 1,288 for 16), and as many requests on each as IX allows.
pub const CONNECTIONS: Connections = Connections { count: 128, pipeline: DEFAULT_PIPELINE };

/// Time between two looks whether a signal came.
const TURN: Duration = Duration::from_millis(10);

/// The measuring side of the port.
#[derive(Debug)]
pub enum Generator {
    Datagrams(StationHandle),
    Connections(TcpHandle),
}

/// A generator at `ip`, and its port.
///
/// # Errors
/// When the kernel has no descriptor or no random numbers left.
pub fn port(medium: Medium, ip: Ipv4Addr) -> anyhow::Result<(Box<dyn Port>, Generator)> {
    match medium {
        Medium::Datagram => {
            let (port, handle) = station::station("generator", ip).context("cannot make the generator")?;
            Ok((Box::new(port), Generator::Datagrams(handle)))
        }
        Medium::Stream => {
            let (port, handle) = tcp_port("generator", ip)?;
            Ok((port, Generator::Connections(handle)))
        }
    }
}

/// A TCP client at `ip`, and its port.
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
    /// Has everything ready at the server, begins the run and says when its schedule starts.
    ///
    /// # Errors
    /// When the server does not answer or does not store, or a signal came.
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

    /// Waits for the last replies and takes the measurement.
    ///
    /// # Errors
    /// When the IOKernel is gone, the run does not end, or a signal came.
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

/// Connections whose requests leave at once, as over the kernel's sockets.
pub fn opening(server: SocketAddrV4, connections: u32, wait: Duration) -> Order {
    let config = Box::new(Config { nodelay: true, ..Config::default() });
    Order::Open { server, connections, config, loss_per_million: 0, wait }
}

/// Has everything stored that the protocol reads, within `wait`.
///
/// # Errors
/// When the server does not take all of it, or the IOKernel is gone.
pub fn preload(handle: &TcpHandle, load: &Load, wait: Duration) -> anyhow::Result<()> {
    let order = Order::Preload { protocol: load.protocol.clone(), wait };
    let missing = handle.run(order, 2 * wait)?.failed;
    anyhow::ensure!(missing == 0, "the server did not take {missing} requests before the measurement");
    Ok(())
}
