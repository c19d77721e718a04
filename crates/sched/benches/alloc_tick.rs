//! Cost of one look of the IOKernel at every core and kthread, on machines of 1, 16 and 128 cores.
//!
//! The machines have one runtime per four cores, with eight kthreads each. `quiet`: all cores are
//! busy and nothing waits. `saturated`: every runtime is congested and no core is available. Two
//! further benchmarks measure the events that are answered at once.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tailwater_sched::alloc::{Action, Activity, Config, CongestionDetection, Observation, Policy, View};
use tailwater_sched::ledger::{Ledger, RuntimeClass, RuntimeSpec};
use tailwater_sched::topology::Topology;
use tailwater_sched::{CoreId, KthreadId, Nanos, RuntimeId};

const CORES_PER_RUNTIME: u16 = 4;

struct Machine {
    ledger: Ledger,
    obs: Observation,
    policy: CongestionDetection,
    now: Nanos,
}

impl Machine {
    /// Creates a machine whose cores are all busy, shared evenly among the runtimes.
    fn busy(cores: u16) -> Self {
        let topology = Topology::uniform(cores, 2, 1).expect("1 to 128 cores");
        let mut ledger = Ledger::new(topology);
        let mut obs = Observation::new();
        let mut policy = CongestionDetection::new(Config::default());
        for slot in 0..cores.div_ceil(CORES_PER_RUNTIME) {
            let runtime = RuntimeId(u32::from(slot));
            let class = if slot % 2 == 0 { RuntimeClass::BestEffort } else { RuntimeClass::LatencyCritical };
            let max = CORES_PER_RUNTIME * 2;
            let spec = RuntimeSpec { guaranteed: slot % 2, max, kthreads: max, class };
            ledger.register(runtime, spec, Nanos::ZERO).expect("a vacant slot");
            obs.attach(runtime, max);
            policy.attach(runtime, &ledger);
            let first = slot * CORES_PER_RUNTIME;
            for (index, core) in (0u16..).zip(first..cores.min(first + CORES_PER_RUNTIME)) {
                let kthread = KthreadId::new(runtime, index);
                ledger.grant(CoreId(core), kthread, Nanos::ZERO).expect("a free core");
                obs.kthread_mut(kthread).expect("attached").activity = Activity::Running;
            }
        }
        Self { ledger, obs, policy, now: Nanos::ZERO }
    }

    /// Makes two user threads wait at each runtime's first kthread, for ever.
    fn congested(mut self) -> Self {
        for &runtime in self.ledger.runtimes() {
            self.obs.kthread_mut(KthreadId::new(runtime, 0)).expect("attached").runq_tail = 2;
        }
        self
    }

    fn look(&mut self, actions: &mut Vec<Action>) {
        actions.clear();
        self.now = self.now + Nanos::from_micros(5);
        self.policy.tick(View { now: self.now, obs: &self.obs, ledger: &self.ledger }, actions);
    }

    /// Carries the actions out at once: victims cede and their successors run.
    fn carry_out(&mut self, actions: &[Action]) {
        for action in actions {
            self.ledger.apply(action, self.now).expect("decided on this ledger");
            let Action::Grant { kthread, core, victim, .. } = *action;
            if let Some(victim) = victim {
                self.ledger.complete_move(core, self.now).expect("just begun");
                self.obs.kthread_mut(victim).expect("attached").activity = Activity::Parked;
            }
            self.obs.kthread_mut(kthread).expect("attached").activity = Activity::Running;
        }
    }
}

fn alloc_tick(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("alloc_tick");
    let mut actions = Vec::with_capacity(128);
    for cores in [1, 16, 128] {
        let mut quiet = Machine::busy(cores);
        group.bench_function(BenchmarkId::new("quiet", cores), |bencher| {
            bencher.iter(|| {
                quiet.look(&mut actions);
                black_box(&actions);
            });
        });
        // Latency-critical runtimes first take the cores that they may preempt.
        let mut saturated = Machine::busy(cores).congested();
        for _ in 0..1000 {
            saturated.look(&mut actions);
            saturated.carry_out(&actions);
        }
        group.bench_function(BenchmarkId::new("saturated", cores), |bencher| {
            bencher.iter(|| {
                saturated.look(&mut actions);
                black_box(&actions);
            });
        });
    }
    group.finish();
}

/// Measures a core's round trip on a two-core machine. A packet wakes a service, which preempts a
/// batch job, serves the packet and idles; then the batch job gets its core back. That is two
/// events, with everything they enter into the ledger.
fn alloc_round_trip(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("alloc_round_trip");
    let mut actions = Vec::with_capacity(4);
    for cores in [1, 16, 128] {
        let mut machine = Machine::busy(cores);
        let service = RuntimeId(999);
        let spec = RuntimeSpec { guaranteed: 0, max: 1, kthreads: 1, class: RuntimeClass::LatencyCritical };
        machine.ledger.register(service, spec, Nanos::ZERO).expect("a vacant slot");
        machine.obs.attach(service, 1);
        machine.policy.attach(service, &machine.ledger);
        group.bench_function(BenchmarkId::from_parameter(cores), |bencher| {
            bencher.iter(|| {
                actions.clear();
                let view = View { now: machine.now, obs: &machine.obs, ledger: &machine.ledger };
                machine.policy.wakeup(view, service, &mut actions);
                let [Action::Grant { core, .. }] = actions[..] else { panic!("a batch job's core was due") };
                machine.carry_out(&actions);
                actions.clear();
                let view = View { now: machine.now, obs: &machine.obs, ledger: &machine.ledger };
                machine.policy.idle(view, core, &mut actions);
                assert_eq!(actions.len(), 1, "the batch job waits for it");
                machine.carry_out(&actions);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, alloc_tick, alloc_round_trip);
criterion_main!(benches);
