//! `tailwater iokernel` under a service manager: the messages of sd_notify(3).

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tailwater_testkit::{PATIENCE, binary, cpu_numbers, has_two_cpus, is_running, until};
use tailwater_tests::attack::Target;

/// The end of a service manager that its services write to.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    fn message(&self) -> String {
        let mut buffer = [0; 256];
        let len = self.0.recv(&mut buffer).expect("a message in time");
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    /// Returns the next message that is no sign of life.
    fn message_of_change(&self) -> String {
        loop {
            match self.message() {
                message if message == "WATCHDOG=1" => {}
                message => return message,
            }
        }
    }
}

/// Returns a new folder whose path is short: that of a socket has at most 108 bytes (unix(7)), and
/// `TMPDIR` may be longer.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/tmp").unwrap()
}

#[test]
fn the_manager_hears_of_the_start_signs_of_life_a_reload_and_the_end() {
    if !has_two_cpus() {
        return;
    }
    let folder = folder();
    let (file, socket) = (folder.path().join("tailwater.toml"), folder.path().join("notify"));
    std::fs::write(&file, "").unwrap();
    let manager = Manager::at(&socket);
    let variables = [("NOTIFY_SOCKET", socket.to_str().unwrap()), ("WATCHDOG_USEC", "1000000")];
    let mut target = Target::start_service(&["--config", file.to_str().unwrap()], &variables);
    assert_eq!(manager.message(), "READY=1");
    for _ in 0..3 {
        assert_eq!(manager.message(), "WATCHDOG=1");
    }
    for text in ["max-kthreads = 1", "no key = 1"] {
        std::fs::write(&file, text).unwrap();
        target.program.signal(Signal::HUP);
        let reloading = manager.message_of_change();
        let usec = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("a reload begins");
        assert!(usec.parse::<u64>().is_ok_and(|usec| usec > 0), "{reloading:?}");
        assert_eq!(manager.message_of_change(), "READY=1");
    }
    target.program.signal(Signal::TERM);
    assert_eq!(manager.message_of_change(), "STOPPING=1");
    assert!(target.program.wait().success());
}

/// The process that has taken over, which is no child of the test; killed when dropped.
struct Successor(Pid);

impl Drop for Successor {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn the_manager_hears_of_the_process_that_takes_over_and_of_no_end() {
    if !has_two_cpus() {
        return;
    }
    let folder = folder();
    let (file, socket) = (folder.path().join("tailwater.toml"), folder.path().join("notify"));
    std::fs::write(&file, "max-kthreads = 2").unwrap();
    let manager = Manager::at(&socket);
    let variables = [("NOTIFY_SOCKET", socket.to_str().unwrap())];
    let settings = ["--config", file.to_str().unwrap()];
    let mut target = Target::start_service(&settings, &variables);
    assert_eq!(manager.message(), "READY=1");
    let take_over = || {
        let words = ["iokernel", "--share-cores", "--takeover", "--background", "--socket", &target.socket];
        let core = cpu_numbers().last().expect("this process runs somewhere").to_string();
        let mut command = Command::new(binary("tailwater-cli", "tailwater"));
        command.args(words).args(["--managed-cores", &core]).args(settings).envs(variables);
        // Not by a pipe, which would be open for as long as the new one runs.
        command.stdout(Stdio::null()).stderr(File::create(folder.path().join("log")).unwrap());
        command.status().unwrap()
    };
    // It is refused: the service stays what it was, and the manager hears nothing.
    std::fs::write(&file, "max-kthreads = 1").unwrap();
    assert!(!take_over().success());
    let said = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(said.contains("max-kthreads") && said.contains("has ended with status 1"), "{said}");
    std::fs::write(&file, "max-kthreads = 2").unwrap();
    let taken = take_over();
    // The old one ends only after the manager knows the new one.
    assert!(target.program.wait().success());
    manager.0.set_nonblocking(true).unwrap();
    let main = manager.message();
    let pid = main.strip_prefix("MAINPID=").and_then(|pid| pid.parse().ok());
    let successor = Successor(Pid::from_raw(pid.expect("a number")).unwrap());
    manager.0.set_nonblocking(false).unwrap();
    assert!(taken.success(), "{}", std::fs::read_to_string(folder.path().join("log")).unwrap());
    assert_eq!(manager.message(), "READY=1");
    drop(target.admits("newcomer"));
    kill_process(successor.0, Signal::TERM).unwrap();
    assert_eq!(manager.message(), "STOPPING=1");
    // Who adopted it may not have waited for it.
    let number = successor.0.as_raw_nonzero().get().cast_unsigned();
    until("the new one has ended", || !is_running(number));
}

#[test]
fn without_a_configuration_file_a_closed_terminal_ends_the_iokernel_cleanly() {
    if !has_two_cpus() {
        return;
    }
    // A program inherits an ignored signal, as below nohup(1), but not one that is caught.
    signal_hook::flag::register(Signal::HUP.as_raw(), Arc::default()).unwrap();
    let mut target = Target::start_without_file();
    target.program.signal(Signal::HUP);
    target.program.error_line_with(" stopped");
    assert!(target.program.wait().success());
}

#[test]
fn an_address_of_a_manager_that_cannot_be_is_an_error_at_the_start() {
    let mut command = Command::new(binary("tailwater-cli", "tailwater"));
    let socket = tailwater_testkit::socket_name("unmanaged");
    command.args(["iokernel", "--share-cores", "--socket", &socket]).env("NOTIFY_SOCKET", "vsock:2:1");
    let output = tailwater_testkit::run(&mut command, b"");
    let said = tailwater_testkit::text(&output.stderr);
    assert!(!output.status.success() && said.contains("NOTIFY_SOCKET=vsock:2:1"), "{said}");
}
