//! The table of cases (`tests/cases.c`, `tests/sharing.c`): the same program on Linux and under the
//! library prints the same, and says what the library alone refuses.

use super::{compile_c, library};
use std::path::Path;
use std::process::Command;
use tailwater_testkit::{PATIENCE, Program};

/// Compiles the table; `None` where that is impossible, which is said.
fn compile(folder: &Path) -> Option<std::path::PathBuf> {
    match compile_c("cases", folder)? {
        Err(errors) if errors.contains("strerrorname_np") => {
            println!("skipped: the C library has no strerrorname_np (glibc 2.32 and later do)");
            None
        }
        compiled => Some(compiled.expect("it compiles")),
    }
}

/// Returns the program with the time that it gives what must come, in milliseconds: such a wait
/// ends as soon as it has come.
fn table(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg(PATIENCE.as_millis().to_string());
    command
}

/// Runs the table; returns what it prints.
fn run(command: &mut Command) -> String {
    let output = Program::start(command).finish_within(PATIENCE);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    text
}

/// Panics with the first lines that differ.
fn compare(linux: &str, here: &str, how: &str) {
    let differing: Vec<_> = linux.lines().zip(here.lines()).filter(|(linux, here)| linux != here).collect();
    assert!(differing.is_empty(), "{how}: Linux has the first of each pair: {differing:#?}");
    assert_eq!(linux.lines().count(), here.lines().count(), "{how}: {here}");
}

#[test]
fn sockets_and_epoll_do_what_they_do_on_linux() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path()) else { return };
    let linux = run(&mut table(&program));
    assert!(linux.lines().count() > 100, "{linux}");
    for kthreads in ["1", "2"] {
        let mut command = table(&program);
        command.env("LD_PRELOAD", library()).env("TAILWATER_KTHREADS", kthreads);
        compare(&linux, &run(&mut command), &format!("{kthreads} kthreads"));
    }
}

/// The guide's table of calls has these as refused.
#[test]
fn what_cannot_be_served_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path()) else { return };
    let refused = run(table(&program).arg("refusals").env("LD_PRELOAD", library()));
    let expected = [
        ("splice", "EINVAL"),
        ("MSG_OOB", "EOPNOTSUPP"),
        ("SCM_RIGHTS", "EOPNOTSUPP"),
        ("a system call of the program's own", "ENOTCONN"),
        ("a child's read", "ENOTCONN"),
    ];
    assert_eq!(refused, expected.map(|(what, error)| format!("{what}: {error}\n")).concat());
    let linux = run(table(&program).arg("refusals"));
    assert_eq!(linux, expected.map(|(what, _)| format!("{what}: ok\n")).concat());
}

/// Threads go home for their waits then, and the program is told so.
#[test]
fn where_the_c_librarys_code_may_not_be_changed_threads_wait_on_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path()) else { return };
    let output = Program::start(table(&program).arg("protected")).finish_within(PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("no PR_SET_MDWE") {
        return println!("skipped: this kernel has no PR_SET_MDWE (Linux 6.3 and later do)");
    }
    assert!(output.status.success(), "{errors}");
    let linux = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut command = table(&program);
    command.arg("protected").env("LD_PRELOAD", library()).env("TAILWATER_KTHREADS", "1");
    let output = Program::start(&mut command).finish_within(PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    compare(&linux, &String::from_utf8_lossy(&output.stdout), "protected");
    assert!(errors.contains("MemoryDenyWriteExecute"), "the reason is missing: {errors}");
}

/// The program is served, or the comparison above would be of Linux with itself.
#[test]
fn the_table_runs_on_the_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path()) else { return };
    let output = Program::start(table(&program).env("LD_PRELOAD", library())).finish_within(PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("runs without an IOKernel"), "the runtime's notice is missing: {errors}");
}
