//! Every subcommand explains itself, and the daemon, services and statistics work together.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn tailwater(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tailwater")).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A child that is killed when the test ends, however it ends.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_subcommand_has_help_with_examples() {
    for words in [
        &["--help"][..],
        &["demo", "--help"],
        &["iokernel", "--help"],
        &["run", "--help"],
        &["load", "--help"],
        &["compare", "--help"],
        &["stats", "--help"],
        &["capture", "--help"],
        &["kv", "--help"],
        &["doctor", "--help"],
        &["bench", "--help"],
        &["bench", "handoff", "--help"],
        &["bench", "switch", "--help"],
        &["bench", "threads", "--help"],
        &["sim", "--help"],
        &["reproduce", "--help"],
    ] {
        let output = tailwater(words);
        let help = text(&output.stdout);
        assert!(output.status.success(), "{words:?}");
        assert!(help.contains("Usage:") && help.contains("Example"), "{words:?}:\n{help}");
        assert!(!help.contains("tailwater app"), "the hidden command shows in {words:?}");
    }
}

#[test]
fn misuse_is_explained() {
    for (words, part) in [
        (&["demo", "--loads", "0"][..], "percentage"),
        (&["demo", "--service", "exp:1s"], "mean"),
        (&["load", "127.0.0.1:1"], "--rate"),
        (&["iokernel", "--managed-cores", "x"], "core number"),
        (&["iokernel", "--tap", "tw0"], "--host-ip"),
        (&["iokernel", "--xdp", "eth1", "--tap", "tw0", "--host-ip", "10.77.0.1"], "cannot be used with"),
        (&["capture"], "--write"),
        (&["run"], "PROGRAM"),
        (&["bench", "threads", "--systems", "pthreads"], "tailwater-shared-tls"),
    ] {
        let output = tailwater(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(part), "{words:?}: {}", text(&output.stderr));
    }
    let output = tailwater(&["stats", "--iokernel", "@tailwater-nobody-here"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("start one with"), "{}", text(&output.stderr));
}

#[test]
fn the_printed_configuration_is_one_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tailwater.toml");
    let first = tailwater(&["iokernel", "--print-config", "--core", "3", "--managed-cores", "4-6"]);
    std::fs::write(&file, &first.stdout).unwrap();
    let second = tailwater(&["iokernel", "--print-config", "--config", file.to_str().unwrap()]);
    assert_eq!(text(&first.stdout), text(&second.stdout));
    assert!(text(&first.stdout).contains("managed-cores = [4, 5, 6]"), "{}", text(&first.stdout));
}

#[test]
fn a_started_service_shows_in_the_statistics_and_everything_ends_when_told() {
    let socket = format!("@tailwater-test-{}", std::process::id());
    let mut iokernel = Guard(
        Command::new(env!("CARGO_BIN_EXE_tailwater"))
            .args(["iokernel", "--socket", &socket, "--log", "warn"])
            .spawn()
            .unwrap(),
    );
    let deadline = Instant::now() + Duration::from_secs(60);
    while !tailwater(&["stats", "--iokernel", &socket]).status.success() {
        assert!(Instant::now() < deadline, "the IOKernel does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    let exe = env!("CARGO_BIN_EXE_tailwater");
    let mut service = Guard(
        Command::new(exe)
            .args(["run", "--iokernel", &socket, "--name", "spin-under-test", "--kthreads", "1", "--", exe])
            .args(["app", "spin", "--listen", "0.0.0.0:5000"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut line = String::new();
    BufReader::new(service.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "{line}");
    let shown = text(&tailwater(&["stats", "--iokernel", &socket]).stdout);
    assert!(shown.contains("spin-under-test") && shown.contains("latency-critical"), "{shown}");
    let json = tailwater(&["stats", "--iokernel", &socket, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["runtimes"][0]["name"], "spin-under-test");
    for child in [&mut service.0, &mut iokernel.0] {
        let kill = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let deadline = Instant::now() + Duration::from_secs(30);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "a process does not end when told");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "{status}");
    }
}
