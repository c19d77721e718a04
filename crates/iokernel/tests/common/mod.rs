//! An IOKernel in this process, raw runtimes around it, and conditions that are polled.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tailwater_iokernel::port::{Attachment, Port, memory};
use tailwater_iokernel::stats::StatsHandle;
use tailwater_iokernel::testing::child::VARIABLE;
use tailwater_iokernel::{Config, IoKernel, StartError};

/// How long anything may take on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A running IOKernel; stopped and waited for on drop.
pub struct Running {
    pub socket: String,
    pub stats: StatsHandle,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), StartError>>>,
}

/// Settings for tests: one managed core whatever the machine has, patience with its load.
pub fn config() -> Config {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let managed = (0..1024u16).rev().find(|&core| allowed.is_set(core.into())).unwrap();
    Config {
        socket: format!("@tailwater-iokernel-test-{}-{number}", std::process::id()),
        managed_cores: Some(vec![managed]),
        // A loaded machine may not run a thread for tens of milliseconds: that alone must evict nobody.
        cede_deadline_us: 2_000_000,
        start_deadline_us: 5_000_000,
        ..Config::default()
    }
}

impl Running {
    pub fn start(config: Config, ports: Vec<Box<dyn Port>>) -> Self {
        let socket = config.socket.clone();
        let iokernel = IoKernel::new(config, ports).unwrap();
        let (stats, stop) = (iokernel.stats(), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || iokernel.run(&stop)
        });
        Self { socket, stats, stop, thread: Some(thread) }
    }

    /// One with a port whose other end is returned, with the station's address 10.77.0.250.
    pub fn with_station(config: Config) -> (Self, memory::MemoryPeer) {
        let attachment = Attachment::Station { mac: STATION.mac, ip: Some(STATION.ip) };
        let (port, peer) = memory::pair("station", attachment).unwrap();
        (Self::start(config, vec![Box::new(port)]), peer)
    }
}

pub const STATION: tailwater_iokernel::testing::wire::Endpoint =
    tailwater_iokernel::testing::wire::Endpoint {
        mac: tailwater_iokernel::frame::Mac([2, 0, 0, 0, 0, 250]),
        ip: std::net::Ipv4Addr::new(10, 77, 0, 250),
        port: 4000,
    };

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let result = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            result.unwrap().unwrap();
            assert_eq!(self.stats.cores.ledger_refusals.get(), 0, "the ledger refused a transition");
        }
    }
}

/// Polls a condition until it holds.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A copy of this test program that runs only the test named `raw_runtime_child`.
pub fn child_command() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["raw_runtime_child", "--exact", "--nocapture", "--test-threads=1"]);
    command.env_remove(VARIABLE);
    command
}
