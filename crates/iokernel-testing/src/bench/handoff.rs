//! `tailwater-lab bench handoff`: the time to move a core from one process to another, compared
//! with signal and eventfd.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use tailwater_ports::{Attachment, memory};
use tailwater_shm::clock;
use tailwater_stats::{HandoffKind, SharedHistogram};
use tailwater_wire::MacAddr;

use super::baseline::Baseline;
use super::common::{BenchError, Running, histogram, quantile_us, wait_for};
use super::prober::{Handle, Probe, prober};
use crate::child::{RawChild, Role};
use crate::roles::Echo;
use crate::runtime::{RawRuntime, RawSpec};
use crate::wire::{Endpoint, udp};

/// Amount of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoffOptions {
    /// Interleaved rounds; each starts new processes.
    pub rounds: usize,
    /// Hand-offs per round and mechanism.
    pub per_round: usize,
    /// Pause between an answer and the next request: long enough for the batch job to regain its
    /// core.
    pub gap: Duration,
}

/// Longest wake of the polling thread that is told apart, in nanoseconds.
const LONGEST_WAKE_NS: u64 = 10_000_000;
/// Wakes of each kind in a round: each waits a few milliseconds for the sleep before it.
const WAKES_PER_ROUND: usize = 100;

/// The other end of the port that wakes a sleeping IOKernel.
const STATION: Endpoint =
    Endpoint { mac: MacAddr([2, 0, 0, 0, 0, 0xc]), ip: std::net::Ipv4Addr::new(10, 77, 255, 2), port: 7000 };

impl Default for HandoffOptions {
    /// 5 rounds of 2000, 60 us apart: about 3 seconds.
    fn default() -> Self {
        Self { rounds: 5, per_round: 2_000, gap: Duration::from_micros(60) }
    }
}

/// Results; times in microseconds unless stated otherwise.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct HandoffReport {
    /// From a busy, polling batch job to a service in another process: from the IOKernel's decision
    /// until it sees the service run.
    pub busy_p50_us: f64,
    /// The same, 99th percentile.
    pub busy_p99_us: f64,
    /// From the decision to the service thread's own first time stamp.
    pub first_p50_us: f64,
    /// The same, 99th percentile.
    pub first_p99_us: f64,
    /// From the decision until the batch job gave the core up, by its own time stamp: its way to
    /// the poll point.
    pub gave_up_p50_us: f64,
    /// From the decision until the core was seen ceded.
    pub ceded_p50_us: f64,
    /// The same hand-off by signal, then eventfd (Shenango section 6.1): from the signal to the
    /// service's first time stamp.
    pub signal_p50_us: f64,
    /// The same, 99th percentile.
    pub signal_p99_us: f64,
    /// Signal and eventfd sent together, without waiting for the victim to park: the kernel's best
    /// case.
    pub signal_together_p50_us: f64,
    /// Work for an idle kthread that still polls: from injection to its running again.
    pub idle_p50_us: f64,
    /// The same, 99th percentile.
    pub idle_p99_us: f64,
    /// Work for a parked kthread on a halted core: from injection to its first time stamp.
    pub wake_p50_us: f64,
    /// Work for a parked kthread while the IOKernel sleeps: from the doorbell to the kthread's
    /// first time stamp.
    pub asleep_p50_us: f64,
    /// The same until the IOKernel polls again, with the core of this thread awake.
    pub polls_again_p50_us: f64,
    /// The same, 99th percentile.
    pub polls_again_p99_us: f64,
    /// From a frame for that kthread, sent to a port of the sleeping IOKernel, until the IOKernel
    /// polls again.
    pub frame_polls_again_p50_us: f64,
    /// The same, 99th percentile.
    pub frame_polls_again_p99_us: f64,
    /// IOKernel time to carry one decision out, nanoseconds, median.
    pub iokernel_ns: u64,
    /// Hand-offs measured.
    pub handoffs: u64,
    /// Hand-offs among them that needed a signal or an eviction.
    pub escalated: u64,
}

#[derive(Debug)]
struct Collected {
    busy: Histogram<u64>,
    gave_up: Histogram<u64>,
    ceded: Histogram<u64>,
    first: Histogram<u64>,
    signal: Histogram<u64>,
    together: Histogram<u64>,
    idle: Histogram<u64>,
    wake: Histogram<u64>,
    asleep: Histogram<u64>,
    polls_again: Histogram<u64>,
    frame_polls_again: Histogram<u64>,
    apply: Histogram<u64>,
    escalated: u64,
}

/// Measures hand-offs. `spawn` makes a command that starts a copy of the calling program, whose
/// `main` begins with [`child::run_if_asked`](crate::child::run_if_asked).
///
/// # Errors
/// [`BenchError`] if something does not start or answer.
pub fn handoff(options: HandoffOptions, spawn: &dyn Fn() -> Command) -> Result<HandoffReport, BenchError> {
    let mut all = Collected {
        busy: histogram(),
        gave_up: histogram(),
        ceded: histogram(),
        first: histogram(),
        signal: histogram(),
        together: histogram(),
        idle: histogram(),
        wake: histogram(),
        asleep: histogram(),
        polls_again: histogram(),
        frame_polls_again: histogram(),
        apply: histogram(),
        escalated: 0,
    };
    for _ in 0..options.rounds.max(1) {
        asleep(options, &mut all)?;
        let cores = tailwater_round(options, spawn, &mut all)?;
        let mut baseline = Baseline::start(spawn, cores)?;
        baseline.measure(options.per_round / 4, options.gap, false, &mut all.signal)?;
        baseline.measure(options.per_round / 4, options.gap, true, &mut all.together)?;
    }
    Ok(HandoffReport {
        busy_p50_us: quantile_us(&all.busy, 0.5),
        busy_p99_us: quantile_us(&all.busy, 0.99),
        first_p50_us: quantile_us(&all.first, 0.5),
        first_p99_us: quantile_us(&all.first, 0.99),
        gave_up_p50_us: quantile_us(&all.gave_up, 0.5),
        ceded_p50_us: quantile_us(&all.ceded, 0.5),
        signal_p50_us: quantile_us(&all.signal, 0.5),
        signal_p99_us: quantile_us(&all.signal, 0.99),
        signal_together_p50_us: quantile_us(&all.together, 0.5),
        idle_p50_us: quantile_us(&all.idle, 0.5),
        idle_p99_us: quantile_us(&all.idle, 0.99),
        wake_p50_us: quantile_us(&all.wake, 0.5),
        asleep_p50_us: quantile_us(&all.asleep, 0.5),
        polls_again_p50_us: quantile_us(&all.polls_again, 0.5),
        polls_again_p99_us: quantile_us(&all.polls_again, 0.99),
        frame_polls_again_p50_us: quantile_us(&all.frame_polls_again, 0.5),
        frame_polls_again_p99_us: quantile_us(&all.frame_polls_again, 0.99),
        iokernel_ns: if all.apply.is_empty() { 0 } else { all.apply.value_at_quantile(0.5) },
        handoffs: all.busy.len(),
        escalated: all.escalated,
    })
}

/// Runs one round of Tailwater's own hand-offs; returns the IOKernel's core and the managed one.
fn tailwater_round(
    options: HandoffOptions,
    spawn: &dyn Fn() -> Command,
    all: &mut Collected,
) -> Result<(u16, u16), BenchError> {
    let (port, prober) = prober();
    let running = Running::start(vec![Box::new(port)])?;
    idle(options, spawn, &running, &prober, all)?;
    wake(options, spawn, &running, &prober, all)?;
    busy(options, spawn, &running, &prober, all)?;
    Ok((running.iokernel, running.managed))
}

fn child(
    running: &Running,
    spawn: &dyn Fn() -> Command,
    spec: &RawSpec,
    role: Role,
) -> Result<RawChild, BenchError> {
    RawChild::start(spawn(), &running.socket, spec, role).map_err(BenchError::Child)
}

/// Returns the endpoint of a runtime, once it is registered.
fn target(running: &Running, name: &str) -> Result<Endpoint, BenchError> {
    let runtime = running.stats.runtimes().into_iter().find(|runtime| runtime.name == name);
    let runtime = runtime.ok_or_else(|| BenchError::Child(format!("{name} is gone")))?;
    Ok(Endpoint { mac: runtime.mac, ip: runtime.ip, port: 7 })
}

/// Measures a service that idles and keeps its core.
fn idle(
    options: HandoffOptions,
    spawn: &dyn Fn() -> Command,
    running: &Running,
    prober: &Handle,
    all: &mut Collected,
) -> Result<(), BenchError> {
    let spec = RawSpec { spin_us: 1, idle_us: 10_000_000, ..RawSpec::new("idle-service") };
    let _service = child(running, spawn, &spec, Role::Echo)?;
    let gap = Duration::from_micros(20);
    began(prober, running, "idle-service", gap, options.per_round, &mut all.idle)
}

/// Measures a service that parks between requests, on a core that no other runtime uses.
fn wake(
    options: HandoffOptions,
    spawn: &dyn Fn() -> Command,
    running: &Running,
    prober: &Handle,
    all: &mut Collected,
) -> Result<(), BenchError> {
    let spec = RawSpec { spin_us: 1, idle_us: 0, ..RawSpec::new("parking-service") };
    let _service = child(running, spawn, &spec, Role::Echo)?;
    let gap = Duration::from_micros(100);
    began(prober, running, "parking-service", gap, options.per_round / 4, &mut all.wake)
}

/// Sends `count` requests to the service `name` and records the time until each was begun.
fn began(
    prober: &Handle,
    running: &Running,
    name: &str,
    gap: Duration,
    count: usize,
    into: &mut Histogram<u64>,
) -> Result<(), BenchError> {
    let samples = prober.measure(Probe { target: target(running, name)?, gap, count })?;
    samples.iter().filter_map(|sample| sample.began).for_each(|ns| into.saturating_record(ns));
    Ok(())
}

/// Measures the first wake: all kthreads and the IOKernel sleep. The IOKernel is another one, with
/// a port that wakes it.
fn asleep(options: HandoffOptions, all: &mut Collected) -> Result<(), BenchError> {
    let station = Attachment::Station { mac: STATION.mac, ip: Some(STATION.ip) };
    let (port, station) = memory::pair("station", station)?;
    let running = Running::start(vec![Box::new(port)])?;
    let began = Arc::new(AtomicU64::new(0));
    let service = RawRuntime::start(&running.socket, &RawSpec::new("sleeper"), |_| {
        Box::new(Echo::watched(Arc::clone(&began)))
    })?;
    let clock = tailwater_shm::Clock::from_hz(service.shared.region.tsc_hz());
    let frame = udp(STATION, target(&running, "sleeper")?, &[0; 24]);
    let iterations = || running.stats.polling.iterations.get();
    let sleeps = || {
        let mut before = None;
        wait_for("the IOKernel's sleep", || {
            let now = iterations();
            let asleep = service.shared.region.asleep().load(Ordering::Relaxed) != 0;
            // It says so before its last looks; it sleeps if none ends in a whole interval.
            asleep && before.replace(now) == Some(now)
        })
    };
    let wakes = |since| {
        wait_for("the wake of a kthread", || began.load(Ordering::Relaxed) > since)?;
        Ok::<_, BenchError>(began.load(Ordering::Relaxed) - since)
    };
    for _ in 0..options.per_round.min(WAKES_PER_ROUND) {
        sleeps()?;
        let rung = clock::now();
        service.submit(0);
        all.asleep.saturating_record(clock.to_ns(wakes(rung)?));
    }
    let ring = || service.submit(0);
    // The queue has room: each frame is taken before the next.
    let send = || assert!(station.send(&frame), "the IOKernel runs");
    let polls_again: [(&dyn Fn(), _); 2] =
        [(&ring, &mut all.polls_again), (&send, &mut all.frame_polls_again)];
    for (wake, histogram) in polls_again {
        for _ in 0..options.per_round.min(WAKES_PER_ROUND) {
            sleeps()?;
            let (before, woken) = (iterations(), clock::now());
            wake();
            // Without a sleep, which would last longer than the wake.
            let end = woken + clock.from_ns(LONGEST_WAKE_NS);
            while iterations() == before && clock::now() < end {
                core::hint::spin_loop();
            }
            histogram.saturating_record(clock.to_ns(clock::now() - woken));
            wakes(woken)?;
            while station.receive().is_some() {}
        }
    }
    Ok(())
}

/// Measures the hand-off itself: a batch job in one process has the core, a service in another gets
/// it.
fn busy(
    options: HandoffOptions,
    spawn: &dyn Fn() -> Command,
    running: &Running,
    prober: &Handle,
    all: &mut Collected,
) -> Result<(), BenchError> {
    let batch = RawSpec::new("batch").best_effort();
    let _batch = child(running, spawn, &batch, Role::Burn)?;
    let spec = RawSpec { spin_us: 1, ..RawSpec::new("service") };
    let _service = child(running, spawn, &spec, Role::Echo)?;
    let target = target(running, "service")?;
    prober.measure(Probe { target, gap: options.gap, count: options.per_round.min(50) })?;
    let stats = &running.stats;
    let handoff = stats.handoff(HandoffKind::Polling);
    let sources = [&handoff.running, &handoff.gave_up, &handoff.ceded, &stats.apply];
    let (before, escalated_before) = (sources.map(SharedHistogram::snapshot), escalated(running));
    began(prober, running, "service", options.gap, options.per_round, &mut all.first)?;
    let totals = [&mut all.busy, &mut all.gave_up, &mut all.ceded, &mut all.apply];
    for ((total, source), before) in totals.into_iter().zip(sources).zip(before) {
        let mut difference = source.snapshot();
        difference.subtract(before).expect("snapshots of one histogram only grow");
        total.add(difference).expect("both cover the same range");
    }
    all.escalated += escalated(running) - escalated_before;
    Ok(())
}

fn escalated(running: &Running) -> u64 {
    running.stats.cores.signals.get() + running.stats.cores.evictions.get()
}
