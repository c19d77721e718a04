//! The engine through its public surface: determinism, conservation, costs and policies on traces
//! worked out by hand.

use tailwater_sched::Nanos;
use tailwater_sched::dispatch::{FlowHash, PolicySpec, Requeue};
use tailwater_sim::scenario::run_all;
use tailwater_sim::source::Incoming;
use tailwater_sim::{Budget, Costs, Mix, Scenario};
use tailwater_workload::ArrivalProcess;

fn scenario(policy: PolicySpec, cores: usize, service: &str, load: f64) -> Scenario {
    Scenario {
        cores,
        mix: Mix::parse(service).unwrap(),
        arrivals: ArrivalProcess::Poisson,
        load,
        connections: None,
        policy,
        costs: Costs::ideal(),
        budget: Budget { warmup: 500, requests: 5_000, batches: 5 },
        seed: 42,
    }
}

fn every_policy() -> Vec<PolicySpec> {
    let quantum_ns = Nanos(5_000);
    vec![
        PolicySpec::DFcfs,
        PolicySpec::CFcfs,
        PolicySpec::Stealing { batch: 4 },
        PolicySpec::ProcessorSharing { quantum_ns: Nanos(1_000) },
        PolicySpec::SingleQueue { quantum_ns, requeue: Requeue::Head },
        PolicySpec::SingleQueue { quantum_ns, requeue: Requeue::Tail },
        PolicySpec::MultiQueue { quantum_ns, requeue: Requeue::Head },
        PolicySpec::MultiQueue { quantum_ns, requeue: Requeue::Tail },
        PolicySpec::ShortestRemaining,
        PolicySpec::Reserved,
    ]
}

fn at(at_ns: u64, service_ns: u64) -> Incoming {
    Incoming { at_ns, service_ns, class: 0, flow: FlowHash(0) }
}

#[test]
fn every_policy_conserves_requests_and_its_invariants_on_every_machine() {
    // The engine checks after each event in debug builds; here the totals are checked in any build.
    for policy in every_policy() {
        for costs in Costs::names() {
            for (cores, load) in [(1, 0.5), (3, 0.7), (16, 0.6)] {
                let mut s = scenario(policy, cores, "bimodal:0.9*5us+0.1*100us", load);
                s.costs = Costs::load(costs).unwrap();
                let m = s.run_once(0).unwrap();
                assert_eq!(m.spent.completed, 5_000, "{policy:?} on {costs} with {cores} cores");
                assert!(m.spent.busy_ns + m.spent.overhead_ns <= m.spent.core_ns + 200_000 * cores as u64);
                assert!(m.latency.quantile(0).value >= 5_000.0);
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let scenarios: Vec<_> = every_policy().into_iter().map(|p| scenario(p, 4, "exp:10us", 0.7)).collect();
    let figures = |threads| -> Vec<String> {
        let all = run_all(&scenarios, 3, threads, &|| ()).unwrap();
        all.iter().map(|m| format!("{:?} {:?} {:?}", m.latency.mean(), m.slowdown(3), m.spent)).collect()
    };
    let one = figures(1);
    assert_eq!(one, figures(2));
    assert_eq!(one, figures(7));
}

#[test]
fn another_seed_gives_another_run() {
    let base = scenario(PolicySpec::CFcfs, 4, "exp:10us", 0.7);
    let other = Scenario { seed: 43, ..base.clone() };
    let mean = |s: &Scenario| s.run_once(0).unwrap().latency.mean().value;
    assert!(mean(&base) != mean(&other));
    assert!(mean(&base) == mean(&base));
}

#[test]
fn a_trace_served_first_come_first_served_has_the_latencies_of_the_recursion() {
    let trace: std::sync::Arc<[Incoming]> = (0..100).map(|i| at(i * 700, 300 + i * 137 % 1_000)).collect();
    let m = scenario(PolicySpec::CFcfs, 1, "exp:1us", 0.5).run_trace(&trace).unwrap();
    // Lindley's recursion.
    let (mut free, mut sum) = (0, 0);
    for r in trace.iter() {
        free = free.max(r.at_ns) + r.service_ns;
        sum += free - r.at_ns;
    }
    assert_eq!(m.latency.mean().value, sum as f64 / 100.0);
}

#[test]
fn preemption_charges_the_worker_and_the_dispatcher() {
    let trace: std::sync::Arc<[Incoming]> = [at(0, 10_000), at(1_000, 1_000)].into();
    let mut s = scenario(
        PolicySpec::SingleQueue { quantum_ns: Nanos(5_000), requeue: Requeue::Tail },
        1,
        "exp:1us",
        0.5,
    );
    s.costs = Costs {
        context_switch_ns: 10,
        preempt_ns: 100,
        preempt_send_ns: 1_000,
        assign_ns: 7,
        ..Costs::ideal()
    };
    let m = s.run_trace(&trace).unwrap();
    assert_eq!(m.spent.preemptions, 1);
    // 0: assigned at 7, switched at 17, stopped at 5017. The dispatcher signals until 6017 and
    // assigns until 6024; the preemption and the switch cost 110; the short one ends at 7134.
    // Assign and switch again: 7151 + 5000 left.
    assert_eq!(m.latency.mean().value, f64::from((7_134 - 1_000) + 12_151) / 2.0);
}

#[test]
fn a_short_request_does_not_wait_for_the_next_quantum_of_a_long_one() {
    // 2 % of the short requests arrive beside a long one, 19 of 20 of them after its first quantum.
    for requeue in [Requeue::Head, Requeue::Tail] {
        let policy = PolicySpec::MultiQueue { quantum_ns: Nanos(5_000), requeue };
        let mut s = scenario(policy, 1, "bimodal:0.5*1us+0.5*100us", 0.02);
        s.budget = Budget { warmup: 500, requests: 20_000, batches: 5 };
        let m = s.run_once(0).unwrap();
        let p99 = m.class_latency[0].quantile(2).value;
        assert!(p99 < 1_050.0, "{p99} ns with {requeue:?}");
    }
}

#[test]
fn stealing_pays_for_each_steal_and_beats_distributed_queues() {
    let run = |policy, costs: &Costs| {
        let s = Scenario { costs: costs.clone(), ..scenario(policy, 8, "exp:10us", 0.7) };
        s.run_once(0).unwrap()
    };
    let free = Costs::ideal();
    let dear = Costs { steal_ns: 2_000, ..Costs::ideal() };
    let steal = PolicySpec::Stealing { batch: 1 };
    let p99 = |m: &tailwater_sim::Measured| m.latency.quantile(2).value;
    let (alone, stolen, slow) = (run(PolicySpec::DFcfs, &free), run(steal, &free), run(steal, &dear));
    assert!(p99(&stolen) * 1.5 < p99(&alone), "{} against {}", p99(&stolen), p99(&alone));
    assert_eq!(slow.spent.overhead_ns, slow.spent.steals * 2_000);
    assert!(slow.spent.steals > 0 && p99(&slow) > p99(&stolen));
}

#[test]
fn an_overloaded_machine_is_reported_as_saturated_instead_of_growing_without_bound() {
    let mut s = scenario(PolicySpec::CFcfs, 1, "const:10us", 4.0);
    s.budget = Budget { warmup: 0, requests: 10_000_000, batches: 5 };
    let m = s.run_once(0).unwrap();
    assert!(m.saturated);
    assert!(m.spent.max_queued as usize <= tailwater_sim::engine::MAX_BACKLOG);
}

#[test]
fn loads_that_are_no_loads_are_refused() {
    for load in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let s = scenario(PolicySpec::CFcfs, 1, "exp:1us", load);
        assert!(s.run_once(0).unwrap_err().to_string().contains("load"));
    }
}
