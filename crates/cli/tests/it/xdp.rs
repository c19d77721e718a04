//! An IOKernel that is killed leaves nothing on its interface, and the next one gets it.
//!
//! The interface is one end of a veth pair in a network namespace that ends with the test. Needs
//! CAP_SYS_ADMIN and what AF_XDP needs; without them a message says so and the test is skipped.

use crate::common::{run, stats, tailwater};
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::{Program, socket_name, text, until};

#[test]
fn a_killed_iokernel_leaves_nothing_on_its_interface_and_the_next_one_starts_at_once() {
    let doctor = text(&run(&["doctor"]).stdout);
    let line = doctor.lines().find(|line| line.contains("AF_XDP")).expect("the doctor speaks of AF_XDP");
    if !line.starts_with("ok ") {
        return eprintln!("skipped: {line}");
    }
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let socket = socket_name("xdp");
    let words = ["iokernel", "--socket", &socket, "--log", "warn", "--xdp", "a0"];
    namespace.ip(&["link", "add", "a0", "type", "veth", "peer", "name", "b0"]);
    namespace.ip(&["link", "set", "b0", "up"]);
    let why = text(&namespace.inside(|| run(&words)).stderr);
    assert!(why.contains("ip link set a0 up"), "{why}");
    namespace.ip(&["link", "set", "a0", "up"]);
    let link = || namespace.run("ip", &["-d", "link", "show", "a0"]);
    for _ in 0..5 {
        let mut iokernel = namespace.inside(|| Program::start(&mut tailwater(&words)));
        until("the IOKernel has the interface", || {
            assert!(iokernel.is_running(), "the IOKernel did not start: {}", iokernel.errors());
            namespace.inside(|| stats(&socket)).is_some()
        });
        let shown = link();
        assert!(shown.contains("xdp") && !shown.contains("promiscuity 0"), "{shown}");
        iokernel.kill();
    }
    an_interface_that_is_deleted_or_moved_is_reported_and_taken_again(&namespace, &words);
    until("nothing is attached any more", || {
        let shown = link();
        !shown.contains("xdp") && shown.contains("promiscuity 0")
    });
}

/// The descriptors of the port stay valid: nothing else says that it serves no frame any more.
fn an_interface_that_is_deleted_or_moved_is_reported_and_taken_again(namespace: &Namespace, words: &[&str]) {
    let elsewhere = Namespace::new().unwrap();
    let words: Vec<_> = words.iter().map(|&word| if word == "a0" { "c0" } else { word }).collect();
    let socket = words[2];
    for moves in [false, true] {
        namespace.ip(&["link", "add", "c0", "type", "veth", "peer", "name", "d0"]);
        for end in ["c0", "d0"] {
            namespace.ip(&["link", "set", end, "up"]);
        }
        let mut iokernel = namespace.inside(|| Program::start(&mut tailwater(&words)));
        until("the IOKernel has the interface", || {
            assert!(iokernel.is_running(), "the IOKernel did not start: {}", iokernel.errors());
            namespace.inside(|| stats(socket)).is_some()
        });
        if moves {
            elsewhere.take(namespace, "c0");
        } else {
            namespace.ip(&["link", "del", "d0"]);
        }
        let is_logged = |words: &[&str]| {
            let log = format!("{}{}", iokernel.output(), iokernel.errors());
            words.iter().all(|&word| log.contains(word))
        };
        until("the interface that is gone is reported", || is_logged(&["the interface is gone", "c0"]));
        if moves {
            namespace.take(&elsewhere, "c0");
        } else {
            namespace.ip(&["link", "add", "c0", "type", "veth", "peer", "name", "d0"]);
            namespace.ip(&["link", "set", "d0", "up"]);
        }
        until("what it lacks is reported", || is_logged(&["cannot be used yet", "ip link set c0 up"]));
        namespace.ip(&["link", "set", "c0", "up"]);
        until("the interface is taken again", || {
            namespace.run("ip", &["-d", "link", "show", "c0"]).contains("xdp")
        });
        namespace.ip(&["link", "del", "c0"]);
    }
}
