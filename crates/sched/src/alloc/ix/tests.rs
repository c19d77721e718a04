//! The loop on machines of 4 and 8 cores whose load is set by the test.

use super::super::{Activity, KthreadLook, Observation};
use super::*;
use crate::ids::KthreadId;
use crate::ledger::RuntimeSpec;
use crate::topology::Topology;

/// Physical cores with two hyperthreads each: core `n` and core `n + 4` on 8.
fn two_way(cores: u16) -> Topology {
    Topology::uniform(cores, 2, 1).unwrap()
}

struct Machine {
    ledger: Ledger,
    obs: Observation,
    policy: IxControl,
    now: Nanos,
}

impl Machine {
    fn new(topology: Topology, sequence: Sequence) -> Self {
        let clocks = Clocks { mhz: vec![1_000, 2_000], turbo_mhz: Some(2_500) };
        let policy = IxControl::new(IxConfig { sequence, clocks, ..IxConfig::default() });
        Self { ledger: Ledger::new(topology), obs: Observation::new(), policy, now: Nanos::ZERO }
    }

    fn add(&mut self, id: u32, class: RuntimeClass, guaranteed: u16, max: u16) {
        let spec = RuntimeSpec { guaranteed, max, kthreads: max, class };
        self.ledger.register(RuntimeId(id), spec, self.now).unwrap();
        self.obs.attach(RuntimeId(id), max);
        self.policy.attach(RuntimeId(id), &self.ledger);
    }

    /// Runs for `ms` looks of a millisecond. A runtime in `waiting` always has so many user threads
    /// queued and serves one in 100 us; the others idle on what they have.
    fn run(&mut self, ms: u64, waiting: &[(u32, u32)]) {
        for _ in 0..ms {
            self.now = self.now + Nanos::from_millis(1);
            for runtime in self.ledger.runtimes().to_vec() {
                let depth = waiting.iter().find(|(id, _)| *id == runtime.0).map_or(0, |(_, depth)| *depth);
                self.show(runtime, depth);
            }
            let mut actions = Vec::new();
            let view = View { now: self.now, obs: &self.obs, ledger: &self.ledger };
            self.policy.tick(view, &mut actions);
            self.carry_out(&actions);
            while let Some(core) = self.policy.surplus(self.view()) {
                let Some(CoreState::Owned { kthread, .. }) = self.ledger.core(core) else {
                    panic!("{core} has no holder")
                };
                assert_eq!(self.ledger.handle_parked(kthread, self.now), Ok(None));
            }
            self.ledger.check().unwrap();
        }
    }

    fn view(&self) -> View<'_> {
        View { now: self.now, obs: &self.obs, ledger: &self.ledger }
    }

    fn show(&mut self, runtime: RuntimeId, depth: u32) {
        let account = self.ledger.account(runtime).unwrap();
        let served = if depth > 0 && account.cores() > 0 { 10 } else { 0 };
        for (index, state) in account.kthreads().enumerate() {
            let has_core = matches!(state, crate::ledger::KthreadState::Granted { .. });
            let look = self.obs.kthread_mut(KthreadId::new(runtime, index as u16)).unwrap();
            look.activity = match (has_core, depth) {
                (false, _) => Activity::Parked,
                (true, 0) => Activity::Idle,
                (true, _) => Activity::Running,
            };
            if index == 0 {
                let head = look.runq_head + served;
                *look = KthreadLook { runq_head: head, runq_tail: head + depth, ..*look };
            }
        }
    }

    fn carry_out(&mut self, actions: &[Action]) {
        for action in actions {
            self.ledger.apply(action, self.now).unwrap();
            let Action::Grant { core, victim, .. } = *action;
            if victim.is_some() {
                self.ledger.complete_move(core, self.now).unwrap();
            }
        }
    }

    fn cores_of(&self, id: u32) -> Vec<u16> {
        let cores = self.ledger.topology().cores().iter().zip(self.ledger.cores());
        let held = cores.filter(|(_, state)| {
            matches!(state, CoreState::Owned { kthread, .. } if kthread.runtime == RuntimeId(id))
        });
        held.map(|(core, _)| core.id.0).collect()
    }

    fn setting(&self) -> (u16, u16, Option<Clock>) {
        let Setting { step, cores, clock } = self.policy.setting().unwrap();
        (step, cores, clock)
    }
}

#[test]
fn a_backlog_takes_the_energy_sequence_up_and_idle_time_takes_it_back() {
    let mut machine = Machine::new(two_way(8), Sequence::Energy);
    machine.add(0, RuntimeClass::LatencyCritical, 0, 8);
    machine.run(1, &[]);
    assert_eq!(machine.setting(), (0, 1, Some(Clock::Mhz(1_000))));
    let mut seen = vec![machine.setting()];
    for _ in 0..1_000 {
        machine.run(1, &[(0, 40)]);
        if seen.last() != Some(&machine.setting()) {
            seen.push(machine.setting());
        }
    }
    let cores: Vec<u16> = seen.iter().map(|(_, cores, _)| *cores).collect();
    assert_eq!(cores, [1, 2, 3, 4, 8, 8, 8], "cores, then hyperthreads, then clocks");
    assert_eq!(machine.setting(), (6, 8, Some(Clock::Turbo)));
    assert_eq!(machine.cores_of(0).len(), 8);
    assert!(machine.policy.next_pending(machine.view()).is_some(), "it must be asked when nothing happens");
    machine.run(1_500, &[]);
    assert_eq!(machine.setting(), (0, 1, Some(Clock::Mhz(1_000))));
    assert!(machine.cores_of(0).iter().all(|&core| core == 0), "it has more than the step");
    assert_eq!(machine.policy.next_pending(machine.view()), None);
}

#[test]
fn consolidation_keeps_services_on_whole_physical_cores_and_leaves_the_rest_to_batch_jobs() {
    let mut machine = Machine::new(two_way(8), Sequence::Consolidation);
    machine.add(0, RuntimeClass::LatencyCritical, 0, 8);
    machine.add(1, RuntimeClass::BestEffort, 0, 8);
    machine.run(50, &[(0, 40), (1, 40)]);
    assert_eq!(machine.cores_of(0), [0, 4], "a core and its hyperthread");
    assert_eq!(machine.cores_of(1).len(), 6);
    machine.run(120, &[(0, 40), (1, 40)]);
    assert_eq!(machine.cores_of(0), [0, 1, 4, 5]);
    machine.run(2_000, &[(1, 40)]);
    assert_eq!(machine.setting().1, 2);
    assert_eq!(machine.cores_of(1).len(), 8, "what the service leaves idle is lent, too");
}

#[test]
fn under_energy_batch_jobs_get_what_services_leave_of_the_cores_in_use_and_the_others_halt() {
    let mut machine = Machine::new(two_way(8), Sequence::Energy);
    machine.add(0, RuntimeClass::LatencyCritical, 0, 8);
    machine.add(1, RuntimeClass::BestEffort, 0, 8);
    machine.run(300, &[(1, 40)]);
    assert_eq!(machine.cores_of(1), [0]);
    let mut actions = Vec::new();
    let view = View { now: machine.now, obs: &machine.obs, ledger: &machine.ledger };
    machine.policy.wakeup(view, RuntimeId(0), &mut actions);
    assert!(matches!(actions[..], [Action::Grant { core: CoreId(0), .. }]), "{actions:?}");
}

#[test]
fn the_step_has_a_core_for_each_that_is_guaranteed_from_the_registration_on() {
    let mut machine = Machine::new(two_way(8), Sequence::Energy);
    machine.add(0, RuntimeClass::LatencyCritical, 2, 8);
    machine.add(1, RuntimeClass::BestEffort, 1, 8);
    assert_eq!(machine.setting().1, 3);
    machine.run(50, &[(0, 40), (1, 40)]);
    assert!(machine.cores_of(0).len() >= 2);
    assert_eq!(machine.cores_of(1).len(), 1);
    machine.ledger.unregister(RuntimeId(1), machine.now).unwrap();
    machine.policy.detach(RuntimeId(1));
    machine.run(1_000, &[]);
    assert_eq!(machine.setting().1, 2);
}

#[test]
fn a_core_that_is_gone_is_replaced_by_the_next_one() {
    let mut machine = Machine::new(two_way(8), Sequence::Consolidation);
    machine.add(0, RuntimeClass::LatencyCritical, 0, 8);
    for core in [0, 4] {
        machine.ledger.withdraw(CoreId(core)).unwrap();
    }
    machine.run(5, &[(0, 40)]);
    assert_eq!(machine.cores_of(0), [1, 5]);
}

#[test]
fn steps_that_add_only_cores_beyond_the_limits_of_all_services_are_passed_over() {
    let mut machine = Machine::new(two_way(8), Sequence::Energy);
    machine.add(0, RuntimeClass::LatencyCritical, 0, 2);
    machine.run(250, &[(0, 40)]);
    assert_eq!(machine.setting(), (5, 8, Some(Clock::Mhz(2_000))), "the second core, then the clock");
}

#[test]
fn a_saturated_service_at_its_limit_takes_the_loop_to_no_core_that_it_cannot_use() {
    let mut machine = Machine::new(two_way(8), Sequence::Energy);
    machine.policy.allow_clocks(false, &machine.ledger);
    machine.add(0, RuntimeClass::LatencyCritical, 0, 1);
    machine.add(1, RuntimeClass::LatencyCritical, 0, 8);
    machine.run(2_000, &[(0, 40)]);
    assert_eq!(machine.setting(), (0, 1, None), "the other service is idle");
    machine.run(2_000, &[(0, 40), (1, 40)]);
    assert_eq!(machine.setting().1, 8, "the other service is delayed, too");
    machine.run(2_000, &[(0, 40)]);
    // One busy core is more than three quarters of one.
    assert_eq!(machine.setting(), (1, 2, None), "what one service lacks does not keep cores for another");
}

#[test]
fn a_saturated_service_at_its_limit_gets_the_clock_and_keeps_it() {
    let mut machine = Machine::new(two_way(8), Sequence::Energy);
    machine.add(0, RuntimeClass::LatencyCritical, 0, 1);
    machine.add(1, RuntimeClass::LatencyCritical, 0, 8);
    machine.run(150, &[(0, 40)]);
    assert_eq!(machine.setting(), (5, 8, Some(Clock::Mhz(2_000))), "all steps of more cores are passed over");
    machine.run(2_000, &[(0, 40)]);
    assert_eq!(machine.setting(), (6, 8, Some(Clock::Turbo)));
}

#[test]
fn steps_that_are_given_replace_those_of_the_sequence() {
    let steps = vec![Step { cores: 2, threads: 1, clock: None }, Step { cores: 4, threads: 1, clock: None }];
    let mut machine = Machine::new(two_way(8), Sequence::Energy);
    machine.policy = IxControl::new(IxConfig { steps, ..machine.policy.config });
    machine.add(0, RuntimeClass::LatencyCritical, 0, 8);
    assert_eq!(machine.setting(), (0, 2, None));
    machine.run(1_000, &[(0, 40)]);
    assert_eq!(machine.setting(), (1, 4, None));
}

#[test]
fn a_service_whose_cpuset_has_none_of_the_first_cores_takes_the_loop_to_one_that_it_has() {
    let mut machine = Machine::new(two_way(8), Sequence::Consolidation);
    machine.add(0, RuntimeClass::LatencyCritical, 0, 8);
    for at in [0, 1, 4, 5] {
        machine.obs.refuse(RuntimeId(0), at);
    }
    machine.run(50, &[(0, 1)]);
    assert_eq!(machine.cores_of(0), []);
    machine.run(250, &[(0, 1)]);
    assert!(machine.setting().1 >= 6, "{:?}", machine.setting());
    let has = machine.cores_of(0);
    assert!(!has.is_empty() && has.iter().all(|core| [2, 3, 6, 7].contains(core)), "{has:?}");
}

#[test]
fn a_service_that_no_core_can_help_does_not_move_the_loop() {
    let mut machine = Machine::new(two_way(8), Sequence::Energy);
    machine.add(0, RuntimeClass::LatencyCritical, 0, 8);
    machine.obs.set_on_hold(RuntimeId(0), true);
    let least = machine.setting();
    machine.run(1_000, &[(0, 9)]);
    assert_eq!(machine.setting(), least, "it is on hold");
    machine.obs.set_on_hold(RuntimeId(0), false);
    (0..8).for_each(|at| machine.obs.refuse(RuntimeId(0), at));
    machine.run(1_000, &[(0, 9)]);
    assert_eq!(machine.setting(), least, "all cores refuse it");
    machine.obs.forget_refused(RuntimeId(0));
    machine.obs.set_on_hold(RuntimeId(0), true);
    (1..8).for_each(|at| machine.obs.refuse(RuntimeId(0), at));
    machine.run(1_000, &[(0, 9)]);
    assert_ne!(
        machine.setting(),
        least,
        "it has seen that others refuse it, and waits for one that does not"
    );
}

#[test]
fn guarantees_beyond_the_last_step_that_was_given_have_their_cores_all_the_same() {
    let mut machine = Machine::new(two_way(8), Sequence::Energy);
    let steps = vec![Step { cores: 1, threads: 1, clock: None }];
    machine.policy = IxControl::new(IxConfig { steps, ..machine.policy.config });
    machine.add(0, RuntimeClass::LatencyCritical, 3, 8);
    assert_eq!(machine.setting(), (0, 3, None));
    machine.run(50, &[(0, 40)]);
    assert_eq!(machine.cores_of(0).len(), 3);
    machine.ledger.unregister(RuntimeId(0), machine.now).unwrap();
    machine.policy.detach(RuntimeId(0));
    machine.add(1, RuntimeClass::LatencyCritical, 0, 8);
    assert_eq!(machine.setting(), (0, 1, None));
}

#[test]
fn without_a_clock_to_set_the_loop_takes_no_step_of_the_clock_and_has_them_back_with_it() {
    let mut machine = Machine::new(two_way(8), Sequence::Energy);
    machine.add(0, RuntimeClass::LatencyCritical, 0, 8);
    machine.run(150, &[(0, 40)]);
    assert_eq!(machine.setting(), (1, 2, Some(Clock::Mhz(1_000))));
    machine.policy.allow_clocks(false, &machine.ledger);
    assert_eq!(machine.setting(), (1, 2, None), "the cores stay");
    machine.run(2_000, &[(0, 40)]);
    assert_eq!(machine.setting(), (4, 8, None), "hyperthreads are the last step");
    while machine.setting() == (4, 8, None) {
        machine.run(1, &[]);
    }
    assert_eq!(machine.setting(), (3, 4, None), "and the first to go");
    machine.policy.allow_clocks(true, &machine.ledger);
    assert_eq!(machine.setting(), (3, 4, Some(Clock::Mhz(1_000))));
}
