//! Threads of a program that wait and move all the time (`tests/stress.cc`): what belongs to a
//! thread stays with it.

use super::{installed, library};
use std::path::Path;
use std::process::Command;
use tailwater_testkit::{PATIENCE, Program};

/// How long the threads work, in seconds, by one kthread and by two; `TAILWATER_SOUNDNESS_SECONDS`
/// says otherwise.
const TIME: &str = "0.4";

#[test]
fn what_belongs_to_a_thread_stays_with_it() {
    let Some(compiler) = installed(["c++", "g++", "clang++"]) else {
        println!("skipped: there is no C++ compiler (c++, g++ or clang++)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("stress");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stress.cc");
    let mut compile = Command::new(compiler);
    compile.args(["-O1", "-std=c++14", "-pthread", "-o"]).arg(&program).arg(source).arg("-ldl");
    let output = Program::start(&mut compile).finish_within(PATIENCE);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let time = std::env::var("TAILWATER_SOUNDNESS_SECONDS").unwrap_or_else(|_| TIME.to_owned());
    for kthreads in ["1", "2"] {
        let mut command = Command::new(&program);
        command.arg(&time).env("LD_PRELOAD", library());
        command.env("TAILWATER_KTHREADS", kthreads).env("TAILWATER_QUANTUM_US", "100");
        let output = Program::start(&mut command).finish_within(PATIENCE);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{kthreads} kthreads: {}\n{errors}", output.status);
        println!("{kthreads} kthreads: {}", String::from_utf8_lossy(&output.stdout));
    }
}
