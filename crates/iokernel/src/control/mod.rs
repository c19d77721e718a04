//! The control thread: registration, statistics and the release of runtimes that have ended.
//!
//! Owns the control socket: its clients are accepted by [`accept`], [`conversation`] has the states
//! of a connection (`tailwater_shm::control` has the protocol), [`registration`] makes a runtime,
//! and the [`directory`] knows who has what. All slow work of a registration happens here: memory
//! files, mapping and populating them, `/proc` checks; and unmapping at the end. Finished
//! registrations go to the polling thread as [`Command`]s, ended ones come back as [`Notice`]s. The
//! polling thread never waits for this one: it reads one flag per iteration, and itself watches the
//! sockets of registered runtimes for their end, so that a dead runtime is noticed even if this
//! thread gets no processor time.
//!
//! # Crash and lie
//!
//! | step | peer dies here | peer lies here |
//! |---|---|---|
//! | before `Register` | connection dropped | malformed: dropped |
//! | after `Welcome` | place taken back | wrong threads: refused; silence: dropped after [`PATIENCE`] |
//! | watching, tracing | the polling thread takes its ring out | impossible ring position: taken out, dropped |
//! | registered | the polling thread frees its cores, then this one its memory | unexpected message: registration ends |

mod accept;
mod boards;
pub(crate) mod client;
mod conversation;
pub(crate) mod directory;
mod gate;
mod instances;
mod mail;
mod numbers;
pub(crate) mod owed;
mod ports;
pub(crate) mod predecessor;
pub(crate) mod process;
mod rank;
mod registration;
pub(crate) mod reload;
mod session;
mod standing;
pub(crate) mod takeover;
mod user;
pub(crate) mod watch;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::CpuSet;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailwater_host::{ClockSetter, Keeper, Presence};
use tailwater_ports::PortInterface;
use tailwater_sched::RuntimeId;
use tailwater_shm::Clock;
use tailwater_shm::control::{self, ControlError, Network, ServerMessage, SocketFile};

use crate::authority::Subordinates;
use crate::config::Config;
use crate::machine::{Cores, processor_time};
use crate::runtime::{EndReason, Runtime};
use crate::stats::Stats;
use crate::tenant::Key;
use accept::new_spare;
use boards::Boards;
use client::{ClientSocket, Closer};
use directory::Directory;
use gate::{Gate, Work};
pub(crate) use mail::{Command, Inbox, NewRules, Notice, Outbox, mailbox};
use session::{Caller, Session, State};
use takeover::REUNION;
use watch::{Heartbeat, StallWatch};

/// Maximum time from one step of a registration to the next.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a runtime is sent about the network and the machine.
#[derive(Debug, Clone)]
pub(crate) struct HostInfo {
    pub(crate) clock: Clock,
    pub(crate) gateway: Option<Ipv4Addr>,
    pub(crate) iokernel_core: u16,
    pub(crate) managed_cores: Vec<u16>,
    pub(crate) unmanaged: CpuSet,
    pub(crate) all_cores: CpuSet,
}

impl HostInfo {
    pub(crate) fn new(clock: Clock, gateway: Option<Ipv4Addr>, cores: &Cores) -> Self {
        Self {
            clock,
            gateway,
            iokernel_core: cores.iokernel.0,
            managed_cores: cores.managed_numbers(),
            unmanaged: cores.unmanaged(),
            all_cores: cores.all(),
        }
    }
}

/// The state of the control thread.
pub(crate) struct Control {
    parts: ControlParts,
    epoll: OwnedFd,
    sessions: HashMap<u64, Session>,
    /// Closes sockets that may have descriptors in unread messages.
    closer: Option<Closer>,
    gate: Gate,
    /// Whose user ids are.
    owners: Subordinates,
    boards: Boards,
    /// Firewall rules have changed since the start.
    rules_changed: bool,
    /// Grants may have other numbers than at the start.
    grants_changed: bool,
    /// The IOKernel that takes over: this one ends, and accepts no connection any more.
    successor: Option<Arc<ClientSocket>>,
    /// Until when places are kept for the programs of the IOKernel that ran before.
    reunion_ends: Option<Instant>,
    /// The programs, for the next IOKernel; `None` without a folder for it.
    list: Option<owed::List>,
    /// What the policy was last told about clock rates.
    sets_clocks: bool,
    /// A descriptor to close when there is no other: a connection is then accepted to be refused.
    spare: Option<OwnedFd>,
    /// Until when the listener is out of `epoll`.
    accepts_again: Option<Instant>,
    next_token: u64,
}

const LISTENER: u64 = 0;
const BELL: u64 = 1;

/// What [`Control`] is made from.
pub(crate) struct ControlParts {
    pub(crate) config: Config,
    pub(crate) host: HostInfo,
    /// Removed when the IOKernel ends: before the listener is closed, so that a program that
    /// connects from then on is refused by the kernel.
    pub(crate) socket_file: Option<SocketFile>,
    pub(crate) listener: OwnedFd,
    /// The network of all runtimes.
    pub(crate) network: Network,
    /// The descriptors of each port, for an IOKernel that takes over.
    pub(crate) devices: Vec<takeover::Devices>,
    /// The interfaces of the ports.
    pub(crate) interfaces: Vec<PortInterface>,
    /// The kernel lets no descriptors into sockets accepted from `listener`.
    pub(crate) refuses_descriptors: bool,
    pub(crate) directory: Directory,
    pub(crate) commands: Outbox<Command>,
    pub(crate) notices: Inbox<Notice>,
    /// The file in which the polling thread records events.
    pub(crate) record: OwnedFd,
    /// The other end, for threads of the control thread's own.
    pub(crate) own_notices: Outbox<Notice>,
    pub(crate) stats: Arc<Stats>,
    /// Sets clock rates, and puts them back when the control thread ends.
    pub(crate) clocks: ClockSetter,
    /// Keeps ordinary threads off cores, and puts back what they may use when the control thread
    /// ends.
    pub(crate) keeper: Keeper,
}

impl Control {
    /// # Errors
    /// If the kernel has no descriptor left.
    pub(crate) fn new(parts: ControlParts) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &parts.listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let spare = Some(new_spare()?);
        let (now, programs) = (Instant::now(), parts.config.max_runtimes);
        epoll::add(&epoll, parts.notices.fd(), EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Self {
            parts,
            epoll,
            sessions: HashMap::new(),
            closer: None,
            gate: Gate::new(programs, now),
            owners: Subordinates::of_machine(),
            boards: Boards::default(),
            rules_changed: false,
            grants_changed: false,
            successor: None,
            reunion_ends: None,
            list: None,
            sets_clocks: true,
            spare,
            accepts_again: None,
            next_token: BELL + 1,
        })
    }

    /// Serves until the polling thread sends [`Notice::Stop`].
    /// Watches the thread `polling` meanwhile.
    pub(crate) fn run(mut self, polling: Pid, heartbeat: Option<Heartbeat>) {
        let mut watch = StallWatch::new(polling, heartbeat, Instant::now());
        let mut presence = {
            let HostInfo { iokernel_core, managed_cores, all_cores, .. } = &self.parts.host;
            Presence::new(*iokernel_core, managed_cores.clone(), *all_cores)
        };
        self.reunion_ends = Some(Instant::now() + REUNION);
        self.parts.directory.take_back(true);
        self.list = owed::List::beside(&self.parts.config.socket);
        if let Some(programs) = self.list.as_ref().and_then(owed::List::read) {
            self.parts.directory.owe(programs);
        }
        if !self.parts.refuses_descriptors {
            self.closer = Closer::start();
        }
        self.parts.clocks.recover();
        self.parts.keeper.recover();
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            // In a takeover no connection is accepted.
            let accepts_again = self.accepts_again.filter(|_| self.successor.is_none());
            let pause = accepts_again.map(|time| time.saturating_duration_since(Instant::now()));
            // The kernel may wait for whole milliseconds only.
            let timeout =
                pause.map_or(watch.interval(), |pause| watch.interval().min(pause.max(gate::PAUSE)));
            let timeout =
                Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the control thread cannot wait for events and ends");
                    return;
                }
            }
            // Hang-ups first: a runtime that is restarted at once finds its name free.
            events.sort_by_key(|event: &epoll::Event| {
                let flags = event.flags;
                !flags.contains(EventFlags::HUP)
            });
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    BELL => {
                        if !self.read_notices() {
                            return self.give_way();
                        }
                    }
                    token => self.serve(token),
                }
            }
            self.drop_the_silent();
            self.end_pause();
            self.keep_reserved();
            if self.successor.is_none() {
                // All of these may write to the log.
                watch.keep(&self.parts.stats);
                if let Some(cores) = presence.look(polling) {
                    self.tell(Command::Present(Box::new(cores)));
                }
                self.look_at_interfaces();
                self.log_left_out();
                self.end_reunion();
                self.parts.clocks.keep();
                self.tell_of_clocks();
            }
        }
    }

    /// Looks at the interfaces of ports, and at whose addresses are whose. What a port has made
    /// anew is handed over in a takeover from now on, and the polling thread wakes to use it.
    fn look_at_interfaces(&mut self) {
        let now = Instant::now();
        let ControlParts { directory, interfaces, devices, commands, .. } = &mut self.parts;
        let addresses = directory.take_changed();
        for interface in interfaces {
            if let Some(addresses) = &addresses {
                interface.set_programs(addresses);
            }
            if let Some(files) = interface.look(now) {
                let port = devices.iter_mut().find(|devices| devices.port == interface.name());
                port.expect("each port has an entry").files = files;
                commands.ring();
            }
            if let Some(taken) = interface.take_taken() {
                directory.set_taken(taken);
            }
            if let Some(mac) = interface.take_mac()
                && !directory.reserve(interface.name(), None, Some(mac))
            {
                let port = interface.name();
                tracing::warn!(port, %mac, "the interface's new MAC address was reserved before, by a program or for an earlier interface of this port");
            }
        }
    }

    /// Tells the policy when clock rates are set no more, or again.
    fn tell_of_clocks(&mut self) {
        let sets = self.parts.clocks.sets();
        if core::mem::replace(&mut self.sets_clocks, sets) != sets {
            self.tell(Command::Clocks(sets));
        }
    }

    /// Returns true if programs of the previous IOKernel have not been sent `Ready` yet.
    pub(crate) fn expects_programs(&self) -> bool {
        self.parts.directory.expects()
    }

    /// Frees what was kept for programs of the previous IOKernel that have not registered in time.
    fn end_reunion(&mut self) {
        if self.reunion_ends.is_none_or(|time| Instant::now() < time) {
            return;
        }
        self.reunion_ends = None;
        self.gate.end_return(Instant::now());
        self.parts.directory.take_back(false);
        let programs = self.parts.directory.forget_expected().join(", ");
        if !programs.is_empty() {
            tracing::info!(programs, "did not attach again: their names and addresses are free");
        }
        for name in self.parts.directory.replaceable() {
            self.tell_alone(&name);
        }
    }

    /// Keeps ordinary threads off the reserved cores.
    fn keep_reserved(&mut self) {
        self.parts.keeper.keep(Instant::now());
        self.parts.stats.cores.reserved.set(self.parts.keeper.taken() as u64);
    }

    /// Takes back what the polling thread has released. Returns false if the thread must stop.
    fn read_notices(&mut self) -> bool {
        self.parts.notices.silence();
        let (mut retired, mut rate) = (false, None);
        while let Some(notice) = self.parts.notices.next() {
            match notice {
                Notice::Attached(id) => self.greet(id),
                Notice::Retired(runtime, reason) => {
                    if reason == EndReason::Shutdown {
                        self.parts.interfaces.iter_mut().for_each(PortInterface::keep_programs);
                    }
                    self.bury(runtime, &reason);
                    retired = true;
                }
                Notice::CaptureEnded(tap) => {
                    self.parts.stats.remove_capture(tap.id);
                    // Closed by the watcher, or to be closed for what it wrote.
                    self.sessions.remove(&tap.id);
                }
                Notice::TraceEnded(tracer) => {
                    self.parts.stats.set_trace(None);
                    self.sessions.remove(&tracer.id);
                }
                Notice::Reload(config, authority, answer) => {
                    // Fails if the caller has ended and needs no answer.
                    let _ = answer.send(self.reload(&config, authority));
                }
                // Of several only the last one counts: each costs a write for every domain.
                Notice::Clock(clock) => rate = Some(clock),
                Notice::Reserved(cores) => self.parts.keeper.reserve(&cores),
                Notice::Stop => return false,
            }
        }
        if let Some(clock) = rate {
            self.parts.clocks.want(clock);
        }
        if retired {
            // A registration may have waited for a name or an address that is free now.
            for token in self.tokens(|session| matches!(session.state, State::Waiting(_))) {
                let (caller, began) = (self.caller_of(token), processor_time());
                self.retry(token);
                self.charge(caller, Work::Service, began);
            }
        }
        true
    }

    /// Returns the connection of a registered program.
    fn session_of(&self, id: RuntimeId) -> Option<&Session> {
        let is_its = |session: &&Session| matches!(session.state, State::Registered(other) if other == id);
        self.sessions.values().find(is_its)
    }

    /// Releases an ended runtime: sends the reason if it lives, lets its threads use all cores
    /// again, unmaps its memory.
    fn bury(&mut self, runtime: Box<Runtime>, reason: &EndReason) {
        let began = processor_time();
        let (id, name) = (runtime.id, runtime.stats.name.clone());
        let caller = self.session_of(id).map_or(Caller::GONE, |session| session.caller);
        if self.may_log(caller) {
            tracing::info!(%id, name, %reason, "a registration ended");
        }
        // The end of the IOKernel itself has no message: programs wait for the next one.
        if !matches!(reason, EndReason::Departed | EndReason::Shutdown) {
            let _ = control::send(&*runtime.socket, &ServerMessage::Refused { why: reason.to_string() }, &[]);
        }
        // When the IOKernel ends, all cores are Linux's again; before that only the unmanaged ones.
        let cores = match reason {
            EndReason::Shutdown => &self.parts.host.all_cores,
            _ => &self.parts.host.unmanaged,
        };
        for kthread in &runtime.kthreads {
            // Fails for dead threads.
            let _ = crate::sys::bind_thread(runtime.pid, kthread.tid, cores);
        }
        self.parts.stats.remove_runtime(id);
        // At its own end the programs wait for the next one.
        if let Some(list) = &mut self.list
            && *reason != EndReason::Shutdown
        {
            list.remove(id, self.parts.directory.owed());
        }
        self.sessions.retain(|_, session| !matches!(session.state, State::Registered(other) if other == id));
        self.release(id);
        // Unmaps its memory, which takes long if there is much of it, and restores the weight of
        // its session. Both happen here without a thread, and at the end, which waits for none.
        if *reason != EndReason::Shutdown {
            let name = "tailwater-memory".to_owned();
            let _ = std::thread::Builder::new().name(name).spawn(|| drop(runtime));
        }
        self.charge(caller, Work::Service, began);
    }

    /// Returns the tenant of a program of user `uid`, who needs a grant.
    fn key_of(&self, uid: u32, id: RuntimeId) -> Key {
        let directory = &self.parts.directory;
        let grant = directory.grant(id);
        let named = grant.is_none_or(|grant| directory.authority().names_user(grant, uid));
        Key { user: named.then_some(uid), grant }
    }

    /// Ends conversations whose deadline has passed.
    fn drop_the_silent(&mut self) {
        let now = Instant::now();
        let late = self.tokens(|session| session.deadline.is_some_and(|deadline| deadline < now));
        late.into_iter().for_each(|token| self.drop_session(token));
    }

    /// Returns the numbers of the connections that `which` chooses.
    fn tokens(&self, which: impl Fn(&Session) -> bool) -> Vec<u64> {
        let chosen = self.sessions.iter().filter(|(_, session)| which(session));
        chosen.map(|(&token, _)| token).collect()
    }

    /// Removes a connection that is not registered, and takes back the place it was offered.
    fn drop_session(&mut self, token: u64) {
        let Some(session) = self.sessions.remove(&token) else { return };
        match session.state {
            State::Offered(offer) => self.release(offer.place.id),
            State::Capturing => self.tell(Command::EndCapture(token)),
            State::Tracing => self.tell(Command::EndTrace(token)),
            State::Fresh | State::Waiting(_) | State::Registered(_) | State::Succeeding => {}
        }
    }

    fn is_closed(error: &ControlError) -> bool {
        matches!(error, ControlError::Closed | ControlError::System { .. })
    }
}
