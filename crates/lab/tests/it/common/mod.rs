//! What tests of the command share: running it.

use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tailwater_testkit::{Program, text};

/// How long a benchmark of a few seconds may take on a machine that is busy.
const BOUND: Duration = Duration::from_secs(600);

/// How often a benchmark or a figure is run that ends because other programs have the cores.
const TRIES: usize = 3;
/// What a run prints that ends because it got no core for a long time, or no answer.
const TOO_BUSY: [&str; 4] = [
    "the machine is overloaded",
    "is the machine overloaded?",
    "the machine is too busy",
    "does not get a core",
];

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

/// Returns the result of `run`, which is called again, up to [`TRIES`] times in all, while the
/// program that it runs ends because the machine was too busy.
pub fn until_it_gets_cores<T>(mut run: impl FnMut() -> (T, Output)) -> (T, Output) {
    for _ in 1..TRIES {
        let (result, output) = run();
        let errors = text(&output.stderr);
        if output.status.success() || !TOO_BUSY.iter().any(|words| errors.contains(words)) {
            return (result, output);
        }
        println!("again: {errors}");
    }
    run()
}

/// Runs a benchmark with these words in its turn; returns its document and what it printed, or
/// `None` if other programs have the cores for minutes.
pub fn bench(words: &[&str]) -> Option<(Value, String)> {
    bench_unless(words, "the machine is overloaded")
}

/// As [`bench`]; `None` if the run ends and prints `busy`.
pub fn bench_unless(words: &[&str], busy: &str) -> Option<(Value, String)> {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let ((), output) = until_it_gets_cores(|| {
        let mut command = lab(&["bench"]);
        ((), Program::start(command.args(words).arg("--json").arg(&file)).finish_within(BOUND))
    });
    let (shown, errors) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() && errors.contains(busy) {
        println!("skipped: {errors}");
        return None;
    }
    assert!(output.status.success(), "{shown}{errors}");
    Some((serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap(), shown))
}
