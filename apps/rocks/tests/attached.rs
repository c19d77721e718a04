//! The `rocks` program attached to an IOKernel: the load generator, a port of that IOKernel, checks each answer.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tailwater_iokernel::{Config, IoKernel};
use tailwater_loadgen::protocol::Rocks;
use tailwater_loadgen::station::{Order, Progress, station};
use tailwater_loadgen::{Measurement, Plan, Report};
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
    fn start(socket: &str, quantum: &str, folder: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rocks"))
            .args(["--quantum", quantum, "--load", &KEYS.to_string(), "--path"])
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
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What becomes of `plan` of `requests` at a program with this quantum.
fn measure(quantum: &str, requests: Rocks, schedule: &str) -> Report {
    let socket = format!("@tailwater-rocks-test-{}", std::process::id());
    let (port, generator) = station("generator", GENERATOR).unwrap();
    let config = Config { socket: socket.clone(), ..Config::default() };
    let iokernel = IoKernel::new(config, vec![Box::new(port)]).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let polling = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || iokernel.run(&stop).unwrap()
    });
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let service = Service::start(&socket, quantum, folder.path());

    let mut plan = Plan::new(schedule.parse().unwrap(), "const:0us".parse().unwrap());
    // So long that only an answer that never comes counts as lost.
    plan.timeout_ns = 20_000_000_000;
    plan.flows = 16;
    let server = SocketAddrV4::new(SERVICE, 5001);
    let protocol = Arc::new(requests);
    generator.start(Order { plan, protocol, preload: false, seed: 1, server, wait: PATIENCE }).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let measured: Box<Measurement> = loop {
        assert!(Instant::now() < deadline, "the generator does not end");
        if let Some(Progress::Finished(measured)) = generator.wait(Duration::from_millis(100)).unwrap() {
            break measured;
        }
    };
    drop(service);
    stop.store(true, Relaxed);
    polling.join().unwrap();
    measured.report()
}

fn is_right(report: &Report) {
    let odd = report.oddities;
    assert_eq!((odd.wrong, odd.missed, odd.refused, odd.malformed), (0, 0, 0, 0), "{report:?}");
    // A machine that stands still for long enough fills the ring: what does not go in was not asked.
    assert!(report.figures.completed > 0 && report.figures.lost == odd.send_failed, "{report:?}");
}

#[test]
fn gets_scans_and_puts_through_an_iokernel_are_answered_right_whatever_the_quantum() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return eprintln!("skipped: needs 2 CPUs");
    }
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
