//! `tailwater-machine` as a process, with a script in the place of QEMU.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use tailwater_testkit::{Program, binary, eventually, is_running, until};

/// Writes its process id, and then waits, as a guest that goes on for ever.
const QEMU: &str = "#!/bin/sh\necho $$ >$(dirname $0)/started\nmv $(dirname $0)/started $(dirname $0)/pid\nexec sleep 100000\n";

#[test]
fn qemu_ends_with_the_program_that_started_it_also_if_that_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let qemu = folder.path().join("qemu-system-x86_64");
    fs::write(&qemu, QEMU).expect("a script");
    fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).expect("a program");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let machine = binary("tailwater-machine", "tailwater-machine");
    let mut machine = Program::start(Command::new(machine).args(["run", "--", "true"]).env("PATH", path));
    let pid = eventually("QEMU runs, or is not started", || {
        let pid = fs::read_to_string(folder.path().join("pid")).ok();
        pid.map(Some).or_else(|| (!machine.is_running()).then_some(None))
    });
    let Some(pid) = pid else {
        let why = machine.errors();
        assert!(why.contains("no kernel for the guest"), "{why}");
        eprintln!("skipped: {why}");
        return;
    };
    let pid = pid.trim().parse().expect("a number");
    machine.kill();
    until("QEMU has ended", || !is_running(pid));
}
