//! Third-party client programs, run against services over TAP.

use crate::tap::in_tap_namespace;
use std::process::Output;
use tailwater_testkit::is_installed;

/// Runs `test` in a new network namespace if `program` is installed, otherwise prints that it is
/// skipped; `package` is the Debian package that has the program.
pub fn with(program: &str, package: &str, test: impl FnOnce()) {
    if is_installed(program, package) {
        in_tap_namespace(test);
    }
}

/// Returns both outputs of a client as one text.
pub fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
