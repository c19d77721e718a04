//! The programs in `examples/`, run as a user would.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tailwater_testkit::{Program, run};

/// Cargo builds examples before it runs all tests of a package, but not for `--test examples`
/// alone.
fn example(name: &str) -> Command {
    // target/PROFILE/deps/TEST -> target/PROFILE/examples/NAME
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(
        path.exists(),
        "{} is missing: build it with `cargo build -p tailwater --examples`",
        path.display()
    );
    let mut command = Command::new(path);
    command.env("TAILWATER_KTHREADS", "3");
    command
}

/// Returns the lines of its output; it must have succeeded.
fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn guests_of_the_chat_hear_each_other() {
    let heard = lines(&run(&mut example("chat"), b""));
    let greetings: HashSet<_> = heard.iter().map(String::as_str).collect();
    assert_eq!(heard.len(), 3);
    assert_eq!(
        greetings,
        HashSet::from(["Ada: good morning!", "Grace: good morning!", "Barbara: good morning!"])
    );
}

#[cfg(feature = "tcp")]
#[test]
fn the_loops_send_every_line_back() {
    assert_eq!(lines(&run(&mut example("echo_events"), b"")), ["2000 lines came back"]);
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn the_hasher_finds_every_file_once_and_in_order() {
    let scratch = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for directory in ["a", "a/b", "a/b/c", "z"] {
        std::fs::create_dir(scratch.path().join(directory)).unwrap();
        for number in 0..60usize {
            let path = scratch.path().join(directory).join(format!("file-{number}"));
            // Some are longer than one read, one is empty.
            let content = vec![number as u8; number * 3001];
            std::fs::write(&path, &content).unwrap();
            expected.push((path.clone(), format!("{:016x} {}", fnv1a(&content), path.display())));
        }
    }
    expected.sort();
    // If it were followed, the walk would never end.
    std::os::unix::fs::symlink(scratch.path(), scratch.path().join("a/loop")).unwrap();
    let found = lines(&run(example("hash_dir").arg(scratch.path()), b""));
    assert_eq!(found, expected.into_iter().map(|(_, line)| line).collect::<Vec<_>>());
}

#[test]
fn the_hasher_says_what_it_cannot_read() {
    let output = run(example("hash_dir").arg("/nonexistent"), b"");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent: No such file"), "{output:?}");
}

#[test]
fn the_pipeline_keeps_the_order_of_its_input() {
    const NUMBERS: u64 = 20_000;
    let input: String = (2..NUMBERS).map(|n| format!("{n}\n")).collect();
    let mut written = lines(&run(example("pipeline").arg("4"), (input + "seven\n").as_bytes()));
    assert_eq!(written.pop().unwrap(), "seven: not a number");
    assert_eq!(written.len() as u64, NUMBERS - 2);
    for (n, line) in (2..).zip(written) {
        let smallest = (2..).find(|f| n % f == 0).unwrap();
        assert_eq!(line, format!("{n}: {smallest}"));
    }
}

#[test]
fn the_pipeline_ends_when_nobody_reads_it() {
    let mut command = example("pipeline");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = Program::spawn_unread(&mut command);
    drop(child.process().stdout.take());
    let mut input = child.take_input();
    // Ends when the program has closed its end.
    let writer = std::thread::spawn(move || while input.write_all(&b"12\n".repeat(1000)).is_ok() {});
    assert!(!child.wait().success());
    writer.join().unwrap();
}
