//! The start of an IOKernel, from its configuration or in the place of a running one.
//!
//! Owns the order of the steps. What may fail comes before the running IOKernel is asked to end:
//! from then on its programs have no other one.

use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tailwater_host::{ClockSetter, Keeper};
use tailwater_ports::Port;
use tailwater_sched::alloc::{Clocks, PolicyName};
use tailwater_shm::control::{Network, SocketFile, serve};
use tailwater_shm::{Clock, clock};

use super::control_thread::ControlThread;
use super::polling::{Polling, PollingParts};
use super::ports::{devices_of, network_of, start_ports};
use super::{IoKernel, StartError};
use crate::allocator::{self, Allocator};
use crate::authority::Authority;
use crate::config::{Config, Priority};
use crate::control::directory::Directory;
use crate::control::predecessor::Predecessor;
use crate::control::{self, Control, HostInfo, mailbox};
use crate::machine::{self, Cores, Pinned};
use crate::policy;
use crate::socket_mode::admit_granted;
use crate::stats::Stats;
use crate::switch::Switch;
use crate::sys::{LinuxThreads, peer};
use crate::tenant::Prices;
use crate::trace::{self, Trace};
use crate::world::World;

/// Duration of the clock's calibration at start, in milliseconds.
const CALIBRATION_MS: u64 = 20;

/// Returns what makes an error of Linux one of the start.
fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> StartError {
    move |source| StartError::System { what, source }
}

/// Returns what makes the reason of a running IOKernel an error of the start.
fn refused(config: &Config) -> impl FnOnce(String) -> StartError {
    let socket = config.socket.clone();
    move |why| StartError::Takeover { socket, why }
}

impl IoKernel {
    /// Takes over if there is a flag that ends a takeover, and something to call before it.
    pub(super) fn make(
        config: Config,
        mut ports: Vec<Box<dyn Port>>,
        takeover: Option<(&AtomicBool, &dyn Fn(u32))>,
    ) -> Result<Self, StartError> {
        config.check()?;
        let cores = Cores::detect(&config)?;
        let clock = Clock::calibrate(CALIBRATION_MS);
        let authority = Authority::resolve(&config)?;
        let mut directory =
            Directory::new(&config, authority, cores.managed.len() as u32, machine::memory_bytes());
        let network = network_of(&config, &ports);
        let predecessor = takeover.map(|(stop, _)| ask(&config, network, stop, &mut ports)).transpose()?;
        let left_devices = predecessor.as_ref().map(Predecessor::left_devices).unwrap_or_default();
        let interfaces = start_ports(&mut ports, &mut directory, &config, clock)?;
        if let Some(predecessor) = &predecessor {
            predecessor.keep_places(&mut directory).map_err(refused(&config))?;
        }
        let devices = devices_of(&ports).map_err(system("copy a descriptor"))?;
        let (listener, refuses_descriptors) = listen(&config, predecessor.as_ref())?;
        let (command_outbox, command_inbox) = mailbox().map_err(system("make a bell"))?;
        let (notice_outbox, notice_inbox) = mailbox().map_err(system("make a bell"))?;
        let stats = Arc::new(statistics(&config, &cores, &ports));
        let (clocks, rates) = clock_setter(&config, &cores);
        let slots = trace::slots(cores.managed.cores().len());
        let (trace, record) = Trace::start(slots, clock).map_err(StartError::Memory)?;
        let mut world = World::new(Arc::clone(&stats), Prices::new(clock, config.offence_share));
        world.trace = trace;
        let mut control = Control::new(control::ControlParts {
            config: config.clone(),
            host: HostInfo::new(clock, network.gateway, &cores),
            // The predecessor's until that one has left.
            socket_file: if takeover.is_some() { None } else { SocketFile::of(&config.socket) },
            listener,
            network,
            interfaces,
            devices,
            refuses_descriptors,
            directory,
            commands: command_outbox,
            notices: notice_inbox,
            own_notices: notice_outbox.clone(),
            record,
            stats,
            clocks,
            keeper: keeper(&config, &cores),
        })
        .map_err(system("watch the control socket"))?;
        let allocator = allocator(&config, &cores, clock, rates);
        let switch = Switch::new(ports, &config, clock, clock::now);
        let control_thread = ControlThread::start(&cores, notice_outbox.clone())?;
        let polling =
            PollingParts { world, allocator, switch, commands: command_inbox, notices: notice_outbox };
        let polling = Polling::new(&config, polling).map_err(system("watch runtimes"))?;
        if takeover.is_some() {
            // Whether Linux permits it; the thread that runs this may be another one.
            drop(Pinned::this_thread(&cores, Priority::None)?);
        }
        // Last: from here on programs have no other IOKernel, and nothing is left to fail.
        if let (Some(predecessor), Some((stop, main))) = (predecessor, takeover) {
            predecessor.succeed(stop, main).map_err(refused(&config))?;
            control.own_socket_file();
        }
        let (heartbeat, farewell) = (None, None);
        Ok(Self { config, cores, polling, control, control_thread, left_devices, heartbeat, farewell })
    }
}

/// Returns the running IOKernel, whose devices `ports` have from now on.
fn ask(
    config: &Config,
    network: Network,
    stop: &AtomicBool,
    ports: &mut [Box<dyn Port>],
) -> Result<Predecessor, StartError> {
    let mut predecessor = Predecessor::ask(config, network, stop).map_err(refused(config))?;
    predecessor.pass_devices(ports)?;
    Ok(predecessor)
}

/// Returns the listening socket, that of a predecessor if there is one, and whether Linux lets no
/// descriptors into what it accepts.
fn listen(config: &Config, predecessor: Option<&Predecessor>) -> Result<(OwnedFd, bool), StartError> {
    let mut refuses_descriptors = false;
    let mut prepare = |listener: &OwnedFd| refuses_descriptors = peer::refuse_descriptors(listener).is_ok();
    let listener = match predecessor {
        Some(predecessor) => {
            let listener = predecessor.listener().map_err(system("copy a descriptor"))?;
            prepare(&listener);
            listener
        }
        None => serve(&config.socket, &mut prepare)?,
    };
    if let Err(error) = admit_granted(config) {
        let socket = &config.socket;
        tracing::warn!(socket, %error, "cannot let users of grants connect: the mode of the socket stays");
    }
    Ok((listener, refuses_descriptors))
}

/// Returns the counters, all zero.
fn statistics(config: &Config, cores: &Cores, ports: &[Box<dyn Port>]) -> Stats {
    let ports = ports.iter().map(|port| (port.name().to_owned(), port.account())).collect();
    Stats::new(ports, &config.firewall, cores.managed.cores().iter().map(|core| core.id))
}

/// Returns the allocator of the managed cores, with the configured policy.
fn allocator(config: &Config, cores: &Cores, clock: Clock, rates: Clocks) -> Allocator {
    let parts = allocator::AllocatorParts {
        clock,
        topology: cores.managed.clone(),
        unmanaged: cores.unmanaged(),
        policy: policy::build(config, rates),
        threads: Box::new(LinuxThreads),
        stopwatch: clock::now,
    };
    Allocator::new(config, parts)
}

/// Returns what sets clock rates for the configured policy, and the rates that there are.
fn clock_setter(config: &Config, cores: &Cores) -> (ClockSetter, Clocks) {
    let steps = Some(config.policy).filter(|&policy| policy::has_steps(policy));
    if steps.is_some() && !config.ix.clocks {
        tracing::info!(policy = %config.policy, "moves cores only: ix.clocks = false");
    }
    let policy = steps.filter(|_| config.ix.clocks);
    ClockSetter::new(&config.ix.state_file, policy, &cores.managed_numbers(), cores.iokernel.0)
}

/// Returns what keeps ordinary threads off requested cores.
fn keeper(config: &Config, cores: &Cores) -> Keeper {
    let policy = config.policy;
    let refused = (policy != PolicyName::Arbiter)
        .then(|| format!("policy = \"{policy}\" grants no requests; set policy = \"arbiter\""));
    Keeper::new(&config.reserve.keep_off, &config.reserve.state_file, cores.iokernel, refused)
}
