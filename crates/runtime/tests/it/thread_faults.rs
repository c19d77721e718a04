//! The output of a program when a user thread panics or overflows its stack. Each test runs itself
//! in a child process.

use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use tailwater::thread;
use tailwater_testkit::{is_rerun, rerun};

/// Runs `main` in its own process, which is this test again, and returns its status and standard
/// error.
fn in_child(test: &str, main: impl FnOnce()) -> (Output, String) {
    if is_rerun(test) {
        main();
        std::process::exit(0);
    }
    let mut command = rerun(module_path!(), test);
    command.env("RUST_BACKTRACE", "0");
    let output = tailwater_testkit::run(&mut command, b"");
    let text = tailwater_testkit::text(&output.stderr);
    (output, text)
}

fn run(main: impl FnOnce() + Send + 'static) {
    tailwater::RuntimeBuilder::new().kthreads(2).run(main).unwrap();
}

#[inline(never)]
fn overflow(n: u64) -> u64 {
    let frame = std::hint::black_box([n; 16]);
    if n == u64::MAX { 0 } else { overflow(n + 1) + frame[(n % 16) as usize] }
}

#[test]
fn an_overflow_names_the_thread_its_stack_and_every_remedy() {
    let (output, text) = in_child("an_overflow_names_the_thread_its_stack_and_every_remedy", || {
        run(|| {
            let _ = thread::spawn(|| overflow(0)).join();
        });
    });
    assert_eq!(output.status.signal(), Some(6), "{text}");
    assert!(text.contains("tailwater: user thread "), "{text}");
    assert!(text.contains("has overflowed its stack of 26"), "{text}");
    assert!(text.contains("thread::Builder::stack_size") && text.contains("TAILWATER_STACK_SIZE"), "{text}");
}

#[test]
fn an_overflow_of_a_chosen_stack_names_the_thread_by_name() {
    let (output, text) = in_child("an_overflow_of_a_chosen_stack_names_the_thread_by_name", || {
        run(|| {
            let deep = thread::Builder::new().name("deep one".to_owned()).stack_size(1 << 20);
            let _ = deep.spawn(|| overflow(0)).unwrap().join();
        });
    });
    assert_eq!(output.status.signal(), Some(6), "{text}");
    assert!(text.contains("user thread 'deep one' ("), "{text}");
    assert!(text.contains("overflowed its stack of 10"), "{text}");
    assert!(!text.contains("TAILWATER_STACK_SIZE"), "a remedy that would not help: {text}");
}

#[test]
fn an_overflow_of_an_ordinary_thread_is_reported_by_std() {
    let (output, text) = in_child("an_overflow_of_an_ordinary_thread_is_reported_by_std", || {
        run(|| ());
        let _ = std::thread::spawn(|| overflow(0)).join();
    });
    assert_eq!(output.status.signal(), Some(6), "{text}");
    assert!(text.contains("has overflowed its stack") && !text.contains("user thread"), "{text}");
}

#[test]
fn any_other_fault_of_a_user_thread_is_still_a_fault() {
    let (output, text) = in_child("any_other_fault_of_a_user_thread_is_still_a_fault", || {
        run(|| {
            let nowhere = std::hint::black_box(16 as *const u64);
            // SAFETY: none: the test is about the fault this is.
            println!("{}", unsafe { nowhere.read_volatile() });
        });
    });
    assert_eq!(output.status.signal(), Some(11), "{text}");
    assert!(!text.contains("overflowed"), "{text}");
}

#[test]
fn a_panic_names_the_user_thread_and_runs_the_hook_that_was_there() {
    let (output, text) = in_child("a_panic_names_the_user_thread_and_runs_the_hook_that_was_there", || {
        std::panic::set_hook(Box::new(|info| eprintln!("the program's hook: {info}")));
        run(|| {
            let named = thread::Builder::new().name("worker".to_owned()).spawn(|| panic!("first")).unwrap();
            let id =
                format!("({})", format!("{:?}", named.thread().id()).replace(|c: char| !c.is_numeric(), ""));
            assert!(named.join().is_err(), "the process goes on");
            assert!(thread::spawn(|| panic!("second")).join().is_err());
            assert!(std::thread::spawn(|| panic!("third")).join().is_err());
            eprintln!("named {id}");
        });
    });
    assert!(output.status.success(), "{text}");
    let id = text.split("named ").nth(1).unwrap().trim();
    assert!(
        text.contains(&format!("tailwater: user thread 'worker' {id} panicked:\nthe program's hook: ")),
        "{text}"
    );
    assert_eq!(text.matches("tailwater: user thread ").count(), 2, "an ordinary thread is none: {text}");
    assert_eq!(text.matches("the program's hook").count(), 3, "{text}");
}
