//! How the command ends before it begins, and what it says of an error.
//!
//! Owns help and usage that cannot be printed, the least stack, and causes that are said once. Exit
//! codes of commands are those of `tailwater_testbed::exit`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use rustix::process::{Resource, getrlimit};
use tailwater_testbed::exit::EndsWith2;
use tailwater_testbed::note;
use tailwater_testbed::requirements::Unsupported;

use crate::Cli;

/// Least limit of the main thread's stack in bytes: reading the arguments takes a quarter of it.
const LEAST_STACK: u64 = 1 << 20;

/// Returns the arguments, or the exit code after help, version or wrong usage is printed: an error
/// if that cannot be written.
pub fn parse() -> Result<Cli, ExitCode> {
    use clap::Parser;

    if let Some(limit) = getrlimit(Resource::Stack).current.filter(|limit| *limit < LEAST_STACK) {
        note!(
            "error: the stack may have {} KiB only: run `ulimit -s 8192` before, or set LimitSTACK=8M in the unit file",
            limit >> 10
        );
        return Err(ExitCode::from(2));
    }
    Cli::try_parse().map_err(|error| {
        let printed = error.print().and_then(|()| io::stdout().flush());
        if let Some(file) = file_for_json(&error, &std::env::args_os().collect::<Vec<_>>()) {
            note!("\n  tip: --json takes no file here: write --json > {file}");
        }
        match printed {
            Ok(()) => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1)),
            Err(error) => tailwater_testbed::exit::report(Err(error.into())),
        }
    })
}

/// Returns the argument that was refused behind a `--json` that takes none: in some commands it
/// names a file.
fn file_for_json(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(refused)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_file =
        !refused.starts_with('-') && arguments.windows(2).any(|pair| pair == ["--json", refused.as_str()]);
    is_file.then(|| refused.clone())
}

/// Returns the error with each of its causes named once: some name theirs in their own text.
pub fn said_once(error: anyhow::Error) -> anyhow::Error {
    let mut text = String::new();
    for said in error.chain().map(ToString::to_string) {
        if !text.contains(&said) {
            text = if text.is_empty() { said } else { format!("{text}: {said}") };
        }
    }
    // The type of an error chooses the exit code.
    match text == format!("{error:#}") || error.is::<Unsupported>() || error.is::<EndsWith2>() {
        true => error,
        false => anyhow::Error::msg(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error whose text has its cause.
    #[derive(Debug)]
    struct Outer(io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "cannot start: {}", self.0)
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_cause_is_said_once_whoever_says_it() {
        let twice = Outer(io::Error::other("the socket is taken"));
        let said = said_once(anyhow::Error::from(twice).context("the IOKernel"));
        assert_eq!(format!("{said:#}"), "the IOKernel: cannot start: the socket is taken");
        let plain = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(said_once(plain).is::<io::Error>(), "its type stays");
    }
}
