//! How a command ends: its exit code and its last message.

use std::io;
use std::process::ExitCode;

use crate::interrupt::Interrupted;
use crate::requirements::Unsupported;

/// What a shell reports of a process that SIGPIPE ended: 128 and the signal's number.
const CLOSED_OUTPUT: u8 = 128 + 13;

/// An error that ends the command with 2 in place of 1: wrong usage that the parser does not see,
/// or the failure of a command whose exit code 1 is an answer.
#[derive(Debug)]
pub struct EndsWith2(anyhow::Error);

impl std::fmt::Display for EndsWith2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for EndsWith2 {}

impl EndsWith2 {
    /// Returns the error as one that ends the command with 2; a closed output stays what it is.
    pub fn wrap(error: anyhow::Error) -> anyhow::Error {
        if is_closed_output(&error) { error } else { Self(error).into() }
    }
}

/// Prints the error, if there is one, and returns the exit code: 0 for success, 1 for failure, 2
/// for a machine that lacks something and for [`EndsWith2`], 130 for an interrupt, 141 without a
/// message when the reader of standard output has closed it. Most wrong usage, also 2, is reported
/// where arguments are parsed.
pub fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if error.is::<Interrupted>() {
        note!("{error}");
        return ExitCode::from(130);
    }
    if is_closed_output(&error) {
        return ExitCode::from(CLOSED_OUTPUT);
    }
    note!("error: {error:#}");
    ExitCode::from(if error.is::<Unsupported>() || error.is::<EndsWith2>() { 2 } else { 1 })
}

/// True for an error of a write to standard output; errors of files and sockets have a context.
fn is_closed_output(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe) && error.chain().len() == 1
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn only_an_unexplained_broken_pipe_is_a_closed_output() {
        let broken = || anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_closed_output(&broken()));
        assert!(!is_closed_output(&Err::<(), _>(broken()).context("cannot send").unwrap_err()));
        assert!(!is_closed_output(&io::Error::from(io::ErrorKind::NotFound).into()));
    }
}
