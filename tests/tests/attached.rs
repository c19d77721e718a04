//! Runtimes on loan: services and batch jobs as processes, one managed core, the real IOKernel.

use std::time::{Duration, Instant};
use tailwater_tests::{Bench, PATIENCE, Role, cpus, eventually};

/// Tests of this file need a core to poll on and one to lend.
fn two_cpus() -> bool {
    let enough = cpus() >= 2;
    if !enough {
        eprintln!("skipped: needs 2 CPUs, this machine lets us use {}", cpus());
    }
    enough
}

fn rounds(role: &mut Role) -> u64 {
    loop {
        let line = role.line().expect("the child runs");
        if let Some(n) = line.strip_prefix("rounds ") {
            return n.parse().expect("a number");
        }
        assert!(!line.starts_with("failed"), "{line}");
    }
}

#[test]
fn a_service_and_a_batch_job_share_one_core() {
    if !two_cpus() {
        return;
    }
    let bench = Bench::start(|c| c.managed_cores = Some(vec![1]), vec![]);
    let mut batch = bench.child("burn", "batch", "best-effort");
    let service = bench.child("echo", "service", "latency-critical");
    let before = rounds(&mut batch);
    // As many requests as it takes: on a loaded machine the service may still have the core when the next one comes, because
    // Linux has not run the batch job's thread meanwhile.
    let (mut requests, deadline) = (0u32, Instant::now() + PATIENCE);
    while bench.handoffs() < 100 {
        bench.echo(&service, &requests.to_be_bytes());
        requests += 1;
        assert!(
            Instant::now() < deadline,
            "{requests} requests moved the core too seldom: {:#}",
            bench.stats()
        );
    }
    println!("{requests} spaced requests for 100 hand-offs");
    assert!(rounds(&mut batch) > before, "the batch job stood still");
}

#[test]
fn a_job_that_never_polls_is_preempted_by_signal_and_loses_nothing() {
    if !two_cpus() {
        return;
    }
    let bench = Bench::start(|c| c.managed_cores = Some(vec![1]), vec![]);
    let mut hog = bench.child("soundness", "hog", "best-effort");
    let service = bench.child("echo", "service", "latency-critical");
    let until = Instant::now() + Duration::from_secs(3);
    let mut i = 0u32;
    while Instant::now() < until {
        bench.echo(&service, &i.to_be_bytes());
        i += 1;
    }
    let (a, b) = (rounds(&mut hog), rounds(&mut hog));
    assert!(b > a || rounds(&mut hog) > a, "the preempted job stood still");
    let stats = bench.stats();
    assert!(stats["cores"]["signals"].as_u64().is_none_or(|n| n > 0), "{stats:#}");
}

#[test]
fn a_runtime_talks_to_itself_and_to_its_neighbour() {
    if !two_cpus() {
        return;
    }
    let bench = Bench::start(|c| c.managed_cores = Some(vec![1]), vec![]);
    let mut talker = bench.child("self", "talker", "latency-critical");
    eventually("ten thousand datagrams to oneself", || (talker.line()?.as_str() == "done").then_some(()));
}

#[test]
fn killed_runtimes_leave_nothing_and_their_neighbour_keeps_serving() {
    if !two_cpus() {
        return;
    }
    let rounds = if std::env::var_os("CI").is_some() { 200 } else { 50 };
    let bench = Bench::start(|c| c.managed_cores = Some(vec![1]), vec![]);
    let survivor = bench.child("echo", "survivor", "latency-critical");
    for round in 0..rounds {
        let (role, class) =
            [("burn", "best-effort"), ("echo", "latency-critical"), ("hog", "best-effort")][round % 3];
        let mut victim = bench.child(role, &format!("victim-{round}"), class);
        for i in 0..3u32 {
            bench.echo(&survivor, &(round as u32 * 10 + i).to_be_bytes());
        }
        if class == "best-effort" {
            eventually("the victim has the core", || (bench.cores_of(&victim) == 1).then_some(()));
        }
        victim.kill();
        bench.echo(&survivor, b"after the kill");
    }
    eventually("dead runtimes are forgotten", || (bench.registered() == 1).then_some(()));
    let stats = bench.stats();
    let reclaim = &stats["reclaim"];
    println!("cores taken back from the dead: {reclaim}");
    // Two of three held the core. The teardown of the dead may stop the IOKernel on its own core for over a millisecond; then
    // a watchdog may take the core before the death is known.
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let by_force = number(&stats["cores"]["evictions"]) + number(&stats["cores"]["no_starts"]);
    let (held, count) = (rounds as u64 * 2 / 3, number(&reclaim["since_notice_ns"]["count"]));
    assert!(count >= held / 2 && count + by_force >= held, "{held} held a core: {stats:#}");
}

#[test]
fn a_program_outlives_its_iokernel() {
    if !two_cpus() {
        return;
    }
    let mut bench = Bench::start(|c| c.managed_cores = Some(vec![1]), vec![]);
    let mut batch = bench.child("burn", "batch", "best-effort");
    rounds(&mut batch);
    bench.stop();
    let start = Instant::now();
    let (a, b) = (rounds(&mut batch), rounds(&mut batch));
    assert!(b > a && start.elapsed() < PATIENCE, "the orphaned job stood still");
}
