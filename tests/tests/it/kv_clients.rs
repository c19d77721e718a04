//! The store over TAP, used by third-party memcached clients. Each test is skipped, with a message,
//! if its client is not installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use tailwater_testkit::{PATIENCE, Program, is_installed, run};
use tailwater_tests::clients::{text, with};
use tailwater_tests::tap::bench_with_tap;
use tailwater_tests::{Bench, Role};

fn store(bench: &Bench) -> Role {
    bench.child("kv", "kv", "latency-critical")
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name)
}

#[test]
fn memcapable_finds_both_protocols_as_they_should_be() {
    with("memccapable", "libmemcached-tools", || {
        let bench = bench_with_tap(1500);
        let store = store(&bench);
        let ip = store.ip.to_string();
        let output = run(Command::new("memccapable").args(["-h", &ip, "-p", "11211", "-t", "20"]), b"");
        let text = text(&output);
        assert!(output.status.success() && text.contains("All tests passed"), "{text}");
    });
}

#[test]
fn files_are_copied_there_and_back() {
    with("memccp", "libmemcached-tools", || {
        let bench = bench_with_tap(1500);
        let store = store(&bench);
        let folder = tempfile::tempdir().expect("a folder");
        let contents: Vec<u8> = (0..500_000u32).map(|i| b'a' + (i.wrapping_mul(i) >> 9) as u8 % 26).collect();
        let file = folder.path().join("contents");
        std::fs::write(&file, &contents).expect("room for a file");
        for binary in [false, true] {
            let servers = format!("--servers={}:11211", store.ip);
            let client = |program: &str, argument: &std::ffi::OsStr| {
                let mut command = Command::new(program);
                command.arg(&servers).args(binary.then_some("--binary")).arg(argument);
                run(&mut command, b"")
            };
            let copied = client("memccp", file.as_os_str());
            assert!(copied.status.success(), "{}", text(&copied));
            let got = client("memccat", "contents".as_ref());
            assert!(got.stdout.trim_ascii_end() == contents, "{} bytes came back", got.stdout.len());
            let removed = client("memcrm", "contents".as_ref());
            assert!(removed.status.success(), "{}", text(&removed));
            assert!(!client("memcexist", "contents".as_ref()).status.success());
        }
    });
}

#[test]
fn a_load_generator_that_verifies_finds_every_value() {
    with("memcaslap", "libmemcached-tools", || {
        let bench = bench_with_tap(1500);
        let store = store(&bench);
        let servers = format!("{}:11211", store.ip);
        for protocol in [&[][..], &["--binary"]] {
            let mut client = Command::new("memcaslap");
            client.args(["-s", &servers, "-T", "1", "-c", "8", "-x", "20000", "-v", "1", "-d", "5"]);
            let output = run(client.args(protocol), b"");
            let text = text(&output);
            let zero = ["get_misses: 0", "verify_misses: 0", "verify_failed: 0"];
            assert!(output.status.success() && zero.iter().all(|line| text.contains(line)), "{text}");
        }
    });
}

#[test]
fn python_programs_work() {
    // Debian's interpreter, for which its package is.
    let python = "/usr/bin/python3";
    let imports = Command::new(python).args(["-c", "import pymemcache"]).output();
    if !imports.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: no pymemcache (Debian: python3-pymemcache)");
    }
    with("python3", "python3", || {
        let bench = bench_with_tap(1500);
        let store = store(&bench);
        let output = run(Command::new(python).arg(file("kv.py")).arg(store.ip.to_string()), b"");
        assert!(output.status.success(), "{}", text(&output));
    });
}

#[test]
fn go_programs_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("kv-go");
    if !is_installed("go", "golang-go") {
        return;
    }
    // Outside the namespace, where the module proxy can be reached, if there is one.
    let mut build = Command::new("go");
    build.current_dir(file("kv-go")).args(["build", "-mod=readonly", "-o"]).arg(&program).arg(".");
    let mut build = Program::start(&mut build);
    if !build.wait_for(PATIENCE).is_some_and(|status| status.success()) {
        return eprintln!("skipped: the Go client cannot be built here: {}", build.errors());
    }
    with("go", "golang-go", || {
        let bench = bench_with_tap(1500);
        let store = store(&bench);
        let output = run(Command::new(&program).arg(format!("{}:11211", store.ip)), b"");
        assert!(output.status.success() && output.stdout == b"ok\n", "{}", text(&output));
    });
}
