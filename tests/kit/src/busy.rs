//! Programs that rightly give up while other programs have the cores: their own time-outs end, and
//! their message says so. A test starts them again, and is skipped where they get no core for
//! minutes.
//!
//! Never hides another failure: a message without the words of [`TOO_BUSY`], or with those of
//! [`CRASHES`], fails the test at once.

use crate::wait::Wait;

/// Parts of messages of programs that got no core, or no answer, in time.
const TOO_BUSY: &[&str] = &[
    "the machine is overloaded",
    "is the machine overloaded?",
    "the machine is too busy",
    "does not get a core",
    "printed nothing for too long",
    // An IOKernel whose polling thread does not run.
    "no answer in time",
    "did not answer in time",
    // A program that an IOKernel did not hear of in time.
    "the connection was closed by the other side",
    // Coordinator and agents of the load generator.
    "it closed the connection",
    "it does not answer",
    "it did not finish in time",
    "did not end in time",
    // A server that it asks.
    "nothing came back",
    // errno(3): EAGAIN of a socket with a time-out, ECONNRESET and ETIMEDOUT.
    "os error 11)",
    "os error 104)",
    "os error 110)",
];

/// Parts of messages of programs that panicked or were ended by a signal: another failure, whose
/// peers lose their connections.
const CRASHES: [&str; 2] = ["panicked at", "(signal: "];

/// Fewest attempts, for programs that run for minutes.
const ATTEMPTS: u32 = 3;

/// Returns the first result of `attempt`. An error is the message of a program; while it says that
/// the machine is too busy, `attempt` is called again. Returns `None`, and prints that the test is
/// skipped and why, if it still says so after three attempts and two minutes of a machine that is
/// free, later on a busy one.
///
/// # Panics
/// With any other error.
#[track_caller]
pub fn unless_too_busy<T>(attempt: impl FnMut() -> Result<T, String>) -> Option<T> {
    repeat(attempt, &mut Wait::new())
}

#[track_caller]
fn repeat<T>(mut attempt: impl FnMut() -> Result<T, String>, wait: &mut Wait) -> Option<T> {
    let mut attempts = 0;
    loop {
        let message = match attempt() {
            Ok(value) => return Some(value),
            Err(message) => message,
        };
        let is_busy = TOO_BUSY.iter().any(|words| message.contains(words));
        let is_crash = CRASHES.iter().any(|words| message.contains(words));
        assert!(is_busy && !is_crash, "{message}");
        attempts += 1;
        if attempts >= ATTEMPTS && wait.is_over() {
            println!("skipped: {message}");
            return None;
        }
        println!("again: {message}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_program_that_got_no_core_is_started_again_and_at_last_skipped() {
        let mut calls = 0;
        let mut second = || {
            calls += 1;
            if calls == 2 { Ok(7) } else { Err("worker does not get a core".to_owned()) }
        };
        assert_eq!(unless_too_busy(&mut second), Some(7));
        let mut calls = 0;
        let mut never = || -> Result<(), String> {
            calls += 1;
            Err("agent 127.0.0.1:7: it does not answer".to_owned())
        };
        assert_eq!(repeat(&mut never, &mut Wait::of(Duration::ZERO)), None);
        assert_eq!(calls, ATTEMPTS);
    }

    #[test]
    #[should_panic(expected = "no such file")]
    fn another_failure_is_one() {
        unless_too_busy::<()>(|| Err("no such file".to_owned()));
    }

    #[test]
    #[should_panic(expected = "panicked at")]
    fn a_program_that_panics_is_not_busy() {
        let said = "thread 'main' panicked at a.rs:1: ...\nagent 127.0.0.1:7: it closed the connection";
        unless_too_busy::<()>(|| Err(said.to_owned()));
    }
}
