//! Tailwater: an IOKernel in this process with the generator as its port, service and batch job as
//! children.
//!
//! Owns their start, one measurement, and their end, in that order for every point. The IOKernel's
//! control socket is an abstract address, so a killed process leaves nothing in the file system.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tailwater_iokernel::Config;
use tailwater_iokernel::config::{PolicyName, Priority};
use tailwater_loadgen::Plan;
use tailwater_loadgen::kernel_udp::Load;
use tailwater_loadgen::protocol::Medium;

use crate::account::{Snapshot, Tracepoints};
use crate::batch::{self, Companion, Meter, Part};
use crate::bed::Testbed;
use crate::child::{Batch, Service, Spec};
use crate::cores::CorePlan;
use crate::embedded::{Embedded, lending};
use crate::handoffs::HandoffRecord;
use crate::measured::{Measured, counted_part};
use crate::on_linux::{self, Rank};
use crate::port::{self, GENERATOR_IP, Generator};
use crate::program::{Prepared, Program};
use crate::unannounced::Unannounced;

// Outside the addresses that the IOKernel chooses, which begin at .2.
const SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
const SERVICE_PORT: u16 = 5000;
/// Port on which a backup takes its copy.
const BACKUP_PORT: u16 = 5001;

/// Returns the address of a backup: the next ones after the service's.
fn backup_ip(number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(SERVICE_IP.to_bits() + 1 + number as u32)
}

/// Settings of the IOKernel and the service that figures study; the defaults are those of the
/// programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Cores guaranteed to the service.
    pub guaranteed: u16,
    /// Microseconds between two runs of the allocator.
    pub interval_us: u64,
    /// How long an idle kthread of the service polls, in microseconds; 0 is for ever.
    pub idle_timeout_us: u64,
    /// Whether the service's kthreads steal packets from each other.
    pub packet_stealing: bool,
    /// Whether a batch job runs on the same cores.
    pub batch: bool,
    /// Whether the batch job runs in background threads of the spin server instead of in a program
    /// of its own; the server requests all cores, and the policy is `arbiter`.
    pub inside: bool,
    /// Whether the spin server requests as many cores as its load needs, by Arachne's estimate; the
    /// policy is `arbiter`.
    pub estimates: bool,
    /// Whether the spin server makes a user thread for every request.
    pub spawns: bool,
    /// Whether the batch job is an ordinary program at nice 10 on the managed cores, which Linux
    /// divides between it and the service's kthreads, instead of one that is lent cores.
    pub ordinary_batch: bool,
    /// Longest turn of a thread of the service while others wait, in microseconds; 0: no limit.
    pub quantum_us: u64,
    /// Percentage of the polling core for other programs; 0 is for a machine without any, as the
    /// papers' are: a point that begins must not share the core with the start of its processes.
    pub neighbour_share: u8,
    /// Nice value of the polling thread, which takes turns with other threads by Linux's rules
    /// ([`Embedded::take_turns`]); `neighbour_share` has to be 0. `None`: the highest priority.
    pub polling_nice: Option<i32>,
    /// Whether the generator's port states when its next request is due, so that the polling thread
    /// wakes before it; a network card does not.
    pub announced: bool,
    /// Whether the account of the managed cores is also kept for each half of the counted part.
    pub in_halves: bool,
    /// Whether the account of the counted part is taken with tracepoints, which cost each switch of
    /// threads some tens of nanoseconds.
    pub traced: bool,
    /// Kthreads of the service beyond one for each shared core.
    pub more_kthreads: usize,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            guaranteed: 0,
            interval_us: Config::default().allocation_interval_us,
            idle_timeout_us: 50,
            packet_stealing: true,
            batch: true,
            inside: false,
            estimates: false,
            spawns: false,
            ordinary_batch: false,
            quantum_us: 0,
            neighbour_share: 0,
            polling_nice: None,
            announced: true,
            in_halves: false,
            traced: false,
            more_kthreads: 0,
        }
    }
}

/// Measures one point of the spin server.
///
/// # Errors
/// As [`measure`].
pub fn point(
    testbed: &Testbed,
    speed: u64,
    plan: &Plan,
    seed: u64,
    setting: Setting,
    handoffs: &mut HandoffRecord,
) -> anyhow::Result<Measured> {
    let mut spin = Program::spin(speed, plan.service.clone());
    if setting.inside {
        spin.arguments.push("--background".to_owned());
    }
    if setting.spawns {
        spin.arguments.push("--spawn".to_owned());
    }
    if setting.estimates {
        spin = spin.estimating();
    }
    let load = Load { protocol: Arc::clone(&spin.protocol), seed, preload: false };
    measure(testbed, &spin, plan, &load, setting, handoffs)
}

/// Measures one point of any program.
///
/// # Errors
/// If a process does not start or ends, if the plan cannot be run, or on a signal.
pub fn measure(
    testbed: &Testbed,
    program: &Program,
    plan: &Plan,
    load: &Load,
    setting: Setting,
    handoffs: &mut HandoffRecord,
) -> anyhow::Result<Measured> {
    let _off = testbed.stay_off_managed_cores()?;
    let setting = Setting { estimates: program.estimates, ..setting };
    let iokernel = Running::start(&testbed.cores, setting, program.medium)?;
    let unused = Tracepoints::unused();
    let read = || Snapshot::new(&iokernel.embedded.stats.to_json(), &unused);
    let meter: Meter<'_> = Some(&read);
    let foreign = !testbed.job.is_empty();
    let (mut batch, service) = if setting.inside {
        let job = Batch::inside(iokernel.start_service(testbed, program)?);
        (Some(Companion::new(testbed, job, meter)?), None)
    } else {
        let batch = match setting.batch {
            true if setting.ordinary_batch => {
                Some(Companion::new(testbed, on_linux::start_batch(testbed, Rank::Nice)?, None)?)
            }
            true if foreign => Some(Companion::new(testbed, on_linux::start_foreign(testbed, true)?, None)?),
            true => Some(Companion::new(testbed, iokernel.start_batch(testbed)?, meter)?),
            false => None,
        };
        (batch, Some(iokernel.start_service(testbed, program)?))
    };
    // All programs have registered.
    let tracepoints = match setting.traced {
        true => Tracepoints::watch(&iokernel.embedded.stats.to_json()),
        false => Tracepoints::unused(),
    };
    let traced = || Snapshot::new(&iokernel.embedded.stats.to_json(), &tracepoints);
    let port = service.as_ref().map_or(SERVICE_PORT, |service| service.address.port());
    let server = SocketAddrV4::new(SERVICE_IP, port);
    let part = counted_part(plan, iokernel.generator.begin(testbed, plan, load, server)?);
    let (part, counted) = (Part { in_halves: setting.in_halves, ..part }, part.from..part.to);
    let beside = batch::measure(testbed, batch.as_mut().map(|batch| &mut batch.job), Some(&traced), part)?;
    drop(tracepoints);
    let measurement = iokernel.generator.finish(testbed, plan)?;
    handoffs.add(&iokernel.embedded.stats);
    service.map(Service::end).transpose()?;
    let meter = if setting.ordinary_batch || foreign { None } else { meter };
    let batch = batch.as_mut().map(|batch| batch.rates(testbed, &beside, meter)).transpose()?;
    Ok(Measured { measurement, counted, batch, account: beside.account, halves: beside.halves })
}

/// Runs the testbed's program as a batch job beside an IOKernel without traffic; returns the
/// IOKernel's processor time in percent of a core while `work` ran, and what that returned.
///
/// # Errors
/// If a process does not start or ends, or on a signal.
pub fn beside_foreign_job<T>(
    testbed: &Testbed,
    neighbour_share: u8,
    work: impl FnOnce(&mut Batch) -> anyhow::Result<T>,
) -> anyhow::Result<(f64, T)> {
    let _off = testbed.stay_off_managed_cores()?;
    let setting = Setting { neighbour_share, ..Setting::default() };
    let _iokernel = Running::start(&testbed.cores, setting, Medium::Datagram)?;
    let mut batch = on_linux::start_foreign(testbed, true)?;
    let (used, began) = (of_other_threads(), Instant::now());
    let done = work(&mut batch)?;
    let used = of_other_threads().saturating_sub(used);
    Ok((100.0 * used.as_secs_f64() / began.elapsed().as_secs_f64(), done))
}

/// Returns the processor time of this process without that of the calling thread, which measures.
/// The other threads are the IOKernel's; those that have ended count as well.
#[must_use]
pub fn of_other_threads() -> Duration {
    let time = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    time(ClockId::ProcessCPUTime).saturating_sub(time(ClockId::ThreadCPUTime))
}

/// An IOKernel with the generator as its port.
struct Running {
    embedded: Embedded,
    setting: Setting,
    socket: String,
    generator: Generator,
}

impl Running {
    fn start(cores: &CorePlan, setting: Setting, medium: Medium) -> anyhow::Result<Self> {
        let (mut port, generator) = port::port(medium, GENERATOR_IP)?;
        if !setting.announced {
            port = Box::new(Unannounced::new(port)?);
        }
        let socket = format!("@tailwater-testbed-{}", std::process::id());
        let config = Config {
            allocation_interval_us: setting.interval_us,
            neighbour_share: setting.neighbour_share,
            policy: match setting.inside || setting.estimates {
                true => PolicyName::Arbiter,
                false => Config::default().policy,
            },
            // The priority of kthreads. With autogroup on, Linux divides a session's weight among
            // the cores by the weight of its threads there: with only one side raised, a compiler
            // in another session would starve the other.
            priority: if setting.polling_nice.is_some() { Priority::None } else { Priority::Thread },
            ..lending(&socket, cores.polling, &cores.managed)
        };
        // The calling thread may not use the managed cores; the IOKernel's has to.
        let embedded = Embedded::start(config, port, Some(cores.usable.clone()))?;
        if let Some(nice) = setting.polling_nice {
            embedded.take_turns(nice)?;
        }
        Ok(Self { embedded, setting, socket, generator })
    }

    fn start_service(&self, testbed: &Testbed, program: &Program) -> anyhow::Result<Service> {
        let setting = &self.setting;
        let kthreads = testbed.cores.managed.len() + setting.more_kthreads;
        let mut settings = self.settings(program.app, "latency-critical", kthreads);
        settings.push(("TAILWATER_GUARANTEED", setting.guaranteed.to_string()));
        settings.push(("TAILWATER_IDLE_TIMEOUT_US", setting.idle_timeout_us.to_string()));
        settings.push(("TAILWATER_PACKET_STEALING", setting.packet_stealing.to_string()));
        settings.push(("TAILWATER_QUANTUM_US", setting.quantum_us.to_string()));
        settings.push(("TAILWATER_IP", SERVICE_IP.to_string()));
        // Such a program listens at this port of Linux, too.
        let port = if program.prints_address { SERVICE_PORT } else { on_linux::free_addresses(1)?[0].port() };
        let mut prepared = program.prepare(port)?;
        let (backups, log) = self.start_backups(testbed, program, &mut prepared)?;
        let Prepared { arguments, folder } = prepared;
        // A service reads its files on the IOKernel's core, of which it would get a hundredth
        // without the priority; its kthreads raise themselves in any case.
        let spec =
            Spec { app: program.app, arguments, settings, raise: true, log: log.clone(), ..Spec::default() };
        let service = match program.prints_address {
            true => Service::start(&spec, &testbed.interrupt)?,
            false => {
                let mut service = Service::start_at(&spec, SocketAddr::from((SERVICE_IP, port)))?;
                self.generator.await_server(testbed, &mut service, SocketAddrV4::new(SERVICE_IP, port))?;
                service
            }
        };
        let mut service = service.with_folder(folder).with_backups(backups);
        if let Some((backups, log)) = program.backups.as_ref().zip(log.as_ref()) {
            backups.wait(&mut service, log, &testbed.interrupt)?;
        }
        Ok(service)
    }

    fn start_backups(
        &self,
        testbed: &Testbed,
        program: &Program,
        prepared: &mut Prepared,
    ) -> anyhow::Result<(Vec<Service>, Option<PathBuf>)> {
        let Some(backups) = &program.backups else { return Ok((Vec::new(), None)) };
        let address = |number| SocketAddr::from((backup_ip(number), BACKUP_PORT));
        let addresses: Vec<SocketAddr> = (0..backups.count).map(address).collect();
        let complete = |number, spec| {
            let name = format!("{}-backup-{number}", program.app);
            let mut settings = self.settings(&name, "latency-critical", testbed.cores.managed.len());
            settings.push(("TAILWATER_IP", backup_ip(number).to_string()));
            Spec { app: program.app, settings, raise: true, ..spec }
        };
        backups.start(prepared, &addresses, complete, &testbed.interrupt)
    }

    fn start_batch(&self, testbed: &Testbed) -> anyhow::Result<Batch> {
        let settings = self.settings("swaptions", "best-effort", testbed.cores.managed.len());
        let arguments = vec!["--report-on-input".to_owned()];
        Batch::start(&Spec { app: "swaptions", arguments, settings, ..Spec::default() }, &testbed.interrupt)
    }

    fn settings(&self, name: &str, class: &str, kthreads: usize) -> Vec<(&'static str, String)> {
        vec![
            ("TAILWATER_IOKERNEL", self.socket.clone()),
            ("TAILWATER_NAME", name.to_owned()),
            ("TAILWATER_CLASS", class.to_owned()),
            ("TAILWATER_KTHREADS", kthreads.to_string()),
        ]
    }
}
