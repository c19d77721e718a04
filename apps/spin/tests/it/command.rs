//! The `tailwater-spin` program: what it says of options that cannot help or cannot be.

use std::process::Command;

use rustix::process::Signal;
use tailwater_testkit::{Program, text};

fn spin(words: &[&str], kthreads: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-spin"));
    command.args(["--listen", "127.0.0.1:0", "--speed", "1000000"]).args(words);
    command.env("TAILWATER_KTHREADS", kthreads);
    command
}

#[test]
fn a_quantum_that_cannot_help_stays_off_and_the_program_says_why() {
    for (words, why) in [
        (&[][..], "one request at a time"),
        (&["--dispatch", "c-fcfs"], "in the order of --dispatch"),
        (&["--dispatch", "mq:5us", "--class", "1us=50us"], "in the order of --dispatch"),
    ] {
        let mut service = Program::start(spin(words, "2").env("TAILWATER_QUANTUM_US", "15"));
        let line = service.error_line_with("the quantum of 15 us stays off: ");
        assert!(line.contains(why), "{words:?}: {line}");
        service.line_with("listening on ");
        service.signal(Signal::TERM);
        assert!(service.finish().status.success());
    }
}

#[test]
fn a_quantum_is_on_where_requests_have_threads_of_their_own() {
    let mut service = Program::start(spin(&["--spawn"], "1").env("TAILWATER_QUANTUM_US", "15"));
    service.line_with("listening on ");
    service.signal(Signal::TERM);
    let said = service.finish();
    assert!(said.status.success() && !text(&said.stderr).contains("stays off"), "{said:?}");
}

#[test]
fn dispatchers_with_kthreads_of_their_own_serve_or_are_refused_with_advice() {
    for words in [&["--dispatch", "jbsq:2,5us"][..], &["--dispatch", "mq:5us", "--dispatchers", "1"]] {
        let mut service = Program::start(&mut spin(words, "2"));
        service.line_with("listening on ");
        service.signal(Signal::TERM);
        assert!(service.finish().status.success());
    }
    for (words, kthreads, advice) in [
        (&["--dispatch", "jbsq:2,5us"][..], "1", "--kthreads 2"),
        (&["--dispatch", "mq:5us", "--dispatchers", "2"], "3", "--kthreads 4"),
        (&["--dispatch", "steal", "--dispatchers", "1"], "2", "use c-fcfs"),
        (&["--dispatch", "jbsq:9"], "2", "1 to 8 requests"),
        (&["--dispatchers", "1"], "2", "--dispatch"),
    ] {
        let output = spin(words, kthreads).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(advice), "{words:?}: {said}");
    }
}

#[test]
fn an_estimate_of_cores_is_refused_where_none_can_be_requested() {
    for (words, advice) in [
        (&["--estimate-cores"][..], "`tailwater run`"),
        (&["--estimate-cores", "--linux"], "--linux"),
        (&["--estimate-cores", "--background"], "--background"),
    ] {
        let output = spin(words, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(advice), "{words:?}: {said}");
    }
}
