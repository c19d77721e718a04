//! The program: checks, reload by signal, and its end.

use crate::common::{query, show};
use rustix::process::Signal;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Instant;
use tailwater_testkit::{PATIENCE, Program, run, text};

const HEAD: &str = "$TTL 60\n@ SOA ns h 1 2 3 4 5\n NS ns\nns A 192.0.2.1\n";

fn dns(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-dns"));
    command.args(arguments);
    command
}

#[test]
fn check_reports_all_problems_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("zone");
    let zone = format!("example={}", file.display());
    std::fs::write(&file, HEAD).unwrap();
    let output = run(&mut dns(&["--zone", &zone, "--check"]), b"");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "zone example. serial 1, 3 records\n");
    std::fs::write(&file, format!("{HEAD}a CNAME b\na A 192.0.2.1\nb A 1\n")).unwrap();
    let output = run(&mut dns(&["--zone", &zone, "--check"]), b"");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("zone:5: a.example has a CNAME") && said.contains("zone:7: not understood"),
        "{said}"
    );
}

#[test]
fn hangup_reloads_what_is_right_and_keeps_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|file| folder.path().join(file));
    for file in [&one, &two] {
        std::fs::write(file, HEAD).unwrap();
    }
    let zones = [format!("one={}", one.display()), format!("two={}", two.display())];
    let arguments = ["--linux", "--listen", "127.0.0.1:0", "--zone", &zones[0], "--zone", &zones[1]];
    let mut server = Program::start(&mut dns(&arguments));
    let address = server.line_with("listening on").rsplit(' ').next().unwrap().to_owned();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(&address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask = |name: &str| {
        let mut buf = [0; 512];
        socket.send(&query(name, "A")).unwrap();
        let len = socket.recv(&mut buf).unwrap();
        show(&buf[..len])[0].clone()
    };
    assert_eq!([ask("new.one."), ask("new.two.")], ["NXDOMAIN aa"; 2]);
    std::fs::write(&one, format!("{HEAD}new A 192.0.2.1\n")).unwrap();
    std::fs::write(&two, format!("{HEAD}new A 192.0.2.1\nbad A no\n")).unwrap();
    server.signal(Signal::HUP);
    assert_eq!(server.line_with("reloaded"), "reloaded 1 zones, kept 1");
    assert_eq!([ask("new.one."), ask("new.two.")], ["NOERROR aa", "NXDOMAIN aa"]);
    std::fs::write(&two, format!("{HEAD}new A 192.0.2.1\n")).unwrap();
    server.signal(Signal::HUP);
    assert_eq!(server.line_with("reloaded"), "reloaded 2 zones, kept 0");
    assert_eq!(ask("new.two."), "NOERROR aa");
    let sums = "5 answered over UDP, 0 over TCP, 0 ignored, 0 unsent, 0 connections too many";
    let wanted = [sums, "by type: A 5", "by code: NOERROR 2 NXDOMAIN 3"];
    let began = Instant::now();
    loop {
        server.signal(Signal::USR1);
        let said = ["answered", "by type", "by code"].map(|part| server.line_with(part));
        // An answer is counted a moment after it was sent.
        if said == wanted {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{said:#?}");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.line_with("answered"), sums);
    let output = server.finish();
    assert!(output.status.success());
    let errors = text(&output.stderr);
    assert!(
        errors.contains("two:6: not understood") && errors.contains("1 zones stay as they were"),
        "{errors}"
    );
}

#[test]
fn a_dispatcher_reports_its_classes_and_a_quantum_beside_its_policy_stays_off() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("zone");
    std::fs::write(&file, HEAD).unwrap();
    let zone = format!("example={}", file.display());
    for words in [&["--dispatch", "mq:5us"][..], &["--dispatch", "c-fcfs", "--dispatchers", "1"]] {
        let mut command = dns(&["--listen", "0.0.0.0:5300", "--zone", &zone]);
        command.args(words).envs([("TAILWATER_KTHREADS", "2"), ("TAILWATER_QUANTUM_US", "15")]);
        let mut server = Program::start(&mut command);
        server.error_line_with("the quantum of 15 us stays off: queries run in the order of --dispatch");
        server.line_with("listening on 0.0.0.0:5300");
        server.signal(Signal::TERM);
        server.line_with("0 answered over UDP");
        for class in ["plain", "hashed"] {
            server.line_with(&format!("at 0.0.0.0:5300, class {class}: 0 accepted, 0 dropped, "));
        }
        assert!(server.finish().status.success());
    }
}

#[test]
fn orders_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("zone");
    std::fs::write(&file, HEAD).unwrap();
    let zone = format!("example={}", file.display());
    for (words, advice) in [
        (&["--dispatch", "mq:5us", "--linux"][..], "--linux"),
        (&["--dispatch", "srpt"], "use mq:5us"),
        (&["--dispatch", "fifo"], "use c-fcfs, steal[:N], ps:QUANTUM"),
        (&["--dispatchers", "1"], "--dispatch"),
        (&["--dispatch", "mq:5us", "--dispatchers", "65"], "--dispatchers"),
        (&["--dispatch", "jbsq:2,5us"], "--kthreads 2"),
        (&["--dispatch", "steal", "--dispatchers", "1"], "use c-fcfs"),
    ] {
        let mut command = dns(&["--zone", &zone]);
        let output = run(command.args(words).env("TAILWATER_KTHREADS", "1"), b"");
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(advice), "{words:?}: {said}");
    }
}
