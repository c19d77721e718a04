//! Programs of C and C++ that check themselves.

use crate::compile::{Installed, Language, compilers, with_levels};
use std::process::Command;
use std::time::Duration;
use tailwater_testkit::{PATIENCE, Program, text};

/// Milliseconds for which a stress program runs, unless `TAILWATER_SOUNDNESS_SECONDS` says
/// otherwise.
const STRESS_MS: u64 = 500;

/// Runs a program that prints `expected` and succeeds.
fn check(command: &mut Command, bound: Duration, expected: &str) {
    let output = Program::start(command).finish_within(bound);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains(expected), "{command:?} {}\n{out}{err}", output.status);
    print!("{out}");
}

fn stress_ms() -> u64 {
    let seconds = std::env::var("TAILWATER_SOUNDNESS_SECONDS").ok();
    seconds.map_or(STRESS_MS, |text| 1000 * text.parse::<u64>().expect("a number of seconds"))
}

/// Runs a stress program of one language, by each compiler at both ends of optimization.
fn stress(language: Language, source: &str) {
    let Some(installed) = Installed::get() else { return };
    for (compiler, level) in with_levels(language) {
        let program = installed.compile(compiler, source, &[level, "-D_GNU_SOURCE"]);
        let bound = 3 * PATIENCE + Duration::from_millis(stress_ms());
        check(Command::new(program).arg(stress_ms().to_string()), bound, "preemptions");
    }
}

#[test]
fn what_belongs_to_a_thread_of_c_stays_with_it() {
    stress(Language::C, "tests/programs/stress.c");
}

#[test]
fn what_belongs_to_a_thread_of_cpp_stays_with_it() {
    stress(Language::Cpp, "tests/programs/stress.cpp");
}

#[test]
fn a_wait_group_is_not_touched_after_its_last_waiting_thread_has_left() {
    let Some(installed) = Installed::get() else { return };
    let program =
        installed.compile(compilers(Language::C)[0], "tests/programs/group.c", &["-O1", "-D_GNU_SOURCE"]);
    let bound = PATIENCE + Duration::from_millis(stress_ms());
    check(Command::new(program).arg(stress_ms().to_string()), bound, "rounds");
}

#[test]
fn a_descriptor_that_is_closed_during_calls_is_closed_after_them() {
    let Some(installed) = Installed::get() else { return };
    let program =
        installed.compile(compilers(Language::C)[0], "tests/programs/close.c", &["-O1", "-D_GNU_SOURCE"]);
    let bound = PATIENCE + Duration::from_millis(stress_ms());
    check(Command::new(program).arg(stress_ms().to_string()), bound, "rounds");
}

#[test]
fn each_function_of_c_does_what_its_comment_says() {
    let Some(installed) = Installed::get() else { return };
    for compiler in compilers(Language::C) {
        let options = ["-O1", "-D_GNU_SOURCE"];
        for libraries in [installed.shared(), installed.archived()] {
            let program = installed.compile_with(compiler, "tests/programs/api.c", &options, &libraries);
            check(&mut Command::new(program), PATIENCE, "ok\n");
        }
    }
}

#[test]
fn the_classes_of_cpp_work_with_the_standard_librarys() {
    let Some(installed) = Installed::get() else { return };
    for compiler in compilers(Language::Cpp) {
        for libraries in [installed.shared(), installed.archived()] {
            let program = installed.compile_with(compiler, "tests/programs/api.cpp", &["-O1"], &libraries);
            check(&mut Command::new(program), PATIENCE, "ok\n");
        }
    }
}

#[test]
fn an_exception_that_leaves_a_called_function_calls_terminate_with_its_stack_as_it_was() {
    let Some(installed) = Installed::get() else { return };
    let ways = [
        "main",
        "thread",
        "jthread",
        "key",
        "once",
        "no_preempt",
        "blocking",
        "rcu",
        "loop",
        "classify",
        "handle",
    ];
    for compiler in compilers(Language::Cpp) {
        let program = installed.compile(compiler, "tests/programs/terminate.cpp", &["-O1"]);
        for way in ways {
            let output = Program::start(Command::new(&program).arg(way)).finish();
            assert_eq!(text(&output.stdout), "terminate was called\n", "{way}: {}", text(&output.stderr));
            assert_eq!(output.status.code(), Some(70), "{way}");
        }
    }
}

#[test]
fn a_loop_that_its_handler_frees_ends_the_process() {
    let Some(installed) = Installed::get() else { return };
    let program =
        installed.compile(compilers(Language::C)[0], "tests/programs/misuse.c", &["-O1", "-D_GNU_SOURCE"]);
    for way in ["at-once", "after-nested-run"] {
        let output = Program::start(Command::new(&program).arg(way)).finish();
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        let is_refused = !output.status.success() && errors.contains("a handler frees its loop");
        assert!(is_refused && out == "frees the loop\n", "{way}: {out}{errors}");
    }
}

/// Compilers and libraries with `std::format`: gcc 13, and clang 19 with LLVM's library, where stop
/// tokens are still called experimental.
#[test]
fn errors_are_formatted_where_the_standard_library_has_format() {
    let Some(installed) = Installed::get() else { return };
    let llvm = ["-stdlib=libc++", "-fexperimental-library"];
    let candidates = [("c++", &[][..]), ("clang++", &llvm), ("clang++-19", &llvm)];
    let has_format = |&(compiler, options): &(&str, &[&str])| {
        let probe = ["-std=c++20", "-include", "version", "-dM", "-E", "-x", "c++", "/dev/null"];
        let macros = Command::new(compiler).args(options).args(probe).output();
        macros.is_ok_and(|macros| text(&macros.stdout).contains("__cpp_lib_format "))
    };
    let Some((compiler, options)) = candidates.into_iter().find(has_format) else {
        return println!("skipped: no compiler here has std::format (gcc 13; clang 19 with libc++)");
    };
    let options = [&["-O1"], options].concat();
    let program = installed.compile(compiler, "tests/programs/api.cpp", &options);
    check(&mut Command::new(program), PATIENCE, "ok\n");
}

#[test]
fn a_program_whose_malloc_is_not_guarded_does_not_start() {
    let Some(installed) = Installed::get() else { return };
    let compiler = compilers(Language::C)[0];
    let alone: Vec<_> =
        installed.shared().into_iter().filter(|option| option != "-ltailwater-malloc").collect();
    let program = installed.compile_with(compiler, "examples/echo.c", &["-O1", "-DALONE"], &alone);
    let output = Program::start(Command::new(program).arg("0")).finish();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("link libtailwater-malloc before"), "{}", text(&output.stderr));
}
