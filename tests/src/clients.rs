//! Programs that people use, run against services over TAP: where they may run, and what they say.

use crate::PATIENCE;
use crate::tap::in_namespace;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Runs `test` on a thread in a fresh network namespace, if `program` is installed; else says why not, and with which Debian
/// `package` it would be.
pub fn with(program: &str, package: &str, test: impl FnOnce() + Send) {
    let installed = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()));
    if !installed {
        return eprintln!("skipped: no `{program}` (Debian: {package})");
    }
    in_namespace(|| {
        // By which servers of Linux's are reached while they start.
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        if up.is_ok_and(|status| status.success()) {
            test();
        } else {
            eprintln!("skipped: `ip link set lo up` fails (Debian: iproute2)");
        }
    });
}

/// Runs a client with `input`; one that takes longer than [`PATIENCE`] is killed, and fails thereby.
///
/// # Panics
/// If it does not start.
pub fn run(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the client starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let waiter = std::thread::spawn({
        let id = child.id();
        move || {
            let (deadline, process) = (Instant::now() + PATIENCE, format!("/proc/{id}/stat"));
            let alive = || std::fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z "));
            while alive() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            if alive() {
                let pid = rustix::process::Pid::from_raw(id as i32).expect("a process id");
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    });
    let output = child.wait_with_output().expect("the client ends");
    // A client may end before it has read all.
    let _ = writer.join();
    waiter.join().expect("no panic");
    output
}

/// All that a client said.
pub fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
