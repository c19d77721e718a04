//! The results of a demo: its points, the machine's noise, the table's rows and `demo.json`.
//!
//! Owns the definitions of the figures: a batch share is the batch job's rate over its rate alone
//! right before or after; a point is saturated as [`is_saturated`] has it; an ideal
//! system's cores do the service's work at the speed of the faster system. Every number is finite:
//! a figure that would not be is an error.

use anyhow::Context;
use serde::Serialize;
use tailwater_loadgen::Measurement;
use tailwater_loadgen::delivery::DeliveryFigures;
use tailwater_loadgen::ideal::Ideal;
use tailwater_loadgen::noise::GapFigures;
use tailwater_workload::ServiceTime;

use super::course::OptionRecord;
use tailwater_testbed::account::{self, Shares};
use tailwater_testbed::handoffs::HandoffFigures;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::table::number;
use tailwater_testbed::wait::WaitChoice;
use tailwater_testbed::{BatchRates, is_saturated, latency_or_timeout as latency, standing_queue_us};

/// All results of a demo.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub machine: Machine,
    pub commit: String,
    pub options: OptionRecord,
    /// Noise of each core before any other process of the demo ran.
    pub noise: Vec<Noise>,
    /// Iterations per millisecond of the service's work.
    pub speed: u64,
    /// The batch job's rates alone.
    pub solo: Solo,
    pub linux_wait: WaitChoice,
    pub points: Vec<Point>,
    pub ideal: Vec<IdealPoint>,
    pub handoff_us: HandoffFigures,
    pub verdict: Vec<String>,
}

impl Outcome {
    /// Returns the text of `demo.json`.
    ///
    /// # Errors
    /// Never, unless a field cannot be written as JSON.
    pub fn to_json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// The systems that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    Tailwater,
    Linux,
}

impl System {
    pub fn name(self) -> &'static str {
        match self {
            System::Tailwater => "Tailwater",
            System::Linux => "Linux",
        }
    }
}

/// The machine's noise on one core.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Noise {
    pub core: usize,
    #[serde(flatten)]
    pub gaps: GapFigures,
}

/// Returns the noise of all cores in one line.
pub fn describe_noise(noise: &[Noise]) -> String {
    let each = noise.iter().map(|Noise { core, gaps }| {
        format!(
            "core {core} stood still {:.0} times a second for over 50 us (longest {:.0} us, {:.1} % of its time)",
            gaps.gaps_per_s,
            gaps.longest_us,
            100.0 * gaps.lost_fraction
        )
    });
    each.collect::<Vec<_>>().join(", ")
}

/// The batch job's rates alone, on all managed cores, in trials per second: medians over the
/// points.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Solo {
    pub tailwater: f64,
    pub linux: f64,
}

impl Solo {
    /// Returns the medians over these points; 0 for a system without points.
    pub fn of(points: &[Point]) -> Self {
        let median = |system: System| {
            let mut rates: Vec<f64> =
                points.iter().filter(|p| p.system == system).map(|p| p.solo_rate).collect();
            rates.sort_by(f64::total_cmp);
            rates.get(rates.len() / 2).copied().unwrap_or(0.0)
        };
        Self { tailwater: median(System::Tailwater), linux: median(System::Linux) }
    }

    /// Returns the rates in words.
    pub fn describe(self) -> String {
        let Self { tailwater, linux } = self;
        format!(
            "batch alone: {tailwater:.0} trials/s on Tailwater, {linux:.0} on Linux (medians over the points; each share is of \
             the rate right before or after)"
        )
    }
}

/// One system under one load. Latencies are those of answered requests; without any, the
/// generator's timeout.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    pub system: System,
    pub service: String,
    /// Load in percent of the managed cores.
    pub load: f64,
    pub offered_rps: f64,
    pub achieved_rps: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    /// Median over 100 ms windows of each window's p99.9.
    pub win_p999_us: f64,
    /// Speed of the batch job; 1 is its speed alone.
    pub batch_share: f64,
    /// Trials per second of the batch job alone, the larger of the rates right before and after.
    pub solo_rate: f64,
    pub lost: u64,
    /// Requests that the generator sent late.
    pub late: u64,
    pub saturated: bool,
    pub completed: u64,
    pub windows: u64,
    /// Windows that contain a stall of the generator's core.
    pub windows_cut: u64,
    pub duration_s: f64,
    /// Time that the service spent on work over the time asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<DeliveryFigures>,
    /// Where the time of the managed cores went; empty for Linux.
    pub account: Vec<Shares>,
    /// Speed while running; `None` for Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<Speed>,
}

/// Work done per second of core time that a program held.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Speed {
    /// Trials of the batch job per second of core time held, over the same alone.
    pub batch: f64,
    /// Work that the answered requests asked for, over the time in the service's user threads,
    /// which includes their calls of sockets.
    pub service: f64,
}

impl Point {
    /// Returns a measurement as figures.
    pub fn new(
        system: System,
        load: f64,
        service: &ServiceTime,
        measurement: &Measurement,
        batch: BatchRates,
    ) -> Self {
        let report = measurement.report();
        let figures = report.figures;
        Self {
            system,
            service: service.to_string(),
            load,
            offered_rps: figures.offered_rps,
            achieved_rps: figures.achieved_rps,
            p50_us: latency(figures.p50_us),
            p99_us: latency(figures.p99_us),
            p999_us: latency(figures.p999_us),
            win_p999_us: latency(figures.win_p999_us),
            batch_share: batch.share(),
            solo_rate: batch.solo,
            lost: figures.lost,
            late: figures.late,
            saturated: is_saturated(&figures, standing_queue_us(service)),
            completed: figures.completed,
            windows: figures.windows,
            windows_cut: figures.windows_cut,
            duration_s: figures.duration_s,
            work: report.delivery,
            account: Vec::new(),
            speed: None,
        }
    }

    /// Returns the point with the account of its cores.
    #[must_use]
    pub fn with_account(self, service: &ServiceTime, account: Vec<Shares>, batch: Option<f64>) -> Self {
        let asked = self.achieved_rps * service.mean_ns() / 1e9;
        let threads: f64 = account.iter().map(|shares| shares.service_threads).sum();
        let speed = batch.filter(|_| threads > 0.0).map(|batch| Speed { batch, service: asked / threads });
        Self { account, speed, ..self }
    }

    /// Share of the requests that the generator sent late.
    pub fn late_part(&self) -> f64 {
        self.late as f64 / (self.completed + self.lost).max(1) as f64
    }

    /// Returns the point's row of the table.
    pub fn table_row(&self) -> String {
        let late = if self.late_part() > 0.001 {
            format!("  {:.1} % late", 100.0 * self.late_part())
        } else {
            String::new()
        };
        let saturated = if self.saturated { "  saturated" } else { "" };
        let latencies = [self.p50_us, self.p99_us, self.p999_us, self.win_p999_us];
        row(
            "",
            self.system.name(),
            (self.offered_rps, self.achieved_rps),
            latencies,
            self.batch_share,
            self.lost,
        ) + saturated
            + &late
    }
}

/// The same requests through a queue without overhead.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IdealPoint {
    pub load: f64,
    /// Figures on cores that always run.
    #[serde(flatten)]
    pub queue: QueueFigures,
    /// Figures on cores with the stalls that were measured on this machine, which an ideal system
    /// would have here; `None` when no request would have been served.
    pub stalled: Option<QueueFigures>,
}

/// Figures of a queue without overhead.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueFigures {
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub win_p999_us: f64,
    /// Share of the cores' running time that no request needed.
    pub batch_share: f64,
    #[serde(skip)]
    pub offered_rps: f64,
    #[serde(skip)]
    pub achieved_rps: f64,
    #[serde(skip)]
    pub lost: u64,
}

impl IdealPoint {
    /// Both measurements as figures.
    ///
    /// # Errors
    /// If no request is due in a point.
    pub fn new(load: f64, ideal: &Ideal, stalled: &Ideal) -> anyhow::Result<Self> {
        let queue = QueueFigures::new(ideal).context("the load is too low: no request is due in a point")?;
        Ok(Self { load, queue, stalled: QueueFigures::new(stalled) })
    }

    /// Returns the rows of the table.
    pub fn table_rows(&self) -> String {
        let load = format!("{} %", self.load);
        let stalled = match &self.stalled {
            Some(figures) => figures.table_row("", "  stalled"),
            None => format!("{:>6}  {:<9} stood still while it was probed", "", "  stalled"),
        };
        format!("{}\n{stalled}", self.queue.table_row(&load, "ideal"))
    }
}

impl QueueFigures {
    /// Figures of a run; `None` when no request was served.
    fn new(ideal: &Ideal) -> Option<Self> {
        let figures = ideal.measurement.report().figures;
        Some(Self {
            p50_us: figures.p50_us?,
            p99_us: figures.p99_us?,
            p999_us: figures.p999_us?,
            win_p999_us: figures.win_p999_us?,
            batch_share: ideal.idle_share,
            offered_rps: figures.offered_rps,
            achieved_rps: figures.achieved_rps,
            lost: figures.lost,
        })
    }

    fn table_row(&self, load: &str, name: &str) -> String {
        let latencies = [self.p50_us, self.p99_us, self.p999_us, self.win_p999_us];
        row(load, name, (self.offered_rps, self.achieved_rps), latencies, self.batch_share, self.lost)
    }
}

/// Returns the smaller ratio of work done to work asked for, which bounds what an ideal system
/// could do at that load; 1 if neither system answered.
pub fn fastest_work(points: [&Point; 2]) -> f64 {
    let medians = points.into_iter().filter_map(|point| point.work).map(|work| work.median);
    medians.reduce(f64::min).unwrap_or(1.0)
}

/// Returns the time that each system's service spent on work; empty if none was answered.
pub fn describe_work(points: &[Point]) -> String {
    let each = points.iter().filter_map(|point| {
        let DeliveryFigures { median, mean } = point.work?;
        Some(format!("{} {median:.2} ({mean:.2}) at {} %", point.system.name(), point.load))
    });
    let each = each.collect::<Vec<_>>().join(", ");
    if each.is_empty() {
        return each;
    }
    format!(
        "time that the service spent on work, over the time asked for: median (mean, with interruptions): {each}"
    )
}

/// Returns the account of the cores at each load, and the speeds while running; empty without an
/// account.
pub fn describe_account(points: &[Point]) -> String {
    let load = |point: &Point| format!("{} %", point.load);
    let rows: Vec<_> =
        points.iter().flat_map(|p| p.account.iter().map(move |shares| (load(p), shares))).collect();
    if rows.is_empty() {
        return String::new();
    }
    let speeds = points.iter().filter_map(|p| {
        let Speed { batch, service } = p.speed?;
        Some(format!("{batch:.2} and {service:.2} at {}", load(p)))
    });
    format!(
        "where the time of Tailwater's cores went\n{}speed while running, batch job (of alone) and service (of its calibration): {}",
        account::table("load", rows),
        speeds.collect::<Vec<_>>().join(", ")
    )
}

/// Returns the two header lines of the table.
pub fn table_head() -> String {
    let head = |cells: [&str; 10]| {
        let [load, system, a, b, c, d, e, f, g, h] = cells;
        format!("{load:>6}  {system:<9} {a:>8} {b:>8} {c:>8} {d:>8} {e:>8} {f:>9} {g:>6} {h:>7}")
    };
    format!(
        "\n{}\n{}",
        head(["load", "system", "offered", "achieved", "p50", "p99", "p99.9", "win p99.9", "batch", "lost"]),
        head(["", "", "req/s", "req/s", "us", "us", "us", "us", "share", ""])
    )
}

fn row(load: &str, system: &str, rates: (f64, f64), us: [f64; 4], batch: f64, lost: u64) -> String {
    let [p50, p99, p999, window] = us.map(number);
    format!(
        "{load:>6}  {system:<9} {:>8.0} {:>8.0} {p50:>8} {p99:>8} {p999:>8} {window:>9} {batch:>6.2} {lost:>7}",
        rates.0, rates.1
    )
}

#[cfg(test)]
mod tests {
    use tailwater_loadgen::{Generator, Plan};

    use super::*;

    #[test]
    fn rows_stand_under_their_heads() {
        let head = table_head();
        let last = head.lines().nth(1).unwrap();
        let row = row("10 %", "Tailwater", (1e4, 1e4), [7.7, 51.0, 77.0, 77.0], 0.9, 12);
        assert_eq!(row.len(), last.len(), "{last}\n{row}");
    }

    #[test]
    fn a_share_is_one_of_the_rate_alone_at_that_point() {
        let share_and_solo = |batch_rate, solo_rate| {
            let plan = Plan::new("1s@1k".parse().unwrap(), "exp:10us".parse().unwrap());
            let measurement = Generator::new(plan, 1, 0).unwrap().finish(1_000_000_000);
            let batch = BatchRates { beside: batch_rate, solo: solo_rate, speed: None };
            let point = Point::new(System::Linux, 10.0, &"exp:10us".parse().unwrap(), &measurement, batch);
            (point.batch_share, Solo::of(&[point]))
        };
        let (share, solo) = share_and_solo(450.0, 500.0);
        assert_eq!((share, solo), (0.9, Solo { tailwater: 0.0, linux: 500.0 }));
    }

    #[test]
    fn an_ideal_system_works_as_fast_as_the_faster_one() {
        let point = |median: Option<f64>| {
            let plan = Plan::new("1s@1k".parse().unwrap(), "exp:10us".parse().unwrap());
            let measurement = Generator::new(plan, 1, 0).unwrap().finish(1_000_000_000);
            let batch = BatchRates { beside: 1.0, solo: 1.0, speed: None };
            let point = Point::new(System::Linux, 10.0, &"exp:10us".parse().unwrap(), &measurement, batch);
            Point { work: median.map(|median| DeliveryFigures { median, mean: 2.0 }), ..point }
        };
        let of = |a, b| fastest_work([&point(a), &point(b)]);
        assert_eq!((of(Some(1.1), Some(0.9)), of(Some(1.1), None), of(None, None)), (0.9, 1.1, 1.0));
        assert_eq!(describe_work(&[point(None)]), "");
        assert!(describe_work(&[point(Some(1.0)), point(None)]).ends_with("Linux 1.00 (2.00) at 10 %"));
    }
}
