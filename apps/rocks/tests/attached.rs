//! The `rocks` program attached to an IOKernel: the load generator, a port of that IOKernel, checks each answer.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tailwater_iokernel::{Config, IoKernel};
use tailwater_loadgen::protocol::Rocks;
use tailwater_loadgen::station::{Order, Progress, StationHandle, station};
use tailwater_loadgen::{Measurement, Plan, Report};
use tailwater_rocks::{Store, store};
use tailwater_workload::rocks::ScanSum;
use tailwater_workload::summary::Figures;

/// How long anything may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
const KEYS: u64 = 10_000;
/// Offered beside SCANs: little enough for a debug build.
const SCHEDULE: &str = if cfg!(debug_assertions) { "300ms@500" } else { "2s@10k" };
const GENERATOR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 250);
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// The program; killed when dropped.
struct Service(Child);

impl Service {
    /// Nobody reads what it prints after it has said where it listens.
    fn start(socket: &str, options: &[&str], folder: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rocks"))
            .args(options)
            .arg("--path")
            .arg(folder.join("db"))
            .envs([("TAILWATER_IOKERNEL", socket), ("TAILWATER_NAME", "rocks"), ("TAILWATER_KTHREADS", "1")])
            .env("TAILWATER_IP", SERVICE.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .map(Self)
            .unwrap();
        let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let mut listening = lines.map_while(Result::ok).filter(|line| line.starts_with("listening on "));
        assert!(listening.next().is_some(), "it ended");
        child
    }

    /// Ends it as an operator does.
    fn end(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
        let socket = format!("@tailwater-rocks-{name}-{}", std::process::id());
        let (port, generator) = station("generator", GENERATOR).unwrap();
        let config = Config { socket: socket.clone(), ..Config::default() };
        let iokernel = IoKernel::new(config, vec![Box::new(port)]).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let polling = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || iokernel.run(&stop).unwrap()
        });
        Self { socket, generator, stop, polling }
    }

    /// What becomes of `requests` at this rate, after everything was put if `preload`.
    fn ask(&self, requests: Rocks, schedule: &str, preload: bool) -> Report {
        let mut plan = Plan::new(schedule.parse().unwrap(), "const:0us".parse().unwrap());
        // So long that only an answer that never comes counts as lost.
        plan.timeout_ns = 20_000_000_000;
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

/// Says why, if a test cannot run here.
fn is_skipped() -> bool {
    let skipped = std::thread::available_parallelism().map_or(1, usize::from) < 2;
    if skipped {
        eprintln!("skipped: needs 2 CPUs");
    }
    skipped
}

fn is_right(report: &Report) {
    let odd = report.oddities;
    assert_eq!((odd.wrong, odd.missed, odd.refused, odd.malformed), (0, 0, 0, 0), "{report:?}");
    // A machine that stands still for long enough fills the ring: what does not go in was not asked.
    assert!(report.figures.completed > 0 && report.figures.lost == odd.send_failed, "{report:?}");
}

#[test]
fn gets_scans_and_puts_through_an_iokernel_are_answered_right_whatever_the_quantum() {
    if is_skipped() {
        return;
    }
    let measure = |quantum, requests, schedule| {
        let (network, folder) = (Network::start("quantum"), tempfile::tempdir_in("/dev/shm").unwrap());
        let options = ["--quantum", quantum, "--load", &KEYS.to_string()];
        let service = Service::start(&network.socket, &options, folder.path());
        let report = network.ask(requests, schedule, false);
        drop(service);
        network.end();
        report
    };
    let all = Rocks::new(KEYS, 64).unwrap().with_shares(0.05, 0.1).unwrap().with_scan_count(500);
    is_right(&measure("15us", all, "1s@1k"));
    // Short ones beside a few that are a hundred times as long: what the quantum is for. Run optimised and with --nocapture,
    // this prints what the guide tells.
    for quantum in ["0us", "5us", "10us", "15us", "30us"] {
        let mixed = Rocks::new(KEYS, 64).unwrap().with_shares(0.005, 0.0).unwrap().with_scan_count(5_000);
        let report = measure(quantum, mixed, SCHEDULE);
        is_right(&report);
        let Figures { p50_us, p90_us, p99_us, p999_us, .. } = report.figures;
        let us = [p50_us, p90_us, p99_us, p999_us].map(Option::unwrap_or_default);
        println!("quantum {quantum}: p50, p90, p99, p99.9 {us:.1?} us");
    }
}

#[test]
fn what_was_put_is_there_after_a_signal_even_if_nobody_reads_what_is_printed() {
    if is_skipped() {
        return;
    }
    let (network, folder) = (Network::start("signal"), tempfile::tempdir_in("/dev/shm").unwrap());
    let service = Service::start(&network.socket, &[], folder.path());
    let all = Rocks::new(KEYS, 64).unwrap();
    is_right(&network.ask(all, "100ms@500", true));
    service.end();
    network.end();
    let store = Store::open(&store::Config::new(&folder.path().join("db"))).unwrap();
    let scan = store.scan(0, 2 * KEYS as u32, || ()).unwrap();
    assert_eq!((u64::from(scan.entries), scan.sum), (KEYS, ScanSum::expected(0, KEYS as u32, 64)));
}
