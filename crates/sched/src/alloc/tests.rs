//! Congestion detection by scenario. Properties that hold for every history are in
//! `tests/it/allocation.rs`.

use super::congestion::VAIN_SEARCHES;
use super::*;
use crate::ids::{CoreId, KthreadId, Nanos, RuntimeId};
use crate::ledger::{CoreState, Ledger, RuntimeClass, RuntimeSpec};
use crate::topology::Topology;
use Activity::{Idle, Running};
use RuntimeClass::{BestEffort, LatencyCritical};
use heap::vec::Vec;

/// Cores, runtimes that follow requests, and the policy. Time passes only in [`Machine::look`]
/// and [`Machine::wait`].
struct Machine {
    ledger: Ledger,
    obs: Observation,
    policy: CongestionDetection,
    now: Nanos,
    runtimes: u32,
}

impl Machine {
    fn new(topology: Topology) -> Self {
        let policy = CongestionDetection::new(Config::default());
        let (ledger, obs) = (Ledger::new(topology), Observation::new());
        Self { ledger, obs, policy, now: Nanos::from_millis(1), runtimes: 0 }
    }

    fn of_cores(cores: u16) -> Self {
        Self::new(Topology::uniform(cores, 1, 1).unwrap())
    }

    fn runtime(&mut self, class: RuntimeClass, guaranteed: u16, max: u16) -> RuntimeId {
        let runtime = RuntimeId(self.runtimes);
        self.runtimes += 1;
        let spec = RuntimeSpec { guaranteed, max, kthreads: max, class };
        self.ledger.register(runtime, spec, self.now).unwrap();
        self.obs.attach(runtime, max);
        self.policy.attach(runtime, &self.ledger);
        runtime
    }

    fn event(
        &mut self,
        event: impl FnOnce(&mut CongestionDetection, View<'_>, &mut Vec<Action>),
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        event(&mut self.policy, View { now: self.now, obs: &self.obs, ledger: &self.ledger }, &mut actions);
        for action in &actions {
            self.ledger.apply(action, self.now).unwrap();
        }
        self.ledger.check().unwrap();
        actions
    }

    /// Takes one look, 5 us after the last, and applies its actions.
    fn look(&mut self) -> Vec<Action> {
        self.now = self.now + Nanos::from_micros(5);
        self.event(Policy::tick)
    }

    fn wakeup(&mut self, runtime: RuntimeId) -> Vec<Action> {
        self.event(|policy, view, actions| policy.wakeup(view, runtime, actions))
    }

    fn idle(&mut self, core: u16) -> Vec<Action> {
        if let Some(CoreState::Owned { kthread, .. }) = self.ledger.core(CoreId(core)) {
            self.obs.kthread_mut(kthread).unwrap().activity = Idle;
        }
        self.event(|policy, view, actions| policy.idle(view, CoreId(core), actions))
    }

    fn wait(&mut self, duration: Nanos) {
        self.now = self.now + duration;
    }

    /// Lends `core` to a kthread of `runtime`, which runs there from now on.
    fn runs(&mut self, runtime: RuntimeId, core: u16) -> KthreadId {
        let index = self.ledger.account(runtime).unwrap().kthread_for(CoreId(core)).unwrap();
        let kthread = KthreadId::new(runtime, index);
        self.ledger.grant(CoreId(core), kthread, self.now).unwrap();
        self.obs.kthread_mut(kthread).unwrap().activity = Running;
        kthread
    }

    fn idles(&mut self, runtime: RuntimeId, core: u16) -> KthreadId {
        let kthread = self.runs(runtime, core);
        self.obs.kthread_mut(kthread).unwrap().activity = Idle;
        kthread
    }

    /// Makes `items` user threads wait at the runtime's first kthread until [`Machine::drain`].
    fn queue(&mut self, runtime: RuntimeId, items: u32) {
        let kthread = self.obs.kthread_mut(KthreadId::new(runtime, 0)).unwrap();
        kthread.runq_tail = kthread.runq_tail.wrapping_add(items);
    }

    fn drain(&mut self, runtime: RuntimeId) {
        for kthread in &mut self.obs.runtime_mut(runtime).unwrap().kthreads {
            kthread.runq_head = kthread.runq_tail;
        }
    }

    /// Makes the kthread that was asked to cede this core do so, and the next one start.
    fn cedes(&mut self, core: u16) {
        let (from, to) = self.ledger.complete_move(CoreId(core), self.now).unwrap();
        self.obs.kthread_mut(from).unwrap().activity = Activity::Parked;
        self.obs.kthread_mut(to).unwrap().activity = Running;
    }

    fn cores(&self, runtime: RuntimeId) -> u16 {
        self.ledger.account(runtime).unwrap().cores()
    }
}

/// Returns the parts of a grant that the scenarios check: core, victim, `only_if_idle`.
fn grants(actions: &[Action]) -> Vec<(u16, Option<KthreadId>, bool)> {
    let parts = |action: &Action| {
        let Action::Grant { core, victim, only_if_idle, .. } = *action;
        (core.0, victim, only_if_idle)
    };
    actions.iter().map(parts).collect()
}

fn takes(action: &Action, core: u16) -> bool {
    matches!(action, Action::Grant { core: other, .. } if other.0 == core)
}

#[test]
fn on_one_core_a_packet_preempts_the_batch_job_which_gets_the_core_back_as_soon_as_the_service_idles() {
    for guaranteed in [0, 1] {
        let mut machine = Machine::of_cores(1);
        let spin = machine.runtime(LatencyCritical, guaranteed, 1);
        let swaptions = machine.runtime(BestEffort, 0, 1);
        let batch = machine.runs(swaptions, 0);

        for _ in 0..3 {
            let service = KthreadId::new(spin, 0);
            assert_eq!(grants(&machine.wakeup(spin)), [(0, Some(batch), false)]);
            machine.cedes(0);
            // Its user thread was preempted and is queued again.
            machine.queue(swaptions, 1);
            assert_eq!(machine.look(), [], "the batch job never takes a core from the busy service");

            assert_eq!(grants(&machine.idle(0)), [(0, Some(service), true)]);
            machine.cedes(0);
            machine.drain(swaptions);
            assert_eq!(machine.look(), []);
        }
    }
}

#[test]
fn a_batch_job_that_has_not_ceded_yet_gets_its_core_back_by_the_next_look() {
    let mut machine = Machine::of_cores(1);
    let spin = machine.runtime(LatencyCritical, 0, 1);
    let swaptions = machine.runtime(BestEffort, 0, 1);
    machine.runs(swaptions, 0);
    machine.wakeup(spin);
    assert_eq!(machine.idle(0), [], "a moving core cannot be given");
    assert!(machine.policy.is_unmet(swaptions));
    machine.cedes(0);
    machine.obs.kthread_mut(KthreadId::new(spin, 0)).unwrap().activity = Idle;
    machine.queue(swaptions, 1);
    assert_eq!(machine.look().len(), 1);
}

#[test]
fn a_runtime_gets_one_more_core_when_something_waited_through_two_looks() {
    let mut machine = Machine::of_cores(4);
    let a = machine.runtime(LatencyCritical, 0, 4);
    machine.runs(a, 0);
    machine.queue(a, 9);
    assert_eq!(machine.look(), []);
    assert_eq!(grants(&machine.look()), [(1, None, false)]);
}

#[test]
fn work_at_a_parked_kthread_is_load_of_its_runtime() {
    let mut machine = Machine::of_cores(2);
    let a = machine.runtime(LatencyCritical, 0, 2);
    machine.runs(a, 0);
    machine.obs.kthread_mut(KthreadId::new(a, 1)).unwrap().ingress_tail = 64;
    assert_eq!(machine.look(), []);
    assert_eq!(machine.look().len(), 1);
}

#[test]
fn a_runtime_without_cores_and_with_work_does_not_wait_for_a_second_look() {
    for source in 0..3 {
        let mut machine = Machine::of_cores(1);
        let a = machine.runtime(BestEffort, 0, 1);
        assert_eq!(machine.look(), []);
        let kthread = machine.obs.kthread_mut(KthreadId::new(a, 0)).unwrap();
        match source {
            0 => kthread.timer_due = true,
            1 => kthread.overflow = 1,
            _ => kthread.ingress_tail = 64,
        }
        assert_eq!(machine.look().len(), 1);
    }
}

#[test]
fn an_idle_kthread_takes_its_own_runtimes_work_and_is_never_a_victim_of_it() {
    let mut machine = Machine::of_cores(2);
    let a = machine.runtime(LatencyCritical, 0, 3);
    machine.runs(a, 0);
    let idle = machine.idles(a, 1);
    machine.queue(a, 1);
    for _ in 0..20 {
        assert_eq!(machine.look(), [], "no other core, and {idle} is no victim");
    }
}

#[test]
fn help_that_does_not_help_is_relied_on_for_a_few_looks_only() {
    let mut machine = Machine::of_cores(3);
    let a = machine.runtime(LatencyCritical, 0, 3);
    machine.runs(a, 0);
    machine.idles(a, 1);
    machine.queue(a, 1);
    let looks = (1..50).find(|_| !machine.look().is_empty());
    assert_eq!(looks, Some(usize::from(HELP_PATIENCE) + 2));
}

#[test]
fn one_packet_for_a_sleeping_runtime_takes_one_core_however_long_the_wake_takes() {
    let mut machine = Machine::of_cores(4);
    let a = machine.runtime(LatencyCritical, 0, 4);
    machine.obs.kthread_mut(KthreadId::new(a, 0)).unwrap().ingress_tail = 64;
    assert_eq!(machine.wakeup(a).len(), 1);
    for _ in 0..5 {
        assert_eq!(machine.look(), [], "25 us: the kthread is on its way");
    }
    machine.queue(a, 8);
    machine.look();
    assert_eq!(machine.look().len(), 1, "eight user threads are more than one kthread's work");
}

#[test]
fn a_first_core_is_one_whose_hyperthreads_no_stranger_uses() {
    // Hyperthreads 0 and 2 are one physical core, 1 and 3 another.
    for (held, first, why) in [(&[2][..], 1, "0 is the sibling of a stranger's"), (&[2, 3], 0, "all are")] {
        let mut machine = Machine::new(Topology::uniform(4, 2, 1).unwrap());
        let stranger = machine.runtime(BestEffort, 0, 4);
        let service = machine.runtime(LatencyCritical, 0, 4);
        for &core in held {
            machine.runs(stranger, core);
        }
        assert_eq!(grants(&machine.wakeup(service)), [(first, None, false)], "{why}");
    }
}

#[test]
fn the_sibling_hyperthread_comes_first_then_the_most_recent_core_then_any() {
    let mut machine = Machine::new(Topology::uniform(8, 2, 1).unwrap());
    let a = machine.runtime(BestEffort, 0, 8);
    let kthread = machine.runs(a, 6);
    assert_eq!(machine.ledger.handle_parked(kthread, machine.now), Ok(None));
    machine.runs(a, 1);
    machine.queue(a, 100);
    machine.look();
    let order: Vec<u16> = (0..3).map(|_| grants(&machine.look())[0].0).collect();
    // Core 1's sibling; the core it gave up; that core's sibling.
    assert_eq!(order, [5, 6, 2]);
    assert_eq!(grants(&machine.look())[0].0, 0);
}

#[test]
fn a_latency_critical_runtime_prefers_a_polling_core_and_a_best_effort_one_a_free_core() {
    for (class, expected) in [(LatencyCritical, 1), (BestEffort, 0)] {
        let mut machine = Machine::of_cores(3);
        let (idler, wanter) = (machine.runtime(BestEffort, 0, 1), machine.runtime(class, 0, 1));
        machine.idles(idler, 1);
        assert_eq!(grants(&machine.wakeup(wanter))[0].0, expected);
    }
}

#[test]
fn a_latency_critical_runtimes_polling_core_is_the_last_resort_before_preemption() {
    let mut machine = Machine::of_cores(3);
    let idler = machine.runtime(LatencyCritical, 0, 1);
    let busy = machine.runtime(BestEffort, 0, 1);
    let polling = machine.idles(idler, 0);
    machine.runs(busy, 1);
    let wanters = [0, 1].map(|_| machine.runtime(LatencyCritical, 0, 1));
    assert_eq!(grants(&machine.wakeup(wanters[0])), [(2, None, false)]);
    assert_eq!(grants(&machine.wakeup(wanters[1])), [(0, Some(polling), true)]);
}

#[test]
fn an_idle_guaranteed_core_is_lent_and_comes_back_at_once() {
    let mut machine = Machine::of_cores(1);
    let owner = machine.runtime(BestEffort, 1, 1);
    let guest = machine.runtime(LatencyCritical, 0, 1);
    let polling = machine.idles(owner, 0);
    assert_eq!(grants(&machine.wakeup(guest)), [(0, Some(polling), true)]);
    machine.cedes(0);
    let visitor = KthreadId::new(guest, 0);
    assert_eq!(grants(&machine.wakeup(owner)), [(0, Some(visitor), false)], "even by a lower class");
}

#[test]
fn a_busy_guaranteed_core_is_never_taken() {
    let mut machine = Machine::of_cores(2);
    let owner = machine.runtime(BestEffort, 1, 2);
    let other = machine.runtime(LatencyCritical, 1, 2);
    machine.runs(owner, 0);
    machine.runs(other, 1);
    machine.queue(other, 100);
    machine.wait(Nanos::from_millis(100));
    assert!((0..100).all(|_| machine.look().is_empty()));
}

#[test]
fn an_idle_kthread_with_work_queued_counts_as_busy() {
    let mut machine = Machine::of_cores(1);
    let owner = machine.runtime(LatencyCritical, 0, 1);
    let batch = machine.runtime(BestEffort, 0, 1);
    let service = machine.runtime(LatencyCritical, 1, 1);
    let polling = machine.idles(owner, 0);
    machine.queue(owner, 1);
    assert_eq!(machine.wakeup(batch), []);
    assert_eq!(machine.look(), []);
    assert_eq!(machine.idle(0), [], "it will find its work by itself");
    assert_eq!(grants(&machine.wakeup(service)), [(0, Some(polling), false)], "a guarantee ranks higher");
    assert!(machine.policy.is_unmet(owner), "it lost its core with work queued");
}

#[test]
fn a_latency_critical_runtime_takes_a_best_effort_core_at_once_and_never_the_reverse() {
    let mut machine = Machine::of_cores(2);
    let critical = machine.runtime(LatencyCritical, 0, 2);
    let effort = machine.runtime(BestEffort, 0, 2);
    machine.runs(critical, 0);
    let victim = machine.runs(effort, 1);
    machine.queue(critical, 9);
    machine.look();
    assert_eq!(grants(&machine.look()), [(1, Some(victim), false)]);
    machine.cedes(1);
    machine.queue(effort, 9);
    machine.wait(Nanos::from_millis(100));
    assert!((0..100).all(|_| machine.look().is_empty()));
}

#[test]
fn a_guarantee_preempts_even_a_latency_critical_burst_but_best_effort_first() {
    let mut machine = Machine::of_cores(2);
    let owner = machine.runtime(BestEffort, 2, 2);
    let critical = machine.runtime(LatencyCritical, 0, 2);
    let effort = machine.runtime(BestEffort, 0, 2);
    let busy = machine.runs(critical, 0);
    let batch = machine.runs(effort, 1);
    machine.queue(owner, 9);
    assert_eq!(grants(&machine.wakeup(owner)), [(1, Some(batch), false)]);
    machine.cedes(1);
    assert_eq!(machine.look(), []);
    assert_eq!(grants(&machine.look()), [(0, Some(busy), false)]);
}

#[test]
fn between_equals_the_poorer_takes_from_the_richer_after_the_quantum() {
    let mut machine = Machine::of_cores(2);
    let (rich, poor) = (machine.runtime(BestEffort, 0, 2), machine.runtime(BestEffort, 0, 2));
    machine.runs(rich, 0);
    machine.runs(rich, 1);
    machine.queue(rich, 9);
    machine.queue(poor, 9);
    let quantum = Config::default().burst_quantum;
    let looks = (1..=quantum.0 / 5_000).filter(|_| !machine.look().is_empty()).count();
    assert_eq!((looks, machine.cores(rich), machine.cores(poor)), (1, 1, 1), "at the end of the quantum");
    machine.wait(quantum);
    assert!((0..1000).all(|_| machine.look().is_empty()), "equal shares are left alone");
}

#[test]
fn a_demoted_runtime_takes_no_core_on_which_a_service_idles_beyond_those_that_it_owns() {
    for (class, guaranteed) in [(LatencyCritical, 0), (BestEffort, 0), (LatencyCritical, 1), (BestEffort, 1)]
    {
        let mut machine = Machine::of_cores(1);
        let service = machine.runtime(LatencyCritical, 0, 1);
        let late = machine.runtime(class, guaranteed, 1);
        machine.idles(service, 0);
        machine.obs.set_demoted(late, true);
        machine.queue(late, 1);
        if guaranteed == 0 {
            assert_eq!(machine.look(), []);
            assert_eq!(machine.idle(0), []);
            machine.obs.set_demoted(late, false);
        }
        assert_eq!(machine.look().len(), 1, "{class:?}, {guaranteed} guaranteed");
    }
}

#[test]
fn a_demoted_service_loses_its_core_to_a_service_at_once_and_takes_none_from_it() {
    let mut machine = Machine::of_cores(1);
    let (late, service) = (machine.runtime(LatencyCritical, 0, 1), machine.runtime(LatencyCritical, 0, 1));
    let kthread = machine.runs(late, 0);
    assert_eq!(machine.wakeup(service), [], "its quantum lasts");
    machine.obs.set_demoted(late, true);
    assert_eq!(grants(&machine.look()), [(0, Some(kthread), false)]);
    machine.cedes(0);
    machine.queue(late, 1);
    machine.wait(Nanos::from_millis(10));
    assert_eq!(machine.look(), []);
    // A free core is lent to it.
    machine.ledger.release(KthreadId::new(service, 0), machine.now).unwrap();
    assert_eq!(grants(&machine.idle(0)), [(0, None, false)]);
}

#[test]
fn an_odd_core_goes_round() {
    let mut machine = Machine::of_cores(1);
    let runtimes = [0; 3].map(|_| machine.runtime(LatencyCritical, 0, 1));
    let mut turns = Vec::new();
    machine.runs(runtimes[0], 0);
    runtimes.iter().for_each(|&runtime| machine.queue(runtime, 9));
    while turns.len() < 6 {
        if let [Action::Grant { runtime, .. }] = machine.look()[..] {
            machine.cedes(0);
            turns.push(runtime.0);
        }
    }
    assert_eq!(turns, [1, 2, 0, 1, 2, 0]);
    // Six quanta of 100 us, each seen at the next look, and the start at 1 ms.
    assert!(machine.now <= Nanos::from_micros(1_640), "{}", machine.now);
}

#[test]
fn a_service_that_comes_to_a_busy_equal_waits_for_the_rest_of_its_quantum() {
    let quantum = Config::default().service_quantum;
    for had in [quantum.0 / 4, quantum.0 * 3] {
        let mut machine = Machine::of_cores(1);
        let [busy, comes] = [0; 2].map(|_| machine.runtime(LatencyCritical, 0, 1));
        let owner = machine.runs(busy, 0);
        machine.queue(busy, 9);
        machine.wait(Nanos(had));
        machine.queue(comes, 1);
        let mut granted = machine.wakeup(comes);
        let mut waited = 0;
        while granted.is_empty() {
            granted = machine.look();
            waited += 5_000;
        }
        assert_eq!(grants(&granted), [(0, Some(owner), false)]);
        assert_eq!(waited, quantum.0.saturating_sub(had).next_multiple_of(5_000));
    }
}

#[test]
fn with_a_quantum_of_zero_an_equal_that_bursts_loses_its_core_at_once() {
    for class in [LatencyCritical, BestEffort] {
        let mut machine = Machine::of_cores(2);
        let quanta = Config { burst_quantum: Nanos::ZERO, service_quantum: Nanos::ZERO, ..Config::default() };
        machine.policy = CongestionDetection::new(quanta);
        let [bursts, owns, comes] =
            [(0, 2), (1, 1), (0, 1)].map(|(own, max)| machine.runtime(class, own, max));
        let kthread = machine.runs(bursts, 0);
        machine.runs(owns, 1);
        [bursts, owns].iter().for_each(|&runtime| machine.queue(runtime, 9));
        machine.queue(comes, 9);
        assert_eq!(grants(&machine.wakeup(comes)), [(0, Some(kthread), false)], "no look is awaited");
        machine.cedes(0);
        // The loser waits for a core, and is the equal that comes from now on.
        let next = machine.look();
        assert!(matches!(next[..], [Action::Grant { runtime, .. }] if runtime == bursts), "{next:?}");
    }
}

#[test]
fn a_core_that_falls_free_goes_to_the_most_urgent_claim() {
    let mut machine = Machine::of_cores(1);
    let owner = machine.runtime(LatencyCritical, 0, 1);
    let kthread = machine.runs(owner, 0);
    let waiting = [(BestEffort, 0), (LatencyCritical, 0)].map(|(class, g)| machine.runtime(class, g, 1));
    waiting.iter().for_each(|&runtime| assert_eq!(machine.wakeup(runtime), []));
    machine.ledger.release(kthread, machine.now).unwrap();
    let served: Vec<RuntimeId> = (0..2)
        .map(|_| {
            let Action::Grant { runtime, kthread, .. } = machine.idle(0)[0];
            machine.ledger.handle_parked(kthread, machine.now).unwrap();
            runtime
        })
        .collect();
    assert_eq!(served, [waiting[1], waiting[0]]);
    assert_eq!(machine.idle(0), [], "no runtime waits any more");
}

#[test]
fn a_wakeup_that_could_not_be_served_is_not_forgotten() {
    let mut machine = Machine::of_cores(1);
    let owner = machine.runtime(LatencyCritical, 0, 1);
    let woken = machine.runtime(LatencyCritical, 0, 1);
    let kthread = machine.runs(owner, 0);
    assert_eq!(machine.wakeup(woken), []);
    // Within the quantum of the owner.
    assert!((0..3).all(|_| machine.look().is_empty()), "it took the core of a busy equal");
    machine.ledger.release(kthread, machine.now).unwrap();
    assert_eq!(machine.look().len(), 1);
    assert!(!machine.policy.is_unmet(woken));
}

#[test]
fn a_wakeup_of_a_runtime_that_has_a_core_does_nothing() {
    let mut machine = Machine::of_cores(2);
    let a = machine.runtime(LatencyCritical, 2, 2);
    machine.runs(a, 0);
    assert_eq!(machine.wakeup(a), []);
    assert_eq!(machine.wakeup(RuntimeId(77)), []);
    assert_eq!(machine.idle(77), []);
    assert!(!machine.policy.is_unmet(a));
}

#[test]
fn a_dropped_action_is_decided_again_at_the_next_look() {
    let mut machine = Machine::of_cores(1);
    let a = machine.runtime(LatencyCritical, 0, 1);
    machine.queue(a, 1);
    let mut dropped = Vec::new();
    let view = View { now: machine.now, obs: &machine.obs, ledger: &machine.ledger };
    machine.policy.wakeup(view, a, &mut dropped);
    assert_eq!(dropped.len(), 1);
    assert_eq!(machine.look(), dropped);
}

#[test]
fn a_runtime_on_hold_keeps_its_cores_and_gets_no_more() {
    let mut machine = Machine::of_cores(2);
    let a = machine.runtime(LatencyCritical, 2, 2);
    machine.runs(a, 0);
    machine.queue(a, 9);
    machine.obs.set_on_hold(a, true);
    assert!((0..10).all(|_| machine.look().is_empty()));
    machine.obs.set_on_hold(a, false);
    assert_eq!(machine.look().len(), 1);
}

#[test]
fn a_slot_remembers_nothing_of_its_last_runtime() {
    let mut machine = Machine::of_cores(1);
    let busy = machine.runtime(LatencyCritical, 0, 1);
    machine.runs(busy, 0);
    let gone = machine.runtime(LatencyCritical, 0, 1);
    machine.wakeup(gone);
    machine.look();
    machine.ledger.unregister(gone, machine.now).unwrap();
    machine.policy.detach(gone);
    assert!(!machine.policy.is_unmet(gone));
    machine.runtimes = gone.0;
    let next = machine.runtime(LatencyCritical, 0, 1);
    assert_eq!(next, gone);
    machine.look();
    assert!(!machine.policy.is_unmet(next));
}

#[test]
fn equal_seeds_decide_equally_and_no_victim_is_singled_out() {
    let victims = |seed| {
        let mut machine = Machine::of_cores(16);
        machine.policy = CongestionDetection::new(Config { seed, ..Config::default() });
        for core in 0..16 {
            let runtime = machine.runtime(BestEffort, 0, 1);
            machine.runs(runtime, core);
        }
        let wanters = [0; 8].map(|_| machine.runtime(LatencyCritical, 0, 1));
        wanters.map(|runtime| grants(&machine.wakeup(runtime))[0].0)
    };
    assert_eq!(victims(1), victims(1));
    assert_ne!(victims(1), victims(2));
}

#[test]
fn one_event_chooses_no_core_twice_and_takes_no_more_than_a_runtime_has_to_spare() {
    let mut machine = Machine::of_cores(4);
    let rich = machine.runtime(BestEffort, 2, 4);
    for core in 0..4 {
        machine.runs(rich, core);
    }
    let wanters = [0; 3].map(|_| machine.runtime(LatencyCritical, 0, 1));
    wanters.iter().for_each(|&runtime| machine.queue(runtime, 1));
    let taken: Vec<u16> = grants(&machine.look()).iter().map(|grant| grant.0).collect();
    assert_eq!(taken.len(), 2);
    assert_ne!(taken[0], taken[1]);
    assert_eq!(machine.cores(rich), 2);
    assert!(machine.look().is_empty());
}

#[test]
fn equals_that_wait_for_the_same_core_are_served_in_turn() {
    let mut machine = Machine::of_cores(1);
    let equals = [0; 3].map(|_| machine.runtime(LatencyCritical, 0, 1));
    let mut holder = machine.runs(equals[2], 0);
    let mut turns = Vec::new();
    for _ in 0..6 {
        // The two without the core wait for it; the holder parks without a request.
        for runtime in equals {
            assert_eq!(machine.wakeup(runtime), []);
        }
        machine.wait(Nanos::from_micros(1));
        machine.ledger.release(holder, machine.now).unwrap();
        let Action::Grant { kthread, .. } = machine.idle(0)[0];
        holder = kthread;
        turns.push(holder.runtime.0);
    }
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_runtime_that_lost_a_busy_core_gets_the_next_one_as_long_as_it_has_work() {
    for still_has_work in [true, false] {
        let mut machine = Machine::of_cores(2);
        let (batch, service) = (machine.runtime(BestEffort, 0, 2), machine.runtime(LatencyCritical, 0, 1));
        machine.runs(batch, 0);
        machine.runs(batch, 1);
        let Action::Grant { core, kthread, .. } = machine.wakeup(service)[0];
        machine.cedes(core.0);
        for _ in 0..5 {
            // Its user threads come and go too quickly to be congestion.
            machine.drain(batch);
            machine.queue(batch, u32::from(still_has_work));
            assert_eq!(machine.look(), []);
        }
        machine.ledger.release(kthread, machine.now).unwrap();
        assert_eq!(machine.idle(core.0).len(), usize::from(still_has_work));
    }
}

#[test]
fn the_cores_of_a_runtime_are_kept_on_one_socket_while_that_has_others() {
    let mut machine = Machine::new(Topology::uniform(8, 1, 2).unwrap());
    let (service, batch) = (machine.runtime(LatencyCritical, 0, 8), machine.runtime(BestEffort, 0, 8));
    machine.runs(service, 6);
    for core in [0, 1, 4] {
        machine.runs(batch, core);
    }
    let mut cores = Vec::new();
    machine.queue(service, 50);
    for _ in 0..6 {
        cores.extend(grants(&machine.look()).iter().map(|grant| grant.0));
        let moving: Vec<u16> = (0..8)
            .filter(|&core| matches!(machine.ledger.core(CoreId(core)), Some(CoreState::Moving { .. })))
            .collect();
        moving.into_iter().for_each(|core| machine.cedes(core));
        for core in machine.ledger.topology().cores().iter().map(|core| core.id).collect::<Vec<_>>() {
            if let Some(CoreState::Owned { kthread, .. }) = machine.ledger.core(core) {
                machine.obs.kthread_mut(kthread).unwrap().activity = Running;
            }
        }
    }
    assert_eq!(cores[..2], [5, 7], "free cores of its own socket first");
    assert_eq!(cores[2..4], [2, 3], "then those of the other, before any busy one");
    assert_eq!(cores[4], 4, "of busy ones, that of its own socket first");
}

#[test]
fn a_core_that_was_refused_to_a_runtime_is_chosen_for_others_only_until_that_is_forgotten() {
    let mut machine = Machine::of_cores(2);
    let batch = machine.runtime(BestEffort, 0, 2);
    let (bound, free) = (machine.runtime(LatencyCritical, 0, 1), machine.runtime(LatencyCritical, 0, 1));
    let kthreads = [0, 1].map(|core| machine.runs(batch, core));
    (0..2).for_each(|at| machine.obs.refuse(bound, at));
    machine.queue(bound, 1);
    // The claim that finds nothing ends no later one of its class.
    machine.queue(free, 1);
    let actions = machine.look();
    assert!(matches!(actions[..], [Action::Grant { runtime, .. }] if runtime == free), "{actions:?}");
    let Action::Grant { core, .. } = actions[0];
    machine.cedes(core.0);
    assert_eq!(machine.look(), []);
    assert_eq!(machine.idle(1 - core.0), [], "nor one that idles");
    machine.obs.forget_refused(bound);
    machine.look();
    assert_eq!(machine.ledger.account(bound).unwrap().held(), 1, "{kthreads:?}");
}

#[test]
fn a_core_whose_holder_has_not_started_is_taken_once_that_is_overdue_and_by_a_service_at_once_if_demoted() {
    for (class, demoted, waits) in [
        (LatencyCritical, false, true),
        (LatencyCritical, true, false),
        (BestEffort, false, true),
        (BestEffort, true, true),
    ] {
        let mut machine = Machine::of_cores(1);
        let late = machine.runtime(BestEffort, 0, 1);
        let claimant = machine.runtime(class, 1, 1);
        let kthread = machine.runs(late, 0);
        machine.obs.kthread_mut(kthread).unwrap().activity = Activity::Parked;
        machine.obs.set_demoted(late, demoted);
        let overdue = machine.now + Nanos::from_micros(10);
        machine.obs.set_hold(0, Hold::Starting { overdue });
        machine.queue(claimant, 1);
        assert_eq!(machine.wakeup(claimant).is_empty(), waits, "{class:?} {demoted}");
        if waits {
            assert_eq!([machine.look(), machine.look()], [[], []], "{class:?} {demoted}: not overdue");
            assert_eq!(grants(&machine.look()), [(0, Some(kthread), false)]);
        }
    }
}

#[test]
fn a_core_that_its_holder_gives_up_for_no_other_kthread_is_taken_by_none() {
    let mut machine = Machine::of_cores(2);
    let (batch, service) = (machine.runtime(BestEffort, 0, 2), machine.runtime(LatencyCritical, 2, 2));
    let leaving = machine.runs(batch, 0);
    machine.runs(batch, 1);
    machine.obs.set_hold(0, Hold::Leaving);
    for activity in [Running, Idle] {
        machine.obs.kthread_mut(leaving).unwrap().activity = activity;
        assert_eq!(machine.wakeup(service).iter().filter(|action| takes(action, 0)).count(), 0);
        machine.queue(service, 9);
        assert!((0..3).all(|_| !machine.look().iter().any(|action| takes(action, 0))), "{activity:?}");
    }
    machine.obs.set_hold(0, Hold::None);
    machine.look();
    assert_eq!(machine.ledger.account(service).unwrap().held(), 2);
}

#[test]
fn a_confined_runtime_is_lent_no_closed_core() {
    let mut machine = Machine::of_cores(2);
    let (confined, other) = (machine.runtime(LatencyCritical, 0, 2), machine.runtime(LatencyCritical, 0, 2));
    machine.obs.set_confined(confined, true);
    machine.obs.set_closed([true, true].into_iter());
    machine.queue(confined, 1);
    machine.queue(other, 1);
    assert!(machine.look().iter().all(|Action::Grant { runtime, .. }| *runtime == other));
    machine.obs.set_closed([true, false].into_iter());
    let free = [0, 1].map(|core| machine.ledger.core(CoreId(core)) == Some(CoreState::Free));
    machine.look();
    assert_eq!(machine.cores(confined), u16::from(free[1]));
    machine.obs.set_closed([false, false].into_iter());
    machine.look();
    assert_eq!(machine.cores(confined), 1);
}

#[test]
fn kthreads_that_all_host_exclusive_threads_do_not_make_an_event_quadratic() {
    const CORES: u16 = 64;
    let hosting = |class| {
        let mut machine = Machine::of_cores(CORES);
        let owner = machine.runtime(class, 0, CORES);
        for core in 0..CORES {
            let kthread = machine.runs(owner, core);
            machine.obs.kthread_mut(kthread).unwrap().hosted = true;
        }
        machine
    };
    // Each core is compared a few times, in the order of preference.
    let most = 6 * usize::from(CORES);
    let mut machine = hosting(BestEffort);
    let service = machine.runtime(LatencyCritical, 0, 1);
    assert_eq!(machine.wakeup(service).len(), 1);
    let read = machine.obs.stickiness_reads.take();
    assert!(read <= most, "a wake asks {read} times how sticky a core is");
    // Services that wait for their quantum, until a core idles.
    let mut machine = hosting(LatencyCritical);
    let services: Vec<RuntimeId> = (0..32).map(|_| machine.runtime(LatencyCritical, 0, 1)).collect();
    for &service in &services {
        assert_eq!(machine.wakeup(service), []);
        assert!(machine.policy.is_unmet(service));
    }
    machine.obs.stickiness_reads.take();
    assert_eq!(machine.idle(5).len(), 1);
    let read = machine.obs.stickiness_reads.take();
    assert!(read <= most, "a core that idles asks {read} times how sticky one is");
}

/// Returns a machine on whose cores another program runs and hosts exclusive threads, and programs
/// with work from each of which core 0 is withheld.
fn many_that_lack_a_core(cores: u16, programs: usize) -> (Machine, Vec<RuntimeId>) {
    let mut machine = Machine::of_cores(cores);
    let lacking = |machine: &mut Machine| {
        let program = machine.runtime(LatencyCritical, 0, 4);
        for _ in 0..4 / cores.min(2) {
            let kthread = machine.runs(program, 0);
            machine.ledger.evict(kthread, machine.now).unwrap();
        }
        machine.queue(program, 1);
        program
    };
    let programs: Vec<RuntimeId> = (0..programs).map(|_| lacking(&mut machine)).collect();
    let owner = machine.runtime(LatencyCritical, 0, cores);
    for core in 0..cores {
        let kthread = machine.runs(owner, core);
        machine.obs.kthread_mut(kthread).unwrap().hosted = true;
    }
    (machine, programs)
}

#[test]
fn a_look_searches_the_cores_for_few_of_many_runtimes_that_lack_cores() {
    let (mut machine, _) = many_that_lack_a_core(8, 16);
    let other = machine.runtime(LatencyCritical, 0, 1);
    machine.queue(other, 1);
    // The owner's quantum lasts: each search has no result.
    for look in 0..16 {
        assert_eq!(machine.look(), []);
        // One is for all claims of runtimes that lack no cores.
        let searches = machine.policy.take_searches();
        assert!(searches <= VAIN_SEARCHES + 1, "{searches} searches at look {look}");
    }
}

#[test]
fn a_core_that_only_others_may_have_does_not_lift_the_bound_on_vain_searches() {
    let (mut machine, lacking) = many_that_lack_a_core(8, 16);
    let Some(CoreState::Owned { kthread, .. }) = machine.ledger.core(CoreId(7)) else { panic!() };
    machine.ledger.release(kthread, machine.now).unwrap();
    machine.obs.kthread_mut(kthread).unwrap().activity = Activity::Parked;
    lacking.iter().for_each(|&program| machine.obs.refuse(program, 7));
    for look in 0..16 {
        assert_eq!(machine.look(), []);
        let searches = machine.policy.take_searches();
        assert!((1..=VAIN_SEARCHES).contains(&searches), "{searches} searches at look {look}");
    }
}

#[test]
fn a_core_that_its_owner_is_tied_to_is_taken_if_those_without_ties_may_not_be() {
    for others in [false, true] {
        let mut machine = Machine::of_cores(3);
        let owner = machine.runtime(LatencyCritical, 0, 3);
        let sticky = machine.runs(owner, 0);
        machine.obs.kthread_mut(sticky).unwrap().hosted = true;
        machine.wait(Nanos::from_micros(50));
        machine.runs(owner, 1);
        machine.runs(owner, 2);
        // Core 0 has been used for the quantum of services, the others for it or for less.
        machine.wait(Nanos::from_micros(if others { 100 } else { 60 }));
        let service = machine.runtime(LatencyCritical, 0, 1);
        let core = grants(&machine.wakeup(service)).first().map(|grant| grant.0);
        assert_eq!(core.map(|core| core == 0), Some(!others), "core {core:?}, others: {others}");
    }
}

#[test]
fn a_core_that_idles_is_lent_although_its_owner_keeps_a_younger_one_without_ties() {
    for old in [false, true] {
        let mut machine = Machine::of_cores(2);
        let owner = machine.runtime(LatencyCritical, 0, 2);
        let sticky = machine.runs(owner, 0);
        machine.obs.kthread_mut(sticky).unwrap().hosted = true;
        machine.wait(Nanos::from_micros(50));
        machine.idles(owner, 1);
        // Before the quantum of services has passed on core 0, the wake takes no core.
        machine.wait(Nanos::from_micros(10));
        let service = machine.runtime(LatencyCritical, 0, 1);
        machine.queue(owner, 1);
        assert_eq!(machine.wakeup(service), []);
        machine.wait(Nanos::from_micros(if old { 100 } else { 50 }));
        let core = grants(&machine.idle(0)).first().map(|grant| grant.0);
        assert_eq!(core, Some(u16::from(old)));
    }
}

#[test]
fn each_of_many_runtimes_that_lack_cores_is_served_within_its_turn() {
    for programs in [1, 4, 5, 16, 33_usize] {
        let (mut machine, lacking) = many_that_lack_a_core(2, programs);
        let owner = RuntimeId(programs as u32);
        (0..10).for_each(|_| assert_eq!(machine.look(), []));
        // The last of equals are first to be served.
        for &program in lacking.iter().rev() {
            // From now on the search has no result for all but one.
            lacking.iter().filter(|&&other| other != program).for_each(|&other| machine.obs.refuse(other, 1));
            machine.wait(Nanos::from_micros(100));
            let turn = programs.div_ceil(VAIN_SEARCHES);
            let served = (0..turn).find_map(|_| machine.look().first().copied());
            let is_own =
                |action: Action| matches!(action, Action::Grant { runtime, .. } if runtime == program);
            assert!(served.is_some_and(is_own), "{program} of {programs} is not served in {turn} looks");
            machine.cedes(1);
            let Some(CoreState::Owned { kthread, .. }) = machine.ledger.core(CoreId(1)) else { panic!() };
            machine.ledger.release(kthread, machine.now).unwrap();
            machine.obs.kthread_mut(kthread).unwrap().activity = Activity::Parked;
            machine.runs(owner, 1);
            lacking.iter().for_each(|&other| machine.obs.forget_refused(other));
        }
    }
}

#[test]
fn runtimes_that_take_turns_at_a_demand_keep_no_other_from_its_turn() {
    let (mut machine, lacking) = many_that_lack_a_core(2, 9);
    let (others, owner) = (lacking.split_last().expect("nine").1, RuntimeId(9));
    let last = lacking[8];
    // The others are before it: it was served later than they.
    machine.wait(Nanos::from_micros(100));
    others.iter().for_each(|&other| machine.obs.refuse(other, 1));
    assert!((0..3).any(|_| machine.look().len() == 1), "it is served once");
    machine.cedes(1);
    let Some(CoreState::Owned { kthread, .. }) = machine.ledger.core(CoreId(1)) else { panic!() };
    machine.ledger.release(kthread, machine.now).unwrap();
    machine.obs.kthread_mut(kthread).unwrap().activity = Activity::Parked;
    machine.runs(owner, 1);
    machine.wait(Nanos::from_micros(100));
    let served = (0..8).find_map(|look| {
        for (number, &other) in others.iter().enumerate() {
            machine.drain(other);
            machine.queue(other, u32::from(number % 2 == look % 2));
        }
        machine.look().first().copied()
    });
    let is_its = |action| matches!(action, Action::Grant { runtime, .. } if runtime == last);
    assert!(served.is_some_and(is_its), "{served:?}");
}

#[test]
fn of_the_cores_that_idle_the_one_is_lent_that_its_owner_is_tied_to_least() {
    for (reaches, core) in [(false, 5), (true, 7)] {
        let (mut machine, lacking) = many_that_lack_a_core(8, 16);
        machine.look();
        // Its kthread idles, too, and hosts no exclusive thread.
        let Some(CoreState::Owned { kthread, .. }) = machine.ledger.core(CoreId(7)) else { panic!() };
        let look = machine.obs.kthread_mut(kthread).unwrap();
        (look.activity, look.hosted) = (Idle, false);
        lacking.iter().filter(|_| !reaches).for_each(|&other| machine.obs.refuse(other, 7));
        assert_eq!(
            grants(&machine.idle(5)).first().map(|grant| grant.0),
            Some(core),
            "reaches it: {reaches}"
        );
    }
}

#[test]
fn a_service_many_of_whose_kthreads_were_evicted_from_one_core_is_lent_all_others() {
    for guaranteed in [0, 7] {
        let mut machine = Machine::of_cores(8);
        let service = machine.runtime(LatencyCritical, guaranteed, 64);
        // An ordinary program has core 0, and no thread starts there.
        for _ in 0..2 {
            let kthread = machine.runs(service, 0);
            machine.ledger.evict(kthread, machine.now).unwrap();
        }
        let batch = machine.runtime(BestEffort, 0, 64);
        (1..8).for_each(|core| {
            machine.runs(batch, core);
        });
        let mut lent = Vec::new();
        for _ in 0..100 {
            machine.queue(service, 1);
            for action in machine.look() {
                let Action::Grant { core, runtime, victim, .. } = action;
                if runtime == service {
                    lent.push(core);
                    if victim.is_some() {
                        machine.cedes(core.0);
                    }
                }
            }
        }
        lent.sort_unstable();
        assert_eq!(lent, (1..8).map(CoreId).collect::<Vec<_>>(), "{guaranteed} guaranteed");
    }
}
