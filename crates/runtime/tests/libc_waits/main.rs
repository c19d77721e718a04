//! Waits of the C library as waits of user threads (`RuntimeBuilder::adopt_libc_waits`).
//!
//! Code of the C library is changed while a process has one thread, and the test harness has
//! several. So this program has no harness: it runs each of its tests in a process of its own, as
//! `cargo test` lists them: `cargo test -p tailwater --features libc-waits --test libc_waits NAME`.

mod ends;
mod mixed;
mod pthreads;
mod refusals;
mod registers;
mod signals;
mod standard;
mod stress;

use std::process::{Command, ExitCode, Stdio};
use tailwater_testkit::{PATIENCE, Program, text};

tailwater::allocator!();

/// A test: its name and its function.
type Case = (&'static str, fn());

/// What a child is told to run.
const CASE: &str = "TAILWATER_LIBC_WAITS_CASE";

fn cases() -> impl Iterator<Item = Case> {
    [
        standard::CASES,
        pthreads::CASES,
        mixed::CASES,
        registers::CASES,
        signals::CASES,
        ends::CASES,
        refusals::CASES,
        stress::CASES,
    ]
    .into_iter()
    .flatten()
    .copied()
}

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(CASE) {
        let (_, case) = cases().find(|case| case.0 == name).expect("the parent names a case");
        case();
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        cases().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let exact = arguments.iter().any(|argument| argument == "--exact");
    let filters = filters(&arguments);
    let is_chosen = |name: &str| {
        let fits =
            |filter: &&String| if exact { name == filter.as_str() } else { name.contains(filter.as_str()) };
        filters.is_empty() || filters.iter().any(fits)
    };
    let mut failed = 0;
    for (name, _) in cases().filter(|(name, _)| is_chosen(name)) {
        let ended = run(name);
        println!("test {name} ... {}", if ended.is_ok() { "ok" } else { "FAILED" });
        if let Err(output) = ended {
            println!("{output}");
            failed += 1;
        }
    }
    println!("{failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the arguments that select tests: no options, and not their values.
fn filters(arguments: &[String]) -> Vec<&String> {
    let takes_value = |option: &String| {
        ["--color", "--format", "--logfile", "--skip", "--test-threads", "-Z"].contains(&option.as_str())
    };
    let mut filters = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if takes_value(argument) {
            arguments.next();
        } else if !argument.starts_with('-') {
            filters.push(argument);
        }
    }
    filters
}

/// Runs a test in a process of its own. Returns its output if it fails.
fn run(name: &str) -> Result<(), String> {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.env(CASE, name).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = Program::start(&mut command).finish_within(PATIENCE);
    let printed = text(&output.stdout);
    for line in printed.lines().filter(|line| line.starts_with("skipped: ")) {
        println!("{line}");
    }
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}\n{printed}\n{}", output.status, text(&output.stderr)))
}

/// Runs `main` on a runtime with `kthreads` and adopted waits. No detector of stalls ends a wait in
/// the kernel.
fn run_adopted<T: Send + 'static>(kthreads: u16, main: impl FnOnce() -> T + Send + 'static) -> T {
    adopting(kthreads).run(main).unwrap()
}

/// Returns a builder of such a runtime.
fn adopting(kthreads: u16) -> tailwater::RuntimeBuilder {
    tailwater::RuntimeBuilder::new()
        .kthreads(kthreads)
        .stall_timeout(std::time::Duration::ZERO)
        .adopt_libc_waits()
}
