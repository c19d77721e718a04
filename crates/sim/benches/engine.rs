//! Cost of one simulated event: c-FCFS from 16 to 512 cores, a long queue, and the other policies
//! at 16 cores.
//!
//! Criterion's "elements" are simulated events (arrivals, completions, expiries).

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::{FlowHash, PolicySpec, Requeue};
use tailwater_sim::source::Incoming;
use tailwater_sim::{Budget, Costs, Mix, Scenario};

fn scenario(policy: PolicySpec, cores: usize) -> Scenario {
    Scenario {
        cores,
        mix: Mix::parse("exp:10us").expect("valid"),
        arrivals: tailwater_workload::ArrivalProcess::Poisson,
        load: 0.8,
        connections: None,
        policy,
        costs: Costs::ideal(),
        budget: Budget { warmup: 1_000, requests: 200_000, batches: 10 },
        seed: 1,
    }
}

fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("events");
    group.sample_size(10);
    let quantum_ns = Nanos(5_000);
    let mut cases: Vec<(String, Scenario)> =
        [16, 64, 512].map(|n| (format!("c-fcfs/{n}"), scenario(PolicySpec::CFcfs, n))).into();
    for (name, policy) in [
        ("d-fcfs/16", PolicySpec::DFcfs),
        ("stealing/16", PolicySpec::Stealing { batch: 1 }),
        ("sq-5us/16", PolicySpec::SingleQueue { quantum_ns, requeue: Requeue::Tail }),
        ("srpt/16", PolicySpec::ShortestRemaining),
    ] {
        cases.push((name.to_owned(), scenario(policy, 16)));
    }
    for (name, scenario) in &cases {
        let events = scenario.run_once(0).expect("valid scenario").spent.events;
        group.throughput(Throughput::Elements(events));
        group.bench_function(name, |b| b.iter(|| scenario.run_once(0).expect("valid scenario").spent.events));
    }
    group.finish();
}

/// Measures hand-outs from a long queue: 10^5 requests wait from the start.
fn backlog(c: &mut Criterion) {
    let mut group = c.benchmark_group("backlog-1e5");
    group.sample_size(10);
    let at =
        |i: u64| Incoming { at_ns: i, service_ns: 1_000 + i * 7919 % 10_000, class: 0, flow: FlowHash(0) };
    let trace: std::sync::Arc<[Incoming]> = (0..100_000).map(at).collect();
    for cores in [16, 512] {
        for (name, policy) in [("c-fcfs", PolicySpec::CFcfs), ("srpt", PolicySpec::ShortestRemaining)] {
            let scenario = scenario(policy, cores);
            group.throughput(Throughput::Elements(2 * trace.len() as u64));
            group.bench_function(BenchmarkId::new(name, cores), |b| {
                b.iter(|| scenario.run_trace(&trace).expect("valid scenario").spent.events);
            });
        }
    }
    group.finish();
}

criterion_group!(benches, events, backlog);
criterion_main!(benches);
