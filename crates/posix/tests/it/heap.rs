//! The library's threads and a program's allocator (`tests/heap.c`).

use super::{compile_c, library};
use std::process::Command;
use tailwater_testkit::{PATIENCE, Program};

/// One with an arena for each thread that calls it would have more of them, and some programs look
/// at all.
#[test]
fn the_runtimes_own_threads_do_not_call_the_programs_allocator() {
    let folder = tempfile::tempdir().unwrap();
    let Some(compiled) = compile_c("heap", folder.path()) else { return };
    let program = compiled.expect("it compiles");
    let output = Program::start(Command::new(program).env("LD_PRELOAD", library())).finish_within(PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("runs without an IOKernel"), "the runtime's notice is missing: {errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "end\n", "{errors}");
}
