//! An IOKernel that is killed leaves nothing on its interface, and the next one gets it.
//!
//! The interface is one end of a veth pair in a network namespace of the test's thread, which ends with it. Needs
//! CAP_SYS_ADMIN and what AF_XDP needs; says so and skips without.

mod common;

use std::process::Command;

use common::{Guard, eventually, run, stats, tailwater, text};
use rustix::thread::{UnshareFlags, unshare_unsafe};

fn ip(words: &[&str]) -> String {
    let output = Command::new("ip").args(words).output().expect("iproute2");
    assert!(output.status.success(), "ip {words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_killed_iokernel_leaves_nothing_on_its_interface_and_the_next_one_starts_at_once() {
    let doctor = text(&run(&["doctor"]).stdout);
    let line = doctor.lines().find(|line| line.contains("AF_XDP")).expect("the doctor speaks of AF_XDP");
    if !line.starts_with("ok ") {
        return eprintln!("skipped: {line}");
    }
    // SAFETY: a network namespace affects no memory; only this thread and those it starts are moved.
    if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        return eprintln!("skipped: no network namespace without CAP_SYS_ADMIN ({error})");
    }
    ip(&["link", "add", "a0", "type", "veth", "peer", "name", "b0"]);
    ip(&["link", "set", "b0", "up"]);
    let words = ["iokernel", "--socket", "@tailwater-xdp-test", "--log", "warn", "--xdp", "a0"];
    let why = text(&run(&words).stderr);
    assert!(why.contains("ip link set a0 up"), "{why}");
    ip(&["link", "set", "a0", "up"]);
    for _ in 0..5 {
        let mut iokernel = Guard(tailwater(&words).spawn().unwrap());
        eventually("the IOKernel has the interface", || {
            let ended = iokernel.0.try_wait().unwrap();
            assert!(ended.is_none(), "the IOKernel did not start: {ended:?}");
            stats("@tailwater-xdp-test").is_some()
        });
        let shown = ip(&["-d", "link", "show", "a0"]);
        assert!(shown.contains("xdp") && !shown.contains("promiscuity 0"), "{shown}");
        iokernel.0.kill().unwrap();
        iokernel.0.wait().unwrap();
    }
    eventually("nothing is attached any more", || {
        let shown = ip(&["-d", "link", "show", "a0"]);
        !shown.contains("xdp") && shown.contains("promiscuity 0")
    });
}
