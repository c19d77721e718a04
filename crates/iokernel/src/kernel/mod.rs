//! The IOKernel put together: start, the polling loop, sleep and end.
//!
//! Owns [`IoKernel`] and the order of an iteration: hand-offs, egress rings, ports, the 5 us look,
//! the control thread's mail, ends of registrations, and, when nothing has happened for a while,
//! sleep. While frames flow it makes only the system calls that a hand-off needs, one look for dead
//! runtimes every [250 us](Bounds::death_check) and, on a shared machine, those of [`share`].

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::thread::{gettid, nanosleep, sched_yield};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tailwater_host::{ClockSetter, Keeper};
use tailwater_sched::alloc::{Clocks, PolicyName};
use tailwater_sched::{Nanos, RuntimeId};
use tailwater_shm::control::{SocketFile, serve};
use tailwater_shm::patience::Patience;
use tailwater_shm::{Clock, Cycles, clock};

use crate::allocator::{self, Allocator, PollUrgency, Ranks};
use crate::authority::Authority;
use crate::bounds::bounds;
use crate::config::{Config, Priority};
use crate::control::directory::Directory;
use crate::control::predecessor::Predecessor;
use crate::control::reload::Reloader;
use crate::control::watch::{Heartbeat, Place};
use crate::control::{self, Bell, Command, Control, NewRules, Notice, Surroundings};
use crate::machine::{self, Cores, Pinned, processor_time};
use crate::policy;
use crate::port::Port;
use crate::real_time::real_time;
use crate::runtime::{EndReason, Runtime};
use crate::socket_mode::admit_granted;
use crate::stats::{Stats, StatsHandle};
use crate::switch::Switch;
use crate::sys::holder::Holder;
use crate::sys::{LinuxThreads, peer};
use crate::tenant::{self, Prices, TenantId};
use crate::trace::{self, Trace};
use crate::world::World;
use control_thread::{ControlThread, Work};
use local_peer::LocalPeerYield;
use neighbours::Neighbours;
pub(crate) use ports::{check_address, network_of};
use ports::{devices_of, start_ports};
use quiet::{IdlePolicy, Step, WakeLatency};
pub use start_error::StartError;

mod batch_jobs;
mod contest;
mod control_thread;
mod local_peer;
mod neighbours;
mod ports;
mod quiet;
mod share;
mod sleep;
mod start_error;

/// Maximum number of looks per interval when timers come due in between.
const TIMER_TICKS: u64 = 4;
/// Length of a nap while programs come over from another IOKernel.
const NAP: Duration = Duration::from_micros(50);
/// Duration of the clock's calibration at start, in milliseconds.
const CALIBRATION_MS: u64 = 20;

bounds! {
    /// The polling loop's bounds on time that are not configured.
    struct Bounds {
        /// Interval at which the polling thread checks for runtimes that died; a check is one
        /// system call of 0.3 us. A dead runtime's cores are back in the ledger within 1 ms of its
        /// end.
        death_check = 250 us,
        /// For how long there are naps if a program does not come.
        naps = 100 ms,
        /// Least time without events after which the polling thread sleeps: the sleep and the wake
        /// take as long.
        shortest_quiet = 20 us,
        /// Shortest and longest time before a timer or a port's next event at which a sleep ends:
        /// waking a halted core takes 20 to 52 us (2-vCPU VM), and sleeping must not delay an
        /// event. [`WakeLatency`] learns what this machine needs.
        least_margin = 10 us,
        most_margin = 60 us,
    }
}

/// Why an IOKernel ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its stop flag is set.
    Stopped,
    /// Another one has taken over.
    Succeeded,
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
    /// Interval between two looks at all queues.
    interval: Nanos,
    cores: Cores,
    clock: Clock,
    world: World,
    allocator: Allocator,
    switch: Switch,
    control: Control,
    left_devices: Vec<(String, usize)>,
    commands: Receiver<Command>,
    notices: Sender<Notice>,
    from_control: Arc<Bell>,
    to_control: Arc<Bell>,
    stats: Arc<Stats>,
    heartbeat: Option<Heartbeat>,
    farewell: Option<Box<dyn FnOnce(End) + Send>>,
    control_thread: ControlThread,
    deaths: OwnedFd,
    doorbells: OwnedFd,
}

impl IoKernel {
    /// Checks the configuration, starts the ports and opens the control socket. Runtimes may
    /// connect as soon as this returns and are served once [`run`](Self::run) is called. Takes
    /// about 20 ms, to calibrate the clock.
    ///
    /// # Errors
    /// [`StartError`] says what is wrong and what to do.
    pub fn new(config: Config, ports: Vec<Box<dyn Port>>) -> Result<Self, StartError> {
        Self::make(config, ports, None)
    }

    /// As [`new`](Self::new), in the place of the IOKernel that runs at the same control socket:
    /// this one gets its listening socket and the devices of its ports. That one has ended all
    /// registrations when this returns; its programs attach to this one.
    ///
    /// `main` is called with the number of this process just before that one is asked to end, so
    /// that a service manager watches this process when that one has ended, and with the number of
    /// that one if it goes on all the same.
    ///
    /// # Errors
    /// As `new`, and if none runs there or it refuses, or `stop` is set before it has promised to
    /// end. It then goes on as if nothing had happened. Also if `stop` is set after the promise,
    /// and it has not ended by then.
    pub fn take_over(
        config: Config,
        ports: Vec<Box<dyn Port>>,
        stop: &AtomicBool,
        main: impl Fn(u32),
    ) -> Result<Self, StartError> {
        Self::make(config, ports, Some((stop, &main)))
    }

    /// Returns the descriptors of the devices that a service manager may keep
    /// ([`Port::devices_last`]), by port. The next process goes on with them ([`Port::inherit`]).
    pub fn lasting_devices(&self) -> impl Iterator<Item = (&str, &[OwnedFd])> {
        let lasting = self.control.devices().iter().filter(|of| of.last);
        lasting.map(|of| (of.port.as_str(), &of.files[..]))
    }

    /// Returns the ports of the previous IOKernel whose devices this one has not taken over, with
    /// the numbers of their descriptors; none if there was no takeover.
    pub fn left_devices(&self) -> &[(String, usize)] {
        &self.left_devices
    }

    /// Returns the file in which events are recorded ([`tailwater_shm::trace::Recording`]).
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn record(&self) -> std::io::Result<OwnedFd> {
        self.control.record().try_clone()
    }

    /// Takes over if there is a flag that ends a takeover, and something to call before it.
    fn make(
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
        let refused = |why: String| StartError::Takeover { socket: config.socket.clone(), why };
        let predecessor = takeover.map(|(stop, _)| Predecessor::ask(&config, network, stop)).transpose();
        let mut predecessor = predecessor.map_err(refused)?;
        if let Some(predecessor) = &mut predecessor {
            predecessor.pass_devices(&mut ports)?;
        }
        let left_devices = predecessor.as_ref().map(Predecessor::left_devices).unwrap_or_default();
        let interfaces = start_ports(&mut ports, &mut directory, &config, clock)?;
        if let Some(predecessor) = &predecessor {
            predecessor.keep_places(&mut directory).map_err(refused)?;
        }
        let system = |what| move |source| StartError::System { what, source };
        let devices = devices_of(&ports).map_err(system("copy a descriptor"))?;
        let mut refuses_descriptors = false;
        let mut prepare =
            |listener: &OwnedFd| refuses_descriptors = peer::refuse_descriptors(listener).is_ok();
        let listener = match &predecessor {
            Some(predecessor) => predecessor.listener().map_err(system("copy a descriptor"))?,
            None => serve(&config.socket, &mut prepare)?,
        };
        if takeover.is_some() {
            prepare(&listener);
        }
        if let Err(error) = admit_granted(&config) {
            let socket = &config.socket;
            tracing::warn!(socket, %error, "cannot let users of grants connect: the mode of the socket stays");
        }
        let (to_polling, to_control) =
            (Bell::new().map_err(system("make a bell"))?, Bell::new().map_err(system("make a bell"))?);
        let (command_sender, commands) = channel();
        let (notices, notice_receiver) = channel();
        let named = ports.iter().map(|port| (port.name().to_owned(), port.account())).collect();
        let stats =
            Arc::new(Stats::new(named, &config.firewall, cores.managed.cores().iter().map(|core| core.id)));
        let (clocks, rates) = clock_setter(&config, &cores);
        let mut world = World::new(Arc::clone(&stats), Prices::new(clock, config.offence_share));
        let slots = trace::slots(cores.managed.cores().len());
        let (trace, record) = Trace::start(slots, clock).map_err(StartError::Memory)?;
        world.trace = trace;
        let mut control = Control::new(control::Parts {
            config: config.clone(),
            surroundings: Surroundings {
                clock,
                gateway: network.gateway,
                iokernel_core: cores.iokernel.0,
                managed_cores: cores.managed_numbers(),
                unmanaged: cores.unmanaged(),
                all_cores: cores.all(),
            },
            // The predecessor's until that one has left.
            socket_file: if takeover.is_some() { None } else { SocketFile::of(&config.socket) },
            listener,
            network,
            interfaces,
            devices,
            refuses_descriptors,
            directory,
            commands: command_sender,
            notices: notice_receiver,
            own_notices: notices.clone(),
            record,
            to_polling: Arc::clone(&to_polling),
            to_control: Arc::clone(&to_control),
            stats: Arc::clone(&stats),
            clocks,
            keeper: keeper(&config, &cores),
        })
        .map_err(system("watch the control socket"))?;
        let policy = policy::build(&config, rates);
        let interval = policy.interval();
        let allocator = Allocator::new(
            &config,
            allocator::Parts {
                clock,
                topology: cores.managed.clone(),
                unmanaged: cores.unmanaged(),
                policy,
                threads: Box::new(LinuxThreads),
                stopwatch: clock::now,
            },
        );
        let make_epoll = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let deaths = make_epoll().map_err(system("watch runtimes"))?;
        let doorbells = make_epoll().map_err(system("watch doorbells"))?;
        let control_thread = ControlThread::start(&cores, &notices, &to_control)?;
        if takeover.is_some() {
            // Whether Linux permits it; the thread that runs this may be another one.
            drop(Pinned::this_thread(&cores, Priority::None)?);
        }
        // Last: from here on programs have no other IOKernel, and nothing is left to fail.
        if let (Some(predecessor), Some((stop, main))) = (predecessor, takeover) {
            predecessor.succeed(stop, main).map_err(refused)?;
            control.own_socket_file();
        }
        Ok(Self {
            world,
            allocator,
            switch: Switch::new(ports, &config, clock, clock::now),
            config,
            interval,
            cores,
            clock,
            control,
            left_devices,
            commands,
            notices,
            from_control: to_polling,
            to_control,
            stats,
            heartbeat: None,
            farewell: None,
            control_thread,
            deaths,
            doorbells,
        })
    }

    /// Has the control thread call `beat` every `interval`, as long as the polling thread makes
    /// progress: a sign of life for a service manager.
    pub fn set_heartbeat(&mut self, interval: Duration, beat: impl FnMut() + Send + 'static) {
        self.heartbeat = Some(Heartbeat { interval, beat: Box::new(beat) });
    }

    /// Has [`run`](Self::run) call `farewell` when it is about to end all registrations, on the
    /// polling thread: programs wait for what it waits for.
    pub fn set_farewell(&mut self, farewell: impl FnOnce(End) + Send + 'static) {
        self.farewell = Some(Box::new(farewell));
    }

    /// Returns the counters and histograms; readable during and after [`run`](Self::run), from any
    /// thread.
    pub fn stats(&self) -> StatsHandle {
        StatsHandle::new(Arc::clone(&self.stats))
    }

    /// Returns what puts a new configuration into effect.
    pub fn reloader(&self) -> Reloader {
        Reloader::new(self.notices.clone(), Arc::clone(&self.to_control))
    }

    /// Returns the settings at the start.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns in words what the machine's other programs get of the cores, and why real-time rank
    /// is not given beside them, if it is not.
    pub fn neighbours(&self) -> String {
        let share = self.config.neighbour_share;
        let words = machine::neighbours(self.cores.iokernel.0, &self.cores.managed_numbers(), share);
        if share == 0 {
            return words;
        }
        match real_time(&self.config, self.switch.has_local_peer()) {
            Err(why) => format!("{words}; {why}"),
            Ok(()) => words,
        }
    }

    /// Returns the cores in use.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// Runs on the calling thread, bound to the IOKernel's core, until `stop` is set (noticed
    /// within 100 ms, at once while there is traffic), or until another IOKernel has [taken
    /// over](Self::take_over). Then all registrations have ended, all threads may use their former
    /// cores, and the caller's affinity and priority are restored.
    ///
    /// # Errors
    /// If the thread cannot be bound to the core.
    pub fn run(self, stop: &AtomicBool) -> Result<(), StartError> {
        // Before the thread has its priority, which that process is not to have.
        let holder = Holder::start().inspect_err(
            |error| tracing::warn!(%error, "if this process is killed, programs and devices may notice late"),
        );
        let pinned = Pinned::this_thread(&self.cores, self.config.priority)?;
        self.stats.set_facts(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "socket": self.config.socket,
            "iokernel_core": self.cores.iokernel.0,
            "managed_cores": self.cores.managed_numbers(),
            "tsc_hz": self.clock.hz(),
            "invariant_tsc": Clock::invariant(),
            "policy": self.config.policy.as_str(),
            "priority": pinned.report,
        }));
        // Before the polling state, so that it is joined after that has ended.
        let mut control_thread = self.control_thread;
        let (control, heartbeat) = (self.control, self.heartbeat);
        let naps = control.expects_programs() && control_thread.shares_core;
        control_thread.begin(Work { control, heartbeat, polling: gettid() });
        let us = |us: u64| self.clock.from_ns(us * 1_000);
        let bounds = Bounds::new(self.clock);
        let idle_sleep = us(self.config.idle_sleep_us);
        let neighbours = Neighbours::new(&self.config, &self.cores, self.clock);
        let mut allocator = self.allocator;
        let ranks = neighbours.as_ref().map_or(Ranks::default(), Neighbours::ranks);
        allocator.allow_ranks(ranks);
        let mut polling = Polling {
            real_time: false,
            neighbours,
            leaves: false,
            naps_until: naps.then(|| clock::now().saturating_add(bounds.naps)),
            quiet: IdlePolicy::new(
                (idle_sleep > 0).then(|| Patience::new(bounds.shortest_quiet, idle_sleep)),
                WakeLatency::new([bounds.least_margin, bounds.most_margin]),
                us(self.config.max_wake_delay_us),
                clock::now(),
            ),
            attention: PollUrgency::None,
            local_peer: LocalPeerYield::new(local_peer::Durations::new(self.clock)),
            interval: self.clock.from_ns(self.interval.0),
            death_check: bounds.death_check,
            clock: self.clock,
            world: self.world,
            allocator,
            switch: self.switch,
            commands: self.commands,
            notices: self.notices.clone(),
            from_control: self.from_control,
            to_control: Arc::clone(&self.to_control),
            deaths: self.deaths,
            doorbells: self.doorbells,
            muted: Vec::new(),
            next_tick: 0,
            earliest_tick: 0,
            next_death_check: 0,
            deaths_known_until: clock::now(),
        };
        // Relaxed: the flag publishes nothing else.
        while !stop.load(Ordering::Relaxed) && !polling.leaves {
            polling.iterate(stop);
        }
        polling.enter(Place::Outside);
        if let Some(farewell) = self.farewell {
            farewell(if polling.leaves { End::Succeeded } else { End::Stopped });
        }
        polling.end_all();
        // Then `pinned` restores its nice value.
        polling.leave_real_time();
        // Last: until here the memory is in use.
        drop(holder);
        Ok(())
    }
}

/// The state of the polling thread.
struct Polling {
    /// Another IOKernel takes over.
    leaves: bool,
    /// Programs come over from another one: until then this thread naps between iterations.
    naps_until: Option<Cycles>,
    clock: Clock,
    /// When to sleep.
    quiet: IdlePolicy,
    /// As of the last look.
    attention: PollUrgency,
    /// `None` on a dedicated machine, and where Linux keeps no account of waiting threads.
    neighbours: Option<Neighbours>,
    /// When ordinary threads of this core may run because frames of theirs are waited for.
    local_peer: LocalPeerYield,
    /// This thread has real-time rank, except in rests: while other programs compete for the cores.
    real_time: bool,
    interval: Cycles,
    death_check: Cycles,
    world: World,
    allocator: Allocator,
    switch: Switch,
    commands: Receiver<Command>,
    notices: Sender<Notice>,
    from_control: Arc<Bell>,
    to_control: Arc<Bell>,
    /// Readable when a registered runtime hangs up or its process ends.
    deaths: OwnedFd,
    /// Readable after a registered runtime rang its doorbell. Each ring is an edge, which needs no
    /// read of a descriptor that the runtime shares.
    doorbells: OwnedFd,
    /// Runtimes whose doorbells are not heard for now.
    muted: Vec<RuntimeId>,
    next_tick: Cycles,
    /// Timers cause no tick before this time: whatever runtimes write, looks take a bounded share
    /// of the time.
    earliest_tick: Cycles,
    next_death_check: Cycles,
    /// Every death before this has been noticed.
    deaths_known_until: Cycles,
}

impl Polling {
    #[inline]
    fn iterate(&mut self, stop: &AtomicBool) {
        let now = clock::now();
        self.enter(Place::Handoffs);
        let (world, allocator) = (&mut self.world, &mut self.allocator);
        allocator.progress(world, now);
        world.stats.progress.set(Place::Egress);
        let mut moved = self.switch.poll_egress(world, allocator, now);
        world.stats.progress.set(Place::Ports);
        moved += self.switch.poll_ports(world, allocator, now);
        self.enter(Place::Decisions);
        let timer = self.allocator.earliest_timer().max(self.earliest_tick);
        if now >= self.next_tick || now >= timer {
            self.allocator.tick(&mut self.world, now);
            if let Some(clock) = self.allocator.take_clock() {
                self.tell(Notice::Clock(clock));
            }
            self.attention = self.allocator.attention(&self.world, now);
            self.world.collect_trace();
            self.next_tick = now + self.interval;
            self.earliest_tick = now + self.interval / TIMER_TICKS;
        }
        self.enter(Place::Registrations);
        if self.from_control.take() {
            self.read_commands(now);
        }
        let look = now >= self.next_death_check;
        if look {
            self.check_deaths();
            while let Some(tap) = self.switch.captures.take_broken() {
                self.tell(Notice::CaptureEnded(tap));
            }
            self.allocator.throttle_real_time(&mut self.world, now);
            self.tell_reserved(now, false);
            self.switch.report_ends(&mut self.world, &mut self.allocator, now);
            self.next_death_check = now + self.death_check;
        }
        while let Some((id, reason)) = self.world.next_doomed() {
            self.end(id, reason, now);
        }
        if look {
            self.deaths_known_until = now;
        }
        self.world.stats.polling.iterations.add(1);
        if self.naps_until.is_some_and(|until| now < until) {
            return self.nap();
        }
        let busy = moved > 0 || !self.may_sleep();
        let (switch, allocator) = (&self.switch, &self.allocator);
        match self.quiet.step(busy, self.attention, now, || sleep::next_event(switch, allocator, now)) {
            Step::Sleep => return self.sleep(stop, now),
            step @ (Step::Poll | Step::GiveShare) => self.give_share(step, moved > 0, now),
        }
        if moved == 0 && self.switch.has_local_peer() {
            self.give_way(now);
        }
    }

    /// Publishes where the thread is, for the control thread's watch.
    #[inline(always)]
    fn enter(&self, place: Place) {
        self.world.stats.progress.set(place);
    }

    /// Lets ordinary threads of this core run until they sleep, if they may be the peer of a port.
    #[inline]
    fn give_way(&mut self, now: Cycles) {
        // A real-time thread yields to no ordinary one.
        let frames = self.switch.local_frames(&self.world.stats);
        if self.real_time || !self.local_peer.may_yield(frames, now) {
            return;
        }
        self.enter(Place::Slice);
        let left = clock::now();
        sched_yield();
        let back = clock::now();
        self.enter(Place::Handoffs);
        let shared = self.world.runtimes.iter().nth(1).is_some();
        let counters = &self.world.stats.polling;
        if let Some(pause) = self.local_peer.returned(left, back, shared) {
            counters.long_yields.add(1);
            counters.withheld_ns.add(self.clock.to_ns(pause));
        }
        counters.yields.add(1);
        counters.yielded_ns.add(self.clock.to_ns(back.saturating_sub(left)));
    }

    /// Lets the control thread run, which has no other core: the two compete while programs
    /// register, and the first program that is back has work at once. Without naps Linux runs the
    /// control thread beside this one once a timer tick; a takeover of three programs took ten such
    /// waits of 4 ms, for whatever rank the control thread had. The programs that are served
    /// already notice the length of a nap.
    #[cold]
    fn nap(&mut self) {
        let nap = Timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
        self.enter(Place::Slice);
        // A signal ends it early.
        let _ = nanosleep(&nap);
        self.enter(Place::Handoffs);
        self.quiet.restart(clock::now());
    }

    /// True if doorbells and a look now and then suffice: no service holds or wants a core, no core
    /// changes hands, and nothing waits for the switch, the end of a registration or the tracer.
    fn may_sleep(&self) -> bool {
        match self.attention {
            PollUrgency::None => self.world.is_settled(),
            // The steps of traced requests are read at looks, from short buffers.
            PollUrgency::Occasional => self.world.is_settled() && !self.world.trace.is_traced(),
            PollUrgency::Constant => false,
        }
    }

    fn read_commands(&mut self, now: Cycles) {
        self.quiet.restart(now);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Attach(runtime) => self.attach(runtime, now),
                Command::Leave => self.leaves = true,
                Command::Reunited => self.naps_until = None,
                Command::Begin(id) => {
                    self.allocator.begin(&self.world, id);
                    if self.world.runtimes.get(id).is_some() {
                        self.switch.begin(id);
                    }
                }
                Command::Pair { earlier, later } => {
                    self.switch.pair(earlier, later, &mut self.world);
                    self.allocator.pair(&self.world, earlier, later);
                }
                Command::End(id, reason) => self.world.doom(id, reason),
                Command::RequestCores(id, word) => {
                    if let Some(runtime) = self.world.runtimes.get_mut(id) {
                        runtime.requested_outside = word;
                    }
                }
                Command::Rules(rules) => {
                    let NewRules { guards, stats, ethertypes, multicast } = *rules;
                    for (id, guard) in guards {
                        // One that is on its way here gets its rules before it gets a core.
                        if let Some(runtime) = self.world.runtimes.get_mut(id) {
                            (runtime.guard, runtime.rules) = (guard, Arc::clone(&stats));
                        }
                    }
                    self.switch.set_rules(ethertypes, multicast);
                }
                // One that is not attached yet gets its key when greeted, before its first core.
                Command::Rekey(keys) => self.world.rekey(keys, now),
                Command::Capture(tap) => {
                    let runtimes = self.world.runtimes.iter();
                    let named = runtimes.map(|runtime| (runtime.stats.name.as_str(), runtime.id));
                    self.switch.captures.add(tap, named);
                }
                Command::Clocks(set) => self.allocator.allow_clocks(set),
                Command::Present(cores) => self.allocator.set_present(&mut self.world, &cores, now),
                Command::Trace(tracer) => self.allocator.begin_trace(&mut self.world, tracer, now),
                Command::EndTrace(id) => {
                    if let Some(tracer) = self.world.trace.end(id) {
                        self.tell(Notice::TraceEnded(tracer));
                    }
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
        let began = processor_time();
        let data = EventData::new_u64(runtime.id.0.into());
        // If this fails, the control thread notices the hang-up.
        let watched = [
            (&self.deaths, Some(runtime.socket.as_fd()), EventFlags::RDHUP),
            (&self.deaths, runtime.process.as_ref().map(AsFd::as_fd), EventFlags::IN),
            (&self.doorbells, Some(runtime.doorbell.as_fd()), sleep::RING),
        ];
        for (epoll, fd, flags) in
            watched.into_iter().filter_map(|(epoll, fd, flags)| Some((epoll, fd?, flags)))
        {
            if let Err(error) = epoll::add(epoll, fd, data, flags) {
                tracing::warn!(%error, "cannot watch a runtime");
            }
        }
        let id = runtime.id;
        self.switch.attach(&runtime, &self.world);
        self.world.trace.handle_attached(&runtime.stats.name, id);
        self.allocator.attach(&mut self.world, runtime, now);
        self.tell(Notice::Attached(id));
        if let Some(payer) = self.world.runtimes.get(id).map(|runtime| runtime.tenant) {
            self.count_registration(payer, processor_time().saturating_sub(began), now);
        }
    }

    /// Charges the time in which a program was attached or its registration ended.
    fn count_registration(&mut self, payer: TenantId, took: Duration, now: Cycles) {
        let ns = took.as_nanos() as u64;
        self.world.charge_tenant(payer, tenant::Work::Registration, self.clock.from_ns(ns), now);
        self.world.stats.polling.registration_ns.add(ns);
    }

    /// Tells the control thread which cores ordinary threads are to be kept off, if they have
    /// changed.
    fn tell_reserved(&mut self, now: Cycles, at_once: bool) {
        if let Some(cores) = self.allocator.take_reserved(&mut self.world, now, at_once) {
            self.tell(Notice::Reserved(Box::new(cores)));
        }
    }

    fn tell(&self, notice: Notice) {
        // Fails only after a panic of the control thread, after which no registration and no
        // unmapping happens.
        let _ = self.notices.send(notice);
        self.to_control.ring();
    }

    /// Ends the registration of every runtime whose socket hung up or whose process ended; does not
    /// wait.
    fn check_deaths(&mut self) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 16];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Events beyond the buffer are found 250 us later; an error means that none is known now.
        let count = epoll::wait(&self.deaths, &mut events, Some(&at_once)).unwrap_or(0);
        for event in &events[..count] {
            self.world.doom(RuntimeId(event.data.u64() as u32), EndReason::Departed);
        }
    }

    /// Ends a registration: egress rings, then cores, then the memory, which the control thread
    /// unmaps.
    fn end(&mut self, id: RuntimeId, reason: EndReason, now: Cycles) {
        let (noticed, began) = (clock::now(), processor_time());
        self.switch.detach(id, &mut self.world);
        self.world.trace.handle_detached(id);
        self.muted.retain(|&muted| muted != id);
        let held = self.allocator.holds_since(id);
        let Some(mut runtime) = self.allocator.detach(&mut self.world, id, now) else { return };
        if reason == EndReason::Departed {
            self.count_reclaimed(&held, noticed);
        }
        for fd in
            [Some(runtime.socket.as_fd()), runtime.process.as_ref().map(AsFd::as_fd)].into_iter().flatten()
        {
            let _ = epoll::delete(&self.deaths, fd);
        }
        let told = processor_time();
        let times = self.switch.note_end(&mut runtime, &reason, &mut self.world, &mut self.allocator, now);
        let later = processor_time().saturating_sub(told) * (times - 1);
        // By hand: closing it does not, for the runtime has the same open file.
        let _ = epoll::delete(&self.doorbells, &runtime.doorbell);
        match reason {
            EndReason::Departed | EndReason::Shutdown => self.world.stats.polling.departed.add(1),
            _ => self.world.stats.polling.expelled.add(1),
        }
        let payer = runtime.tenant;
        self.tell(Notice::Retired(runtime, reason));
        self.count_registration(payer, processor_time().saturating_sub(began) + later, now);
    }

    /// Records how long a dead runtime's cores took to come back: from when its death was
    /// `noticed`, and an upper bound from the death itself, which lies after the last look that
    /// found the process alive and after the core was lent.
    fn count_reclaimed(&self, lent: &[Cycles], noticed: Cycles) {
        let now = clock::now();
        let ns_since = |since: Cycles| self.clock.to_ns(now.saturating_sub(since));
        for &since in lent {
            self.world.stats.reclaim.since_notice.record(ns_since(noticed));
            self.world.stats.reclaim.since_alive.record(ns_since(since.max(self.deaths_known_until)));
        }
    }

    fn end_all(&mut self) {
        let now = clock::now();
        // Runtimes that registered since the last iteration are ended as well.
        self.read_commands(now);
        let ids: Vec<RuntimeId> = self.world.runtimes.iter().map(|runtime| runtime.id).collect();
        for id in ids {
            self.end(id, EndReason::Shutdown, now);
        }
    }
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
