//! What tests of the command share: running it.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tailwater_testkit::{Program, text, unless_too_busy};

/// How long a benchmark or a figure, of seconds or minutes, may take on a machine that is free.
pub const BOUND: Duration = Duration::from_secs(900);

/// Returns the command, with these words.
pub fn lab(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-lab"));
    command.args(words);
    command
}

/// Waits for the turn of a benchmark or a figure: two at a time would take each other's cores.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed in its turn has reported that.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a benchmark with these words in its turn; returns its document and what it printed, or
/// `None` if other programs have the cores for minutes.
#[track_caller]
pub fn bench(words: &[&str]) -> Option<(Value, String)> {
    bench_until(words, |_| None)
}

/// As [`bench`]. Runs it again, too, while `lacks` names what a busy machine has kept it from
/// measuring.
#[track_caller]
pub fn bench_until(words: &[&str], lacks: impl Fn(&Value) -> Option<String>) -> Option<(Value, String)> {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    unless_too_busy(|| {
        let mut command = lab(&["bench"]);
        let output = Program::start(command.args(words).arg("--json").arg(&file)).finish_within(BOUND);
        let shown = text(&output.stdout) + &text(&output.stderr);
        if !output.status.success() {
            return Err(shown);
        }
        let report = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        match lacks(&report) {
            Some(what) => Err(format!("the machine is too busy to measure {what}: {report:#}")),
            None => Ok((report, shown)),
        }
    })
}
