//! The `rocks` program attached to an IOKernel: the load generator, a port of that IOKernel, checks
//! each answer.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::common::Rocks;
use tailwater_iokernel::{Config, IoKernel};
use tailwater_loadgen::protocol;
use tailwater_loadgen::station::{Order, Progress, StationHandle, station};
use tailwater_loadgen::{Measurement, Plan, Report};
use tailwater_rocks::{Store, store};
use tailwater_testkit::{PATIENCE, has_two_cpus, memory_folder, socket_name};
use tailwater_workload::rocks::ScanSum;
use tailwater_workload::summary::Figures;

const KEYS: u64 = 10_000;
/// Requests offered beside SCANs: few enough for a debug build.
const SCHEDULE: &str = if cfg!(debug_assertions) { "300ms@500" } else { "2s@10k" };
const GENERATOR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 250);
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Waits until no other IOKernel of these tests runs: two at a time would take each other's cores.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed in its turn has reported that.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the program.
fn start(socket: &str, options: &[&str], folder: &Path) -> Rocks {
    let variables =
        [("TAILWATER_IOKERNEL", socket), ("TAILWATER_NAME", "rocks"), ("TAILWATER_KTHREADS", "1")];
    Rocks::start(|command| {
        let command = command.args(options).arg("--path").arg(folder.join("db"));
        command.envs(variables).env("TAILWATER_IP", SERVICE.to_string())
    })
}

/// An IOKernel in this process, and the generator that is its port.
struct Network {
    socket: String,
    generator: StationHandle,
    stop: Arc<AtomicBool>,
    polling: std::thread::JoinHandle<()>,
}

impl Network {
    fn start(name: &str) -> Self {
        let socket = socket_name(name);
        let (port, generator) = station("generator", GENERATOR).unwrap();
        // Linux may count time in which a hypervisor runs others as a thread's own: on a busy host
        // evictions are no sign of a misbehaving program.
        let config = Config { socket: socket.clone(), ..Config::default() };
        let iokernel = IoKernel::new(config, vec![Box::new(port)]).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let polling = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || iokernel.run(&stop).unwrap()
        });
        Self { socket, generator, stop, polling }
    }

    /// Returns the report of `requests` at this rate, after all keys were put if `preload`.
    fn ask(&self, requests: protocol::Rocks, schedule: &str, preload: bool) -> Report {
        let mut plan = Plan::new(schedule.parse().unwrap(), "const:0us".parse().unwrap());
        // So long that only an answer that never arrives counts as lost.
        plan.timeout_ns = (PATIENCE / 2).as_nanos() as u64;
        plan.flows = 16;
        let server = SocketAddrV4::new(SERVICE, 5001);
        let protocol = Arc::new(requests);
        self.generator.start(Order { plan, protocol, preload, seed: 1, server, wait: PATIENCE }).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let measured: Box<Measurement> = loop {
            assert!(Instant::now() < deadline, "the generator does not end");
            let progress = self.generator.wait(Duration::from_millis(100)).unwrap();
            if let Some(Progress::Finished(measured)) = progress {
                break measured;
            }
        };
        measured.report()
    }

    fn end(self) {
        self.stop.store(true, Relaxed);
        self.polling.join().unwrap();
    }
}

fn is_right(report: &Report) {
    let odd = report.oddities;
    assert_eq!((odd.wrong, odd.missed, odd.refused, odd.malformed), (0, 0, 0, 0), "{report:?}");
    // A machine that stalls for long enough fills the ring: a request that does not fit is not
    // sent.
    assert!(report.figures.completed > 0 && report.figures.lost == odd.send_failed, "{report:?}");
}

#[test]
fn gets_scans_and_puts_through_an_iokernel_are_answered_right_whatever_the_policy() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let measure = |policy, requests, schedule| {
        let (network, folder) = (Network::start("policy"), memory_folder());
        let options = ["--dispatch", policy, "--load", &KEYS.to_string()];
        let service = start(&network.socket, &options, folder.path());
        let report = network.ask(requests, schedule, false);
        drop(service);
        network.end();
        report
    };
    let all = protocol::Rocks::new(KEYS, 64).unwrap().with_shares(0.05, 0.1).unwrap().with_scan_count(500);
    is_right(&measure("mq:15us", all, "1s@1k"));
    // Short requests beside a few that are a hundred times as long: the purpose of the quantum. In
    // an optimised build and with --nocapture, this prints the figures of the guide.
    for policy in ["c-fcfs", "sq:15us", "mq:5us", "mq:15us", "mq:30us"] {
        let mixed =
            protocol::Rocks::new(KEYS, 64).unwrap().with_shares(0.005, 0.0).unwrap().with_scan_count(5_000);
        let report = measure(policy, mixed, SCHEDULE);
        is_right(&report);
        let Figures { p50_us, p90_us, p99_us, p999_us, .. } = report.figures;
        let us = [p50_us, p90_us, p99_us, p999_us].map(Option::unwrap_or_default);
        println!("{policy}: p50, p90, p99, p99.9 {us:.1?} us");
    }
}

#[test]
fn what_was_put_is_there_after_a_signal_even_if_nobody_reads_what_is_printed() {
    if !has_two_cpus() {
        return;
    }
    let _turn = turn();
    let (network, folder) = (Network::start("signal"), memory_folder());
    let service = start(&network.socket, &[], folder.path());
    let all = protocol::Rocks::new(KEYS, 64).unwrap();
    is_right(&network.ask(all, "100ms@500", true));
    service.end_unseen();
    network.end();
    let store = Store::open(&store::Config::new(&folder.path().join("db"))).unwrap();
    let scan = store.scan(0, 2 * KEYS as u32, || ()).unwrap();
    assert_eq!((u64::from(scan.entries), scan.sum), (KEYS, ScanSum::expected(0, KEYS as u32, 64)));
}
