//! The measurements run, briefly, and produce values; no claim about speed.

mod common;

use common::child_command;
use std::time::Duration;
use tailwater_iokernel_testing::RawSpec;
use tailwater_iokernel_testing::bench::{ECHO_NAME, HandoffOptions, SwitchOptions, handoff, switch};
use tailwater_iokernel_testing::child::{Role, order, run_if_asked};

/// Not a test: the body of the child processes the measurement starts.
#[test]
fn raw_runtime_child() {
    if let Some(code) = run_if_asked() {
        assert_eq!(code, std::process::ExitCode::SUCCESS);
    }
}

#[test]
fn both_measurements_come_to_an_end_with_numbers() {
    let options = HandoffOptions { rounds: 1, per_round: 16, gap: Duration::from_micros(60) };
    let report = handoff(options, &child_command).unwrap();
    // On a loaded machine the batch job may never have run before the next request: `busy` may stay
    // empty.
    for (what, us) in [
        ("first", report.first_p50_us),
        ("signal", report.signal_p50_us),
        ("together", report.signal_together_p50_us),
        ("idle", report.idle_p50_us),
        ("wake", report.wake_p50_us),
        ("asleep", report.asleep_p50_us),
    ] {
        assert!(us > 0.0, "{what}: {report:?}");
    }
    assert!(report.busy_p99_us >= report.busy_p50_us, "{report:?}");
    let options =
        SwitchOptions { rounds: 1, window: Duration::from_millis(50), echoes: 200, ..Default::default() };
    let spec = RawSpec { spin_us: 10_000_000, ..RawSpec::new(ECHO_NAME) };
    let service = |socket: &str| {
        let mut command = child_command();
        order(&mut command, socket, &spec, Role::Echo);
        command
    };
    let report = switch(options, &service).unwrap();
    for figure in [report.mpps_overall, report.echo_p50_us, report.raw_echo_p50_us] {
        assert!(figure > 0.0, "{report:?}");
    }
}
