//! `--over port`: an IOKernel in this process, with the generator as its port.
//!
//! Owns the IOKernel's start and end, and the conversation with the station inside it. The server is a program that
//! attaches to this IOKernel; it may come after the generator.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use tailwater_iokernel::port::Port;
use tailwater_iokernel::{Config, IoKernel};
use tailwater_loadgen::kernel_tcp::Connections;
use tailwater_loadgen::kernel_udp::{Load, Target};
use tailwater_loadgen::station::{self, Progress, StationHandle, station};
use tailwater_loadgen::tcp::{self, LoadProgress, TcpHandle, TcpLoad, tcp_station};
use tailwater_loadgen::{Control, Measurement, Plan};

/// The generator's own address; programs that ask for none get theirs from .2 on.
const GENERATOR_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 250);

/// How often it is looked whether the user wants to end.
const GLANCE: Duration = Duration::from_millis(10);

/// How long the server may take over what is stored before the measurement.
const PRELOAD_PATIENCE: Duration = Duration::from_secs(60);

/// How soon connections are tried again while the server does not listen yet.
const RETRY: Duration = Duration::from_millis(50);

/// An IOKernel on a thread of this process; dropping it ends it.
pub struct PortHost {
    link: Link,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

enum Link {
    Udp(StationHandle),
    Tcp(TcpHandle),
}

impl PortHost {
    /// Starts an IOKernel that programs attach to at `socket`, polling on `core`.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(socket: &str, core: Option<usize>, tcp: bool) -> anyhow::Result<Self> {
        let (port, link): (Box<dyn Port>, Link) = if tcp {
            let mut secret = [0; 16];
            rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
                .context("no random numbers")?;
            let (port, handle) = tcp_station("generator", GENERATOR_IP, secret)?;
            (Box::new(port), Link::Tcp(handle))
        } else {
            let (port, handle) = station("generator", GENERATOR_IP)?;
            (Box::new(port), Link::Udp(handle))
        };
        let iokernel_core = core.map(u16::try_from).transpose().context("no core has such a number")?;
        let config = Config { socket: socket.to_owned(), iokernel_core, ..Config::default() };
        let iokernel = IoKernel::new(config, vec![port]).context("the IOKernel does not start")?;
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("iokernel".to_owned())
            .spawn(move || {
                if let Err(error) = iokernel.run(&flag) {
                    eprintln!("the IOKernel ended: {error}");
                }
            })
            .context("cannot start a thread")?;
        Ok(Self { link, stop, thread: Some(thread) })
    }

    /// Runs `plan` until it is over, under `control`. The schedule's start is no others' to choose.
    ///
    /// # Errors
    /// When the server does not come or the run could not start.
    pub fn run(
        &self,
        plan: &Plan,
        load: &Load,
        connections: Option<Connections>,
        target: &Target,
        control: &Control<'_>,
    ) -> anyhow::Result<Measurement> {
        let SocketAddr::V4(server) = target.server else {
            anyhow::bail!("the generator as a port speaks IPv4, and {} is none", target.server)
        };
        match (&self.link, connections) {
            (Link::Udp(handle), _) => run_udp(handle, plan, load, (server, target.wait), control),
            (Link::Tcp(handle), Some(connections)) => {
                open(handle, connections.count, (server, target.wait), control)?;
                if load.preload {
                    preload(handle, load)?;
                }
                let load = TcpLoad {
                    plan: plan.clone(),
                    protocol: Arc::clone(&load.protocol),
                    seed: load.seed,
                    pipeline: connections.pipeline,
                };
                run_tcp(handle, load, control)
            }
            (Link::Tcp(_), None) => anyhow::bail!("this IOKernel's generator was started for TCP"),
        }
    }
}

impl Drop for PortHost {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by its own thread.
            let _ = thread.join();
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
        match handle.wait(GLANCE)? {
            Some(Progress::Finished(measurement)) => return Ok(*measurement),
            Some(Progress::Interval(interval)) => control.hand_out(&interval),
            Some(Progress::Started(_)) | None => {}
        }
    }
}

/// Opens the connections, again and again while nobody listens.
fn open(
    handle: &TcpHandle,
    connections: u32,
    (server, wait): (SocketAddrV4, Duration),
    control: &Control<'_>,
) -> anyhow::Result<()> {
    let give_up = Instant::now() + wait;
    loop {
        let rest = give_up.saturating_duration_since(Instant::now());
        let order = tcp::Order::Open {
            server,
            connections,
            // Requests leave at once, as over the kernel's sockets.
            config: Box::new(tailwater_tcp::Config { nodelay: true, ..tailwater_tcp::Config::default() }),
            loss_per_million: 0,
            wait: rest.max(RETRY),
        };
        let outcome = handle.run(order, wait + Duration::from_secs(10))?;
        if outcome.completed == u64::from(connections) {
            return Ok(());
        }
        anyhow::ensure!(!control.stop.load(Relaxed), "stopped before the run began");
        anyhow::ensure!(
            Instant::now() < give_up,
            "{} of {connections} connections to {server} could be opened; does a server listen there, on TCP?",
            outcome.completed
        );
        std::thread::sleep(RETRY);
    }
}

/// Has everything stored that the protocol reads.
fn preload(handle: &TcpHandle, load: &Load) -> anyhow::Result<()> {
    let order = tcp::Order::Preload { protocol: Arc::clone(&load.protocol), wait: PRELOAD_PATIENCE };
    let missing = handle.run(order, 2 * PRELOAD_PATIENCE)?.failed;
    anyhow::ensure!(missing == 0, "the server did not take {missing} requests before the measurement");
    Ok(())
}

fn run_tcp(handle: &TcpHandle, load: TcpLoad, control: &Control<'_>) -> anyhow::Result<Measurement> {
    handle.start_load(load)?;
    loop {
        if control.stop.load(Relaxed) {
            handle.stop_load()?;
        }
        match handle.wait_load(GLANCE)? {
            Some(LoadProgress::Finished(measurement)) => return Ok(*measurement),
            Some(LoadProgress::Interval(interval)) => control.hand_out(&interval),
            None => {}
        }
    }
}
