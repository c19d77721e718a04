//! An IOKernel that is killed leaves nothing on its interface, and the next one gets it.
//!
//! The interface is one end of a veth pair in a network namespace of the test's thread, which ends with it. Needs
//! CAP_SYS_ADMIN and what AF_XDP needs; says so and skips without.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};

const PATIENCE: Duration = Duration::from_secs(60);

struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tailwater(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    command.args(words);
    command
}

fn ip(words: &[&str]) -> String {
    let output = Command::new("ip").args(words).output().expect("iproute2");
    assert!(output.status.success(), "ip {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_iokernel_leaves_nothing_on_its_interface_and_the_next_one_starts_at_once() {
    let doctor = tailwater(&["doctor"]).output().unwrap();
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
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
    let refused = tailwater(&words).output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("ip link set a0 up"), "{why}");
    ip(&["link", "set", "a0", "up"]);
    for _ in 0..5 {
        let mut iokernel = Guard(tailwater(&words).spawn().unwrap());
        eventually("the IOKernel has the interface", || {
            let ended = iokernel.0.try_wait().unwrap();
            assert!(ended.is_none(), "the IOKernel did not start: {ended:?}");
            tailwater(&["stats", "--iokernel", "@tailwater-xdp-test"]).output().unwrap().status.success()
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
