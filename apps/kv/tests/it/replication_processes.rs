//! A primary and its backups as processes on kernel sockets: what is left when they are killed, and
//! what the command line refuses.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::process::Signal;
use tailwater_testkit::store::{Client, secret};
use tailwater_testkit::{Program, until};

const CLIENTS: usize = 4;

fn command(secret: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-kv"));
    command.args(["--linux", "-p", "0", "--secret"]).arg(secret).args(words);
    command
}

struct Node {
    program: Program,
    clients: String,
    primary: String,
}

/// Returns a process once it listens.
fn start(secret: &Path, words: &[&str]) -> Node {
    let mut program = Program::start(&mut command(secret, words));
    let clients = program.line_after("listening on ");
    let primary = match words.contains(&"--backup") {
        true => program.line_after("listening on ").trim_end_matches(" for a primary").to_owned(),
        false => String::new(),
    };
    Node { program, clients, primary }
}

fn connect(address: &str) -> Client {
    Client::connect(address).unwrap()
}

/// The last answered value of a key, and the one that was sent after it.
type Written = HashMap<String, (String, String)>;

/// Writes to keys of its own until the primary is gone; counts answers.
fn write_until_it_dies(address: &str, client: usize, answered: &AtomicU32) -> Written {
    let (mut stream, mut written) = (connect(address), Written::new());
    for round in 0.. {
        let key = format!("k{client}.{}", round % 17);
        let value = format!("{round}:{}", "x".repeat(round * 37 % 3000));
        let entry = written.entry(key.clone()).or_default();
        entry.1.clone_from(&value);
        match stream.set(&key, &value) {
            Ok(answer) => assert_eq!(answer, "STORED"),
            Err(_) => break,
        }
        entry.0 = value;
        answered.fetch_add(1, Relaxed);
    }
    written
}

#[test]
fn all_that_was_answered_outlives_a_backup_and_the_primary() {
    let folder = tempfile::tempdir().unwrap();
    let secret = secret(folder.path(), "a1");
    let backup = ["--backup", "0"];
    let [mut kept, mut killed] = [start(&secret, &backup), start(&secret, &backup)];
    let both = format!("{},{}", kept.primary, killed.primary);
    let words = ["--replicate", &both, "--on-backup-loss", "degrade", "--backup-timeout", "600"];
    let mut primary = start(&secret, &words);
    for _ in 0..2 {
        primary.program.error_line_with(" is in step");
    }
    let answered = AtomicU32::new(0);
    let written: Vec<Written> = std::thread::scope(|scope| {
        let write = |client| {
            let (address, answered) = (&primary.clients, &answered);
            scope.spawn(move || write_until_it_dies(address, client, answered))
        };
        let clients: Vec<_> = (0..CLIENTS).map(write).collect();
        until("writes are answered", || answered.load(Relaxed) >= 200);
        killed.program.kill();
        let at_loss = answered.load(Relaxed);
        until("writes are answered without it", || answered.load(Relaxed) >= at_loss + 200);
        primary.program.process().kill().unwrap();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    // It reads what there is of its primary's connection before it notices the end.
    kept.program.error_line_with(" is lost: ");
    let mut reader = connect(&kept.clients);
    for (key, (last, next)) in written.iter().flatten() {
        let there = reader.get(key).unwrap_or_default();
        assert!(there == *last || there == *next, "{key}: {last:.10} was answered, not {there:.10}");
    }
    // It takes the primary's place, with its own backup, which is empty and gets everything.
    assert!(reader.set("new", "1").unwrap().starts_with("SERVER_ERROR this is a backup"));
    kept.program.signal(Signal::USR1);
    kept.program.error_line_with("promoted: this is a primary now");
    assert_eq!(reader.set("new", "1").unwrap(), "STORED");
}

#[test]
fn a_promoted_backup_replicates_to_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let secret = secret(folder.path(), "b2");
    let last = start(&secret, &["--backup", "0"]);
    let mut middle =
        start(&secret, &["--backup", "0", "--replicate", &last.primary, "--backup-timeout", "600"]);
    let mut first = start(&secret, &["--replicate", &middle.primary, "--backup-timeout", "600"]);
    first.program.error_line_with(" is in step");
    assert_eq!(connect(&first.clients).set("a", "1").unwrap(), "STORED");
    assert_eq!(connect(&last.clients).get("a"), None, "it has no primary yet");
    first.program.kill();
    middle.program.signal(Signal::USR1);
    middle.program.error_line_with(" is in step");
    assert_eq!(connect(&last.clients).get("a").as_deref(), Some("1"));
    assert_eq!(connect(&middle.clients).set("a", "2").unwrap(), "STORED");
    assert_eq!(connect(&last.clients).get("a").as_deref(), Some("2"));
}

#[test]
fn a_complete_copy_outlives_a_primary_that_starts_anew() {
    let folder = tempfile::tempdir().unwrap();
    let secret = secret(folder.path(), "b3");
    let mut backup = start(&secret, &["--backup", "0"]);
    let words = ["--replicate", &backup.primary, "--backup-timeout", "600"];
    let mut first = start(&secret, &words);
    first.program.error_line_with(" is in step");
    assert_eq!(connect(&first.clients).set("a", "1").unwrap(), "STORED");
    first.program.kill();
    // As a service manager does.
    let mut again = start(&secret, &words);
    again.program.error_line_with("keeps the complete copy of another primary");
    let refused = connect(&again.clients).set("a", "2").unwrap();
    assert!(refused.starts_with("SERVER_ERROR a backup is lost"), "{refused}");
    backup.program.error_line_with("promote this with SIGUSR1, or restart it");
    let mut client = connect(&backup.clients);
    assert_eq!(client.get("a").as_deref(), Some("1"));
    backup.program.signal(Signal::USR1);
    backup.program.error_line_with("promoted: this is a primary now");
    assert_eq!(client.set("a", "3").unwrap(), "STORED");
    again.program.error_line_with("it was promoted and is a primary now; stop this one");
}

#[test]
fn a_promoted_backup_takes_the_other_backups_from_its_primary() {
    let folder = tempfile::tempdir().unwrap();
    let secret = secret(folder.path(), "b4");
    let shared = start(&secret, &["--backup", "0"]);
    let words = ["--backup", "0", "--replicate", &shared.primary, "--backup-timeout", "600"];
    let mut promoted = start(&secret, &words);
    let both = format!("{},{}", promoted.primary, shared.primary);
    let mut old = start(&secret, &["--replicate", &both, "--backup-timeout", "600"]);
    for _ in 0..2 {
        old.program.error_line_with(" is in step");
    }
    assert_eq!(connect(&old.clients).set("a", "1").unwrap(), "STORED");
    // The old one is alive, and connected to both.
    promoted.program.signal(Signal::USR1);
    promoted.program.error_line_with(" is in step");
    assert_eq!(connect(&promoted.clients).set("a", "2").unwrap(), "STORED");
    // Without an answer the outcome is unknown; later changes are refused.
    let answer = connect(&old.clients).set("a", "3").unwrap_or_default();
    assert!(answer.is_empty() || answer.starts_with("SERVER_ERROR a backup is lost"), "{answer}");
    old.program.error_line_with("stop this one, which is out of date");
    for node in [&promoted, &shared] {
        assert_eq!(connect(&node.clients).get("a").as_deref(), Some("2"));
    }
}

#[test]
fn backups_that_cannot_serve_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (secret(folder.path(), "c3"), secret(folder.path(), "d4"));
    let backup = start(&ours, &["--backup", "0", "-m", "32"]);
    for (secret, words, why) in [
        (&theirs, &["-m", "32"][..], "it has another secret"),
        (&ours, &["-m", "64"], "start it with at least the same -m"),
        (&ours, &["-m", "32", "-M"], "the same -M"),
    ] {
        let words = [&["--replicate", &backup.primary], words].concat();
        let mut primary = start(secret, &words);
        primary.program.error_line_with(why);
        let refused = connect(&primary.clients).set("a", "1").unwrap();
        assert!(refused.starts_with("SERVER_ERROR a backup is lost"), "{refused}");
    }
    // Without evictions, what one part holds has to fit into one part.
    let full = start(&ours, &["--backup", "0", "-m", "32", "-M"]);
    for (memory, line) in [("17", "exactly the same -m and -I"), ("32", " is in step")] {
        let mut primary = start(&ours, &["--replicate", &full.primary, "-m", memory, "-M"]);
        primary.program.error_line_with(line);
    }
    // The port of clients is not that of primaries.
    let mut primary = start(&ours, &["--replicate", &backup.clients, "-m", "32"]);
    primary.program.error_line_with("give the port after --backup");
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (good, open) = (secret(folder.path(), "e5"), secret(folder.path(), "f6"));
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o644)).unwrap();
    let short = folder.path().join("short");
    std::fs::write(&short, "abc").unwrap();
    std::fs::set_permissions(&short, PermissionsExt::from_mode(0o600)).unwrap();
    for (secret, words, advice) in [
        (&open, &["--backup", "0"][..], "chmod 600"),
        (&short, &["--backup", "0"], "openssl rand -hex 16"),
        (&folder.path().join("none"), &["--backup", "0"], "cannot read"),
        (&good, &["--backup", "0", "-U", "11211"], "--udp-port"),
        (&good, &["--replicate", "backup:11311"], "invalid socket address"),
        (&good, &["--replicate", "127.0.0.1:1", "--on-backup-loss", "wait"], "refuse, degrade"),
        (&good, &["--replicate", "127.0.0.1:1,127.0.0.1:1"], "named twice"),
        (&good, &[], "give --replicate or --backup"),
    ] {
        let output = Program::start(&mut command(secret, words)).finish();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(advice), "{words:?}: {said}");
    }
    let mut without = Command::new(env!("CARGO_BIN_EXE_tailwater-kv"));
    let without = without.args(["--linux", "-p", "0", "--backup", "0"]);
    let output = Program::start(without).finish();
    assert!(String::from_utf8_lossy(&output.stderr).contains("--secret"), "{output:?}");
}
