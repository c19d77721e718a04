//! Tests that need a process of their own: a runtime, an allocator's state, limits and signals
//! belong to a whole process, and the tests of a program share one.
//!
//! Such a test runs its program again, with itself as the only test. So a crate needs one test
//! program, and its tests still run side by side.

use std::any::type_name;
use std::process::Command;

use crate::program::{Program, text};
use crate::wait::PATIENCE;

/// Names the test for whose sake a process was started.
const CHILD: &str = "TAILWATER_TEST_CHILD";

/// Runs `body`, the whole of the calling test, in a process of its own, and prints what it wrote.
///
/// # Panics
/// If that process fails. If `body` is no closure of the test function itself: the name of the test
/// is taken from its type.
#[track_caller]
pub fn own_process<F: FnOnce()>(body: F) {
    let test = enclosing_function::<F>();
    if is_rerun(test) {
        return body();
    }
    let output = Program::start(&mut rerun_path(test)).finish_within(PATIENCE);
    print!("{}", text(&output.stdout));
    eprint!("{}", text(&output.stderr));
    assert!(output.status.success(), "the process of {test} ended with {}", output.status);
    assert!(text(&output.stdout).contains("running 1 test"), "{test} is no test: its helper calls this");
}

/// Returns the path of the function whose closure has type `F`, as the test harness has it: without
/// the name of the crate.
fn enclosing_function<F>() -> &'static str {
    let path = type_name::<F>().strip_suffix("::{{closure}}").and_then(|path| path.split_once("::"));
    let (_, path) = path.expect("a closure of a function");
    assert!(!path.contains('{'), "{path} is within another closure");
    path
}

/// Returns the command that runs this program with `test` of `module`, a value of
/// `module_path!()`, as its only test.
///
/// # Panics
/// If this program has no path.
pub fn rerun(module: &str, test: &str) -> Command {
    let path = match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    };
    let mut command = rerun_path(&path);
    // For `is_rerun`, which a test asks by its name.
    command.env(CHILD, test);
    command
}

fn rerun_path(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the test has a path"));
    command.args([test, "--exact", "--include-ignored", "--nocapture"]).env(CHILD, test);
    command
}

/// Returns true if this process runs for `test` alone, by [`own_process`] or [`rerun`].
pub fn is_rerun(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|running| running == test)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_runs_once_in_another_process() {
        let own = std::process::id();
        own_process(|| assert_ne!(std::env::var(CHILD).ok(), None, "in process {own}"));
    }

    #[test]
    #[should_panic(expected = "a_failure_is_the_tests ended with")]
    fn a_failure_is_the_tests() {
        own_process(|| std::process::exit(3));
    }

    #[test]
    fn a_test_is_named_by_module_and_function() {
        let arguments = |command: &Command| command.get_args().next().unwrap().to_owned();
        assert_eq!(arguments(&rerun("it::threads", "spawn")), "threads::spawn");
        assert_eq!(arguments(&rerun("it", "spawn")), "spawn");
    }
}
