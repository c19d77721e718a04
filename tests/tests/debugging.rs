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
                let frames =
                    ["give_up_core", "on_signal", "spins_here"].map(|function| thread.find(function));
                thread.contains(": runnable") && frames.iter().all(Option::is_some) && frames.is_sorted()
            })
        };
        ["spinner-0", "spinner-1", "spinner-2"].iter().filter(|name| preempted(name)).count() >= 2
    });
    bench.echo(&service, b"all go on");
}

/// Returns the standard error of `role`, once that names `function`.
fn report(role: &Role, function: &str) -> String {
    eventually(&format!("a report that names {function}"), || {
        let text = role.errors();
        text.contains(function).then_some(text)
    })
}

#[test]
fn a_thread_that_spins_on_a_lent_core_is_reported() {
    let Some(bench) = bench() else { return };
    let spinners = heard(&bench, "spin", "best-effort", STALL);
    let text = report(&spinners, "spins_here");
    assert!(text.contains("tailwater: user thread 'spinner-") && text.contains("no poll point"), "{text}");
}

#[test]
fn a_thread_that_sleeps_in_the_kernel_on_a_lent_core_is_reported() {
    let Some(bench) = bench() else { return };
    let sleeper = heard(&bench, "sleep", "best-effort", STALL);
    let text = report(&sleeper, "sleeps_here");
    assert!(text.contains("user thread 'main' (1) has been in a blocking system call"), "{text}");
}

#[test]
fn a_kthread_whose_core_is_taken_is_not_reported() {
    let Some(bench) = bench() else { return };
    let polite = heard(&bench, "burn", "best-effort", STALL);
    let clutch = heard(&bench, "clutch", "best-effort", STALL);
    let service = heard(&bench, "echo", "latency-critical", STALL);
    let start = Instant::now();
    let mut requests = 0u32;
    let count = |what: &str| bench.stats()["cores"][what].as_u64().expect("a number");
    // Cores ceded at a request, given up for lack of work (the service's, after each request), and
    // taken by force; and enough time for a false report.
    while bench.handoffs() < 100 || count("evictions") < 3 || start.elapsed() < 10 * STALL {
        bench.echo(&service, &requests.to_be_bytes());
        requests += 1;
        assert!(start.elapsed() < 2 * PATIENCE, "cores are taken too seldom: {:#}", bench.stats());
    }
    // Nor is a kthread stalled that Linux does not run at all.
    polite.signal(Signal::STOP);
    std::thread::sleep(3 * STALL);
    polite.signal(Signal::CONT);
    // Nor a service without work.
    std::thread::sleep(3 * STALL);
    bench.echo(&service, b"the last");
    for role in [&polite, &clutch, &service] {
        assert!(!role.errors().contains(REPORT), "{}", role.errors());
    }
}
