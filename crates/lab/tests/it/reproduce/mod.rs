//! Each figure in its quick form: its files exist and agree with each other, and nothing is left
//! behind.
//!
//! Verdicts are not judged: they depend on what else runs on the test machine.

mod arachne;
mod ix;
mod kit;
mod shenango;
mod shinjuku;

use std::collections::BTreeSet;
use std::process::Command;

use kit::{BOUND, command, is_self_contained, read, sockets, start, turn};
use rustix::process::{Pid, Signal, kill_process};
use tailwater_testkit::{Program, children, cpu_numbers, eventually, is_running, run, text, until};

/// Returns the children of a run, as soon as there are any.
fn first_children(run: &mut Program) -> BTreeSet<u32> {
    eventually("the run has a child process", || {
        assert!(run.is_running(), "it ended: {}{}", run.output(), run.errors());
        Some(children(run.pid())).filter(|children| !children.is_empty())
    })
}

#[test]
fn an_interrupted_run_leaves_no_process_and_keeps_the_figures_it_has() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let mut run = start(folder.path(), &["shinjuku-fig4", "shenango-fig8", "--quick"]);
    let pid = run.pid();
    run.line_with("shinjuku-fig4.svg");
    until("the IOKernel of the second figure runs", || !sockets(pid).is_empty());
    let started = first_children(&mut run);
    run.signal(Signal::INT);
    let output = run.finish();
    assert_eq!(output.status.code(), Some(130));
    assert!(text(&output.stderr).contains("1 of the figures are complete"), "{}", text(&output.stderr));
    assert!(started.iter().all(|&child| !is_running(child)), "left {started:?}");
    assert!(read(folder.path(), "shinjuku-fig4.svg").contains("</svg>"));
    assert!(!folder.path().join("figures/shenango-fig8.svg").exists());
    assert_eq!(sockets(pid), [""; 0]);
}

#[test]
fn a_service_that_dies_fails_its_figure_and_no_other() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let mut run = start(folder.path(), &["shinjuku-fig4", "shenango-fig8", "--quick"]);
    // A child may end between the look and the signal.
    eventually("a child is killed", || {
        let victim = first_children(&mut run).pop_first()?;
        kill_process(Pid::from_raw(victim as i32)?, Signal::KILL).ok()
    });
    let output = run.finish_within(BOUND);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("ended early") && errors.contains("not reproduced: shenango-fig8"), "{errors}");
    let report = read(folder.path(), "report.html");
    is_self_contained(&report);
    assert!(report.contains("Failed: ") && report.contains("<h2 id=\"shinjuku-fig4\">"), "{report}");
}

#[test]
fn one_core_is_enough_for_what_is_simulated_and_for_nothing_else() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let on_one_core = |name: &str| {
        let binary = env!("CARGO_BIN_EXE_tailwater-lab");
        let out = folder.path().join("figures");
        let mut command = Command::new("taskset");
        command
            .args(["-c", &cpu_numbers()[0].to_string(), binary, "reproduce", name, "--quick", "--out"])
            .arg(out);
        Program::start(&mut command).finish_within(BOUND)
    };
    let refused = on_one_core("shenango-fig6");
    let errors = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    assert!(errors.contains("this process may use 1") && errors.contains("shinjuku-fig4"), "{errors}");
    assert!(on_one_core("shinjuku-fig4").status.success());
}

#[test]
fn an_unknown_figure_is_refused_with_the_names_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&mut command(folder.path(), &["shenango-fig99"]), b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("shenango-fig8"), "{}", text(&output.stderr));
}
