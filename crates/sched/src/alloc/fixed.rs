//! Fixed partitions, for benchmarks: a machine whose administrator pins every program.
//!
//! Owns the table of which core belongs to which runtime, written when a runtime is attached. Cores
//! are dealt first come, first served, in the topology's order; a runtime gets as many as it is
//! guaranteed, or as many as it may have if it is guaranteed none. No core ever serves another
//! runtime, however idle it is. Runtimes with guarantees should be attached first: latecomers get
//! what is left. A runtime for which nothing is left ([`Static::assigned`] returns 0) never runs. A
//! core that is absent is not replaced: its runtime has one less until it comes back.

use super::observe::RuntimeLook;
use super::policy::{Policy, View};
use crate::action::Action;
use crate::ids::{CoreId, KthreadId, Nanos, RuntimeId};
use crate::ledger::{CoreState, Ledger};
use heap::vec::Vec;

/// Each runtime has its own cores and gets them as soon as it has work. See the module header.
#[derive(Clone, Debug)]
pub struct Static {
    interval: Nanos,
    /// The runtime that each core belongs to, parallel to the topology's cores; sized when the
    /// first runtime is attached.
    assigned: Vec<Option<RuntimeId>>,
}

impl Static {
    /// Creates a policy with no runtimes attached and `interval` between looks.
    #[must_use]
    pub fn new(interval: Nanos) -> Self {
        Self { interval, assigned: Vec::new() }
    }

    /// Returns how many cores belong to `runtime`.
    #[must_use]
    pub fn assigned(&self, runtime: RuntimeId) -> usize {
        self.assigned.iter().filter(|owner| **owner == Some(runtime)).count()
    }

    /// Grants `runtime` up to `limit` of its own free cores, lowest first.
    fn grant(&self, view: View<'_>, runtime: RuntimeId, limit: u16, actions: &mut Vec<Action>) {
        let Some(account) = view.ledger.account(runtime) else { return };
        let cores = view.ledger.topology().cores().iter().zip(view.ledger.cores());
        let own = cores
            .zip(&self.assigned)
            .enumerate()
            .filter(|(_, ((_, state), owner))| **owner == Some(runtime) && **state == CoreState::Free)
            .filter(|(at, _)| view.obs.may_have(view.ledger, runtime, *at))
            .map(|(_, ((core, _), _))| core.id);
        // Pairs the n-th free core with the n-th parked kthread. Partitions never move, so caches
        // stay warm with any pairing.
        let room = account.room().min(limit);
        for (core, index) in own.zip(account.parked()).take(usize::from(room)) {
            let kthread = KthreadId::new(runtime, index);
            actions.push(Action::Grant { runtime, kthread, core, victim: None, only_if_idle: false });
        }
    }
}

impl Policy for Static {
    fn name(&self) -> &'static str {
        "static"
    }

    fn interval(&self) -> Nanos {
        self.interval
    }

    fn attach(&mut self, runtime: RuntimeId, ledger: &Ledger) {
        let Some(account) = ledger.account(runtime) else { return };
        self.detach(runtime);
        self.assigned.resize(ledger.topology().len(), None);
        let spec = account.spec();
        let share = if spec.guaranteed > 0 { spec.guaranteed } else { spec.max };
        let vacant = self.assigned.iter_mut().filter(|owner| owner.is_none());
        vacant.take(usize::from(share)).for_each(|owner| *owner = Some(runtime));
    }

    fn detach(&mut self, runtime: RuntimeId) {
        for owner in &mut self.assigned {
            owner.take_if(|owner| *owner == runtime);
        }
    }

    fn tick(&mut self, view: View<'_>, actions: &mut Vec<Action>) {
        for &runtime in view.ledger.runtimes() {
            if view.obs.runtime(runtime).is_some_and(|look| !look.on_hold() && look.has_work()) {
                self.grant(view, runtime, u16::MAX, actions);
            }
        }
    }

    fn wakeup(&mut self, view: View<'_>, runtime: RuntimeId, actions: &mut Vec<Action>) {
        let on_hold = view.obs.runtime(runtime).is_some_and(RuntimeLook::on_hold);
        let without_core = view.ledger.account(runtime).is_some_and(|account| account.cores() == 0);
        if without_core && !on_hold {
            self.grant(view, runtime, 1, actions);
        }
    }

    fn may_serve(&self, runtime: RuntimeId, core: CoreId, ledger: &Ledger) -> bool {
        let owner = ledger.topology().position(core).and_then(|at| self.assigned.get(at));
        owner == Some(&Some(runtime))
    }

    /// Does nothing: a partition's core has no other runtime to go to.
    fn idle(&mut self, _view: View<'_>, _core: CoreId, _actions: &mut Vec<Action>) {}
}

#[cfg(test)]
mod tests {
    use super::super::{KthreadLook, Observation};
    use super::*;
    use crate::ledger::{RuntimeClass, RuntimeSpec};
    use crate::topology::Topology;

    struct Machine {
        ledger: Ledger,
        obs: Observation,
        policy: Static,
    }

    impl Machine {
        fn new(cores: u16) -> Self {
            Self {
                ledger: Ledger::new(Topology::uniform(cores, 1, 1).unwrap()),
                obs: Observation::new(),
                policy: Static::new(Nanos::from_micros(5)),
            }
        }

        fn attach(&mut self, id: u32, guaranteed: u16, max: u16) -> RuntimeId {
            let runtime = RuntimeId(id);
            let spec = RuntimeSpec { guaranteed, max, kthreads: max, class: RuntimeClass::BestEffort };
            self.ledger.register(runtime, spec, Nanos::ZERO).unwrap();
            self.obs.attach(runtime, max);
            self.policy.attach(runtime, &self.ledger);
            runtime
        }

        fn tick(&mut self) -> Vec<Action> {
            let mut actions = Vec::new();
            let view = View { now: Nanos::ZERO, obs: &self.obs, ledger: &self.ledger };
            self.policy.tick(view, &mut actions);
            actions.iter().for_each(|action| self.ledger.apply(action, Nanos::ZERO).unwrap());
            self.ledger.check().unwrap();
            actions
        }
    }

    #[test]
    fn partitions_are_dealt_first_come_first_served() {
        let mut machine = Machine::new(4);
        let (a, b, c) = (machine.attach(0, 1, 3), machine.attach(1, 0, 2), machine.attach(2, 0, 2));
        assert_eq!([a, b, c].map(|runtime| machine.policy.assigned(runtime)), [1, 2, 1]);
        machine.policy.detach(b);
        assert_eq!(machine.policy.assigned(b), 0);
    }

    #[test]
    fn a_runtime_with_work_gets_its_own_cores_and_no_others() {
        let mut machine = Machine::new(4);
        let (a, b) = (machine.attach(0, 0, 2), machine.attach(1, 0, 2));
        machine.obs.runtime_mut(a).unwrap().kthreads[0].runq_tail = 100;
        assert_eq!(machine.tick().len(), 2);
        assert_eq!(machine.tick(), []);
        assert_eq!(machine.ledger.account(a).unwrap().cores(), 2);
        assert_eq!(machine.ledger.account(b).unwrap().cores(), 0);
    }

    #[test]
    fn a_wakeup_grants_one_core_to_a_runtime_without_any() {
        let mut machine = Machine::new(4);
        let a = machine.attach(0, 0, 2);
        let mut actions = Vec::new();
        for expected in [1, 1] {
            let view = View { now: Nanos::ZERO, obs: &machine.obs, ledger: &machine.ledger };
            machine.policy.wakeup(view, a, &mut actions);
            assert_eq!(actions.len(), expected, "the second wakeup finds a core and adds nothing");
            let first = actions[0];
            if machine.ledger.account(a).unwrap().cores() == 0 {
                machine.ledger.apply(&first, Nanos::ZERO).unwrap();
            }
        }
    }

    #[test]
    fn a_runtime_on_hold_gets_nothing() {
        let mut machine = Machine::new(1);
        let a = machine.attach(0, 0, 1);
        let look = machine.obs.runtime_mut(a).unwrap();
        look.kthreads[0] = KthreadLook { timer_due: true, ..Default::default() };
        machine.obs.set_on_hold(a, true);
        assert_eq!(machine.tick(), []);
        machine.obs.set_on_hold(a, false);
        assert_eq!(machine.tick().len(), 1);
    }
}
