//! An IOKernel in this process, raw runtimes around it, and conditions that are polled.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tailwater_iokernel::config::Priority;
use tailwater_iokernel::stats::{RuntimeStats, StatsHandle};
use tailwater_iokernel::{Config, IoKernel, Reloader, StartError};
use tailwater_iokernel_testing::RawRuntime;
use tailwater_iokernel_testing::child::{VARIABLE, run_if_asked};
use tailwater_iokernel_testing::wire::{Endpoint, udp};
use tailwater_ports::memory::{self, MemoryPeer};
use tailwater_ports::{Attachment, Port};
use tailwater_stats::RuntimeCounters;
use tailwater_wire::MacAddr;

pub use tailwater_testkit::{PATIENCE, until as eventually};

/// The test's own end of the network.
pub const STATION: Endpoint =
    Endpoint { mac: MacAddr([2, 0, 0, 0, 0, 250]), ip: Ipv4Addr::new(10, 77, 0, 250), port: 4000 };

/// A running IOKernel; stopped and waited for on drop.
pub struct Running {
    pub socket: String,
    /// The one core it manages.
    pub managed: u16,
    /// The core of its polling thread.
    pub own: u16,
    /// Linux's number of its polling thread.
    pub tid: i32,
    pub stats: StatsHandle,
    /// Puts other settings into effect.
    pub reloader: Reloader,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), StartError>>>,
    /// One IOKernel at a time: each uses its cores as its own.
    _alone: MutexGuard<'static, ()>,
}

/// Returns settings for tests: one managed core whatever the machine has, and tolerance of its
/// load.
pub fn config() -> Config {
    Config {
        socket: tailwater_testkit::socket_name("iokernel-test"),
        managed_cores: Some(vec![*tailwater_testkit::cpu_numbers().last().unwrap()]),
        // A hypervisor may not run this machine for tens of milliseconds, and Linux may count them
        // as the time of a kthread: that alone must not evict it.
        start_deadline_us: 5_000_000,
        // Best-effort kthreads would not run on a busy machine, ranked below other programs.
        neighbour_share: 0,
        // The test's own threads share the IOKernel's core.
        priority: Priority::None,
        ..Config::default()
    }
}

/// Waits until no IOKernel runs in this process; none starts while the guard lives.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that failed while it held the lock has reported that.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    pub fn start(config: Config, ports: Vec<Box<dyn Port>>) -> Self {
        let alone = alone();
        let socket = config.socket.clone();
        let iokernel = IoKernel::new(config, ports).unwrap();
        let (stats, stop) = (iokernel.stats(), Arc::new(AtomicBool::new(false)));
        let reloader = iokernel.reloader();
        let managed = iokernel.cores().managed.cores()[0].id.0;
        let own = iokernel.cores().iokernel.0;
        let (tid_out, tid_in) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                tid_out.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                iokernel.run(&stop)
            }
        });
        Self {
            socket,
            managed,
            own,
            tid: tid_in.recv().unwrap(),
            stats,
            reloader,
            stop,
            thread: Some(thread),
            _alone: alone,
        }
    }

    /// One with a port whose other end is returned.
    pub fn with_station(config: Config) -> (Self, MemoryPeer) {
        Self::with_station_beside(config, Vec::new())
    }

    /// As [`with_station`](Self::with_station), with these ports besides, before that one.
    pub fn with_station_beside(config: Config, mut ports: Vec<Box<dyn Port>>) -> (Self, MemoryPeer) {
        let attachment = Attachment::Station { mac: STATION.mac, ip: Some(STATION.ip) };
        let (port, peer) = memory::pair("station", attachment).unwrap();
        ports.push(Box::new(port));
        (Self::start(config, ports), peer)
    }

    fn runtime(&self, name: &str) -> Option<Arc<RuntimeStats>> {
        self.stats.runtimes().into_iter().find(|runtime| runtime.name == name)
    }

    /// Returns a number from the account of the runtime named `name`; 0 when it is not registered.
    pub fn counter(&self, name: &str, which: impl FnOnce(&RuntimeCounters) -> u64) -> u64 {
        self.runtime(name).map_or(0, |runtime| which(&runtime.counters))
    }

    /// Port 7 of the runtime named `name`.
    pub fn endpoint_of(&self, name: &str) -> Endpoint {
        let runtime = self.runtime(name).unwrap();
        Endpoint { mac: runtime.mac, ip: runtime.ip, port: 7 }
    }
}

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

/// Port 7 of a runtime of this process.
pub fn endpoint(runtime: &RawRuntime) -> Endpoint {
    Endpoint { mac: runtime.mac(), ip: runtime.ip(), port: 7 }
}

/// Sends one request and waits for its answer.
#[track_caller]
pub fn ask(station: &MemoryPeer, service: Endpoint, number: u64) {
    let payload = [[0; 16].as_slice(), &number.to_le_bytes()].concat();
    let end = Instant::now() + PATIENCE;
    assert!(station.send(&udp(STATION, service, &payload)));
    while Instant::now() < end {
        if let Some(answer) = station.receive_timeout(Duration::from_millis(100))
            && answer[26..30] == service.ip.octets()
            && answer.ends_with(&number.to_le_bytes())
        {
            return;
        }
    }
    panic!("request {number} was not answered");
}

/// Not a test: the body of the processes that tests start.
#[test]
fn raw_runtime_child() {
    if let Some(code) = run_if_asked() {
        assert_eq!(code, std::process::ExitCode::SUCCESS);
    }
}

/// Returns a copy of this test program that runs only [`raw_runtime_child`].
pub fn child_command() -> Command {
    // Not by path: folders above it may be closed to another user.
    let mut command = Command::new("/proc/self/exe");
    command.args(["common::raw_runtime_child", "--exact", "--nocapture", "--test-threads=1"]);
    command.env_remove(VARIABLE);
    command
}
