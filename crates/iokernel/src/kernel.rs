//! The IOKernel put together: start, the polling loop, sleep and end.
//!
//! Owns [`IoKernel`] and the order of an iteration: hand-offs, egress rings, ports, the 5 us look, the control thread's
//! mail, ends of registrations, and, when nothing has happened for a while, sleep. It makes no system call while frames
//! flow except what a hand-off needs, and one look for dead runtimes every [`DEATH_CHECK_US`].

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use tailwater_sched::alloc::{
    Arachne, ArachneConfig, CongestionDetection, DelayConfig, DelayThreshold, IxConfig, IxControl, Policy,
    Sequence, Static,
};
use tailwater_sched::{Nanos, RuntimeId};
use tailwater_shm::control::{ControlError, serve};
use tailwater_shm::lot::LOT_BYTES;
use tailwater_shm::memory::{self, Mapping, MemoryError};
use tailwater_shm::{Clock, Cycles, ParkingLot, clock};

use crate::allocator::{self, Allocator};
use crate::config::{Config, ConfigError, PolicyKind};
use crate::control::directory::Directory;
use crate::control::{self, Bell, Command, Control, Notice, Surroundings};
use crate::machine::{CoreError, Cores, Pinned, cpu_set};
use crate::port::{Attachment, Context, Port, PortError};
use crate::runtime::{EndReason, Runtime};
use crate::stats::{Stats, StatsHandle};
use crate::switch::Switch;
use crate::sys::LinuxThreads;

mod sleep;

/// How often the polling thread looks for runtimes that died, in microseconds; the look is one system call of 0.3 us. A
/// dead runtime's cores are back in the ledger within 1 ms of its end.
const DEATH_CHECK_US: u64 = 250;
/// Most looks per interval when timers come due in between.
const TIMER_TICKS: u64 = 4;
/// How long the clock is calibrated at start, in milliseconds.
const CALIBRATION_MS: u64 = 20;

/// Why an IOKernel could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is impossible.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cores cannot be used as configured.
    #[error(transparent)]
    Cores(#[from] CoreError),
    /// The control socket cannot be opened.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// No memory for the parking lot.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A port cannot work.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The kernel has no descriptors or threads left.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: Errno,
    },
}

/// An IOKernel that is ready to run: its socket is open, its ports are started.
///
/// ```no_run
/// use std::sync::atomic::AtomicBool;
/// use tailwater_iokernel::{Config, IoKernel};
///
/// let iokernel = IoKernel::new(Config::default(), Vec::new())?;
/// let stats = iokernel.stats();
/// let stop = AtomicBool::new(false); // set it from a signal handler or another thread
/// iokernel.run(&stop)?;
/// println!("{}", stats.to_json());
/// # Ok::<(), tailwater_iokernel::StartError>(())
/// ```
pub struct IoKernel {
    config: Config,
    /// Between two looks at all queues.
    interval: Nanos,
    cores: Cores,
    clock: Clock,
    allocator: Allocator,
    switch: Switch,
    control: Control,
    commands: Receiver<Command>,
    notices: Sender<Notice>,
    from_control: Arc<Bell>,
    to_control: Arc<Bell>,
    stats: Arc<Stats>,
}

impl IoKernel {
    /// Checks the configuration, starts the ports and opens the control socket. Runtimes may connect as soon as this returns
    /// and are served once [`run`](Self::run) is called. Takes about 20 ms, to calibrate the clock.
    ///
    /// # Errors
    /// [`StartError`] says what is wrong and what to do.
    pub fn new(config: Config, mut ports: Vec<Box<dyn Port>>) -> Result<Self, StartError> {
        config.check()?;
        let cores = Cores::detect(&config)?;
        let clock = Clock::calibrate(CALIBRATION_MS);
        let mut directory = Directory::new(&config, cores.managed.len() as u32);
        let gateway = start_ports(&mut ports, &mut directory, &config, clock)?;
        let system = |what| move |source| StartError::System { what, source };
        let lot_file = memory::create("tailwater-lot", LOT_BYTES)?;
        let lot = ParkingLot::new(Mapping::new(&lot_file, "parking lot")?)?;
        let listener = serve(&config.socket)?;
        let (to_polling, to_control) =
            (Bell::new().map_err(system("make a bell"))?, Bell::new().map_err(system("make a bell"))?);
        let (command_sender, commands) = channel();
        let (notices, notice_receiver) = channel();
        let named = ports.iter().map(|port| (port.name().to_owned(), port.account())).collect();
        let stats = Arc::new(Stats::new(named, &config.firewall));
        let control = Control::new(control::Parts {
            config: config.clone(),
            surroundings: Surroundings {
                clock,
                gateway,
                managed_cores: cores.managed_numbers(),
                unmanaged: cores.unmanaged(),
                all_cores: cores.all(),
                lot: Arc::new(lot_file),
            },
            listener,
            directory,
            commands: command_sender,
            notices: notice_receiver,
            to_polling: Arc::clone(&to_polling),
            to_control: Arc::clone(&to_control),
            stats: Arc::clone(&stats),
        })
        .map_err(system("watch the control socket"))?;
        let policy = policy(&config);
        // A policy may decide more seldom than queues of runtimes without a core must be looked at.
        let interval = policy.interval().min(Nanos::from_micros(config.allocation_interval_us));
        let allocator = Allocator::new(
            &config,
            allocator::Parts {
                clock,
                topology: cores.managed.clone(),
                unmanaged: cores.unmanaged(),
                policy,
                lot,
                threads: Box::new(LinuxThreads),
                stats: Arc::clone(&stats),
            },
        );
        Ok(Self {
            allocator,
            switch: Switch::new(ports, &config),
            config,
            interval,
            cores,
            clock,
            control,
            commands,
            notices,
            from_control: to_polling,
            to_control,
            stats,
        })
    }

    /// Counters and histograms; valid during and after [`run`](Self::run), from any thread.
    pub fn stats(&self) -> StatsHandle {
        StatsHandle::new(Arc::clone(&self.stats))
    }

    /// The settings it runs with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The cores it uses.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// Runs on the calling thread, bound to the IOKernel's core, until `stop` is set (noticed within 100 ms, at once while
    /// there is traffic). All registrations end, all threads get their cores back, and the caller's affinity and
    /// priority are as before.
    ///
    /// # Errors
    /// When the thread cannot be bound to the core, or the control thread cannot be started.
    pub fn run(self, stop: &AtomicBool) -> Result<(), StartError> {
        let pinned = Pinned::this_thread(&self.cores, self.config.priority)?;
        self.stats.set_facts(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "socket": self.config.socket,
            "iokernel_core": self.cores.iokernel.0,
            "managed_cores": self.cores.managed_numbers(),
            "tsc_hz": self.clock.hz(),
            "invariant_tsc": Clock::invariant(),
            "policy": self.config.policy,
            "priority": pinned.report,
        }));
        let system = |what| move |source| StartError::System { what, source };
        let deaths = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("watch runtimes"))?;
        let _control = ControlThread::start(self.control, &self.cores, &self.notices, &self.to_control)?;
        let us = |us: u64| self.clock.from_ns(us * 1_000);
        let mut polling = Polling {
            idle_sleep: us(self.config.idle_sleep_us),
            interval: self.clock.from_ns(self.interval.0),
            death_check: us(DEATH_CHECK_US),
            margin: us(sleep::WAKE_MARGIN_US),
            clock: self.clock,
            allocator: self.allocator,
            switch: self.switch,
            commands: self.commands,
            notices: self.notices.clone(),
            from_control: self.from_control,
            to_control: Arc::clone(&self.to_control),
            deaths,
            next_tick: 0,
            earliest_tick: 0,
            next_death_check: 0,
            deaths_known_until: clock::now(),
            busy_at: clock::now(),
            stats: self.stats,
        };
        // Relaxed: nothing else is communicated through the flag.
        while !stop.load(Ordering::Relaxed) {
            polling.iterate(stop);
        }
        polling.end_all();
        Ok(())
    }
}

fn policy(config: &Config) -> Box<dyn Policy + Send> {
    let interval = Nanos::from_micros(config.allocation_interval_us);
    let ix = |sequence| Box::new(IxControl::new(IxConfig { sequence, ..IxConfig::default() }));
    match config.policy {
        PolicyKind::CongestionDetection => {
            Box::new(CongestionDetection::new(tailwater_sched::alloc::Config {
                interval,
                burst_quantum: Nanos::from_micros(config.burst_quantum_us),
                ..Default::default()
            }))
        }
        PolicyKind::DelayThreshold => Box::new(DelayThreshold::new(DelayConfig::default())),
        PolicyKind::Arachne => Box::new(Arachne::new(ArachneConfig::default())),
        PolicyKind::IxConsolidation => ix(Sequence::Consolidation),
        PolicyKind::IxEnergy => ix(Sequence::Energy),
        PolicyKind::Static => Box::new(Static::new(interval)),
    }
}

/// Starts the ports and enters their addresses; returns the gateway, if one of them leads to one.
fn start_ports(
    ports: &mut [Box<dyn Port>],
    directory: &mut Directory,
    config: &Config,
    clock: Clock,
) -> Result<Option<std::net::Ipv4Addr>, StartError> {
    let network6 = config.ip6_of(config.network);
    let context = Context { clock, mtu: config.mtu, prefix_len: config.prefix_len, network6 };
    let (mut gateway, mut uplinks) = (None, 0);
    for number in 0..ports.len() {
        let port = &ports[number];
        let name = port.name().to_owned();
        let fail = |why: String| PortError { port: name.clone(), why };
        if ports[..number].iter().any(|other| other.name() == name) {
            return Err(fail("another port has this name".to_owned()).into());
        }
        let (ip, mac) = match port.attachment() {
            Attachment::Station { mac, ip } => (ip, Some(mac)),
            Attachment::Uplink { gateway: address } => {
                uplinks += 1;
                gateway = address;
                (address, None)
            }
        };
        if uplinks > 1 {
            return Err(fail("another port is the uplink; an IOKernel has one at most".to_owned()).into());
        }
        if let Some(mac) = mac.filter(|mac| mac.is_multicast()) {
            return Err(fail(format!("{mac} is a multicast address")).into());
        }
        if let Some(ip) = ip.filter(|ip| !config.is_host(*ip)) {
            let net = format!("{}/{}", config.network, config.prefix_len);
            return Err(fail(format!("address {ip} is no host address of {net}")).into());
        }
        if !directory.reserve(&name, ip, mac) {
            return Err(fail("another port has its address".to_owned()).into());
        }
        ports[number].start(&context)?;
    }
    Ok(gateway)
}

/// The control thread; told to stop and waited for on drop.
struct ControlThread {
    handle: Option<JoinHandle<()>>,
    notices: Sender<Notice>,
    bell: Arc<Bell>,
}

impl ControlThread {
    fn start(
        control: Control,
        cores: &Cores,
        notices: &Sender<Notice>,
        bell: &Arc<Bell>,
    ) -> Result<Self, StartError> {
        // Away from the managed cores, and from the polling thread's if there is anywhere else.
        let elsewhere: Vec<_> = cores
            .allowed
            .iter()
            .filter(|&&core| cores.managed.position(core).is_none() && core != cores.iokernel)
            .copied()
            .collect();
        let set = if elsewhere.is_empty() { cores.unmanaged() } else { cpu_set(&elsewhere) };
        let handle = std::thread::Builder::new()
            .name("tailwater-control".to_owned())
            .spawn(move || {
                // Inherited: the polling thread's core and priority. A refused change costs speed only.
                let _ = rustix::thread::sched_setaffinity(None, &set);
                let _ = rustix::process::setpriority_process(None, 0);
                control.run();
            })
            .map_err(|e| StartError::System {
                what: "start the control thread",
                source: Errno::from_io_error(&e).unwrap_or(Errno::AGAIN),
            })?;
        Ok(Self { handle: Some(handle), notices: notices.clone(), bell: Arc::clone(bell) })
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        // Fails when the thread has ended by itself.
        let _ = self.notices.send(Notice::Stop);
        self.bell.ring();
        if let Some(handle) = self.handle.take() {
            // A panic there was reported by its own thread.
            let _ = handle.join();
        }
    }
}

/// What the polling thread works with.
struct Polling {
    clock: Clock,
    idle_sleep: Cycles,
    interval: Cycles,
    death_check: Cycles,
    margin: Cycles,
    allocator: Allocator,
    switch: Switch,
    commands: Receiver<Command>,
    notices: Sender<Notice>,
    from_control: Arc<Bell>,
    to_control: Arc<Bell>,
    /// Readable when a registered runtime hangs up or its process ends.
    deaths: OwnedFd,
    next_tick: Cycles,
    /// No timer causes a tick before: whatever runtimes write, looks take a bounded share of the time.
    earliest_tick: Cycles,
    next_death_check: Cycles,
    /// Whoever died before this has been noticed.
    deaths_known_until: Cycles,
    /// When something last happened.
    busy_at: Cycles,
    stats: Arc<Stats>,
}

impl Polling {
    #[inline]
    fn iterate(&mut self, stop: &AtomicBool) {
        let now = clock::now();
        self.allocator.progress(now);
        let mut moved = self.switch.poll_egress(&mut self.allocator, now);
        moved += self.switch.poll_ports(&mut self.allocator, now);
        let timer = self.allocator.earliest_timer().max(self.earliest_tick);
        if now >= self.next_tick || now >= timer {
            self.allocator.tick(now);
            self.next_tick = now + self.interval;
            self.earliest_tick = now + self.interval / TIMER_TICKS;
        }
        if self.from_control.take() {
            self.read_commands(now);
        }
        let look = now >= self.next_death_check;
        if look {
            self.check_deaths();
            while let Some(tap) = self.switch.captures.take_broken() {
                self.tell(Notice::CaptureEnded(tap));
            }
            self.next_death_check = now + self.death_check;
        }
        while let Some((id, reason)) = self.allocator.next_doomed() {
            self.end(id, reason, now);
        }
        if look {
            self.deaths_known_until = now;
        }
        self.stats.polling.iterations.add(1);
        if moved > 0 || !self.allocator.is_quiet() {
            self.busy_at = now;
        } else if self.idle_sleep > 0 && now.saturating_sub(self.busy_at) > self.idle_sleep {
            self.sleep(stop, now);
        }
    }

    fn read_commands(&mut self, now: Cycles) {
        self.busy_at = now;
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Attach(runtime) => self.attach(runtime, now),
                Command::Begin(id) => self.allocator.begin(id),
                Command::End(id, reason) => self.allocator.doom(id, reason),
                Command::Capture(tap) => {
                    let runtimes = self.allocator.runtimes.iter();
                    let named = runtimes.map(|runtime| (runtime.stats.name.as_str(), runtime.id));
                    self.switch.captures.add(tap, named);
                }
                Command::EndCapture(id) => {
                    if let Some(tap) = self.switch.captures.remove(id) {
                        self.tell(Notice::CaptureEnded(tap));
                    }
                }
            }
        }
    }

    fn attach(&mut self, runtime: Box<Runtime>, now: Cycles) {
        let data = EventData::new_u64(runtime.id.0.into());
        // Without an event of its own a hang-up is noticed by the control thread.
        let watched =
            [(Some(&*runtime.socket), EventFlags::RDHUP), (runtime.process.as_ref(), EventFlags::IN)];
        for (fd, flags) in watched.into_iter().filter_map(|(fd, flags)| Some((fd?, flags))) {
            if let Err(error) = epoll::add(&self.deaths, fd, data, flags) {
                tracing::warn!(%error, "cannot watch a runtime for its end");
            }
        }
        let id = runtime.id;
        self.switch.attach(&runtime);
        self.allocator.attach(runtime, now);
        self.tell(Notice::Attached(id));
    }

    fn tell(&self, notice: Notice) {
        // Fails only after a panic of the control thread, when nobody registers and nothing is unmapped any more.
        let _ = self.notices.send(notice);
        self.to_control.ring();
    }

    /// Asks the kernel, without waiting, whose socket hung up or whose process ended.
    fn check_deaths(&mut self) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 16];
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // More than fit are found 250 us later; an error means that none is known now.
        let count = epoll::wait(&self.deaths, &mut events, Some(&at_once)).unwrap_or(0);
        for event in &events[..count] {
            self.allocator.doom(RuntimeId(event.data.u64() as u32), EndReason::Departed);
        }
    }

    /// Ends a registration: egress rings, cores, then the memory, which the control thread takes apart.
    fn end(&mut self, id: RuntimeId, reason: EndReason, now: Cycles) {
        let noticed = clock::now();
        let ip = self.allocator.runtimes.get(id).map(|runtime| runtime.ip);
        self.switch.detach(id, ip);
        let held = self.allocator.holds_since(id);
        let Some(runtime) = self.allocator.detach(id, now) else { return };
        if reason == EndReason::Departed {
            self.count_reclaimed(&held, noticed);
        }
        for fd in [Some(&*runtime.socket), runtime.process.as_ref()].into_iter().flatten() {
            let _ = epoll::delete(&self.deaths, fd);
        }
        match reason {
            EndReason::Departed | EndReason::Shutdown => self.stats.polling.departed.add(1),
            _ => self.stats.polling.expelled.add(1),
        }
        self.tell(Notice::Retired(runtime, reason));
    }

    /// The cores of a runtime that died are free or lent again: how long that took since its death was `noticed`, and, at
    /// most, since it died: after the last look that did not find it dead, and it had no core longer than since it was lent.
    fn count_reclaimed(&self, lent: &[Cycles], noticed: Cycles) {
        let now = clock::now();
        let ns_since = |since: Cycles| self.clock.to_ns(now.saturating_sub(since));
        for &since in lent {
            self.stats.reclaim.since_notice.record(ns_since(noticed));
            self.stats.reclaim.since_alive.record(ns_since(since.max(self.deaths_known_until)));
        }
    }

    fn end_all(&mut self) {
        let now = clock::now();
        // Whoever registered a moment ago is told as well.
        self.read_commands(now);
        let ids: Vec<RuntimeId> = self.allocator.runtimes.iter().map(|runtime| runtime.id).collect();
        for id in ids {
            self.end(id, EndReason::Shutdown, now);
        }
    }
}
