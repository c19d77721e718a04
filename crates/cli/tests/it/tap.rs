//! A service behind a TAP device is reached from another machine, as the book says.
//!
//! Two network namespaces stand for the machines. Needs CAP_SYS_ADMIN and /dev/net/tun; without
//! them a message says so and the test is skipped.

use crate::common::{run, stats, tailwater};
use rustix::process::Signal;
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::{Program, is_installed, socket_name, text, until};

/// Address of the machine with the IOKernel on the network between the two.
const GATEWAY: &str = "192.168.77.1";

/// Returns whether a TAP device can be made here; if not, prints that the test is skipped.
pub fn works_here() -> bool {
    let doctor = text(&run(&["doctor"]).stdout);
    let line = doctor.lines().find(|line| line.contains("TAP")).expect("the doctor speaks of TAP");
    let works = line.starts_with("ok ");
    if !works {
        eprintln!("skipped: {line}");
    }
    works
}

#[test]
fn another_machine_reaches_a_service_by_a_route_once_this_one_forwards() {
    if !works_here() || !is_installed("ping", "iputils-ping") {
        return;
    }
    let Some([here, there]) = Namespace::pair(["lan0", "lan0"], 1) else { return };
    here.ip(&["addr", "add", "192.168.77.1/24", "dev", "lan0"]);
    there.ip(&["addr", "add", "192.168.77.2/24", "dev", "lan0"]);
    there.ip(&["route", "add", "10.77.0.0/16", "via", GATEWAY]);
    let socket = socket_name("forwarding");
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/busy.toml");
    let words = ["iokernel", "--share-cores", "--socket", &socket, "--log", "warn", "--config", settings];
    let device = ["--tap", "tw0", "--host-ip", "10.77.0.1"];
    let mut iokernel = here.inside(|| Program::start(tailwater(&words).args(device)));
    until("the IOKernel answers", || {
        assert!(iokernel.is_running(), "the IOKernel did not start: {}", iokernel.errors());
        here.inside(|| stats(&socket)).is_some()
    });
    let program = [env!("CARGO_BIN_EXE_tailwater"), "app", "spin", "--listen", "0.0.0.0:5000"];
    let register = ["run", "--iokernel", &socket, "--kthreads", "1", "--ip", "10.77.0.2", "--"];
    let _service = here.inside(|| Program::start(&mut tailwater(&[&register[..], &program].concat())));
    let forward = |on: &str| here.inside(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", on));
    let answers = |seconds: &str| {
        let mut ping = std::process::Command::new("ping");
        let output =
            there.inside(|| tailwater_testkit::run(ping.args(["-c", "1", "-W", seconds, "10.77.0.2"]), b""));
        output.status.success()
    };
    if let Err(why) = forward("0") {
        return eprintln!("skipped: forwarding cannot be set: {why}");
    }
    until("the service answers on its own machine", || {
        let mut ping = std::process::Command::new("ping");
        let ping =
            here.inside(|| tailwater_testkit::run(ping.args(["-c", "1", "-W", "1", "10.77.0.2"]), b""));
        ping.status.success()
    });
    assert!(!answers("1"), "a route alone does not do");
    forward("1").unwrap();
    until("the service answers another machine", || answers("1"));
    the_address_comes_back_with_the_interface(&here, &iokernel);
    iokernel.signal(Signal::TERM);
    assert!(iokernel.wait().success(), "{}", iokernel.errors());
}

/// Linux takes the IPv6 addresses of an interface that goes down.
fn the_address_comes_back_with_the_interface(here: &Namespace, iokernel: &Program) {
    let has_address = || here.run("ip", &["-6", "addr", "show", "dev", "tw0"]).contains("fd00:7477::1/");
    if !has_address() {
        return eprintln!("skipped: IPv6 is off here");
    }
    here.ip(&["link", "set", "tw0", "down"]);
    until("the address is gone", || !has_address());
    until("the IOKernel says so", || {
        format!("{}{}", iokernel.output(), iokernel.errors()).contains("the interface is down")
    });
    here.ip(&["link", "set", "tw0", "up"]);
    until("the address is back", has_address);
}
