//! One measured load of a server on a core that is its own.
//!
//! Owns the testbed, what a load consists of, and which part of its time counts: the half of the
//! windows in which the generator kept its schedule best.

use std::sync::Arc;
use std::time::Duration;

use tailwater_loadgen::Plan;
use tailwater_loadgen::kernel_udp;
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine;
use tailwater_testbed::on_tailwater::{Setting, measure};
use tailwater_testbed::program::Program;
use tailwater_workload::{Figures, Interval, LoadSchedule, Rate, ServiceTime};

const WARM_UP: Duration = Duration::from_millis(100);
/// How long a batch job runs alone before a load beside which it runs, and after it.
const SOLO: Duration = Duration::from_millis(90);
/// Length of the windows of which the quiet half counts.
const WINDOW_NS: u64 = 10_000_000;
/// Seed of all loads.
pub const SEED: u64 = 1;

/// A load.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Requests per second.
    pub rps: f64,
    /// Counted seconds.
    pub seconds: f64,
    /// The runtime's quantum in microseconds; 0: none.
    pub quantum_us: u64,
    /// Whether the latencies of the first class are kept apart.
    pub by_class: bool,
    /// Whether a batch job uses the core too.
    pub batch: bool,
}

impl Load {
    /// Returns a load without a quantum and a batch job.
    pub fn new(rps: f64, seconds: f64) -> Self {
        Self { rps, seconds, quantum_us: 0, by_class: false, batch: false }
    }
}

/// One measured load.
#[derive(Debug)]
pub struct Point {
    pub figures: Figures,
    /// Trials per second of the batch job.
    pub batch: Option<f64>,
    /// All requests in the quiet half of the time.
    quiet: Option<Interval>,
    /// Those of the first class.
    quiet_first: Option<Interval>,
}

impl Point {
    /// Returns a latency in the quiet half of the time; NaN if there is none.
    pub fn quiet_us(&self, quantile: f64) -> f64 {
        latency_us(self.quiet.as_ref(), quantile)
    }

    /// Returns a latency of the first class in its quiet half of the time; NaN if there is none.
    pub fn first_class_us(&self, quantile: f64) -> f64 {
        latency_us(self.quiet_first.as_ref(), quantile)
    }
}

fn latency_us(quiet: Option<&Interval>, quantile: f64) -> f64 {
    let latency_ns = quiet.and_then(|quiet| quiet.settled_latency_ns(quantile));
    latency_ns.map_or(f64::NAN, |ns| ns as f64 / 1e3)
}

/// The testbed, and the work that a core does on it.
pub struct Bench {
    testbed: Testbed,
    speed: u64,
}

impl Bench {
    /// Calibrates the testbed.
    ///
    /// # Errors
    /// If there are too few cores, or on a signal.
    pub fn new(interrupt: Arc<Interrupt>) -> anyhow::Result<Self> {
        let testbed = Testbed::new(machine::usable_cores(), interrupt, SOLO)?;
        Ok(Self { speed: testbed.calibrate()?, testbed })
    }

    /// Returns the spin server with a dispatcher, or without one.
    ///
    /// # Errors
    /// If `service` is no notation of service times.
    pub fn spin(&self, service: &str, policy: Option<&str>) -> anyhow::Result<Program> {
        let mut program = Program::spin(self.speed, service.parse()?).alone();
        if let Some(policy) = policy {
            program.arguments.extend(["--dispatch".to_owned(), policy.to_owned()]);
        }
        Ok(program)
    }

    /// Fails after a signal.
    pub fn check(&self) -> anyhow::Result<()> {
        Ok(self.testbed.interrupt.check()?)
    }

    /// Measures a load of a server that is started anew.
    pub fn point(&self, program: &Program, load: Load) -> anyhow::Result<Point> {
        let counted = Duration::from_secs_f64(load.seconds);
        let schedule = LoadSchedule::constant(Rate::new(load.rps)?, (WARM_UP + counted).as_nanos() as u64);
        let plan = Plan {
            warm_up_ns: WARM_UP.as_nanos() as u64,
            flows: 64,
            intervals: true,
            interval_ns: WINDOW_NS,
            first_class: load.by_class,
            // The work is drawn by the program's protocol.
            ..Plan::new(schedule, ServiceTime::constant(0))
        };
        let requests =
            kernel_udp::Load { protocol: Arc::clone(&program.protocol), seed: SEED, preload: false };
        // The core is the server's own, as Shinjuku's are: waking it would take most of the limit.
        // Beside a batch job it is lent to that after the usual time.
        let idle_timeout_us = if load.batch { Setting::default().idle_timeout_us } else { 0 };
        let setting =
            Setting { batch: load.batch, quantum_us: load.quantum_us, idle_timeout_us, ..Setting::default() };
        let mut handoffs = HandoffRecord::default();
        let measured = measure(&self.testbed, program, &plan, &requests, setting, &mut handoffs)?;
        let (all, first) = (&measured.measurement.summary, &measured.measurement.first_class);
        Ok(Point {
            figures: all.figures(),
            batch: measured.batch.map(|rates| rates.beside),
            quiet: quiet_half(all.intervals().list.clone()),
            quiet_first: first.as_ref().and_then(|first| quiet_half(first.intervals().list.clone())),
        })
    }
}

/// Returns the half of the windows in which the generator itself was late with the smallest share
/// of its requests: in the others the host took its core away, which says nothing about the server.
fn quiet_half(mut windows: Vec<Interval>) -> Option<Interval> {
    let late = |window: &Interval| window.counts.late as f64 / window.counts.offered.max(1) as f64;
    windows.sort_by(|a, b| late(a).total_cmp(&late(b)));
    let quiet = windows.len().div_ceil(2);
    windows.into_iter().take(quiet).reduce(|mut all, window| {
        all.merge(&window);
        all
    })
}
