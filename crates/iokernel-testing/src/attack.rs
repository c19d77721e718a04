//! Attackers: programs, registered or not, that try to stop or slow down an IOKernel and the
//! programs beside them.
//!
//! Owns the attacks that can go on for as long as one likes, for tests and for `bench hostile`. An
//! attacker that is expelled registers again. Its kthreads are best effort unless its name says
//! otherwise, and its other threads ordinary ones.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{IoSliceMut, ReadWriteFlags, preadv2, write};
use rustix::process::geteuid;
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tailwater_iokernel::Grant;
use tailwater_shm::control::{self, ClientMessage, ServerMessage};
use tailwater_shm::layout::MAX_KTHREADS;
use tailwater_shm::memory::Mapping;
use tailwater_wire::MacAddr;

use crate::kthread::Behaviour;
use crate::roles::Hog;
use crate::runtime::{RawError, RawRuntime, RawSpec, register};
use behaviours::{Asleep, FalseErrors, Fickle, Flood, Late};

/// The user id without rights, `nobody` on Debian.
const NOBODY: u32 = 65_534;
/// User of the first of [`Attack::ALL`]; it needs no account.
const FIRST_USER: u32 = 65_000;
/// User of the first of those that an attacker with ever new users is; they need no accounts.
const FIRST_FRESH_USER: u32 = 60_000;
/// Addresses of the network that no program has.
const NOBODYS_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0xee, 0xee]);
const NOBODYS_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 238, 238);
/// Time between two looks of an attacker whether it still is registered.
const LOOK: Duration = Duration::from_millis(5);

/// Number of programs of [`Attack::TurnsInVain`].
const PROGRAMS_IN_TURN: u32 = 4;

mod behaviours;
mod echo;
mod sleepers;
mod stopped;
mod visits;
mod words;

/// What happens to an attacker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is registered, or needs not be, and begins; also when it comes back.
    UnderWay,
    /// Its registration was ended, for this reason.
    Expelled(String),
}

/// What an attacker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attack {
    /// Sends frames with another's address without end.
    Spoofed,
    /// Sends valid frames to the first latency-critical program without end.
    Unicast,
    /// Sends frames to all without end.
    Broadcasts,
    /// Writes numbers anywhere into its region without end.
    Garbage,
    /// Leaves valid records in its egress ring to be sent for ever.
    Repeated,
    /// Rewrites the words of as many kthreads as it may have without end.
    ManyWords,
    /// Says by turns that its kthread is idle and that it runs.
    Flapping,
    /// Rings its doorbell without end.
    Doorbell,
    /// Asks for a core and gives it up at once, without end.
    VainCores,
    /// Never gives its core up.
    KeptCore,
    /// Gives each core up only some milliseconds after it has lost it.
    LateCore,
    /// Registers and leaves without end.
    Registrations,
    /// Has requests refused and logged without end.
    Refusals,
    /// Connects to the control socket and leaves without end.
    Connections,
    /// Keeps connections to the control socket without a word.
    IdleConnections,
    /// Asks for statistics without end.
    Statistics,
    /// Moves whatever sleeps at a word of its region or of the board to another word, without end.
    MovedSleepers,
    /// Rings its doorbell and empties it, after it has made reads of it block.
    EmptiedDoorbell,
    /// Stops a program of its own (SIGSTOP) and sends it frames.
    StoppedProgram,
    /// Asks for as much memory as it gets, makes none of it, and asks again.
    Memory,
    /// Says without end that the packets of a service are too large for a router.
    FalseErrors,
    /// Sleeps on each core that it is lent, with as many kthreads as it may have.
    AsleepCores,
    /// Sends frames without end to an address that no program has, and so to the uplink.
    Uplink,
    /// [`Unicast`](Self::Unicast), from as many programs as one user may have.
    ManyUnicast,
    /// [`StoppedProgram`](Self::StoppedProgram), with as many programs as one user may have.
    ManyStopped,
    /// Wakes whatever sleeps at the board, without end.
    WokenSleepers,
    /// Keeps cores as long as it can, with as many services as one user may have.
    ManyServices,
    /// Goes idle and back at every poll point.
    Flips,
    /// Floods an honest service of its own from Linux's side of a TAP device, which has to carry
    /// the answers.
    TapEcho,
    /// [`VainCores`](Self::VainCores), by four programs in turn.
    TurnsInVain,
    /// Registers, is lent a core in vain and leaves, without end.
    Returns,
}

impl Attack {
    /// All attacks.
    pub const ALL: [Self; 31] = [
        Self::Spoofed,
        Self::Unicast,
        Self::Broadcasts,
        Self::Garbage,
        Self::Repeated,
        Self::ManyWords,
        Self::Flapping,
        Self::Doorbell,
        Self::VainCores,
        Self::KeptCore,
        Self::LateCore,
        Self::Registrations,
        Self::Refusals,
        Self::Connections,
        Self::IdleConnections,
        Self::Statistics,
        Self::MovedSleepers,
        Self::EmptiedDoorbell,
        Self::StoppedProgram,
        Self::Memory,
        Self::FalseErrors,
        Self::AsleepCores,
        Self::Uplink,
        Self::ManyUnicast,
        Self::ManyStopped,
        Self::WokenSleepers,
        Self::ManyServices,
        Self::Flips,
        Self::TapEcho,
        Self::TurnsInVain,
        Self::Returns,
    ];

    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spoofed => "spoofed frames",
            Self::Unicast => "frames to the service",
            Self::Broadcasts => "broadcasts",
            Self::Garbage => "garbage in its region",
            Self::Repeated => "records for ever",
            Self::ManyWords => "words of 256 kthreads",
            Self::Flapping => "idle and not by turns",
            Self::Doorbell => "doorbell",
            Self::VainCores => "cores in vain",
            Self::KeptCore => "core kept",
            Self::LateCore => "cores kept, each for a while",
            Self::Registrations => "registrations",
            Self::Refusals => "refused requests",
            Self::Connections => "connections",
            Self::IdleConnections => "idle connections",
            Self::Statistics => "statistics",
            Self::MovedSleepers => "sleepers moved",
            Self::EmptiedDoorbell => "doorbell emptied",
            Self::StoppedProgram => "frames to a stopped program",
            Self::Memory => "memory",
            Self::FalseErrors => "false errors of routers",
            Self::AsleepCores => "cores slept on by 256 kthreads",
            Self::Uplink => "frames to the uplink",
            Self::ManyUnicast => "frames to the service, 16 programs",
            Self::ManyStopped => "frames to eight stopped programs",
            Self::WokenSleepers => "sleepers woken",
            Self::ManyServices => "cores kept by 16 services",
            Self::Flips => "idle and not at every poll point",
            Self::TapEcho => "TAP flood through an echo service",
            Self::TurnsInVain => "cores in vain, four programs in turn",
            Self::Returns => "cores in vain, registered anew each time",
        }
    }

    /// Returns whether it sends frames to or from a TAP device, which the IOKernel then needs.
    pub fn needs_tap(self) -> bool {
        matches!(self, Self::Uplink | Self::TapEcho)
    }

    /// Returns the user that attacks, where the attacker is a process that root has started.
    pub fn user(self) -> u32 {
        FIRST_USER + self as u32
    }

    /// Returns the user number `number` of an attacker that comes back as another one each time.
    pub fn fresh_user(number: u32) -> u32 {
        FIRST_FRESH_USER + number
    }

    /// Attacks the IOKernel at `socket` until `stop` is set; reports what happens to it.
    ///
    /// # Errors
    /// A registration fails.
    pub fn run(self, socket: &str, stop: &AtomicBool, report: impl FnMut(Event)) -> Result<(), RawError> {
        let mut report = report;
        let report = &mut report;
        match self {
            Self::Spoofed => kthreads(socket, &self.spec(), stop, report, || Box::new(Flood { to: None })),
            Self::Unicast => {
                let to = Some(service(socket)?);
                kthreads(socket, &self.spec(), stop, report, || Box::new(Flood { to }))
            }
            Self::Broadcasts => kthreads(socket, &self.spec(), stop, report, || {
                Box::new(Flood { to: Some((MacAddr([0xff; 6]), Ipv4Addr::BROADCAST)) })
            }),
            Self::VainCores => kthreads(socket, &self.spec(), stop, report, || Box::new(Fickle)),
            Self::KeptCore => kthreads(socket, &self.spec(), stop, report, || Box::<Hog>::default()),
            Self::LateCore => kthreads(socket, &self.spec(), stop, report, || Box::new(Late)),
            Self::Garbage => puppets(socket, &self.spec(), stop, report, scribble),
            Self::Doorbell => puppets(socket, &self.spec(), stop, report, |puppet| {
                let _ = write(puppet.doorbell(), &1u64.to_ne_bytes());
            }),
            Self::Repeated => words::repeat(socket, &self.spec(), stop, report),
            Self::ManyWords => words::rewrite(socket, self.spec(), stop, report),
            Self::Flapping => kthreads(socket, &self.spec(), stop, report, || Box::new(words::Flapping)),
            Self::MovedSleepers => sleepers::move_all(socket, &self.spec(), stop, report),
            Self::WokenSleepers => sleepers::wake_all(socket, &self.spec(), stop, report),
            Self::EmptiedDoorbell => puppets(socket, &self.spec(), stop, report, empty_doorbell),
            Self::StoppedProgram => stopped::disturb(socket, &self.spec(), stop, report),
            Self::FalseErrors => {
                let (_, service) = service(socket)?;
                kthreads(socket, &self.spec(), stop, report, || Box::new(FalseErrors { service }))
            }
            Self::AsleepCores => {
                let mut spec = self.spec().kthreads(MAX_KTHREADS);
                // Its user may have 64 MiB or so.
                spec.register.ring_bytes = 1 << 15;
                kthreads(socket, &spec, stop, report, || Box::new(Asleep))
            }
            Self::Uplink => kthreads(socket, &self.spec(), stop, report, || {
                Box::new(Flood { to: Some((NOBODYS_MAC, NOBODYS_IP)) })
            }),
            Self::ManyUnicast => {
                let to = Some(service(socket)?);
                together(Grant::default().programs, stop, report, |number, mut report| {
                    let spec = numbered(self.spec(), number);
                    kthreads(socket, &spec, stop, &mut report, || Box::new(Flood { to }))
                })
            }
            // Each has two programs.
            Self::ManyStopped => {
                together(Grant::default().programs / 2, stop, report, |number, mut report| {
                    stopped::disturb(socket, &numbered(self.spec(), number), stop, &mut report)
                })
            }
            Self::ManyServices => together(Grant::default().programs, stop, report, |number, mut report| {
                let spec = numbered(RawSpec::new("attacker"), number);
                kthreads(socket, &spec, stop, &mut report, || Box::new(Late))
            }),
            Self::Flips => kthreads(socket, &self.spec(), stop, report, || Box::new(words::Flips)),
            Self::TapEcho => echo::flood(socket, stop, report),
            Self::TurnsInVain => together(PROGRAMS_IN_TURN, stop, report, |number, mut report| {
                let spec = numbered(self.spec(), number);
                kthreads(socket, &spec, stop, &mut report, || Box::new(Fickle))
            }),
            Self::Returns => visits::come_and_go(socket, &self.spec(), stop, report),
            Self::Registrations => visits::churn(socket, &self.spec(), stop, report),
            Self::Refusals => {
                visits::refusals(socket, &self.spec(), stop, report);
                Ok(())
            }
            Self::Memory => {
                visits::hoard(socket, &self.spec(), stop, report);
                Ok(())
            }
            Self::IdleConnections => {
                become_user(NOBODY);
                visits::idle_connections(socket, stop, report);
                Ok(())
            }
            Self::Connections => {
                become_user(NOBODY);
                report(Event::UnderWay);
                while !stop.load(Ordering::Relaxed) {
                    // Fails while its user has too many.
                    drop(control::dial(socket));
                }
                Ok(())
            }
            Self::Statistics => {
                become_user(NOBODY);
                report(Event::UnderWay);
                while !stop.load(Ordering::Relaxed) {
                    let _ = crate::stats(socket);
                }
                Ok(())
            }
        }
    }

    /// Returns its registration: best effort, so that it has no right to the core of a service.
    fn spec(self) -> RawSpec {
        let spec = RawSpec::new("attacker").best_effort();
        match self {
            // They do not idle.
            Self::VainCores
            | Self::TurnsInVain
            | Self::Returns
            | Self::StoppedProgram
            | Self::ManyStopped => RawSpec { spin_us: 0, idle_us: 0, ..spec },
            _ => spec,
        }
    }
}

/// Gives up the rights of root, for this thread and those that it starts. A container may lack the
/// capability: then the attack is one of root.
pub(crate) fn become_user(uid: u32) {
    if geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
        let _ = set_thread_groups(&[]);
        let _ = set_thread_res_gid(gid, gid, gid);
        let _ = set_thread_res_uid(uid, uid, uid);
    }
}

/// Returns the same with another name for each number.
fn numbered(mut spec: RawSpec, number: u32) -> RawSpec {
    if number > 0 {
        spec.register.name += &format!("-{number}");
    }
    spec
}

/// Runs this number of attacks at once, each with another number; what happens to the first is
/// reported. The others may fail: then there are fewer.
fn together(
    count: u32,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
    attack: impl Fn(u32, &mut dyn FnMut(Event)) -> Result<(), RawError> + Sync,
) -> Result<(), RawError> {
    let attack = &attack;
    std::thread::scope(|scope| {
        for number in 1..count {
            // The name of one that was expelled may not be free yet.
            scope.spawn(move || again(stop, || attack(number, &mut |_| ())));
        }
        attack(0, report)
    })
}

/// Attacks with kthreads of this behaviour, registered again whenever they are expelled.
fn kthreads(
    socket: &str,
    spec: &RawSpec,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
    behaviour: impl Fn() -> Box<dyn Behaviour>,
) -> Result<(), RawError> {
    runtimes(stop, report, || Ok((RawRuntime::start(socket, spec, |_| behaviour())?, ())), |()| ())
}

/// Attacks with a runtime that `start` registers, also again whenever it is expelled, and with what
/// belongs to it, to which `deed` is done over and over.
fn runtimes<T>(
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
    start: impl Fn() -> Result<(RawRuntime, T), RawError>,
    mut deed: impl FnMut(&T),
) -> Result<(), RawError> {
    let mut both = start()?;
    while !stop.load(Ordering::Relaxed) {
        report(Event::UnderWay);
        let (runtime, rest) = &both;
        runtime.submit(0);
        let why = loop {
            deed(rest);
            if let Some(why) = runtime.farewell(LOOK) {
                break why;
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        };
        report(Event::Expelled(why));
        drop(both);
        let Some(next) = again(stop, &start)? else { return Ok(()) };
        both = next;
    }
    Ok(())
}

/// Registers again, as often as it takes: the name may not be free yet, or it is too soon. Returns
/// `None` once `stop` is set.
fn again<T>(stop: &AtomicBool, register: impl Fn() -> Result<T, RawError>) -> Result<Option<T>, RawError> {
    while !stop.load(Ordering::Relaxed) {
        match register() {
            Err(RawError::Refused(_) | RawError::Control(_)) => std::thread::sleep(LOOK),
            result => return result.map(Some),
        }
    }
    Ok(None)
}

/// Returns the addresses of the first latency-critical program, as everyone may read them.
fn service(socket: &str) -> Result<(MacAddr, Ipv4Addr), RawError> {
    let document = crate::stats(socket)?;
    let runtimes = document["runtimes"].as_array();
    let service = runtimes.into_iter().flatten().find(|runtime| runtime["class"] == "latency-critical");
    let ip = service.and_then(|runtime| runtime["ip"].as_str()?.parse().ok());
    ip.map(|ip| (MacAddr::derived(ip), ip))
        .ok_or_else(|| RawError::Unexpected("statistics without a latency-critical program".to_owned()))
}

/// A registered program whose kthreads sleep for ever, and whose memory is written from
/// outside.
#[derive(Debug)]
pub struct Puppet {
    connection: OwnedFd,
    files: Vec<OwnedFd>,
    region: Mapping,
    random: u64,
    _kthreads: Vec<Sender<()>>,
}

impl Puppet {
    /// Registers at `socket`.
    ///
    /// # Errors
    /// The IOKernel refuses it.
    pub fn register(socket: &str, spec: &RawSpec) -> Result<Self, RawError> {
        let (connection, _, files) = register(socket, &spec.register)?;
        // Before it has kthreads: later it cannot be mapped.
        let region = Mapping::new(&files[0], "region")?;
        let (tids, alive) = sleeping_threads(spec.register.kthreads);
        control::send(&connection, &ClientMessage::Kthreads { tids }, &[])?;
        match control::receive::<ServerMessage>(&connection)?.0 {
            ServerMessage::Ready => {}
            ServerMessage::Refused { why } => return Err(RawError::Refused(why)),
            other => return Err(RawError::Unexpected(format!("{other:?}"))),
        }
        let random = 0x7461_696c_7761_7465;
        Ok(Self { connection, files, region, random, _kthreads: alive })
    }

    /// Returns its doorbell.
    pub fn doorbell(&self) -> &OwnedFd {
        &self.files[1]
    }

    /// Returns the number of 64-bit words of its region.
    pub fn words(&self) -> u64 {
        self.region.len() as u64 / 8
    }

    /// Overwrites the 64-bit word number `at` of its region.
    ///
    /// # Panics
    /// If the region has no such word.
    pub fn store(&self, at: u64, value: u64) {
        crate::sys::store_word(&self.region, at, value);
    }

    /// Returns why its registration has ended; `None` while it has not within `timeout`.
    pub fn farewell(&self, timeout: Duration) -> Option<String> {
        crate::runtime::farewell(self.connection.as_fd(), timeout)
    }

    /// Returns the next number of a fixed sequence (xorshift64).
    fn next_number(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// Returns the ids of threads that sleep until the senders are dropped.
fn sleeping_threads(count: u16) -> (Vec<i32>, Vec<Sender<()>>) {
    let (tid_out, tid_in) = channel();
    let thread = |_| {
        let (tid_out, (alive, until_dropped)) = (tid_out.clone(), channel::<()>());
        std::thread::spawn(move || {
            // Fails only if the registering thread has panicked.
            let _ = tid_out.send(rustix::thread::gettid().as_raw_nonzero().get());
            let _ = until_dropped.recv();
        });
        alive
    };
    let alive = (0..count).map(thread).collect();
    (tid_in.iter().take(count.into()).collect(), alive)
}

/// Rings the doorbell and reads it before the IOKernel can, which then would wait if it read, too:
/// whether a read waits is a property of the open file, which both have.
fn empty_doorbell(puppet: &mut Puppet) {
    let bell = puppet.doorbell();
    if let Ok(flags) = fcntl_getfl(bell) {
        let _ = fcntl_setfl(bell, flags - OFlags::NONBLOCK);
    }
    let _ = write(bell, &1u64.to_ne_bytes());
    // Does not wait if it is empty. An eventfd has no position: that of the file.
    let _ = preadv2(bell, &mut [IoSliceMut::new(&mut [0; 8])], u64::MAX, ReadWriteFlags::NOWAIT);
}

/// Overwrites one word, half of the time one of the most important ones, often with a small number,
/// which resembles an index or a length.
fn scribble(puppet: &mut Puppet) {
    let (choice, at, value) = (puppet.next_number(), puppet.next_number(), puppet.next_number());
    let range = if choice.is_multiple_of(2) { puppet.words().min(1024) } else { puppet.words() };
    let value = if choice.is_multiple_of(3) { value } else { value % 70_000 };
    puppet.store(at % range, value);
}

/// Attacks with a puppet, registered again whenever it is expelled.
fn puppets(
    socket: &str,
    spec: &RawSpec,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
    mut deed: impl FnMut(&mut Puppet),
) -> Result<(), RawError> {
    let mut puppet = Puppet::register(socket, spec)?;
    report(Event::UnderWay);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..1_000 {
            deed(&mut puppet);
        }
        if let Some(why) = puppet.farewell(Duration::ZERO) {
            report(Event::Expelled(why));
            drop(puppet);
            let Some(next) = again(stop, || Puppet::register(socket, spec))? else { return Ok(()) };
            puppet = next;
            report(Event::UnderWay);
        }
    }
    Ok(())
}
