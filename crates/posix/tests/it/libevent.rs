//! A program of libevent (`tests/libevent.c`), as it is.

use super::{compiler, library};
use std::path::Path;
use std::process::Command;
use tailwater_testkit::{PATIENCE, Program};

#[test]
fn a_program_of_libevent_does_what_it_does_on_linux() {
    let Some(compiler) = compiler() else {
        return println!("skipped: there is no C compiler (cc, gcc or clang)");
    };
    if !Path::new("/usr/include/event2/event.h").exists() {
        return println!("skipped: there is no libevent (Debian: libevent-dev)");
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("libevent");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libevent.c");
    let mut compile = Command::new(compiler);
    compile.args(["-O1", "-o"]).arg(&program).arg(source).arg("-levent_core");
    let output = Program::start(&mut compile).finish_within(PATIENCE);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run = |command: &mut Command| {
        let output = Program::start(command).finish_within(PATIENCE);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
        (text, errors)
    };
    let (linux, _) = run(&mut Command::new(&program));
    assert_eq!(linux, "epoll: 1000 lines\n");
    for kthreads in ["1", "2"] {
        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", library()).env("TAILWATER_KTHREADS", kthreads);
        let (here, errors) = run(&mut command);
        assert_eq!(here, linux, "{kthreads} kthreads");
        assert!(errors.contains("runs without an IOKernel"), "the runtime's notice is missing: {errors}");
    }
}
