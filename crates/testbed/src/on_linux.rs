//! Linux: the same service and batch job as ordinary threads, the generator over kernel UDP.
//!
//! Owns the baseline's conditions, chosen in its favour. Service and batch job are pinned to the
//! managed cores; the batch job is in the `SCHED_IDLE` class, unless a figure has it at nice 0 or
//! 10; both are in one scheduling group (with autogroup on, ranks hold only within a session). The
//! generator has a core to itself. Service and generator have the priority that kthreads and the
//! IOKernel give themselves. The UDP sockets of the spin servers and of `dns` hold as many requests
//! as Tailwater's.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use tailwater_loadgen::kernel_udp::{Load, Target};
use tailwater_loadgen::protocol::{Medium, Spin};
use tailwater_loadgen::{Measurement, Plan, kernel_tcp, kernel_udp};
use tailwater_placement::buffer::{DATAGRAMS, hold_as_many};
use tailwater_shm::priority::HIGHEST;

use crate::batch::{self, Companion};
use crate::bed::{START_TIMEOUT, Testbed};
use crate::child::{Batch, Service, Spec};
use crate::machine::core_list;
use crate::measured::{Measured, counted_part};
use crate::port::CONNECTIONS;
use crate::program::{Prepared, Program};

/// How long a server is asked for an answer between two checks that it runs.
pub(crate) const CONTACT_TURN: Duration = Duration::from_millis(500);

/// The server, and whether a batch job runs beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// How the service is written.
    pub server: Server,
    /// Whether a batch job runs on the same cores, and at which rank.
    pub batch: Option<Rank>,
}

/// The rank of a batch job beside the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// Scheduling class `SCHED_IDLE`: only where the service does not run.
    Idle,
    /// Nice 0, as a user starts it.
    Ordinary,
    /// Nice 10 beside the service: a tenth of its weight. That of Arachne's background job.
    Nice,
}

/// How the service is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// One ordinary thread per core on one socket.
    Threads(Wait),
    /// A server inside the running program under this name, which takes `--listen`, `--threads` and
    /// `--speed` as the spin server does.
    App(&'static str),
}

/// How the spin server's threads wait for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// Blocked in the kernel.
    Block,
    /// Polling the socket.
    Busy,
}

impl Setting {
    /// Ordinary threads beside a batch job.
    pub fn threads(wait: Wait) -> Self {
        Self { server: Server::Threads(wait), batch: Some(Rank::Idle) }
    }
}

/// Returns a sentence for readers of a figure: how many datagrams a UDP socket holds here and on
/// Tailwater.
pub fn queue_note() -> String {
    let tried = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(hold_as_many);
    match tried {
        Ok(held) => format!(
            "A UDP socket on Linux holds about {held} small datagrams, one of Tailwater's {DATAGRAMS}{}.",
            if held < DATAGRAMS { ": net.core.rmem_max and the privileges allow no more" } else { "" }
        ),
        Err(error) => format!("How many datagrams a UDP socket on Linux holds is not known: {error}."),
    }
}

/// Measures one point of a spin server over a single flow: on one machine no network card hashes
/// flows to queues, and several sockets would need epoll.
///
/// # Errors
/// If a process does not start or ends, if the plan cannot be run, or on a signal.
pub fn point(
    testbed: &Testbed,
    speed: u64,
    plan: &Plan,
    seed: u64,
    setting: Setting,
) -> anyhow::Result<Measured> {
    let protocol = Arc::new(Spin::new(plan.service.clone()));
    let load = Load { protocol, seed, preload: false };
    measure(testbed, plan, &load, (Medium::Datagram, setting.batch), || {
        start_service(testbed, speed, setting.server)
    })
}

/// Measures one point of any program, over one flow or over [`CONNECTIONS`].
///
/// # Errors
/// As [`point`].
pub fn measure_program(
    testbed: &Testbed,
    program: &Program,
    plan: &Plan,
    load: &Load,
) -> anyhow::Result<Measured> {
    measure(testbed, plan, load, (program.medium, program.batch.then_some(Rank::Idle)), || {
        let addresses = free_addresses(1 + program.backups.as_ref().map_or(0, |backups| backups.count))?;
        let (address, others) = (addresses[0], &addresses[1..]);
        let mut prepared = program.prepare(address.port())?;
        let complete =
            |_, spec| Spec { app: program.app, cores: testbed.cores.managed.clone(), raise: true, ..spec };
        let (backups, log) = match &program.backups {
            None => (Vec::new(), None),
            Some(backups) => backups.start(&mut prepared, others, complete, &testbed.interrupt)?,
        };
        let Prepared { arguments, folder } = prepared;
        let spec = complete(0, Spec { arguments, log: log.clone(), ..Spec::default() });
        let service = Service::start_at(&spec, address)?;
        let mut service = service.with_folder(folder).with_backups(backups);
        if let Some((backups, log)) = program.backups.as_ref().zip(log.as_ref()) {
            backups.wait(&mut service, log, &testbed.interrupt)?;
        }
        Ok(service)
    })
}

fn measure(
    testbed: &Testbed,
    plan: &Plan,
    load: &Load,
    (medium, batch): (Medium, Option<Rank>),
    start: impl FnOnce() -> anyhow::Result<Service>,
) -> anyhow::Result<Measured> {
    let _off = testbed.stay_off_managed_cores()?;
    // The batch job first: beside a server that polls it would take seconds to start.
    let start_batch = |rank| Companion::new(testbed, start_batch(testbed, rank)?, None);
    let mut batch = batch.map(start_batch).transpose()?;
    let mut service = start()?;
    let stop = AtomicBool::new(false);
    wait_ready(testbed, &mut service, load, medium, &stop)?;
    // Knot DNS binds its workers to cores from 0 on, and core 0 is the generator's.
    service.keep_to(&testbed.cores.managed)?;
    let plan = Plan { flows: 1, ..plan.clone() };
    let core = testbed.cores.polling;
    let (measurement, counted, beside) = std::thread::scope(|scope| {
        let generator = scope.spawn(|| generate_on(core, &plan, load, (service.address, medium), &stop));
        let part = counted_part(&plan, Instant::now());
        let counted = part.from..part.to;
        let beside = batch::measure(testbed, batch.as_mut().map(|batch| &mut batch.job), None, part);
        if beside.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        let measurement = generator.join().expect("the generator does not panic");
        // First why the load was stopped, of which the generator knows the effect only.
        let beside = beside?;
        anyhow::Ok((measurement?, counted, beside))
    })?;
    service.end()?;
    let batch = batch.as_mut().map(|batch| batch.rates(testbed, &beside, None)).transpose()?;
    Ok(Measured { measurement, counted, batch, account: Vec::new(), halves: None })
}

/// Waits until the server answers, and has it store the items that it is asked for later.
fn wait_ready(
    testbed: &Testbed,
    service: &mut Service,
    load: &Load,
    medium: Medium,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let give_up = Instant::now() + START_TIMEOUT;
    while let Err(error) = contact(load, medium, service.address, stop) {
        testbed.interrupt.check()?;
        service.check()?;
        anyhow::ensure!(Instant::now() < give_up, error);
    }
    if load.preload {
        match medium {
            Medium::Datagram => kernel_udp::preload_server(&*load.protocol, service.address, stop)?,
            Medium::Stream => kernel_tcp::preload_server(&*load.protocol, service.address, stop)?,
        }
    }
    Ok(())
}

fn contact(load: &Load, medium: Medium, server: SocketAddr, stop: &AtomicBool) -> anyhow::Result<()> {
    match medium {
        Medium::Datagram => kernel_udp::contact_server(&*load.protocol, server, CONTACT_TURN, stop)?,
        Medium::Stream => kernel_tcp::contact_server(&*load.protocol, server, CONTACT_TURN, stop)?,
    }
    Ok(())
}

/// Returns addresses, all different, whose ports were free a moment ago.
pub(crate) fn free_addresses(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let bound = (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let listeners: Vec<_> = bound.collect::<Result<_, _>>().context("no address is free")?;
    listeners.iter().map(|listener| listener.local_addr().context("a listener has no address")).collect()
}

fn generate_on(
    core: usize,
    plan: &Plan,
    load: &Load,
    (server, medium): (SocketAddr, Medium),
    stop: &AtomicBool,
) -> anyhow::Result<Measurement> {
    // The priority of the IOKernel, its kthreads and the service. Without CAP_SYS_NICE it is
    // refused to all of them. It ends with this thread.
    let _ = rustix::process::setpriority_process(None, HIGHEST);
    let target = Target { server, core: Some(core), wait: START_TIMEOUT };
    let load = Load { preload: false, ..load.clone() };
    Ok(match medium {
        Medium::Datagram => kernel_udp::run_protocol(plan, &load, &target, stop)?,
        Medium::Stream => kernel_tcp::run(plan, &load, CONNECTIONS, &target, stop)?,
    })
}

fn start_service(testbed: &Testbed, speed: u64, server: Server) -> anyhow::Result<Service> {
    let managed = &testbed.cores.managed;
    let (threads, speed) = (managed.len().to_string(), speed.to_string());
    let common = ["--listen", "127.0.0.1:0", "--threads", &threads, "--speed", &speed];
    let (app, own) = match server {
        Server::Threads(Wait::Block) => ("spin", &["--linux", "--wait", "block"][..]),
        Server::Threads(Wait::Busy) => ("spin", &["--linux", "--wait", "busy"][..]),
        Server::App(app) => (app, &[][..]),
    };
    let arguments = common.iter().chain(own).map(|&word| word.to_owned()).collect();
    let spec = Spec { app, arguments, cores: managed.clone(), raise: true, ..Spec::default() };
    Service::start(&spec, &testbed.interrupt)
}

/// Runs the testbed's program as a batch job alone; returns what `work` returns.
///
/// # Errors
/// If a process does not start or ends, or on a signal.
pub fn foreign_job<T>(
    testbed: &Testbed,
    work: impl FnOnce(&mut Batch) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let _off = testbed.stay_off_managed_cores()?;
    work(&mut start_foreign(testbed, false)?)
}

/// Starts the testbed's program as a batch job on the managed cores: in this program's session,
/// which is the best that Linux has beside the service, or as `tailwater run --batch` does, in one
/// of its own.
///
/// # Errors
/// If it does not start, or on a signal.
pub(crate) fn start_foreign(testbed: &Testbed, own_session: bool) -> anyhow::Result<Batch> {
    let mut arguments = vec!["--cores".to_owned(), core_list(&testbed.cores.managed)];
    if own_session {
        arguments.push("--own-session".to_owned());
    }
    arguments.push("--".to_owned());
    arguments.extend(testbed.job.iter().cloned());
    Batch::start(&Spec { app: "repeat", arguments, ..Spec::default() }, &testbed.interrupt)
}

/// Starts a batch job on ordinary threads on the managed cores: `swaptions`, or the testbed's
/// program, which is in `SCHED_IDLE` whatever the rank.
///
/// # Errors
/// If it does not start, or on a signal.
pub(crate) fn start_batch(testbed: &Testbed, rank: Rank) -> anyhow::Result<Batch> {
    if !testbed.job.is_empty() {
        return start_foreign(testbed, false);
    }
    let managed = &testbed.cores.managed;
    let (threads, cores) = (managed.len().to_string(), core_list(managed));
    // Only the workers are pinned: the thread that reports stays off the managed cores, as on
    // Tailwater.
    let mut arguments =
        ["--linux", "--threads", &threads, "--core", &cores, "--report-on-input"].map(str::to_owned).to_vec();
    match rank {
        Rank::Idle => arguments.push("--nice-idle".to_owned()),
        Rank::Ordinary => {}
        Rank::Nice => arguments.extend(["--nice", "10"].map(str::to_owned)),
    }
    // Nice 10 is relative to the service, which is raised.
    let raise = rank == Rank::Nice;
    Batch::start(&Spec { app: "swaptions", arguments, raise, ..Spec::default() }, &testbed.interrupt)
}
