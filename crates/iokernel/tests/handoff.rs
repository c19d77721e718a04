//! Hand-offs between raw runtimes on one managed core.

mod common;

use common::{PATIENCE, Running, STATION, child_command, config, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tailwater_iokernel::port::memory::MemoryPeer;
use tailwater_iokernel::stats::HandoffKind;
use tailwater_iokernel::testing::child::{RawChild, Role, run_if_asked};
use tailwater_iokernel::testing::roles::{Burn, Echo, Hog};
use tailwater_iokernel::testing::wire::{Endpoint, udp};
use tailwater_iokernel::testing::{RawRuntime, RawSpec};

/// Not a test: the body of the child processes the other tests start.
#[test]
fn raw_runtime_child() {
    if let Some(code) = run_if_asked() {
        assert_eq!(code, std::process::ExitCode::SUCCESS);
    }
}

fn endpoint(runtime: &RawRuntime) -> Endpoint {
    Endpoint { mac: runtime.mac(), ip: runtime.ip(), port: 7 }
}

/// Sends one request and waits for its answer.
#[track_caller]
fn ask(station: &MemoryPeer, service: Endpoint, number: u64) {
    let payload = [[0; 16].as_slice(), &number.to_le_bytes()].concat();
    let end = Instant::now() + PATIENCE;
    assert!(station.send(&udp(STATION, service, &payload)));
    while Instant::now() < end {
        if let Some(answer) = station.receive_timeout(Duration::from_millis(100))
            && answer.ends_with(&number.to_le_bytes())
        {
            return;
        }
    }
    panic!("request {number} was not answered");
}

#[test]
fn a_service_takes_the_core_from_a_polling_batch_job_and_gives_it_back() {
    let (iokernel, station) = Running::with_station(config());
    let steps = Arc::new(AtomicU64::new(0));
    let batch = RawSpec::new("batch").best_effort();
    let _batch =
        RawRuntime::start(&iokernel.socket, &batch, |_| Box::new(Burn { steps: Arc::clone(&steps) }))
            .unwrap();
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    _batch.submit(0);
    eventually("the batch job runs", || steps.load(Ordering::Relaxed) > 0);
    for number in 0..50 {
        ask(&station, endpoint(&service), number);
        let before = steps.load(Ordering::Relaxed);
        eventually("the batch job gets its core back", || steps.load(Ordering::Relaxed) > before);
    }
    let cores = &iokernel.stats.cores;
    assert!(cores.preemptions.get() >= 50, "{} preemptions for 50 requests", cores.preemptions.get());
    assert!(cores.idle_takes.get() + cores.parks.get() >= 49);
    assert!(!iokernel.stats.handoff(HandoffKind::Polling).running.snapshot().is_empty());
    assert_eq!(cores.evictions.get(), 0);
}
