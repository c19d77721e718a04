//! Benchmarks have all their figures, and end with their processes.

use std::process::{Command, ExitStatus, Stdio};

use crate::common::{bench, lab};
use crate::shape::{command, differences};
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::{Program, children, cpus, eventually, has_two_cpus, is_running, text, until};

/// Returns whether namespaces with veth pairs can be made here; prints why not.
fn has_pairs() -> bool {
    let made = Namespace::new().map(|namespace| {
        namespace.inside(|| Command::new("ip").args(["link", "add", "type", "veth"]).status())
    });
    let has = made.as_ref().is_ok_and(|made| made.as_ref().is_ok_and(ExitStatus::success));
    if !has {
        eprintln!("skipped: no namespace with a veth pair: {made:?}");
    }
    has
}

/// A test for each section of the shapes, and what it needs.
macro_rules! shapes {
    ($($name:ident $(if $needs:ident)?;)*) => {
        $(
            #[test]
            #[ignore = "a measurement: .ci/full"]
            fn $name() {
                if !has_two_cpus() $(|| !$needs())? {
                    return;
                }
                let words: Vec<&str> = command(stringify!($name)).split(' ').collect();
                let Some((report, shown)) = bench(&words) else { return };
                let differ = differences(stringify!($name), &report);
                assert!(differ.is_empty() && report["commit"].is_string(), "{differ:#?}\n{shown}\n{report:#}");
            }
        )*
    };
}

shapes! {
    cores_creation;
    cores_background;
    cores_ramp;
    cores_request;
    cores_demo_background;
    cores_estimator;
    cores_memory;
    dispatch_threads;
    dispatch_service;
    energy;
    events;
    neighbour_batch;
    neighbour_service;
    neighbour_turns if may_raise;
    ports if has_pairs;
    scale;
    services;
    threads;
}

/// Returns whether this process may raise its threads and its session; prints why not.
fn may_raise() -> bool {
    let raise = || {
        let own = rustix::process::getpriority_process(None).unwrap_or(0);
        rustix::process::setpriority_process(None, own - 1).is_ok()
    };
    let may = std::thread::spawn(raise).join().unwrap();
    if !may {
        eprintln!("skipped: nice values below 0 are refused here");
    }
    may
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn an_exclusive_thread_is_alone_or_the_machine_is_too_small() {
    let words = ["cores", "--only", "exclusive", "--seconds", "1"];
    if cpus() < 3 {
        let output = Program::start(lab(&["bench"]).args(words)).finish();
        let errors = text(&output.stderr);
        assert!(!output.status.success() && errors.contains("needs three CPUs"), "{errors}");
        return;
    }
    let Some((report, shown)) = bench(&words) else { return };
    let figures = &report["exclusive"];
    assert_eq!((&figures["other_user_threads"], &figures["kept_off"]), (&0.into(), &false.into()), "{shown}");
    assert!(figures["looks"].as_u64() > Some(0) && figures["seconds"].as_f64() >= Some(1.0), "{shown}");
    // Either all figures of Linux's tracepoints are there, or why none is.
    let traced =
        ["ordinary_switches", "ordinary_ns", "kernel_switches"].map(|key| figures.get(key).is_some());
    assert!(traced == [true; 3] || (traced == [false; 3] && shown.contains("not counted: ")), "{shown}");
}

/// Fails unless at least `count` processes of a benchmark end with it when it is killed.
fn ends_with(words: &[&str], count: usize) {
    let mut bench = Program::spawn(lab(&["bench"]).args(words).stdout(Stdio::null()));
    let started = eventually("its processes run", || {
        assert!(bench.is_running(), "it ended");
        Some(children(bench.pid())).filter(|started| started.len() >= count)
    });
    bench.kill();
    until("its processes end", || started.iter().all(|&pid| !is_running(pid)));
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn the_measured_processes_end_with_one_that_is_killed() {
    ends_with(&["threads", "--rounds", "1000", "--systems", "tailwater"], 2);
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn namespaces_and_clients_end_with_a_bench_that_is_killed() {
    if has_two_cpus() && has_pairs() {
        // Two that hold namespaces, the service and the client.
        ends_with(&["ports", "--ms", "600000", "--variants", "veth"], 4);
    }
}
