//! A runtime whose process may not ask for random numbers by `getrandom(2)`, as in a container
//! whose filter of system calls is too narrow. Each test runs itself in a child process.

use crate::filter;
use std::io::{Read, Write};
use tailwater::net::{TcpListener, TcpStream};
use tailwater::thread;
use tailwater_testkit::{is_rerun, rerun, text};

/// What a child prints when no filter can be installed.
const SKIPPED: &str = "no filter";

/// In a child: has the kernel refuse these calls, and serves a connection.
fn serve_without(calls: &[libc::c_long]) {
    if !calls.iter().all(|&call| filter::refuse(call)) {
        println!("{SKIPPED}");
        return;
    }
    let mut byte = [0u8; 1];
    // SAFETY: one byte may be written.
    let got = unsafe { libc::getrandom(byte.as_mut_ptr().cast(), 1, 0) };
    assert_eq!(got, -1, "getrandom(2) is not refused");
    let run = tailwater::RuntimeBuilder::new().kthreads(1).run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || listener.accept().unwrap().0.write_all(b"hello").unwrap());
        let mut answer = String::new();
        TcpStream::connect(address).unwrap().read_to_string(&mut answer).unwrap();
        server.join().unwrap();
        println!("answered {answer}");
    });
    run.unwrap();
}

/// Runs `test` in a child process; returns whether it succeeded and what it printed, or `None`
/// where no filter can be set.
fn in_child(test: &str) -> Option<(bool, String)> {
    let output = tailwater_testkit::run(&mut rerun(module_path!(), test), b"");
    let printed = text(&output.stdout) + &text(&output.stderr);
    if printed.contains(SKIPPED) {
        eprintln!("skipped: the kernel has no filters of system calls");
        return None;
    }
    Some((output.status.success(), printed))
}

#[test]
fn where_getrandom_is_refused_the_device_gives_random_numbers() {
    let test = "where_getrandom_is_refused_the_device_gives_random_numbers";
    if is_rerun(test) {
        return serve_without(&[libc::SYS_getrandom]);
    }
    let Some((succeeded, printed)) = in_child(test) else { return };
    assert!(succeeded && printed.contains("answered hello"), "{printed}");
}

#[test]
fn without_any_random_numbers_the_start_ends_with_the_remedy() {
    let test = "without_any_random_numbers_the_start_ends_with_the_remedy";
    if is_rerun(test) {
        // No file can be opened any more, /dev/urandom neither.
        return serve_without(&[libc::SYS_getrandom, libc::SYS_openat]);
    }
    let Some((succeeded, printed)) = in_child(test) else { return };
    assert!(!succeeded && !printed.contains("answered"), "{printed}");
    for part in ["getrandom(2)", "/dev/urandom", "seccomp", "SystemCallFilter=getrandom"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}
