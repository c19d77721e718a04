//! What tests of the command share: running it, an IOKernel, an agent.

use std::process::{Command, Output};

use serde_json::Value;
use tailwater_testkit::{Program, text, unless_too_busy, until};

/// Returns the command, with these words.
pub fn tailwater(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    command.args(words);
    command
}

/// Runs the command to its end, without input.
pub fn run(words: &[&str]) -> Output {
    tailwater_testkit::run(&mut tailwater(words), b"")
}

/// Runs the command until it succeeds; `None` if it gets no core for minutes.
#[track_caller]
pub fn succeeds(words: &[&str]) -> Option<Output> {
    unless_too_busy(|| {
        let output = run(words);
        if output.status.success() { Ok(output) } else { Err(text(&output.stderr)) }
    })
}

/// Runs the command until it fails with a message that has all `parts`; returns the message, or
/// `None` if it gets no core for minutes.
///
/// # Panics
/// If it succeeds, or fails for another reason.
#[track_caller]
pub fn fails_with(words: &[&str], parts: &[&str]) -> Option<String> {
    unless_too_busy(|| {
        let output = run(words);
        let message = text(&output.stderr);
        assert!(!output.status.success(), "{words:?} succeeded, without {parts:?}: {message}");
        if parts.iter().all(|part| message.contains(part)) { Ok(message) } else { Err(message) }
    })
}

/// Statistics of the IOKernel at this socket, if it answers.
pub fn stats(socket: &str) -> Option<Value> {
    let output = run(&["stats", "--iokernel", socket, "--json"]);
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// Starts an IOKernel at `socket` with more `words` and waits until it answers.
pub fn iokernel(socket: &str, words: &[&str]) -> Program {
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/busy.toml");
    let own = ["iokernel", "--share-cores", "--socket", socket, "--log", "warn", "--config", settings];
    let mut iokernel = Program::start(tailwater(&own).args(words));
    until("the IOKernel answers", || {
        assert!(iokernel.is_running(), "the IOKernel did not start: {}", iokernel.errors());
        stats(socket).is_some()
    });
    iokernel
}

/// Starts an agent of the load generator; returns it and its address.
pub fn agent() -> (Program, String) {
    let mut agent = Program::start(&mut tailwater(&["load", "--agent", "127.0.0.1:0"]));
    let address = agent.line_after("agent listening on ");
    (agent, address)
}
