//! The measurements run, briefly, and produce values; no claim about speed.

use crate::common::{child_command, eventually};
use std::time::Duration;
use tailwater_iokernel_testing::RawSpec;
use tailwater_iokernel_testing::bench::{ECHO_NAME, HandoffOptions, SwitchOptions, handoff, switch};
use tailwater_iokernel_testing::child::{Role, order};
use tailwater_testkit::unless_too_busy;

#[test]
fn both_measurements_come_to_an_end_with_numbers() {
    let options = HandoffOptions { rounds: 1, per_round: 64, gap: Duration::from_micros(60) };
    // A few samples make each figure, and on a loaded machine all of one may be left out. The batch
    // job may never have run before the next request there: `busy` may stay empty.
    eventually("a measurement with all figures", || {
        let measured = || handoff(options, &child_command).map_err(|error| error.to_string());
        let Some(report) = unless_too_busy(measured) else { return true };
        assert!(report.busy_p99_us >= report.busy_p50_us, "{report:?}");
        assert!(report.polls_again_p99_us >= report.polls_again_p50_us, "{report:?}");
        assert!(report.frame_polls_again_p99_us >= report.frame_polls_again_p50_us, "{report:?}");
        let lacks = [
            ("first", report.first_p50_us),
            ("signal", report.signal_p50_us),
            ("together", report.signal_together_p50_us),
            ("idle", report.idle_p50_us),
            ("wake", report.wake_p50_us),
            ("asleep", report.asleep_p50_us),
            ("polls again", report.polls_again_p50_us),
            ("polls again after a frame", report.frame_polls_again_p50_us),
        ]
        .map(|(what, us)| (us <= 0.0).then_some(what));
        if lacks.iter().any(Option::is_some) {
            println!("nothing about {:?}: {report:?}", lacks.iter().flatten().collect::<Vec<_>>());
        }
        lacks.iter().all(Option::is_none)
    });
    let options =
        SwitchOptions { rounds: 1, window: Duration::from_millis(50), echoes: 200, ..Default::default() };
    let spec = RawSpec { spin_us: 10_000_000, ..RawSpec::new(ECHO_NAME) };
    let service = |socket: &str| {
        let mut command = child_command();
        order(&mut command, socket, &spec, Role::Echo);
        command
    };
    let measured = || switch(options, &service).map_err(|error| error.to_string());
    let Some(report) = unless_too_busy(measured) else { return };
    for figure in [report.mpps_overall, report.echo_p50_us, report.raw_echo_p50_us] {
        assert!(figure > 0.0, "{report:?}");
    }
}
