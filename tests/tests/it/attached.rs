//! Runtimes on lent cores: services and batch jobs as processes, one managed core, the real
//! IOKernel.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater_iokernel::Config;
use tailwater_iokernel::config::PolicyName;
use tailwater_testkit::{PATIENCE, cpu_numbers, has_two_cpus, socket_name, until};
use tailwater_tests::{Bench, Role};

/// Returns the numbers in the next line of a batch job.
fn numbers(role: &mut Role) -> Vec<u64> {
    loop {
        let line = role.line().expect("the child runs");
        if line.starts_with("rounds ") {
            return line.split(' ').filter_map(|word| word.parse().ok()).collect();
        }
        assert!(!line.starts_with("failed"), "{line}");
    }
}

/// Returns the number of rounds in the next line of a batch job.
fn rounds(role: &mut Role) -> u64 {
    numbers(role)[0]
}

/// Returns the value of `field` in the status of a thread; `None` if it has ended.
fn status(thread: &Path, field: &str) -> Option<String> {
    let status = std::fs::read_to_string(thread.join("status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Some(value.expect("the field").trim().to_owned())
}

/// Returns the CPUs on which each kthread of process `pid` may run.
fn cpus_of_kthreads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let tasks = tasks.map(|task| task.expect("a thread").path());
    let is_kthread = |task: &PathBuf| {
        // Other threads of the process may end meanwhile.
        let name = status(task, "Name").unwrap_or_default();
        name.strip_prefix("tailwater/").is_some_and(|number| number.parse::<u16>().is_ok())
    };
    tasks.filter(is_kthread).filter_map(|task| status(&task, "Cpus_allowed_list")).collect()
}

#[test]
fn a_service_and_a_batch_job_share_one_core() {
    if has_two_cpus() {
        share_one_core(PolicyName::Congestion);
    }
}

#[test]
fn under_the_control_loop_a_service_and_a_batch_job_share_the_core_of_its_only_step() {
    if has_two_cpus() {
        for policy in [PolicyName::Ix, PolicyName::IxEnergy] {
            let stats = share_one_core(policy);
            assert_eq!((&stats["cores"]["step"], &stats["cores"]["in_use"]), (&0.into(), &1.into()));
        }
    }
}

/// Runs a service beside a batch job until the core has changed hands often; returns the
/// statistics.
fn share_one_core(policy: PolicyName) -> serde_json::Value {
    let configure = |config: &mut Config| {
        config.policy = policy;
        // The clock rates of this machine are no concern of a test.
        config.ix.clocks = false;
    };
    let bench = Bench::start(configure, vec![]);
    let mut batch = bench.child("burn", "batch", "best-effort");
    let service = bench.child("echo", "service", "latency-critical");
    let before = rounds(&mut batch);
    // As many requests as it takes: on a loaded machine the service may still have the core when
    // the next request arrives, because Linux has not run the batch job's thread meanwhile.
    let (mut requests, deadline) = (0u32, Instant::now() + PATIENCE);
    while bench.handoffs() < 20 {
        bench.echo(&service, &requests.to_be_bytes());
        requests += 1;
        assert!(
            Instant::now() < deadline,
            "{requests} requests moved the core too seldom: {:#}",
            bench.stats()
        );
    }
    println!("{requests} spaced requests for 20 hand-offs under {policy}");
    assert!(rounds(&mut batch) > before, "the batch job stood still under {policy}");
    bench.stats()
}

#[test]
fn a_service_is_preempted_for_its_equal_at_once_where_their_quantum_is_zero() {
    /// Looks in less than the default quantum, which is 20: in 380 looks or more they end at most
    /// one quantum in 19.
    const LOOKS: u64 = 19;
    if !has_two_cpus() {
        return;
    }
    let bench = Bench::start(|config| config.service_quantum_us = 0, vec![]);
    let mut services = ["one", "other"].map(|name| bench.child("burn", name, "latency-critical"));
    let counts = || {
        let stats = bench.stats();
        ["ticks", "preemptions"].map(|name| stats["cores"][name].as_u64().expect("a number"))
    };
    until("the core passes on more often than by the default quantum", || {
        let [looks, before] = counts();
        until("the allocator looks on", || counts()[0] >= looks + 20 * LOOKS);
        let [later, after] = counts();
        (after - before) * LOOKS > later - looks
    });
    for service in &mut services {
        service.fresh_line().expect("the service computes");
    }
}

#[test]
fn a_job_that_never_polls_is_preempted_by_signal_and_loses_nothing() {
    if !has_two_cpus() {
        return;
    }
    let bench = Bench::start(|_| (), vec![]);
    let mut hog = bench.child("soundness", "hog", "best-effort");
    let service = bench.child("echo", "service", "latency-critical");
    let signals = || bench.stats()["cores"]["signals"].as_u64().expect("a number");
    let (mut requests, start) = (0u32, Instant::now());
    let deadline = start + PATIENCE;
    while signals() < 20 || start.elapsed() < Duration::from_secs(3) {
        bench.echo(&service, &requests.to_be_bytes());
        requests += 1;
        assert!(Instant::now() < deadline, "{requests} requests and hardly a signal: {:#}", bench.stats());
    }
    let before = rounds(&mut hog);
    // Each line reports the job's progress; one that was written before the first was read may have
    // the same number.
    while rounds(&mut hog) <= before {
        assert!(Instant::now() < deadline, "the preempted job stands still after {before} rounds");
    }
}

#[test]
fn what_became_of_the_requests_of_each_class_is_in_the_statistics() {
    if !has_two_cpus() {
        return;
    }
    let bench = Bench::start(|_| (), vec![]);
    let service = bench.child("dispatch", "service", "latency-critical");
    // An entry that is written at the time is left out.
    let class = |name: &str| {
        let stats = bench.stats();
        let classes = stats["runtimes"][0]["classes"].as_array().cloned().unwrap_or_default();
        classes.into_iter().find(|class| class["name"] == name).unwrap_or_default()
    };
    until("the classes are shown", || ["even", "odd"].iter().all(|name| !class(name).is_null()));
    for request in 1..=5_u8 {
        bench.echo(&service, &[request]);
    }
    // A request that is repeated for want of an answer counts twice.
    until("all are counted", || {
        [("even", 2), ("odd", 3)].map(|(n, least)| class(n)["finished"].as_u64() >= Some(least)) == [true; 2]
    });
    let mut odd = class("odd");
    until("an entry at rest", || {
        odd = class("odd");
        !odd.is_null()
    });
    assert_eq!((&odd["slo_ns"], &odd["dropped"]), (&50_000.into(), &0.into()), "{odd}");
    assert!(odd["latency_ns"]["p99"].as_u64() > Some(0), "{odd}");
}

#[test]
fn a_service_owns_the_core_that_it_requests_and_a_batch_job_gets_it_back() {
    if !has_two_cpus() {
        return;
    }
    let bench = Bench::start(|c| c.policy = PolicyName::Arbiter, vec![]);
    let mut batch = bench.child("burn", "batch", "best-effort");
    let mut service = bench.child("request", "service", "latency-critical");
    let core = cpu_numbers().last().copied().expect("this process runs somewhere");
    for cores in [1, 0, 1, 0] {
        let expected = format!("granted {cores} of {cores} on [{core}]");
        assert_eq!(service.line().as_deref(), Some(expected.as_str()));
    }
    assert_eq!(service.line(), Some(format!("gained [{core}] lost []")));
    let before = rounds(&mut batch);
    // Each line reports the job's progress; the first may be an old one.
    until("the batch job goes on", || rounds(&mut batch) > before);
}

#[test]
fn a_program_has_its_cores_estimated_where_requests_are_granted() {
    if !has_two_cpus() {
        return;
    }
    let bench = Bench::start(|c| c.policy = PolicyName::Arbiter, vec![]);
    let mut service = bench.child("estimate", "service", "latency-critical");
    for requested in [1, 2, 1] {
        assert_eq!(service.line(), Some(format!("requested {requested}")));
    }
    drop(service);
    drop(bench);
    let bench = Bench::start(|_| (), vec![]);
    let mut service = bench.child("estimate", "service", "latency-critical");
    let line = service.line().unwrap_or_default();
    assert!(line.starts_with("refused: ") && line.contains("policy = \"arbiter\""), "{line}");
}

#[test]
fn no_exclusive_thread_is_made_without_a_core_for_it() {
    if !has_two_cpus() {
        return;
    }
    let refused = |policy, reason: &str| {
        let bench = Bench::start(|c| c.policy = policy, vec![]);
        let mut service = bench.child("exclusive", "service", "latency-critical");
        let line = service.line().unwrap_or_default();
        assert!(line.starts_with("refused: ") && line.contains(reason), "{line}");
    };
    // Of the one core that is managed, none is left for the other threads.
    refused(PolicyName::Arbiter, "managed-cores");
    refused(PolicyName::Congestion, "policy = \"arbiter\"");
}

#[test]
fn background_threads_give_way_to_their_program_and_to_others() {
    if !has_two_cpus() {
        return;
    }
    let bench = Bench::start(|_| (), vec![]);
    let service = bench.child("background", "service", "latency-critical");
    for n in 0..20u32 {
        bench.echo(&service, &n.to_be_bytes());
    }
    // The one core is taken from the background, again and again.
    let mut batch = bench.child("burn", "batch", "best-effort");
    for n in 0..5u32 {
        let before = rounds(&mut batch);
        until("the batch job goes on", || rounds(&mut batch) > before);
        bench.echo(&service, &n.to_be_bytes());
    }
}

#[test]
fn a_background_thread_that_has_lost_its_core_goes_on_although_its_program_only_waits_for_it() {
    if !has_two_cpus() {
        return;
    }
    let bench = Bench::start(|_| (), vec![]);
    let mut batch = bench.child("burn", "batch", "best-effort");
    let before = rounds(&mut batch);
    until("the batch job has the core", || rounds(&mut batch) > before);
    let mut service = bench.child("join-background", "service", "latency-critical");
    assert_eq!(service.line().as_deref(), Some("joined"));
}

#[test]
fn a_batch_job_that_sends_wakes_the_iokernel_which_sleeps_beside_it() {
    if !has_two_cpus() {
        return;
    }
    let bench = Bench::start(|c| c.max_wake_delay_us = 3_600_000_000, vec![]);
    let _batch = bench.child("beacon", "batch", "best-effort");
    let rung = || bench.stats()["loop"]["rung"].as_u64().expect("a number");
    let before = rung();
    // Not all of them do: the IOKernel may be awake for another reason.
    until("five beacons wake it", || {
        assert_eq!(bench.receive(PATIENCE).as_deref(), Some(&b"beacon"[..]));
        rung() >= before + 5
    });
}

/// Ends the threads that look at it, also when the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_service_does_not_idle_on_a_core_that_other_programs_want() {
    if !has_two_cpus() {
        return;
    }
    // Without real-time rank, a kthread that sleeps waits for the turns of the others.
    let share_cores = |config: &mut Config| config.neighbour_share = 10;
    let mut config = tailwater_tests::config(String::new());
    share_cores(&mut config);
    if let Err(reason) = tailwater_iokernel::real_time(&config, false) {
        return println!("skipped: {reason}");
    }
    let bench = Bench::start(share_cores, vec![]);
    // It would idle for longer than this test takes.
    let variables = [("TAILWATER_IDLE_TIMEOUT_US", "3600000000")];
    let service = bench.child_with("work", "service", "latency-critical", &variables);
    let parks = || bench.stats()["cores"]["parks"].as_u64().expect("a number");
    let (before, done) = (parks(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&done);
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) + 2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // After a request that is answered before they are seen to compete it idles for long.
        let deadline = Instant::now() + PATIENCE;
        while parks() == before && Instant::now() < deadline {
            bench.echo(&service, b"beside others");
        }
    });
    assert!(parks() > before, "it did not give its core up: {:#}", bench.stats());
}

#[test]
fn a_runtime_talks_to_itself_and_to_its_neighbour() {
    if !has_two_cpus() {
        return;
    }
    let bench = Bench::start(|_| (), vec![]);
    let mut talker = bench.child("self", "talker", "latency-critical");
    assert_eq!(talker.line().as_deref(), Some("done"), "ten thousand datagrams to itself");
}

#[test]
fn killed_runtimes_leave_nothing_and_their_neighbour_keeps_serving() {
    if !has_two_cpus() {
        return;
    }
    // `.ci/full slow` kills more.
    let rounds = std::env::var("TAILWATER_KILLS").map_or(50, |n| n.parse().expect("a number"));
    let configure = |c: &mut Config| {
        // A loaded machine that does not run a thread for a while must not make the IOKernel take
        // the core by force.
        c.start_deadline_us = 10_000_000;
    };
    let bench = Bench::start(configure, vec![]);
    let survivor = bench.child("echo", "survivor", "latency-critical");
    for round in 0..rounds {
        let (role, class) =
            [("burn", "best-effort"), ("echo", "latency-critical"), ("hog", "best-effort")][round % 3];
        let mut victim = bench.child(role, &format!("victim-{round}"), class);
        for i in 0..3u32 {
            bench.echo(&survivor, &(round as u32 * 10 + i).to_be_bytes());
        }
        if class == "best-effort" {
            until("the victim has the core", || bench.cores_of(&victim) == 1);
        }
        victim.kill();
        bench.echo(&survivor, b"after the kill");
    }
    until("dead runtimes are forgotten", || bench.registered() == 1);
    let stats = bench.stats();
    let reclaim = &stats["reclaim"];
    println!("cores taken back from the dead: {reclaim}");
    // Two of three held the core. One may have lost it to the survivor by the time of its death.
    let held = rounds as u64 * 2 / 3;
    let counts = ["since_notice_ns", "since_alive_ns"].map(|name| reclaim[name]["count"].as_u64());
    assert!(counts[0] == counts[1] && counts[0] > Some(held / 2), "{held} held a core: {stats:#}");
}

#[test]
fn a_program_outlives_its_iokernel() {
    if !has_two_cpus() {
        return;
    }
    let mut bench = Bench::start(|_| (), vec![]);
    let mut batch = bench.child("burn", "batch", "best-effort");
    rounds(&mut batch);
    bench.stop();
    let before = rounds(&mut batch);
    assert!(rounds(&mut batch) > before, "the orphaned job stands still");
}

#[test]
fn a_program_that_is_told_to_exits_with_its_iokernel() {
    if !has_two_cpus() {
        return;
    }
    let mut bench = Bench::start(|_| (), vec![]);
    let reaction = [("TAILWATER_ON_IOKERNEL_LOSS", "exit")];
    let mut batch = bench.child_with("burn", "batch", "best-effort", &reaction);
    rounds(&mut batch);
    bench.stop();
    assert_eq!(batch.wait().code(), Some(75));
}

#[test]
fn an_orphan_obeys_no_earlier_request_for_its_core() {
    if !has_two_cpus() {
        return;
    }
    let mut bench = Bench::start(|_| (), vec![]);
    let mut batch = bench.child("burn", "batch", "best-effort");
    rounds(&mut batch);
    let service = bench.child("burn", "service", "latency-critical");
    until("the service has the core", || bench.cores_of(&service) == 1 && bench.cores_of(&batch) == 0);
    bench.stop();
    let cedes = |batch: &mut Role| numbers(batch)[1];
    let mut before = cedes(&mut batch);
    until("no poll point gives up a core", || {
        let now = cedes(&mut batch);
        std::mem::replace(&mut before, now) == now
    });
}

#[test]
fn all_kthreads_of_an_orphan_run_where_its_process_may() {
    // More than a standalone runtime may have.
    const KTHREADS: usize = 70;
    if !has_two_cpus() {
        return;
    }
    let _turn = tailwater_tests::turn();
    let socket = socket_name("crowd");
    let iokernel = tailwater_tests::start_iokernel(&socket, &[]);
    let variables = [
        ("TAILWATER_KTHREADS", &*KTHREADS.to_string()),
        ("TAILWATER_STALL_TIMEOUT_MS", "0"),
        ("TAILWATER_ON_IOKERNEL_LOSS", "continue"),
    ];
    let mut crowd = Role::start(&socket, &format!("crowd {KTHREADS}"), "crowd", &variables);
    let lent = cpu_numbers().last().expect("two").to_string();
    until("a kthread is bound to the lent core", || cpus_of_kthreads(crowd.pid()).contains(&lent));
    drop(iokernel);
    assert_eq!(crowd.line().as_deref(), Some("met"));
    let own = status(Path::new("/proc/thread-self"), "Cpus_allowed_list").expect("this thread runs");
    assert_eq!(cpus_of_kthreads(crowd.pid()), vec![own; KTHREADS]);
}

#[test]
fn a_quantum_ends_turns_at_poll_points_of_services_and_of_batch_jobs() {
    if !has_two_cpus() {
        return;
    }
    let bench = Bench::start(|_| (), vec![]);
    for class in ["latency-critical", "best-effort"] {
        // Without a quantum, the thread that polls would keep the kthread for ever.
        let mut role = bench.child_with("turns", class, class, &[("TAILWATER_QUANTUM_US", "50")]);
        let line = role.line().expect("it ends");
        let yields: u64 =
            line.strip_prefix("yields ").and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        println!("{class}: {yields} of 500 turns ended at a poll point");
        assert!(yields > 0, "only signals have ended turns of a {class} program");
    }
}
