//! The `tailwater-kv` program: what its options make it do.

use std::net::SocketAddr;
use std::process::Command;

use rustix::process::Signal;
use tailwater_testkit::store::Client;
use tailwater_testkit::{Program, is_installed, text, until};

/// Returns a standalone program with a UDP port, once it listens.
fn start(kthreads: &str, options: &[&str]) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-kv"));
    command
        .args(["-U", "11211"])
        .args(options)
        .envs([("TAILWATER_KTHREADS", kthreads), ("TAILWATER_DUMP_SIGNAL", "quit")]);
    let mut kv = Program::start(&mut command);
    kv.line_with(" for datagrams");
    kv
}

/// Returns the number of user threads of this name in the dump that the program prints on a signal.
fn user_threads(kv: &mut Program, name: &str) -> usize {
    kv.signal(Signal::QUIT);
    let count = loop {
        let line = kv.error_line().expect("a dump");
        let count = line.strip_prefix("tailwater: ").and_then(|rest| rest.strip_suffix(" user threads"));
        if let Some(count) = count.and_then(|count| count.parse::<usize>().ok()) {
            break count;
        }
    };
    // Each has a paragraph, which begins with its name, or its number if it has none.
    let mut paragraph = || loop {
        let line = kv.error_line().expect("a whole dump");
        if line.starts_with("user thread ") {
            return line;
        }
    };
    (0..count).filter(|_| paragraph().starts_with(&format!("user thread '{name}' "))).count()
}

#[test]
fn datagrams_are_served_on_as_many_cores_as_the_runtime_has() {
    for (kthreads, options, wanted) in [("3", &[][..], 3), ("1", &[], 1), ("1", &["-t", "2"], 2)] {
        let mut kv = start(kthreads, options);
        assert_eq!(user_threads(&mut kv, "kv-udp"), wanted, "{kthreads} kthreads, options {options:?}");
    }
}

#[test]
fn a_client_that_is_silent_is_asked_whether_it_is_there() {
    if !is_installed("ss", "iproute2") {
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-kv"));
    let mut kv = Program::start(command.args(["--linux", "-p", "0"]));
    let address: SocketAddr = kv.line_after("listening on ").split(' ').next().unwrap().parse().unwrap();
    let mut client = Client::connect(address).unwrap();
    // An answer: the connection is accepted and set up.
    client.set("key", "value").unwrap();
    let filter = format!("sport = :{}", address.port());
    // While the answer is not acknowledged the socket has another timer.
    until("`ss` shows a keepalive timer", || {
        let shown = Command::new("ss").args(["-tnoH", "state", "established", &filter]).output().unwrap();
        text(&shown.stdout).contains("timer:(keepalive")
    });
}

#[test]
fn options_of_memcacheds_scripts_are_accepted_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let words =
        ["-d", "-vv", "-u", "root", "-k", "-o", "modern,idle_timeout=7", "-P", file.to_str().unwrap()];
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-kv"));
    let mut kv = Program::start(command.args(["--linux", "-p", "0"]).args(words));
    kv.line_after("listening on ");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{}\n", kv.pid()));
    for option in ["-d", "-v", "-u", "-k", "-o modern"] {
        let line = kv.error_line().expect("a line for each");
        assert!(line.starts_with(&format!("tailwater-kv: {option} has no effect: ")), "{line}");
    }
    kv.signal(Signal::TERM);
    assert!(kv.finish().status.success() && !file.exists(), "it is removed at the end");
}

#[test]
fn a_file_for_the_process_id_is_there_while_the_service_listens() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let words = ["-P", file.to_str().unwrap()];
    let kv = start("1", &words);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{}\n", kv.pid()));
    kv.signal(Signal::TERM);
    assert!(kv.finish().status.success() && !file.exists());
    // A start that fails leaves none.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-kv"));
    let output = command.args(["--linux", "-p", &port]).args(words).output().unwrap();
    assert!(!output.status.success() && !file.exists(), "{output:?}");
}

#[test]
fn a_unix_socket_is_refused_before_anything_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let words = ["--linux", "-p", "0", "-s", "/run/kv.sock", "-P", file.to_str().unwrap()];
    let output = Command::new(env!("CARGO_BIN_EXE_tailwater-kv")).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(said.contains("-s is not possible") && !file.exists(), "{said}");
}

#[test]
fn a_standalone_service_says_once_that_no_other_process_reaches_it() {
    let mut kv = start("1", &[]);
    assert_eq!(user_threads(&mut kv, "main"), 1);
    let said = kv.errors();
    assert_eq!(said.matches("no other process reaches it").count(), 1, "{said}");
    assert!(said.contains("tailwater run") && said.contains("--tap"), "{said}");
}

#[test]
fn a_dispatcher_reports_its_classes_at_the_end() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-kv"));
    command.args(["-p", "0", "--dispatch", "mq:5us", "--large", "10"]).env("TAILWATER_KTHREADS", "1");
    let mut kv = Program::start(&mut command);
    kv.line_with("listening on ");
    kv.signal(Signal::TERM);
    for class in ["short", "large"] {
        let line = kv.line().expect("a line for each class");
        assert!(line.starts_with(&format!("class {class}: 0 accepted, 0 dropped, ")), "{line}");
    }
    assert!(kv.finish().status.success());
}

#[test]
fn a_dispatcher_with_a_kthread_of_its_own_serves_and_a_quantum_beside_its_policy_stays_off() {
    for words in [&["--dispatch", "jbsq:2,5us"][..], &["--dispatch", "mq:5us", "--dispatchers", "1"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-kv"));
        command
            .args(["-p", "0"])
            .args(words)
            .envs([("TAILWATER_KTHREADS", "2"), ("TAILWATER_QUANTUM_US", "15")]);
        let mut kv = Program::start(&mut command);
        kv.error_line_with("the quantum of 15 us stays off: requests run in the order of --dispatch");
        kv.line_with("listening on ");
        kv.signal(Signal::TERM);
        assert!(kv.finish().status.success());
    }
}

#[test]
fn modes_that_exclude_one_another_are_refused() {
    for (words, advice) in [
        (&["--dispatch", "mq:5us", "-U", "11211"][..], "leave -U or --dispatch out"),
        (&["--dispatch", "mq:5us", "--linux"], "--linux"),
        (&["--dispatch", "srpt"], "use mq:5us"),
        (&["--dispatch", "fifo"], "use c-fcfs, steal[:N], ps:QUANTUM"),
        (&["--dispatch", "mq:5us", "--large", "0"], "--large"),
        (&["--large", "10"], "--dispatch"),
        (&["--events", "--dispatch", "mq:5us"], "--dispatch"),
        (&["--events", "--linux"], "--linux"),
        (&["--idle-timeout", "1500ms"], "30s"),
        (&["--replicate", "127.0.0.1:1", "--backup-timeout", "2h"], "1s to 1h"),
        (&["--events", "--backup", "0"], "--backup"),
        (&["--dispatchers", "1"], "--dispatch"),
        (&["--dispatch", "mq:5us", "--dispatchers", "65"], "--dispatchers"),
        (&["--dispatch", "jbsq:2,5us"], "--kthreads 2"),
        (&["--dispatch", "steal", "-t", "2", "--dispatchers", "1"], "use c-fcfs"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-kv"));
        let output = command.args(["-p", "0"]).args(words).env("TAILWATER_KTHREADS", "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(advice), "{words:?}: {said}");
    }
}

#[test]
fn an_estimate_of_cores_is_refused_where_none_can_be_requested() {
    for (words, advice) in
        [(&["--estimate-cores"][..], "`tailwater run`"), (&["--estimate-cores", "--linux"], "--linux")]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-kv"));
        command.args(["-p", "0"]).args(words).env("TAILWATER_KTHREADS", "1");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(advice), "{words:?}: {said}");
    }
}
