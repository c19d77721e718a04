//! Core grants: the policy's decisions carried out, and every hand-off followed to its end.
//!
//! Owns the ledger, the policy and its observation, and the phase of every managed core. [`look`]
//! reads what runtimes write, [`apply`] carries decisions out, [`progress`] polls the state words
//! of kthreads that hold cores or are in a hand-off and runs the watchdogs, [`withdraw`] takes
//! cores from kthreads that are late, [`presence`] follows cores that Linux takes away, [`ranks`]
//! ranks kthreads beside the machine's other programs, [`account`] enters the time of each phase
//! into the statistics, [`board`] says who wakes the next owner of a core, [`quantum`] ends turns
//! of user threads, [`reserved`] chooses the cores that ordinary threads are kept off. The policies
//! of `tailwater-sched` decide: [`decide`] asks the configured one, for one event after the other.
//! The allocator decides nothing itself, and touches no frames: egress rings are handed to the
//! switch through [`World::arriving`].
//!
//! # Phases of a core
//!
//! | phase | meaning | ends when |
//! |---|---|---|
//! | `Free` | it is not lent | a grant: `Starting` |
//! | `Starting` | lent and woken, not yet seen running | `Running` seen; or `start_deadline`: taken back |
//! | `Running` | its kthread runs or idles | `Parked` seen: `Free`; or a decision: `Ceding` |
//! | `Ceding` | its kthread was asked to cede | `Parked` seen, or bypass some time after the preempt signal: `Starting` for the successor |
//!
//! The ledger records which kthread *owns* a core; the phase, how far the machine has followed.
//! Both change together, here only.
//!
//! # Crash and lie
//!
//! A state word that does not change, changes late or is of another generation is waited for until
//! a watchdog acts; a false `Parked` gives its core to another kthread, which costs the liar its
//! time slice; a false `Running` or `Idle` earns nothing. Nothing a runtime writes is used as an
//! index, a length or an address.

mod account;
mod apply;
mod board;
mod decide;
mod look;
mod phase;
mod presence;
mod progress;
mod quantum;
mod ranks;
mod reserved;
#[cfg(test)]
mod tests;
mod withdraw;

use core::sync::atomic::Ordering;
use std::collections::VecDeque;

use rustix::thread::CpuSet;
use tailwater_sched::alloc::{Action, Clock as Rate, Hold, Observation, Policy, View};
use tailwater_sched::ledger::{Disposition, Ledger, RuntimeClass, RuntimeSpec, TransitionError};
use tailwater_sched::topology::Topology;
use tailwater_sched::{KthreadId, Nanos, RuntimeId};
use tailwater_shm::account::Account;
use tailwater_shm::trace::CoreStep;
use tailwater_shm::{Clock, Cycles};
use tailwater_stats::HandoffKind;

use crate::config::Config;
use crate::runtime::{HeldAcks, Runtime};
use crate::sys::Threads;
use crate::trace::Tracer;
use crate::world::{Lender, World};
use decide::Event;
pub(crate) use phase::{Beside, Ranks};
use phase::{Bounds, CoreSlot, Escalation, Phase, Timing, Withdrawn};
use reserved::Reserved;

/// See the module documentation.
pub(crate) struct Allocator {
    clock: Clock,
    /// Zero of the ledger's time.
    origin: Cycles,
    bounds: Bounds,
    timing: Timing,
    ledger: Ledger,
    policy: Box<dyn Policy + Send>,
    observation: Observation,
    /// Wait for a decision; none between two calls of the polling loop.
    events: VecDeque<Event>,
    actions: Vec<Action>,
    /// Parallel to the topology's cores.
    cores: Vec<CoreSlot>,
    unmanaged: CpuSet,
    threads: Box<dyn Threads>,
    /// Measures what looks cost.
    stopwatch: fn() -> Cycles,
    withdrawn: VecDeque<Withdrawn>,
    /// Time of the last look at withdrawn kthreads.
    watched_at: Cycles,
    ranks: Ranks,
    /// The other programs on the cores.
    beside: Beside,
    last_rest_look: Cycles,
    /// Time from which the log may warn of a program's cpuset again.
    next_warning: Cycles,
    /// Earliest timer of a runtime without a core, as of the last look at it.
    earliest_timer: Cycles,
    /// End of the policy's interval.
    next_policy: Cycles,
    /// Where the next look at runtimes without cores begins.
    cursor: usize,
    /// Runtimes that had work and no core at the last look.
    runnable_without_core: Vec<RuntimeId>,
    /// The clock rate of the policy, and whether it has not been taken yet.
    rate: (Option<Rate>, bool),
    /// `None` if ordinary threads are kept off no cores.
    reserved: Option<Reserved>,
}

/// How closely the cores need to be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PollUrgency {
    /// No core is lent or wanted.
    None,
    /// Only best-effort runtimes hold cores or want them, and no core changes hands: doorbells and
    /// a look now and then suffice.
    Occasional,
    /// A service holds or wants a core, a core changes hands, or a request for cores is not served
    /// yet.
    Constant,
}

/// What [`Allocator::new`] is made from.
pub(crate) struct AllocatorParts {
    pub(crate) clock: Clock,
    pub(crate) topology: Topology,
    pub(crate) unmanaged: CpuSet,
    pub(crate) policy: Box<dyn Policy + Send>,
    pub(crate) threads: Box<dyn Threads>,
    /// The cycle counter; tests have another.
    pub(crate) stopwatch: fn() -> Cycles,
}

impl Allocator {
    pub(crate) fn new(config: &Config, parts: AllocatorParts) -> Self {
        let AllocatorParts { clock, topology, unmanaged, policy, threads, stopwatch } = parts;
        let us = |us: u64| clock.from_ns(us * 1_000);
        let origin = tailwater_shm::clock::now();
        let slot = |core: &tailwater_sched::topology::Core| CoreSlot {
            id: core.id,
            phase: Phase::Free,
            absent: false,
            since: origin,
            entered: origin,
            rest: Account::default(),
            resting: None,
            last: None,
            watch: quantum::TurnWatch::NONE,
            idles: Account::default(),
        };
        Self {
            clock,
            origin,
            bounds: Bounds::new(clock),
            timing: Timing {
                policy: clock.from_ns(policy.interval().0),
                grace: us(config.cede_grace_us),
                start_deadline: us(config.start_deadline_us),
                ack_hold: us(config.ack_hold_us),
            },
            reserved: (!config.reserve.keep_off.is_empty()).then(|| Reserved::new(topology.len())),
            cores: topology.cores().iter().map(slot).collect(),
            ledger: Ledger::new(topology),
            policy,
            observation: Observation::new(),
            events: VecDeque::new(),
            actions: Vec::new(),
            unmanaged,
            threads,
            stopwatch,
            withdrawn: VecDeque::new(),
            watched_at: 0,
            ranks: Ranks::default(),
            beside: Beside::Nothing,
            last_rest_look: 0,
            next_warning: 0,
            earliest_timer: Cycles::MAX,
            next_policy: 0,
            cursor: 0,
            runnable_without_core: Vec::new(),
            rate: (None, false),
        }
    }

    fn nanos(&self, now: Cycles) -> Nanos {
        Nanos(self.clock.to_ns(now.saturating_sub(self.origin)))
    }

    fn view(&self, now: Cycles) -> View<'_> {
        View { now: self.nanos(now), obs: &self.observation, ledger: &self.ledger }
    }

    /// Adds a runtime; it is lent nothing before [`Self::begin`]. The control thread has checked
    /// its requests against those of all others.
    pub(crate) fn attach(&mut self, world: &mut World, mut runtime: Box<Runtime>, now: Cycles) {
        let (id, kthreads) = (runtime.id, runtime.spec.kthreads);
        // Of two instances, what one has the other has not, until it is known which is the later.
        let other = world.runtimes.other_instance(id, runtime.ip).map_or(0, |other| other.spec.guaranteed);
        let guaranteed = runtime.spec.guaranteed.saturating_sub(other);
        let spec = RuntimeSpec { guaranteed, ..runtime.spec };
        let refused = self.ledger.register(id, spec, self.nanos(now)).err();
        self.observation.attach(id, kthreads);
        self.observation.set_on_hold(id, true);
        self.observation.set_confined(id, runtime.confined);
        look::publish_granted(&runtime, self.policy.takes_requests());
        runtime.set_ranks(self.ranks_differ(), self.gives_real_time());
        world.insert(runtime, now);
        self.policy.attach(id, &self.ledger);
        if let Some(error) = refused {
            world.stats.cores.ledger_refusals.add(1);
            world.mark_ended(id, error.into());
        }
    }

    /// Gives the guaranteed cores of two instances of a program to the later one; the earlier one
    /// has what is left. Has no effect if one of them has ended, or if that is so already.
    pub(crate) fn pair(&mut self, world: &World, earlier: RuntimeId, later: RuntimeId) {
        let of = |id| world.runtimes.get(id).map(|runtime| (runtime.ip, runtime.spec.guaranteed));
        let (Some((ip, before)), Some((also, own))) = (of(earlier), of(later)) else { return };
        if ip == also {
            // First those that are given up: there may be no others.
            self.ledger.set_guaranteed(earlier, before.saturating_sub(own));
            self.ledger.set_guaranteed(later, own);
        }
    }

    /// Makes a runtime eligible for cores: it has been sent `Ready`.
    pub(crate) fn begin(&mut self, world: &World, id: RuntimeId) {
        if world.runtimes.get(id).is_some_and(|runtime| !runtime.is_ended) {
            self.observation.set_on_hold(id, false);
        }
    }

    /// Ends a registration: its cores are back in the ledger when this returns. The caller must
    /// have dropped the runtime's egress rings first, and sends the rest to the control thread.
    pub(crate) fn detach(&mut self, world: &mut World, id: RuntimeId, now: Cycles) -> Option<Box<Runtime>> {
        world.arriving.retain(|egress| egress.sender.owner.runtime != id);
        self.forget_withdrawn(world, id, now);
        // The next runtime with this number may have fewer kthreads.
        for slot in &mut self.cores {
            slot.last = slot.last.filter(|last| last.runtime != id);
            if let Phase::Starting { late, .. } = &mut slot.phase {
                late.take_if(|(late, _)| late.runtime == id);
            }
        }
        self.unbind_threads(world, id);
        self.end_ranks(world, id);
        // Before the ledger forgets its class.
        self.enter_times(world, now);
        let dispositions = match self.ledger.unregister(id, self.nanos(now)) {
            Ok(dispositions) => dispositions,
            Err(error) => self.refused(world, &error, Vec::new()),
        };
        self.policy.detach(id);
        self.observation.detach(id);
        let runtime = world.runtimes.remove(id);
        if let Some(other) = runtime.as_ref().and_then(|own| world.runtimes.other_instance(id, own.ip)) {
            self.ledger.set_guaranteed(other.id, other.spec.guaranteed);
        }
        for &disposition in &dispositions {
            self.follow_disposition(world, disposition, now);
        }
        // The policy sees all of them free at the first decision.
        self.drain(world, now);
        runtime
    }

    /// Returns what keeps the core at this position with its holder, for the policy.
    fn hold_of(&self, at: usize) -> Hold {
        let slot = &self.cores[at];
        match slot.phase {
            Phase::Starting { .. } if !slot.absent => {
                Hold::Starting { overdue: self.nanos(slot.since.saturating_add(self.bounds.overdue_start)) }
            }
            Phase::Starting { .. } | Phase::Ceding { to: None, .. } => Hold::Leaving,
            Phase::Free | Phase::Running { .. } | Phase::Ceding { to: Some(_), .. } => Hold::None,
        }
    }

    /// Returns the cores whose present holder is a kthread of this runtime, with that kthread.
    fn cores_of(&self, id: RuntimeId) -> impl Iterator<Item = (&CoreSlot, KthreadId)> {
        holders(&self.cores, id)
    }

    /// Returns the time since which the runtime has held each of its cores.
    pub(crate) fn holds_since(&self, id: RuntimeId) -> Vec<Cycles> {
        self.cores_of(id).map(|(slot, _)| slot.since).collect()
    }

    /// Moves the runtime's threads off the cores they hold, in case its process lives on.
    fn unbind_threads(&mut self, world: &mut World, id: RuntimeId) {
        let holders: Vec<KthreadId> = self.cores_of(id).map(|(_, holder)| holder).collect();
        for holder in holders {
            world.runtimes.ask_to_cede(holder);
            let (runtime, kthread) = world.runtimes.kthread(holder);
            // Fails if the thread is dead, and then it is off the core as well.
            let _ = self.threads.bind(runtime.pid, kthread.tid, &self.unmanaged);
        }
    }

    /// Applies the ledger's outcome for a core of a runtime that is gone.
    fn follow_disposition(&mut self, world: &mut World, disposition: Disposition, now: Cycles) {
        let (Disposition::Freed(core)
        | Disposition::HandedOn { core, .. }
        | Disposition::Returned { core, .. }) = disposition;
        let Some(at) = self.ledger.topology().position(core) else { return };
        let phase = match disposition {
            Disposition::Freed(_) => Phase::Free,
            Disposition::HandedOn { to, .. } => {
                let promised = self.wake_next_owner(world, at, to, now);
                let (kind, late) = (HandoffKind::Evict, None);
                Phase::Starting { kthread: to, kind, decided: now, woken: now, promised, late }
            }
            Disposition::Returned { from, .. } => {
                // It may have seen the request already: let it finish ceding, without a successor.
                world.runtimes.ask_to_cede(from);
                Phase::leaving(from, now)
            }
        };
        self.trace_loss(world, at, now);
        self.cores[at].since = now;
        self.begin_phase(world, at, phase, now);
        if matches!(phase, Phase::Free) {
            self.announce(at);
        }
    }

    /// Emits to the tracer that the holder of the core loses it.
    fn trace_loss(&mut self, world: &mut World, at: usize, now: Cycles) {
        let (kind, holder) = match self.cores[at].phase {
            Phase::Free => return,
            Phase::Starting { kthread, kind, .. } => (kind, kthread),
            Phase::Running { kthread, .. } => (HandoffKind::Wake, kthread),
            Phase::Ceding { from, kind, .. } => (kind, from),
        };
        world.trace.core(now, self.cores[at].id, CoreStep::Ceded, kind, (holder, None));
    }

    /// Starts a trace: the tracer gets the holder of each core, and what kthreads do from now on.
    pub(crate) fn begin_trace(&mut self, world: &mut World, tracer: Box<Tracer>, now: Cycles) {
        world.trace.begin(tracer, &mut world.runtimes);
        for slot in &self.cores {
            let (step, kind, whom) = match slot.phase {
                Phase::Free => continue,
                Phase::Starting { kthread, kind, .. } => (CoreStep::Decided, kind, (kthread, None)),
                Phase::Running { kthread, .. } => (CoreStep::Running, HandoffKind::Wake, (kthread, None)),
                Phase::Ceding { from, .. } => (CoreStep::Running, HandoffKind::Wake, (from, None)),
            };
            world.trace.core(now, slot.id, step, kind, whom);
            if let Phase::Ceding { from, to: Some(to), kind, .. } = slot.phase {
                world.trace.core(now, slot.id, CoreStep::Decided, kind, (to, Some(from)));
            }
        }
    }

    /// Counts an impossible transition, which only a defect of ours can ask for, and goes on with
    /// `instead`.
    fn refused<T>(&self, world: &World, error: &TransitionError, instead: T) -> T {
        debug_assert!(false, "the ledger refused: {error}");
        world.stats.cores.ledger_refusals.add(1);
        tracing::error!(%error, "the core ledger refused a transition");
        instead
    }

    /// Returns how closely the cores need to be watched, as of the last look.
    pub(crate) fn attention(&self, world: &World, now: Cycles) -> PollUrgency {
        let mut most = PollUrgency::None;
        let of = |id: RuntimeId| match self.class_of(id) {
            RuntimeClass::BestEffort => PollUrgency::Occasional,
            RuntimeClass::LatencyCritical => PollUrgency::Constant,
        };
        for slot in &self.cores {
            most = most.max(match slot.phase {
                Phase::Free => PollUrgency::None,
                Phase::Running { kthread, .. } => of(kthread.runtime),
                Phase::Starting { kthread, .. } if now.saturating_sub(slot.since) > self.bounds.settling => {
                    if world.runtimes.kthread(kthread).1.no_starts > 0 {
                        // It did not start the last time either: presumably it is stopped.
                        PollUrgency::Occasional
                    } else {
                        // An ordinary program has the core for longer than any hand-off takes.
                        of(kthread.runtime)
                    }
                }
                Phase::Starting { .. } | Phase::Ceding { .. } => PollUrgency::Constant,
            });
        }
        // A runtime without a kthread to run, or without a core that it can get, gets none until
        // one is returned.
        let counts = |id: &&RuntimeId| {
            of(**id) > most
                && self.ledger.account(**id).is_some_and(|account| account.room() > 0)
                && (0..self.cores.len()).any(|at| self.may_be_lent(**id, at))
        };
        let waiting = self.runnable_without_core.iter().filter(counts).map(|&id| of(id));
        let withdrawn = self.withdrawn.iter().map(|withdrawn| match withdrawn {
            // It lost its core, runs elsewhere if at all, and may be stopped for ever.
            Withdrawn { step: Escalation::Moved, .. } => PollUrgency::Occasional,
            Withdrawn { runs_since: Some(_), .. } => PollUrgency::Constant,
            // The end of its pause is the time of the next look; see `next_readmission`.
            Withdrawn { .. } => PollUrgency::None,
        });
        let most = waiting.chain(withdrawn).fold(most, PollUrgency::max);
        if most < PollUrgency::Constant && self.next_pending(now).is_some_and(|next| next <= now) {
            return PollUrgency::Constant;
        }
        most
    }

    /// Returns true if the runtime could be lent the core at this position once it is free.
    fn may_be_lent(&self, id: RuntimeId, at: usize) -> bool {
        let slot = &self.cores[at];
        !slot.absent
            && self.observation.may_have(&self.ledger, id, at)
            && self.policy.may_serve(id, slot.id, &self.ledger)
    }

    /// True while a core changes hands and the next step is the polling thread's: it signals the
    /// owner, and wakes the next one. A kthread that has not started for longer waits for Linux,
    /// for instance behind an ordinary program.
    pub(crate) fn hands_over(&self, now: Cycles) -> bool {
        self.cores.iter().any(|slot| match slot.phase {
            Phase::Ceding { .. } => true,
            Phase::Starting { .. } => now.saturating_sub(slot.since) <= self.bounds.rewake,
            Phase::Free | Phase::Running { .. } => false,
        })
    }

    /// Returns the policy's interval.
    pub(crate) fn interval(&self) -> Cycles {
        self.timing.policy
    }

    /// Returns the clock rate to set, if it has changed since the last call.
    pub(crate) fn take_clock(&mut self) -> Option<Rate> {
        if core::mem::take(&mut self.rate.1) { self.rate.0 } else { None }
    }

    /// Tells the policy whether its clock rates are set.
    pub(crate) fn allow_clocks(&mut self, set: bool) {
        self.policy.allow_clocks(set, &self.ledger);
    }

    /// Returns when the policy may next lend a core although nothing happens until then.
    pub(crate) fn next_pending(&self, now: Cycles) -> Option<Cycles> {
        let next = self.policy.next_pending(self.view(now))?;
        // Rounded up: a look a cycle earlier would find nothing.
        Some(self.origin.saturating_add(self.clock.from_ns(next.0)).saturating_add(1))
    }

    /// Returns when the next pause of a kthread that did not start on its core ends.
    pub(crate) fn next_readmission(&self, now: Cycles) -> Option<Cycles> {
        // One that ended since the last look is found at the next.
        let ends = self.withdrawn.iter().map(|withdrawn| withdrawn.not_before);
        ends.filter(|&end| end > now).min()
    }

    /// True if a core is free.
    pub(crate) fn has_free_core(&self) -> bool {
        self.ledger.free_cores() > 0
    }

    fn class_of(&self, id: RuntimeId) -> RuntimeClass {
        self.ledger.account(id).map_or(RuntimeClass::LatencyCritical, |account| account.spec().class)
    }

    /// Returns whether the kthread that runs on the core at this position is known to be idle.
    #[cfg(test)]
    fn sees_idle(&self, at: usize) -> bool {
        matches!(self.cores[at].phase, Phase::Running { idle: true, .. })
    }

    /// Returns the number of cores that a runtime is guaranteed.
    #[cfg(test)]
    pub(crate) fn guaranteed_to(&self, id: RuntimeId) -> u16 {
        self.ledger.account(id).map_or(0, |account| account.spec().guaranteed)
    }

    /// Checks that ledger, phases and former owners are consistent.
    #[cfg(test)]
    pub(crate) fn check(&self, world: &World) -> Result<(), String> {
        use tailwater_sched::ledger::CoreState;
        let (least, most) = self.runnable_kthreads(world, 0);
        if least > self.cores.len() || most > 3 * self.cores.len() {
            return Err(format!("{least} to {most} runnable kthreads on {} cores", self.cores.len()));
        }
        self.ledger.check().map_err(|e| e.to_string())?;
        if let Some(event) = self.events.front() {
            return Err(format!("{event:?} waits for a decision"));
        }
        if let Some(at) = (0..self.cores.len()).find(|&at| self.observation.hold(at) != self.hold_of(at)) {
            return Err(format!("{} has another hold in the observation", self.cores[at].id));
        }
        for (slot, state) in self.cores.iter().zip(self.ledger.cores()) {
            let agree = match (slot.phase, state) {
                (Phase::Free, CoreState::Free) => !slot.absent,
                (Phase::Free, CoreState::Absent) => slot.absent,
                (
                    Phase::Starting { kthread, .. } | Phase::Running { kthread, .. },
                    CoreState::Owned { kthread: owner, .. },
                ) => kthread == *owner,
                (Phase::Ceding { from, to: None, .. }, CoreState::Owned { kthread, .. }) => from == *kthread,
                (Phase::Ceding { from, to: Some(to), .. }, CoreState::Moving { from: f, to: t, .. }) => {
                    (from, to) == (*f, *t)
                }
                _ => false,
            };
            if !agree {
                return Err(format!("{} is {state} in the ledger and {:?} here", slot.id, slot.phase));
            }
        }
        Ok(())
    }
}

/// Returns which of the cores a kthread of this runtime holds at present, and the kthreads.
fn holders(cores: &[CoreSlot], id: RuntimeId) -> impl Iterator<Item = (&CoreSlot, KthreadId)> {
    let held = cores.iter().filter_map(|slot| Some((slot, slot.phase.holder()?)));
    held.filter(move |(_, holder)| holder.runtime == id)
}

impl Lender for Allocator {
    /// Passes the policy one wakeup per runtime until a core is lent: the policy remembers a demand
    /// that it cannot meet, and looks find one that was dropped.
    #[inline]
    fn wakeup(&mut self, world: &mut World, id: RuntimeId, now: Cycles) {
        let Some(runtime) = world.runtimes.get_mut(id) else { return };
        runtime.held = None;
        if runtime.is_ended || runtime.is_left_alone(now) || runtime.woken.is_some() {
            return;
        }
        runtime.woken = Some(now);
        self.decide(world, Event::Arrival(id), now);
    }

    #[inline]
    fn hold(&mut self, world: &mut World, id: RuntimeId, hash: u32, now: Cycles) -> bool {
        let Some(runtime) = world.runtimes.get_mut(id) else { return false };
        // Relaxed: the program published it before its kthread parked, which was seen.
        if self.timing.ack_hold == 0 || runtime.shared(0).status.awaits_acks.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let kthread = runtime.groups.kthread(hash);
        let ingress = &runtime.kthreads[usize::from(kthread)].ingress;
        let alone = ingress.head() == ingress.unchecked_tail();
        let held = match runtime.held {
            Some(held) if held.kthread == kthread && now < held.until => held,
            None if alone => HeldAcks { kthread, until: now.saturating_add(self.timing.ack_hold) },
            _ => return false,
        };
        runtime.held = Some(held);
        self.earliest_timer = self.earliest_timer.min(held.until);
        world.stats.switch.held_acks.add(1);
        true
    }
}
