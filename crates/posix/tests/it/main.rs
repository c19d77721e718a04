//! Tests of the library in programs: each test compiles a C program, or runs one of the machine's,
//! with and without it.

use std::path::{Path, PathBuf};
use std::process::Command;
use tailwater_testkit::{PATIENCE, Program};

mod cases;
mod exports;
mod heap;
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

/// Compiles a C program of `tests` to the folder; returns its path, or what the compiler says.
/// `None` without a compiler, which is said.
fn compile_c(name: &str, folder: &Path) -> Option<Result<PathBuf, String>> {
    let Some(compiler) = compiler() else {
        println!("skipped: there is no C compiler (cc, gcc or clang)");
        return None;
    };
    let program = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(format!("{name}.c"));
    let mut compile = Command::new(compiler);
    compile.args(["-O1", "-pthread", "-o"]).arg(&program).arg(source);
    let output = Program::start(&mut compile).finish_within(PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(if output.status.success() { Ok(program) } else { Err(errors) })
}

/// Returns the first of these compilers that is installed.
fn installed(names: [&'static str; 3]) -> Option<&'static str> {
    names
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
}
