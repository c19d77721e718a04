//! The dump and the stall detector of programs whose cores come and go: processes, one managed
//! core, the real IOKernel.

use rustix::process::Signal;
use std::time::{Duration, Instant};
use tailwater_testkit::{PATIENCE, eventually, has_two_cpus, until};
use tailwater_tests::{Bench, Role};

/// Four looks for a stall happen in this time. A look that is late by two such quarters discards
/// the observations before it: on a busy machine a short timeout would lead to that.
const STALL: Duration = Duration::from_millis(500);
/// Beginning of each report of a stall.
const REPORT: &str = "tailwater: user thread ";

/// Returns an IOKernel with one core to lend; `None`, with the reason printed, if there is no
/// second CPU to poll on.
fn bench() -> Option<Bench> {
    has_two_cpus().then(|| Bench::start(|_| (), vec![]))
}

/// Starts `role`, which reports stalls of `timeout`; 0 turns that off.
fn heard(bench: &Bench, role: &str, class: &str, timeout: Duration) -> Role {
    let ms = timeout.as_millis().to_string();
    bench.child_heard(role, role, class, &[("TAILWATER_STALL_TIMEOUT_MS", &ms)])
}

/// Returns the paragraph of a dump about the thread `name`.
fn about<'a>(dump: &'a str, name: &str) -> Option<&'a str> {
    dump.split("\n\n").find(|paragraph| paragraph.starts_with(&format!("user thread '{name}' (")))
}

#[test]
fn a_dump_shows_where_threads_were_when_they_lost_the_core_to_a_signal() {
    let Some(bench) = bench() else { return };
    let spinners = heard(&bench, "spin", "best-effort", Duration::ZERO);
    let service = bench.child("echo", "service", "latency-critical");
    // Each request takes the core from a thread that never polls, and gives it to the next one
    // afterwards.
    let (mut requests, deadline) = (0u32, Instant::now() + PATIENCE);
    while bench.stats()["cores"]["signals"].as_u64().expect("a number") < 10 {
        bench.echo(&service, &requests.to_be_bytes());
        requests += 1;
        assert!(Instant::now() < deadline, "{requests} requests and hardly a signal: {:#}", bench.stats());
    }
    // Two of the three wait behind the one that runs, if the program has the core; a look may fall
    // into a switch.
    until("a dump of two threads that were preempted in their loops", || {
        let before = spinners.errors().len();
        spinners.signal(Signal::QUIT);
        let dump = eventually("a whole dump", || {
            let text = spinners.errors().split_off(before);
            ["spinner-0", "spinner-1", "spinner-2"]
                .iter()
                .all(|name| about(&text, name).is_some())
                .then_some(text)
        });
        let preempted = |name: &&str| {
            about(&dump, name).is_some_and(|thread| {
                let frames = ["give_up", "on_signal", "spins_here"].map(|function| thread.find(function));
                thread.contains(": runnable") && frames.iter().all(Option::is_some) && frames.is_sorted()
            })
        };
        ["spinner-0", "spinner-1", "spinner-2"].iter().filter(|name| preempted(name)).count() >= 2
    });
    bench.echo(&service, b"all go on");
}

/// Part of a report whose kthread Linux did not run for 20 ms, so that it did not answer.
const NO_BACKTRACE: &str = "no backtrace";
/// Time a process has for its report before the next one is started.
const EACH: Duration = Duration::from_secs(15);

/// Starts `role` and returns its standard error with a report that names `function`. A stall is
/// reported once, and not at all within a second of another: on a busy machine the start of a
/// process may be one. So a report that lacks the function takes a new process.
fn report(bench: &Bench, role: &str, function: &str) -> String {
    let (mut said, mut tried, end) = (String::new(), 0, Instant::now() + PATIENCE);
    while Instant::now() < end {
        tried += 1;
        let (role, deadline) = (heard(bench, role, "best-effort", STALL), Instant::now() + EACH);
        loop {
            said = role.errors();
            if said.contains(function) {
                return said;
            }
            if said.contains(NO_BACKTRACE) || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(STALL / 50);
        }
    }
    panic!("no report of {tried} processes names {function}; the last one printed:\n{said}");
}

#[test]
fn a_thread_that_spins_on_a_lent_core_is_reported() {
    let Some(bench) = bench() else { return };
    let text = report(&bench, "spin", "spins_here");
    assert!(text.contains("tailwater: user thread 'spinner-") && text.contains("no poll point"), "{text}");
}

#[test]
fn a_thread_that_sleeps_in_the_kernel_on_a_lent_core_is_reported() {
    let Some(bench) = bench() else { return };
    let text = report(&bench, "sleep", "sleeps_here");
    assert!(text.contains("user thread 'main' (1)") && text.contains("blocking system call"), "{text}");
}

#[test]
fn a_kthread_whose_core_is_taken_is_not_reported() {
    let Some(bench) = bench() else { return };
    // If the host takes the core away from a virtual machine for so long, that counts as processor
    // time of the thread that was running there, and is reported.
    let mut said = String::new();
    // A core that is taken would count at any limit; a stall of the host has to be longer each
    // time.
    for limit in [1, 2, 4, 8, 16].map(|times| times * STALL) {
        said = reports_while_cores_are_taken(&bench, limit);
        if said.is_empty() {
            return;
        }
    }
    panic!("each of five runs had a report; the last one:\n{said}");
}

/// Takes the cores of three programs in all ways, which report a stall of `limit`; returns what
/// they print if that has a report.
fn reports_while_cores_are_taken(bench: &Bench, limit: Duration) -> String {
    let polite = heard(bench, "burn", "best-effort", limit);
    let clutch = heard(bench, "clutch", "best-effort", limit);
    let service = heard(bench, "echo", "latency-critical", limit);
    let (handoffs, evictions) = (bench.handoffs(), evictions_of(bench));
    let start = Instant::now();
    let mut requests = 0u32;
    // Cores ceded at a request, given up for lack of work (the service's, after each request), and
    // taken by force; and enough time for a false report.
    while bench.handoffs() < handoffs + 20
        || evictions_of(bench) < evictions + 3
        || start.elapsed() < 6 * limit
    {
        bench.echo(&service, &requests.to_be_bytes());
        requests += 1;
        assert!(
            start.elapsed() < 2 * PATIENCE + 10 * limit,
            "cores are taken too seldom: {:#}",
            bench.stats()
        );
    }
    // Nor is a kthread stalled that Linux does not run at all.
    polite.signal(Signal::STOP);
    std::thread::sleep(3 * limit);
    polite.signal(Signal::CONT);
    // Nor a service without work.
    std::thread::sleep(3 * limit);
    bench.echo(&service, b"the last");
    [&polite, &clutch, &service]
        .map(|role| role.errors())
        .into_iter()
        .filter(|said| said.contains(REPORT))
        .collect()
}

fn evictions_of(bench: &Bench) -> u64 {
    bench.stats()["cores"]["evictions"].as_u64().expect("a number")
}
