//! Core grants: the policy's decisions carried out, and every hand-off followed to its end.
//!
//! Owns the ledger, the policy and its observation, the table of runtimes and the phase of every managed core. [`look`]
//! reads what runtimes allege, [`apply`] carries decisions out, [`progress`] polls the state words of kthreads that hold
//! cores or are in a hand-off and runs the watchdogs, [`evict`] takes cores by force. It decides nothing itself (that is `tailwater-sched`), and it
//! touches no frames: egress rings are handed to the switch through [`Allocator::arriving`].
//!
//! # Phases of a core
//!
//! | phase | meaning | ends when |
//! |---|---|---|
//! | `Free` | nobody is lent it | a grant: `Starting` |
//! | `Starting` | lent and woken, not yet seen running | `Running` seen; or `start_deadline`: taken back |
//! | `Running` | its kthread runs or idles | `Parked` seen: `Free`; or a decision: `Ceding` |
//! | `Ceding` | its kthread was told to cede | `Parked` seen, or `cede_deadline` and eviction: `Starting` for the successor |
//!
//! The ledger says who *owns* a core; the phase says how far the machine has followed. Both change together, here only.
//!
//! # Crash and lie
//!
//! A kthread that says nothing, says it late or says it of another generation is waited for until a watchdog acts; a false
//! `Parked` gives its core to somebody else, which costs the liar its time slice; a false `Running` or `Idle` earns
//! nothing. Nothing a runtime writes is used as an index, a length or an address.

mod apply;
mod evict;
mod look;
mod progress;
#[cfg(test)]
mod tests;

use rustix::thread::CpuSet;
use std::sync::Arc;
use tailwater_sched::alloc::{Action, Observation, Policy, View};
use tailwater_sched::ledger::{Fate, Ledger, TransitionError};
use tailwater_sched::topology::Topology;
use tailwater_sched::{CoreId, KthreadId, Nanos, RuntimeId};
use tailwater_shm::trace::CoreStep;
use tailwater_shm::{Clock, Cycles, Grant, ParkingLot};

use crate::config::Config;
use crate::runtime::{Egress, EndReason, Runtime, Runtimes};
use crate::stats::{HandoffKind, Stats};
use crate::sys::Threads;
use crate::trace::{Trace, Tracer};
use evict::Withdrawn;

/// How long after the core was seen ceded its successor may take before the IOKernel wakes it itself. The usual time is 1 to
/// 3 us (a context switch, with or without a futex wake, on a 2-vCPU VM); waking somebody who is awake costs 0.2 us and harms nobody.
const REWAKE_US: u64 = 20;
/// Longest pause between two such wakes, as a power of two times [`REWAKE_US`]: 10 ms.
const REWAKE_DOUBLINGS: u32 = 9;
/// How long a kthread that did not start is left alone, in microseconds; doubled each time in a row.
const NO_START_PAUSE_US: u64 = 10_000;
/// Most doublings of it: 1.28 s.
const NO_START_DOUBLINGS: u32 = 7;

/// Deadlines in cycles.
#[derive(Debug, Clone, Copy)]
struct Timing {
    /// Between two ticks of the policy.
    policy: Cycles,
    grace: Cycles,
    deadline: Cycles,
    start_deadline: Cycles,
    rewake: Cycles,
    no_start_pause: Cycles,
}

/// Where a core is in the life of a grant. See the module documentation.
#[derive(Debug, Clone, Copy)]
enum Phase {
    Free,
    Starting { kthread: KthreadId, kind: HandoffKind, decided: Cycles, woken: Cycles, wakes: u32 },
    Running { kthread: KthreadId, idle: bool },
    Ceding { from: KthreadId, to: Option<KthreadId>, kind: HandoffKind, decided: Cycles, signalled: bool },
}

#[derive(Debug, Clone, Copy)]
struct CoreSlot {
    id: CoreId,
    phase: Phase,
    /// When its present owner got it, for the account of core time.
    since: Cycles,
}

/// See the module documentation.
pub(crate) struct Allocator {
    clock: Clock,
    /// Zero of the ledger's time.
    origin: Cycles,
    timing: Timing,
    max_evictions: u32,
    pub(crate) runtimes: Runtimes,
    ledger: Ledger,
    policy: Box<dyn Policy + Send>,
    observation: Observation,
    actions: Vec<Action>,
    /// Parallel to the topology's cores.
    cores: Vec<CoreSlot>,
    lot: ParkingLot,
    unmanaged: CpuSet,
    threads: Box<dyn Threads>,
    withdrawn: Vec<Withdrawn>,
    doomed: Vec<(RuntimeId, EndReason)>,
    /// Egress rings that must be polled from now on; the switch takes them from here.
    pub(crate) arriving: Vec<Egress>,
    /// Earliest timer of a runtime without a core, as far as it was looked at.
    earliest_timer: Cycles,
    /// When the policy's interval has passed.
    next_policy: Cycles,
    /// Where the next look at runtimes without cores begins.
    cursor: usize,
    /// Runtimes that had work and no core at the last look.
    stranded: Vec<RuntimeId>,
    pub(crate) trace: Trace,
    pub(crate) stats: Arc<Stats>,
}

/// What [`Allocator::new`] is made from.
pub(crate) struct Parts {
    pub(crate) clock: Clock,
    pub(crate) topology: Topology,
    pub(crate) unmanaged: CpuSet,
    pub(crate) policy: Box<dyn Policy + Send>,
    pub(crate) lot: ParkingLot,
    pub(crate) threads: Box<dyn Threads>,
    pub(crate) stats: Arc<Stats>,
}

impl Allocator {
    pub(crate) fn new(config: &Config, parts: Parts) -> Self {
        let Parts { clock, topology, unmanaged, policy, lot, threads, stats } = parts;
        let us = |us: u64| clock.from_ns(us * 1_000);
        let origin = tailwater_shm::clock::now();
        let slot = |core: &tailwater_sched::topology::Core| CoreSlot {
            id: core.id,
            phase: Phase::Free,
            since: origin,
        };
        Self {
            clock,
            origin,
            timing: Timing {
                policy: clock.from_ns(policy.interval().0),
                grace: us(config.cede_grace_us),
                deadline: us(config.cede_deadline_us),
                start_deadline: us(config.start_deadline_us),
                rewake: us(REWAKE_US),
                no_start_pause: us(NO_START_PAUSE_US),
            },
            max_evictions: config.max_evictions,
            runtimes: Runtimes::default(),
            cores: topology.cores().iter().map(slot).collect(),
            ledger: Ledger::new(topology),
            policy,
            observation: Observation::new(),
            actions: Vec::new(),
            lot,
            unmanaged,
            threads,
            withdrawn: Vec::new(),
            doomed: Vec::new(),
            arriving: Vec::new(),
            earliest_timer: Cycles::MAX,
            next_policy: 0,
            cursor: 0,
            stranded: Vec::new(),
            trace: Trace::default(),
            stats,
        }
    }

    fn nanos(&self, now: Cycles) -> Nanos {
        Nanos(self.clock.to_ns(now.saturating_sub(self.origin)))
    }

    /// Asks the policy about one event, then carries out what it decided.
    fn decide(&mut self, now: Cycles, ask: impl FnOnce(&mut dyn Policy, View<'_>, &mut Vec<Action>)) {
        let mut actions = core::mem::take(&mut self.actions);
        let view = View { now: self.nanos(now), obs: &self.observation, ledger: &self.ledger };
        ask(&mut *self.policy, view, &mut actions);
        for action in actions.drain(..) {
            self.apply(&action, now);
        }
        self.actions = actions;
    }

    /// Work arrived for a runtime that has no core. The policy remembers a demand that it cannot meet, and looks find one that
    /// was dropped, so it is told once until a core is lent.
    #[inline]
    pub(crate) fn wakeup(&mut self, id: RuntimeId, now: Cycles) {
        let Some(runtime) = self.runtimes.get_mut(id) else { return };
        if runtime.doomed || core::mem::replace(&mut runtime.woken, true) {
            return;
        }
        self.decide(now, |policy, view, actions| policy.wakeup(view, id, actions));
    }

    /// Takes in a runtime; it is lent nothing before [`Self::begin`]. The control thread has checked its wishes against
    /// everybody else's.
    pub(crate) fn attach(&mut self, runtime: Box<Runtime>, now: Cycles) {
        let (id, kthreads) = (runtime.id, runtime.spec.kthreads);
        let refused = self.ledger.register(id, runtime.spec, self.nanos(now)).err();
        self.observation.attach(id, kthreads);
        self.set_on_hold(id, true);
        self.runtimes.insert(runtime);
        self.policy.attach(id, &self.ledger);
        if let Some(error) = refused {
            self.stats.cores.ledger_refusals.add(1);
            self.doom(id, EndReason::Protocol(error.to_string()));
        }
    }

    /// The runtime knows that it is registered: it may have cores.
    pub(crate) fn begin(&mut self, id: RuntimeId) {
        if self.runtimes.get(id).is_some_and(|runtime| !runtime.doomed) {
            self.set_on_hold(id, false);
        }
    }

    fn set_on_hold(&mut self, id: RuntimeId, on_hold: bool) {
        if let Some(look) = self.observation.runtime_mut(id) {
            look.on_hold = on_hold;
        }
    }

    /// Marks a registration as ended; it is carried out between frames, by [`Self::next_doomed`] and [`Self::detach`].
    pub(crate) fn doom(&mut self, id: RuntimeId, reason: EndReason) {
        let Some(runtime) = self.runtimes.get_mut(id) else { return };
        if core::mem::replace(&mut runtime.doomed, true) {
            return;
        }
        self.set_on_hold(id, true);
        self.doomed.push((id, reason));
    }

    pub(crate) fn next_doomed(&mut self) -> Option<(RuntimeId, EndReason)> {
        self.doomed.pop()
    }

    /// Ends a registration: its cores are back in the ledger when this returns. The caller must have dropped the runtime's
    /// egress rings first, and sends the rest to the control thread.
    pub(crate) fn detach(&mut self, id: RuntimeId, now: Cycles) -> Option<Box<Runtime>> {
        self.arriving.retain(|egress| egress.owner.runtime != id);
        self.withdrawn.retain(|withdrawn| withdrawn.kthread.runtime != id);
        self.chase_off(id);
        let fates = match self.ledger.unregister(id, self.nanos(now)) {
            Ok(fates) => fates,
            Err(error) => self.refused(&error, Vec::new()),
        };
        self.policy.detach(id);
        self.observation.detach(id);
        let runtime = self.runtimes.remove(id);
        for &fate in &fates {
            self.settle(fate, now);
        }
        for fate in fates {
            if let Fate::Freed(core) = fate {
                self.core_fell_free(core, now);
            }
        }
        runtime
    }

    /// The cores whose present holder is a kthread of this runtime, with that kthread.
    fn cores_of(&self, id: RuntimeId) -> impl Iterator<Item = (&CoreSlot, KthreadId)> {
        let held = self.cores.iter().filter_map(|slot| match slot.phase {
            Phase::Free => None,
            Phase::Starting { kthread, .. } | Phase::Running { kthread, .. } => Some((slot, kthread)),
            Phase::Ceding { from, .. } => Some((slot, from)),
        });
        held.filter(move |(_, holder)| holder.runtime == id)
    }

    /// Since when the runtime has each of the cores that it holds.
    pub(crate) fn holds_since(&self, id: RuntimeId) -> Vec<Cycles> {
        self.cores_of(id).map(|(slot, _)| slot.since).collect()
    }

    /// Moves the runtime's threads off the cores they hold, in case its process lives on.
    fn chase_off(&mut self, id: RuntimeId) {
        let holders: Vec<KthreadId> = self.cores_of(id).map(|(_, holder)| holder).collect();
        for holder in holders {
            let (runtime, kthread) = self.runtimes.kthread(holder);
            runtime.shared(holder.index).grant.0.store(Grant::Cede { next: None }, kthread.generation);
            // Fails when the thread is dead, which serves as well.
            let _ = self.threads.bind(runtime.pid, kthread.tid, &self.unmanaged);
        }
    }

    /// Follows what the ledger did to a core of a runtime that is gone.
    fn settle(&mut self, fate: Fate, now: Cycles) {
        let (core, phase) = match fate {
            Fate::Freed(core) => (core, Phase::Free),
            Fate::HandedOn { core, to } => {
                let (_, kthread) = self.runtimes.kthread(to);
                self.lot.slot(kthread.slot).wake();
                let kind = HandoffKind::Evict;
                (core, Phase::Starting { kthread: to, kind, decided: now, woken: now, wakes: 0 })
            }
            Fate::Returned { core, from } => {
                // It may have seen the request already: let it finish ceding, to nobody.
                let (runtime, kthread) = self.runtimes.kthread(from);
                runtime.shared(from.index).grant.0.store(Grant::Cede { next: None }, kthread.generation);
                let kind = HandoffKind::Polling;
                (core, Phase::Ceding { from, to: None, kind, decided: now, signalled: false })
            }
        };
        let Some(at) = self.ledger.topology().position(core) else { return };
        self.trace_loss(at, now);
        let slot = &mut self.cores[at];
        slot.phase = phase;
        slot.since = now;
    }

    /// Tells the tracer that whoever holds the core loses it.
    fn trace_loss(&mut self, at: usize, now: Cycles) {
        let (kind, holder) = match self.cores[at].phase {
            Phase::Free => return,
            Phase::Starting { kthread, kind, .. } => (kind, kthread),
            Phase::Running { kthread, .. } => (HandoffKind::Wake, kthread),
            Phase::Ceding { from, kind, .. } => (kind, from),
        };
        self.trace.core(now, self.cores[at].id, CoreStep::Ceded, kind, (holder, None));
    }

    /// Starts a trace: the tracer is told who has which core, and what kthreads do from now on.
    pub(crate) fn begin_trace(&mut self, tracer: Box<Tracer>, now: Cycles) {
        self.trace.begin(tracer, &mut self.runtimes);
        for slot in &self.cores {
            let (step, kind, whom) = match slot.phase {
                Phase::Free => continue,
                Phase::Starting { kthread, kind, .. } => (CoreStep::Decided, kind, (kthread, None)),
                Phase::Running { kthread, .. } => (CoreStep::Running, HandoffKind::Wake, (kthread, None)),
                Phase::Ceding { from, .. } => (CoreStep::Running, HandoffKind::Wake, (from, None)),
            };
            self.trace.core(now, slot.id, step, kind, whom);
            if let Phase::Ceding { from, to: Some(to), kind, .. } = slot.phase {
                self.trace.core(now, slot.id, CoreStep::Decided, kind, (to, Some(from)));
            }
        }
    }

    /// Passes on what kthreads have written down about traced requests; does nothing unless somebody traces.
    #[inline(always)]
    pub(crate) fn collect_trace(&mut self) {
        if self.trace.is_on() {
            self.trace.collect(&mut self.runtimes);
        }
    }

    fn core_fell_free(&mut self, core: CoreId, now: Cycles) {
        self.decide(now, |policy, view, actions| policy.idle(view, core, actions));
    }

    /// Counts an impossible transition, which only a defect of ours can ask for, and goes on with `instead`.
    fn refused<T>(&self, error: &TransitionError, instead: T) -> T {
        debug_assert!(false, "the ledger refused: {error}");
        self.stats.cores.ledger_refusals.add(1);
        tracing::error!(%error, "the core ledger refused a transition");
        instead
    }

    /// Whether nobody has a core, wants one, or is on the way to either.
    pub(crate) fn is_quiet(&self) -> bool {
        let busy = self.ledger.free_cores() != self.cores.len();
        !busy
            && self.stranded.is_empty()
            && self.withdrawn.is_empty()
            && self.doomed.is_empty()
            && self.arriving.is_empty()
    }

    /// Whether a runtime holds any core, or is promised one.
    fn has_core(&self, id: RuntimeId) -> bool {
        self.ledger.account(id).is_some_and(|account| account.held() > 0)
    }

    /// Consistency of ledger and phases, for tests.
    #[cfg(test)]
    pub(crate) fn check(&self) -> Result<(), String> {
        use tailwater_sched::ledger::CoreState;
        self.ledger.check().map_err(|e| e.to_string())?;
        for (slot, state) in self.cores.iter().zip(self.ledger.cores()) {
            let agree = match (slot.phase, state) {
                (Phase::Free, CoreState::Free) => true,
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
