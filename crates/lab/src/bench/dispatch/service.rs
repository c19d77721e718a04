//! What preemption is worth to a server: the spin server with a dispatcher, with a quantum and
//! without.
//!
//! Owns the loads and the search for the highest one within a limit, whose steps alternate between
//! the two servers. A load counts as carried only if it was measured within the limit; one beyond
//! it is measured a second time. The simulator's prediction is that of the same policy, with the
//! cost of a request that was measured here.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tailwater_loadgen::Plan;
use tailwater_loadgen::kernel_udp::Load;
use tailwater_loadgen::protocol::Spin;
use tailwater_sim::costs::Costs;
use tailwater_sim::measure::Budget;
use tailwater_sim::mix::Mix;
use tailwater_sim::scenario::Scenario;
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::cores::CorePlan;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine;
use tailwater_testbed::on_tailwater::{Setting, measure};
use tailwater_testbed::program::Program;
use tailwater_testbed::table::{Table, number};
use tailwater_workload::{ArrivalProcess, Figures, Interval, LoadSchedule, Rate, ServiceTime};

/// Most requests are short, and the few long ones are most of the work (Shinjuku figure 5c).
pub const BIMODAL: &str = "bimodal:0.995*500ns+0.005*500us";
const FIXED: &str = "const:1us";
/// Limit of the 99th percentile over all requests, which is the 99.5th of the short ones.
const SLO_US: f64 = 50.0;
const PREEMPTIVE: &str = "sq:5us";
const PLAIN: &str = "c-fcfs";
/// The quantum of the RocksDB service, Shinjuku's for it (section 5.3).
pub const QUANTUM_DEFAULT_US: u64 = 15;
/// Loads between which the highest within the limit is searched.
const LEAST_RPS: f64 = 500.0;
const MOST_RPS: f64 = 500_000.0;
/// More than the server carries.
const SATURATING_RPS: f64 = 1_500_000.0;
/// 12 % of a core's time in requests of the bimodal mixture.
const LOW_RPS: f64 = 40_000.0;
/// Requests of a step, as far as the time allows.
const STEP_REQUESTS: f64 = 8_000.0;
const STEP: (f64, f64) = (1.0, 4.0);
const WARM_UP: Duration = Duration::from_millis(100);
/// Length of the windows of which the quiet half counts.
const WINDOW_NS: u64 = 10_000_000;
const SEED: u64 = 1;

/// The figures of the server.
#[derive(Debug, Serialize)]
pub struct Server {
    fixed_1us_mrps: Fixed,
    bimodal: Bimodal,
    /// At 12 % load, the server of `tailwater-spin` without a dispatcher.
    low_load: LowLoad,
}

#[derive(Debug, Serialize)]
struct Fixed {
    off: f64,
    on_5us: f64,
}

/// Highest loads within the limit; `None` where no load that was tried was within it.
#[derive(Debug, Serialize)]
struct Bimodal {
    slo_us: f64,
    load_no_preempt_rps: Option<f64>,
    load_preempt_rps: Option<f64>,
    simulated_no_preempt_rps: Option<f64>,
    simulated_preempt_rps: Option<f64>,
}

#[derive(Debug, Serialize)]
struct LowLoad {
    no_quantum_us: Latencies,
    quantum_15us_us: Latencies,
    dispatch_5us_us: Latencies,
}

#[derive(Debug, Serialize)]
struct Latencies {
    p50: f64,
    p99: f64,
}

/// Measures the server; `rounds` for the loads that are not searched.
///
/// # Errors
/// If a process does not start or ends, or on a signal.
pub fn run(rounds: u16, bench: &Bench) -> anyhow::Result<Server> {
    let fixed_1us_mrps = bench.saturated(rounds)?;
    let bimodal = bench.search(fixed_1us_mrps.off)?;
    let low_load = bench.low_load(rounds)?;
    Ok(Server { fixed_1us_mrps, bimodal, low_load })
}

/// One measured load.
#[derive(Debug)]
pub struct Point {
    figures: Figures,
    /// The quiet half of the time.
    quiet: Option<Interval>,
}

impl Point {
    /// Returns a latency in the quiet half of the time; NaN if there is none.
    pub fn quiet_us(&self, quantile: f64) -> f64 {
        let latency_ns = self.quiet.as_ref().and_then(|quiet| quiet.settled_latency_ns(quantile));
        latency_ns.map_or(f64::NAN, |ns| ns as f64 / 1e3)
    }
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
        let cores = CorePlan::new(machine::usable_cores())?;
        let testbed = Testbed { cores, interrupt, solo: Duration::ZERO };
        Ok(Self { speed: testbed.calibrate()?, testbed })
    }

    /// Measures one load of the server with `policy`, or without a dispatcher.
    ///
    /// # Errors
    /// If a process does not start or ends, or on a signal.
    pub fn point(
        &self,
        policy: Option<&str>,
        service: &str,
        rps: f64,
        quantum_us: u64,
        seconds: f64,
    ) -> anyhow::Result<Point> {
        let service: ServiceTime = service.parse()?;
        let mut program = Program::spin(self.speed, service.clone()).alone();
        if let Some(policy) = policy {
            program.arguments.extend(["--dispatch".to_owned(), policy.to_owned()]);
        }
        let counted = Duration::from_secs_f64(seconds);
        let schedule = LoadSchedule::constant(Rate::new(rps)?, (WARM_UP + counted).as_nanos() as u64);
        let plan = Plan {
            warm_up_ns: WARM_UP.as_nanos() as u64,
            flows: 64,
            intervals: true,
            interval_ns: WINDOW_NS,
            ..Plan::new(schedule, service.clone())
        };
        let load = Load { protocol: Arc::new(Spin::new(service)), seed: SEED, preload: false };
        // The core is the server's own, as Shinjuku's are: waking it would take most of the limit.
        let setting = Setting { batch: false, quantum_us, idle_timeout_us: 0, ..Setting::default() };
        let mut handoffs = HandoffRecord::default();
        let measured = measure(&self.testbed, &program, &plan, &load, setting, &mut handoffs)?;
        let summary = &measured.measurement.summary;
        let quiet = quiet_half(summary.intervals().list.clone());
        Ok(Point { figures: summary.figures(), quiet })
    }

    /// Returns what the server carries of requests of 1 us, medians over interleaved rounds.
    fn saturated(&self, rounds: u16) -> anyhow::Result<Fixed> {
        let (mut off, mut on) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let carried = |policy, into: &mut Vec<f64>| -> anyhow::Result<()> {
                let point = self.point(Some(policy), FIXED, SATURATING_RPS, 0, 1.0)?;
                into.push(point.figures.achieved_rps / 1e6);
                Ok(())
            };
            carried(PLAIN, &mut off)?;
            carried(PREEMPTIVE, &mut on)?;
        }
        Ok(Fixed { off: median(off), on_5us: median(on) })
    }

    /// Searches the highest loads within the limit.
    fn search(&self, fixed_mrps: f64) -> anyhow::Result<Bimodal> {
        let (mut plain, mut preemptive) = (Bisection::new(), Bisection::new());
        while plain.is_open() {
            for (policy, bisection) in [(PLAIN, &mut plain), (PREEMPTIVE, &mut preemptive)] {
                let rps = bisection.next();
                let within = self.is_within(policy, rps)? || self.is_within(policy, rps)?;
                bisection.record(within);
            }
        }
        let packet_ns = (1e3 / fixed_mrps - 1e3).max(0.0) as u64;
        let predict = |policy| simulate(policy, packet_ns);
        Ok(Bimodal {
            slo_us: SLO_US,
            load_no_preempt_rps: plain.within,
            load_preempt_rps: preemptive.within,
            simulated_no_preempt_rps: predict(PLAIN)?,
            simulated_preempt_rps: predict(PREEMPTIVE)?,
        })
    }

    /// Measures one load of the bimodal mixture. Returns whether it is within the limit, with
    /// nothing lost.
    fn is_within(&self, policy: &str, rps: f64) -> anyhow::Result<bool> {
        let seconds = (STEP_REQUESTS / rps).clamp(STEP.0, STEP.1);
        let point = self.point(Some(policy), BIMODAL, rps, 0, seconds)?;
        Ok(point.quiet_us(0.99) <= SLO_US && point.figures.lost == 0)
    }

    /// Measures the bimodal mixture at a low load: without a quantum, with one, with a dispatcher.
    fn low_load(&self, rounds: u16) -> anyhow::Result<LowLoad> {
        let variants = [(None, 0), (None, 15), (Some(PREEMPTIVE), 0)];
        let mut figures = [const { (Vec::new(), Vec::new()) }; 3];
        for _ in 0..rounds {
            for ((policy, quantum_us), (p50, p99)) in variants.iter().zip(&mut figures) {
                let point = self.point(*policy, BIMODAL, LOW_RPS, *quantum_us, 1.0)?;
                p50.extend(point.figures.p50_us);
                p99.push(point.quiet_us(0.99));
            }
        }
        let [no_quantum_us, quantum_15us_us, dispatch_5us_us] =
            figures.map(|(p50, p99)| Latencies { p50: median(p50), p99: median(p99) });
        Ok(LowLoad { no_quantum_us, quantum_15us_us, dispatch_5us_us })
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

/// A search by halving the logarithm of the range.
#[derive(Debug)]
struct Bisection {
    low: f64,
    high: f64,
    /// Highest value that was found within the limit.
    within: Option<f64>,
}

impl Bisection {
    /// The range at which the search ends.
    const RATIO: f64 = 1.06;

    fn new() -> Self {
        Self { low: LEAST_RPS, high: MOST_RPS, within: None }
    }

    fn is_open(&self) -> bool {
        self.high / self.low > Self::RATIO
    }

    fn next(&self) -> f64 {
        (self.low * self.high).sqrt()
    }

    fn record(&mut self, within: bool) {
        let rps = self.next();
        if within {
            self.within = Some(rps);
            self.low = rps;
        } else {
            self.high = rps;
        }
    }
}

/// Returns the highest load within the limit that the simulator finds on one core, where a request
/// costs `packet_ns` beside its work.
fn simulate(policy: &str, packet_ns: u64) -> anyhow::Result<Option<f64>> {
    let (mix, policy) = (Mix::parse(BIMODAL)?, policy.parse()?);
    let mut bisection = Bisection::new();
    while bisection.is_open() {
        let scenario = Scenario {
            cores: 1,
            mix: mix.clone(),
            arrivals: ArrivalProcess::Poisson,
            load: bisection.next() * mix.mean_ns() / 1e9,
            connections: None,
            policy,
            costs: Costs { packet_ns, ..Costs::ideal() },
            budget: Budget { warmup: 10_000, requests: 200_000, batches: 10 },
            seed: SEED,
        };
        let measured = scenario.run_once(0)?;
        // The third of the quantiles is the 99th percentile.
        bisection.record(!measured.saturated && measured.latency.quantile(2).value <= SLO_US * 1e3);
    }
    Ok(bisection.within)
}

/// Returns the median; NaN of no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the tables of the figures.
pub fn describe(server: &Server) -> String {
    let Server { fixed_1us_mrps: fixed, bimodal, low_load } = server;
    let mut loads = Table::new(["spin server, one core", "without preemption", "quantum of 5 us", "ratio"]);
    let mut row = |name: &str, plain: Option<f64>, preemptive: Option<f64>| {
        let load = |load: Option<f64>| load.map_or_else(|| "none that was tried".to_owned(), number);
        let ratio = plain.zip(preemptive).map(|(plain, preemptive)| preemptive / plain);
        let ratio = ratio.map_or_else(|| "-".to_owned(), number);
        loads.row([name.to_owned(), load(plain), load(preemptive), ratio]);
    };
    row("requests of 1 us, million per second", Some(fixed.off), Some(fixed.on_5us));
    row(
        "99.5 % of 0.5 us, 0.5 % of 500 us: per second with p99 within 50 us",
        bimodal.load_no_preempt_rps,
        bimodal.load_preempt_rps,
    );
    row("the same, simulated", bimodal.simulated_no_preempt_rps, bimodal.simulated_preempt_rps);
    let mut latencies = Table::new(["the same mixture, 40,000 per second", "p50, us", "p99, us"]);
    for (name, us) in [
        ("without quantum", &low_load.no_quantum_us),
        ("quantum of 15 us", &low_load.quantum_15us_us),
        ("dispatcher with a quantum of 5 us", &low_load.dispatch_5us_us),
    ] {
        latencies.row([name.to_owned(), number(us.p50), number(us.p99)]);
    }
    format!("{loads}\n{latencies}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulator_predicts_a_multiple_with_preemption() {
        let [plain, preemptive] = [PLAIN, PREEMPTIVE].map(|policy| simulate(policy, 500).unwrap().unwrap());
        assert!(preemptive > 20.0 * plain, "{plain} {preemptive}");
    }

    #[test]
    fn a_search_reports_only_loads_that_were_within_the_limit() {
        let search = |limit: f64| {
            let mut bisection = Bisection::new();
            while bisection.is_open() {
                let within = bisection.next() <= limit;
                bisection.record(within);
            }
            bisection.within
        };
        assert_eq!(search(0.0), None);
        let found = search(10_000.0).unwrap();
        assert!((10_000.0 / Bisection::RATIO..=10_000.0).contains(&found), "{found}");
    }

    #[test]
    fn where_no_load_was_within_the_limit_there_is_no_ratio() {
        let server = Server {
            fixed_1us_mrps: Fixed { off: 0.5, on_5us: 0.5 },
            bimodal: Bimodal {
                slo_us: SLO_US,
                load_no_preempt_rps: None,
                load_preempt_rps: Some(99_000.0),
                simulated_no_preempt_rps: Some(2_270.0),
                simulated_preempt_rps: Some(123_000.0),
            },
            low_load: LowLoad {
                no_quantum_us: Latencies { p50: 1.0, p99: 2.0 },
                quantum_15us_us: Latencies { p50: 1.0, p99: 2.0 },
                dispatch_5us_us: Latencies { p50: 1.0, p99: 2.0 },
            },
        };
        let text = describe(&server);
        let line = text.lines().find(|line| line.contains("p99 within")).unwrap();
        assert!(line.contains("none that was tried") && line.trim_end().ends_with(['-', '|']), "{line}");
    }
}
