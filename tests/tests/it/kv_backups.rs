//! A primary of the store and its backup, both attached to one IOKernel and served over TAP: the
//! backup is killed while clients write. On kernel sockets the store's own package has such tests.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::process::Signal;
use tailwater_testkit::store::{Client, secret};
use tailwater_testkit::{Program, binary, stat, until};
use tailwater_tests::Bench;
use tailwater_tests::tap::{bench_with_tap, in_tap_namespace};

const PRIMARY: &str = "10.77.0.31";
const BACKUP: &str = "10.77.0.32";
const CLIENTS_PORT: u16 = 11211;
const PRIMARYS_PORT: u16 = 11311;
/// Clients that write at the same time, each to keys of its own.
const WRITERS: usize = 3;
const KEYS: usize = 17;
/// Answers that are waited for before a backup is killed, and after.
const MANY: u32 = 200;
/// Seconds after which a silent backup is lost. A live one that stands still for as long on a busy
/// machine comes back: no check depends on how often it is lost.
const TIMEOUT_S: &str = "2";
const REFUSED: &str = "SERVER_ERROR a backup is lost";

/// Returns a store that is attached to the bench's IOKernel under this name and address, once it
/// listens.
fn start(bench: &Bench, (name, ip): (&str, &str), secret: &Path, words: &[&str]) -> Program {
    let mut command = Command::new(binary("tailwater-kv", "tailwater-kv"));
    command.args(["-p", &CLIENTS_PORT.to_string(), "-m", "32", "--secret"]).arg(secret).args(words);
    for (variable, value) in [
        ("TAILWATER_IOKERNEL", bench.socket()),
        ("TAILWATER_NAME", name),
        ("TAILWATER_IP", ip),
        ("TAILWATER_KTHREADS", "1"),
    ] {
        command.env(variable, value);
    }
    let mut program = Program::start(&mut command);
    program.line_after("listening on ");
    program
}

fn start_backup(bench: &Bench, secret: &Path) -> Program {
    start(bench, ("backup", BACKUP), secret, &["--backup", &PRIMARYS_PORT.to_string()])
}

fn connect(ip: &str) -> io::Result<Client> {
    Client::connect((ip, CLIENTS_PORT))
}

/// What writers and the test tell each other.
#[derive(Default)]
struct Shared {
    /// The backup is dead: what is written from now on is at no backup.
    killed: AtomicBool,
    ended: AtomicBool,
    /// Writes that were stored, of those begun before the death and after.
    stored: [AtomicU32; 2],
    refused: AtomicU32,
    /// Connections that ended without an answer.
    lost: AtomicU32,
}

impl Shared {
    fn count(counter: &AtomicU32) -> u32 {
        counter.load(Ordering::Relaxed)
    }
}

/// The last answered value of a key, and those sent after it, whose outcome is not known.
type Written = HashMap<String, (String, Vec<String>)>;

/// Writes to keys of its own until it is told to end.
fn write(number: usize, shared: &Shared) -> Written {
    let (mut written, mut client) = (Written::new(), connect(PRIMARY).unwrap());
    for round in 0.. {
        // Acquire: pairs with the Release after the kill.
        let killed = shared.killed.load(Ordering::Acquire);
        if shared.ended.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("k{number}.{}", round % KEYS);
        let value = format!("{round}:{}", "x".repeat(round * 37 % 3000));
        let entry = written.entry(key.clone()).or_default();
        match client.set(&key, &value) {
            Ok(answer) if answer == "STORED" => {
                *entry = (value, Vec::new());
                shared.stored[usize::from(killed)].fetch_add(1, Ordering::Relaxed);
            }
            Ok(answer) => {
                assert!(answer.starts_with(REFUSED), "{answer}");
                shared.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {
                entry.1.push(value);
                shared.lost.fetch_add(1, Ordering::Relaxed);
                client = connect(PRIMARY).unwrap();
            }
        }
    }
    written
}

/// Returns the keys of which a store has neither what was answered nor something later.
fn missing<'a>(ip: &str, written: &'a [Written]) -> Vec<&'a str> {
    let mut reader = connect(ip).unwrap();
    let mut is_missing = |last: &String, unknown: &[String], key: &str| {
        let there = reader.get(key).unwrap_or_default();
        there != *last && !unknown.contains(&there)
    };
    let all = written.iter().flatten();
    let missing = all.filter(|(key, (last, unknown))| is_missing(last, unknown, key));
    missing.map(|(key, _)| key.as_str()).collect()
}

/// Has a client write once; counts it if it gets no answer.
fn write_once(shared: &Shared) {
    if connect(PRIMARY).unwrap().set("once", "1").is_err() {
        shared.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns whether no thread of process `pid` runs, because of SIGSTOP.
fn has_stopped(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let ids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    ids.map(|id| stat(id, 3)).all(|state| state.as_deref() == Some("T"))
}

/// Kills the backup of a primary with this `--on-backup-loss` while clients write, at least one of
/// which waits for it, and calls `then` while they go on; returns what they wrote, with the bench
/// and the primary.
fn kill_backup(
    on_loss: &str,
    secret: &Path,
    shared: &Shared,
    then: impl FnOnce(&Shared),
) -> (Bench, Program, Vec<Written>) {
    let bench = bench_with_tap(1500);
    let mut backup = start_backup(&bench, secret);
    let address = format!("{BACKUP}:{PRIMARYS_PORT}");
    let words = ["--replicate", &address, "--on-backup-loss", on_loss, "--backup-timeout", TIMEOUT_S];
    let mut primary = start(&bench, ("primary", PRIMARY), secret, &words);
    primary.error_line_with(" is in step");
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|number| scope.spawn(move || write(number, shared))).collect();
        until("writes are answered", || Shared::count(&shared.stored[0]) >= MANY);
        // The primary learns of a death at once: so that the death finds a write that waits, one is
        // begun while the backup cannot answer.
        backup.signal(Signal::STOP);
        until("the backup stands still", || has_stopped(backup.pid()));
        let mut reader = connect(PRIMARY).unwrap();
        let before = reader.stat("cmd_set");
        scope.spawn(|| write_once(shared));
        // Unless the machine is so busy that the backup is lost by its silence already.
        until("a write waits for the backup", || {
            reader.stat("cmd_set") > before || Shared::count(&shared.lost) > 0
        });
        backup.kill();
        shared.killed.store(true, Ordering::Release);
        then(shared);
        shared.ended.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    primary.error_line_with(" is lost: ");
    (bench, primary, written)
}

#[test]
fn with_refuse_no_write_is_answered_without_the_backup_and_all_are_once_another_is_there() {
    in_tap_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let (secret, shared) = (secret(folder.path(), "a7"), Shared::default());
        let (bench, mut primary, written) = kill_backup("refuse", &secret, &shared, |shared| {
            let before = Shared::count(&shared.refused);
            until("writes are refused", || Shared::count(&shared.refused) >= before + MANY);
        });
        assert_eq!(Shared::count(&shared.stored[1]), 0, "answered, and at no backup");
        assert!(Shared::count(&shared.lost) >= 1, "those that waited for the backup have no answer");
        assert_eq!(missing(PRIMARY, &written), [""; 0], "reads are served");
        let _backup = start_backup(&bench, &secret);
        let write = || connect(PRIMARY)?.set("new", "1");
        until("writes are answered again", || write().is_ok_and(|answer| answer == "STORED"));
        until("the backup has all that was answered", || missing(BACKUP, &written).is_empty());
        assert!(primary.is_running());
    });
}

#[test]
fn with_degrade_clients_go_on_without_the_backup_and_lose_no_connection() {
    in_tap_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let (secret, shared) = (secret(folder.path(), "a7"), Shared::default());
        let (_bench, mut primary, written) = kill_backup("degrade", &secret, &shared, |shared| {
            until("writes are answered without it", || Shared::count(&shared.stored[1]) >= MANY);
        });
        assert_eq!((Shared::count(&shared.lost), Shared::count(&shared.refused)), (0, 0));
        assert_eq!(missing(PRIMARY, &written), [""; 0]);
        assert!(primary.is_running());
    });
}
