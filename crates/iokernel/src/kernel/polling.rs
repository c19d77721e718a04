//! The polling loop: what the polling thread does in an iteration, and with messages and ends.
//!
//! Owns the order of an iteration: hand-offs, egress rings, ports, the 5 us look, the control
//! thread's mail, ends of registrations, and, when nothing has happened for a while, sleep. While
//! frames flow it makes only the system calls that a hand-off needs, one look for dead runtimes
//! every [250 us](Bounds::death_check) and, on a shared machine, those of
//! [`neighbours`](super::neighbours).

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::{nanosleep, sched_yield};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tailwater_sched::RuntimeId;
use tailwater_shm::adaptive_spin::AdaptiveSpin;
use tailwater_shm::{Clock, Cycles, clock};

use super::local_peer::{self, HeldUp, LocalPeerYield};
use super::neighbours::Neighbours;
use super::quiet::{IdlePolicy, Step, WakeLatency};
use super::sleep;
use crate::allocator::{Allocator, PollUrgency, Ranks};
use crate::bounds::bounds;
use crate::config::Config;
use crate::control::watch::Stage;
use crate::control::{Command, Inbox, NewRules, Notice, Outbox};
use crate::machine::{Cores, processor_time};
use crate::runtime::{EndReason, Runtime};
use crate::switch::Switch;
use crate::tenant::{self, TenantId};
use crate::world::World;

/// Maximum number of looks per interval when timers come due in between.
const TIMER_TICKS: u64 = 4;
/// Length of a nap while programs come over from another IOKernel.
const NAP: Duration = Duration::from_micros(50);

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

/// What [`Polling`] is made from.
pub(super) struct PollingParts {
    pub(super) world: World,
    pub(super) allocator: Allocator,
    pub(super) switch: Switch,
    pub(super) commands: Inbox<Command>,
    pub(super) notices: Outbox<Notice>,
}

/// The state of the polling thread.
pub(super) struct Polling {
    /// Another IOKernel takes over.
    leaves: bool,
    /// Programs come over from another one: until then this thread naps between iterations.
    naps_until: Option<Cycles>,
    pub(super) clock: Clock,
    /// When to sleep.
    pub(super) quiet: IdlePolicy,
    /// As of the last look.
    pub(super) attention: PollUrgency,
    /// `None` on a dedicated machine, and where Linux keeps no account of waiting threads.
    pub(super) neighbours: Option<Neighbours>,
    /// When ordinary threads of this core may run because frames of theirs are waited for.
    local_peer: LocalPeerYield,
    /// How long yields to ordinary threads have taken since the last look at other programs.
    pub(super) yielded: Cycles,
    /// This thread has real-time rank, except in rests: while other programs compete for the cores,
    /// and services have other clients than local peers, or no port has any.
    pub(super) real_time: bool,
    /// Interval between two looks at all queues.
    interval: Cycles,
    bounds: Bounds,
    pub(super) world: World,
    pub(super) allocator: Allocator,
    pub(super) switch: Switch,
    pub(super) commands: Inbox<Command>,
    pub(super) notices: Outbox<Notice>,
    /// Readable when a registered runtime hangs up or its process ends.
    pub(super) deaths: OwnedFd,
    /// Readable after a registered runtime rang its doorbell. Each ring is an edge, which needs no
    /// read of a descriptor that the runtime shares.
    pub(super) doorbells: OwnedFd,
    /// Runtimes whose doorbells are not heard for now.
    pub(super) muted: Vec<RuntimeId>,
    pub(super) next_tick: Cycles,
    /// Timers cause no tick before this time: whatever runtimes write, looks take a bounded share
    /// of the time.
    earliest_tick: Cycles,
    pub(super) next_death_check: Cycles,
    /// Every death before this has been noticed.
    deaths_known_until: Cycles,
}

impl Polling {
    /// Returns the state of a polling thread that has yet to [`begin`](Self::begin).
    ///
    /// # Errors
    /// If no descriptor is left.
    pub(super) fn new(
        config: &Config,
        PollingParts { world, allocator, switch, commands, notices }: PollingParts,
    ) -> Result<Self, Errno> {
        let clock = world.clock();
        let bounds = Bounds::new(clock);
        let us = |us: u64| clock.from_ns(us * 1_000);
        let (idle_sleep, longest) = (us(config.idle_sleep_us), us(config.max_wake_delay_us));
        let spin = (idle_sleep > 0).then(|| AdaptiveSpin::new(bounds.shortest_quiet, idle_sleep));
        let margin = WakeLatency::new([bounds.least_margin, bounds.most_margin]);
        Ok(Self {
            leaves: false,
            naps_until: None,
            clock,
            quiet: IdlePolicy::new(spin, margin, longest, clock::now()),
            attention: PollUrgency::None,
            neighbours: None,
            local_peer: LocalPeerYield::new(local_peer::Bounds::new(clock)),
            yielded: 0,
            real_time: false,
            interval: allocator.interval(),
            bounds,
            world,
            allocator,
            switch,
            commands,
            notices,
            deaths: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            doorbells: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            muted: Vec::new(),
            next_tick: 0,
            earliest_tick: 0,
            next_death_check: 0,
            deaths_known_until: 0,
        })
    }

    /// Begins on the calling thread, which is bound to its core; `naps` while programs come over
    /// from another IOKernel.
    pub(super) fn begin(&mut self, config: &Config, cores: &Cores, naps: bool) {
        self.neighbours = Neighbours::new(config, cores, self.clock);
        let ranks = self.neighbours.as_ref().map_or(Ranks::default(), Neighbours::ranks);
        self.allocator.allow_ranks(ranks);
        let now = clock::now();
        self.naps_until = naps.then(|| now.saturating_add(self.bounds.naps));
        self.deaths_known_until = now;
        self.quiet.restart(now);
    }

    /// Returns whether another IOKernel takes over.
    pub(super) fn leaves(&self) -> bool {
        self.leaves
    }

    #[inline]
    pub(super) fn iterate(&mut self, stop: &AtomicBool) {
        let now = clock::now();
        self.enter(Stage::Handoffs);
        let (world, allocator) = (&mut self.world, &mut self.allocator);
        allocator.progress(world, now);
        world.stats.progress.set(Stage::Egress);
        let mut moved = self.switch.poll_egress(world, allocator, now);
        world.stats.progress.set(Stage::Ports);
        moved += self.switch.poll_ports(world, allocator, now);
        self.enter(Stage::Decisions);
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
        self.enter(Stage::Registrations);
        if self.commands.was_rung() {
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
            self.next_death_check = now + self.bounds.death_check;
        }
        while let Some((id, reason)) = self.world.take_ended() {
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

    /// Publishes the stage that begins, for the control thread's watch.
    #[inline(always)]
    pub(super) fn enter(&self, stage: Stage) {
        self.world.stats.progress.set(stage);
    }

    /// Lets ordinary threads of this core run until they sleep, if they may be the peer of a port.
    #[inline]
    fn give_way(&mut self, now: Cycles) {
        // A real-time thread yields to no ordinary one.
        let frames = self.switch.local_frames(&self.world.stats);
        if self.real_time || !self.local_peer.may_yield(frames, now) {
            return;
        }
        self.enter(Stage::Slice);
        let left = clock::now();
        sched_yield();
        let back = clock::now();
        self.enter(Stage::Handoffs);
        let held_up = HeldUp {
            programs: self.world.runtimes.iter().nth(1).is_some(),
            clients: !self.switch.serves_local_peers_only(now),
        };
        let away = back.saturating_sub(left);
        self.yielded = self.yielded.saturating_add(away);
        let counters = &self.world.stats.polling;
        if let Some(pause) = self.local_peer.returned(left, back, held_up) {
            counters.long_yields.add(1);
            counters.withheld_ns.add(self.clock.to_ns(pause));
        }
        counters.yields.add(1);
        counters.yielded_ns.add(self.clock.to_ns(away));
    }

    /// Lets the control thread run, which has no other core: the two compete while programs
    /// register, and the first program that is back has work at once. Without naps Linux runs the
    /// control thread beside this one once a timer tick; a takeover of three programs took ten such
    /// waits of 4 ms, for whatever rank the control thread had. The programs that are served
    /// already notice the length of a nap.
    #[cold]
    fn nap(&mut self) {
        self.switch.send_held(&mut self.world);
        let nap = Timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
        self.enter(Stage::Slice);
        // A signal ends it early.
        let _ = nanosleep(&nap);
        self.enter(Stage::Handoffs);
        self.quiet.restart(clock::now());
    }

    /// True if doorbells and a look now and then suffice: no service holds or wants a core, no core
    /// changes hands, and nothing waits for the switch, the end of a registration or the tracer.
    pub(super) fn may_sleep(&self) -> bool {
        match self.attention {
            PollUrgency::None => self.world.is_settled(),
            // The steps of traced requests are read at looks, from short buffers.
            PollUrgency::Occasional => self.world.is_settled() && !self.world.trace.is_traced(),
            PollUrgency::Constant => false,
        }
    }

    fn read_commands(&mut self, now: Cycles) {
        self.quiet.restart(now);
        while let Some(command) = self.commands.next() {
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
                Command::End(id, reason) => self.world.mark_ended(id, reason),
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
    pub(super) fn tell_reserved(&mut self, now: Cycles, at_once: bool) {
        if let Some(cores) = self.allocator.take_reserved(&mut self.world, now, at_once) {
            self.tell(Notice::Reserved(Box::new(cores)));
        }
    }

    fn tell(&self, notice: Notice) {
        self.notices.send(notice);
    }

    /// Ends the registration of every runtime whose socket hung up or whose process ended; does not
    /// wait.
    fn check_deaths(&mut self) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 16];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Events beyond the buffer are found 250 us later; an error means that none is known now.
        let count = epoll::wait(&self.deaths, &mut events, Some(&at_once)).unwrap_or(0);
        for event in &events[..count] {
            self.world.mark_ended(RuntimeId(event.data.u64() as u32), EndReason::Departed);
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

    pub(super) fn end_all(&mut self) {
        let now = clock::now();
        // Runtimes that registered since the last iteration are ended as well.
        self.read_commands(now);
        let ids: Vec<RuntimeId> = self.world.runtimes.iter().map(|runtime| runtime.id).collect();
        for id in ids {
            self.end(id, EndReason::Shutdown, now);
        }
    }
}
