//! Tests of the library in programs: each test compiles a C program, or runs one of the machine's,
//! with and without it.

use std::path::PathBuf;
use std::process::Command;

mod cases;
mod exports;
mod libevent;
mod page;
mod stress;

/// Returns the library, which cargo has built for these tests, beside them.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a test has a file");
    let library = program.with_file_name("libtailwater_posix.so");
    assert!(library.is_file(), "cargo builds {} before the tests", library.display());
    library
}

/// Returns a compiler of C, if there is one.
fn compiler() -> Option<&'static str> {
    installed(["cc", "gcc", "clang"])
}

/// Returns the first of these compilers that is installed.
fn installed(names: [&'static str; 3]) -> Option<&'static str> {
    names
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
}
