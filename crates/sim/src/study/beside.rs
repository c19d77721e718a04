//! A measured demo compared with the simulated one, load by load.
//!
//! Owns the reading of a `demo.json` and the table of differences. It judges nothing: a difference
//! may come from a cost of the profile, from something the simulator does not have (stalls of the
//! host), or from a disturbed machine, and a table cannot tell which.
//!
//! The simulated p99.9 is compared with the measured *windowed* p99.9, because the simulated host
//! never stalls. If a window of 100 ms holds few requests the two differ slightly: of 1000
//! exponential ones the median of the largest is 5 % above the p99.9.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::Effort;
use super::demo::{self, DemoRow};
use crate::costs::Costs;
use crate::mix::Mix;
use crate::report::{percent, us};
use tailwater_plot::table::Table;

/// The fields read from a `demo.json`; others are ignored.
#[derive(Clone, Debug, Deserialize)]
struct DemoFile {
    #[serde(default)]
    commit: String,
    options: DemoOptions,
    points: Vec<DemoPoint>,
}

#[derive(Clone, Debug, Deserialize)]
struct DemoOptions {
    managed_cores: Vec<u32>,
}

#[derive(Clone, Debug, Deserialize)]
struct DemoPoint {
    system: String,
    service: String,
    /// In percent.
    load: f64,
    p50_us: f64,
    win_p999_us: f64,
    batch_share: f64,
    saturated: bool,
}

/// The Tailwater half of a demo that was run on one managed core.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredDemo {
    /// Commit that was measured.
    pub commit: String,
    /// Service time in its notation.
    pub service: String,
    /// By load, as in the file.
    pub points: Vec<MeasuredPoint>,
}

/// One measured load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeasuredPoint {
    /// Offered work as a fraction of the core.
    pub load: f64,
    /// Median latency.
    pub p50_ns: f64,
    /// Median over 100 ms windows of each window's p99.9.
    pub win_p999_ns: f64,
    /// Speed of the batch job; alone it is 1.
    pub batch_share: f64,
    /// True if the system did not keep up.
    pub saturated: bool,
}

/// One load, measured and simulated.
#[derive(Clone, Debug, Serialize)]
pub struct BesideRow {
    /// The measurement.
    pub measured: MeasuredPoint,
    /// The simulation with the profile's costs.
    pub simulated: DemoRow,
    /// Simulated over measured, minus 1; `None` where one of them is saturated or 0.
    pub p50_difference: Option<f64>,
    /// The same for the simulated p99.9 and the measured windowed p99.9.
    pub p999_difference: Option<f64>,
    /// The same for the batch job.
    pub batch_difference: Option<f64>,
}

impl MeasuredDemo {
    /// Reads the file that `tailwater demo --json` wrote.
    ///
    /// # Errors
    ///
    /// If it cannot be read, is no such file, or holds nothing that the simulated scenario could
    /// stand beside.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        Self::parse(&text).with_context(|| format!("{shown}: make one with `tailwater demo --json FILE`"))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let file: DemoFile = serde_json::from_str(text).context("this is not a demo.json")?;
        let cores = file.options.managed_cores.len();
        anyhow::ensure!(cores == 1, "measured on {cores} managed cores, and the simulated scenario has one");
        let own: Vec<DemoPoint> = file.points.into_iter().filter(|p| p.system == "tailwater").collect();
        let service = own.first().context("it has no point of Tailwater")?.service.clone();
        let point = |p: DemoPoint| -> anyhow::Result<MeasuredPoint> {
            anyhow::ensure!(p.service == service, "points with {} and with {service}", p.service);
            Ok(MeasuredPoint {
                load: p.load / 100.0,
                p50_ns: p.p50_us * 1_000.0,
                win_p999_ns: p.win_p999_us * 1_000.0,
                batch_share: p.batch_share,
                saturated: p.saturated,
            })
        };
        let points = own.into_iter().map(point).collect::<Result<_, _>>()?;
        Ok(Self { commit: file.commit, service, points })
    }

    /// Returns the loads, as fractions of the core.
    #[must_use]
    pub fn loads(&self) -> Vec<f64> {
        self.points.iter().map(|p| p.load).collect()
    }
}

/// Simulates every load that was measured. `tick` is called once per load and replication.
///
/// # Errors
///
/// As [`demo::run`], and if the service time is none.
pub fn run(
    measured: &MeasuredDemo,
    costs: &Costs,
    effort: &Effort,
    tick: &(dyn Fn() + Sync),
) -> anyhow::Result<Vec<BesideRow>> {
    let service = Mix::parse(&measured.service)?;
    let simulated = demo::run(&service, &measured.loads(), costs, effort, tick)?;
    Ok(measured.points.iter().zip(simulated).map(|(&measured, simulated)| row(measured, simulated)).collect())
}

fn row(measured: MeasuredPoint, simulated: DemoRow) -> BesideRow {
    let latency = |simulated_ns: f64, measured_ns: f64| {
        (!measured.saturated && !simulated.saturated).then(|| difference(simulated_ns, measured_ns)).flatten()
    };
    BesideRow {
        p50_difference: latency(simulated.p50_ns.value, measured.p50_ns),
        p999_difference: latency(simulated.p999_ns.value, measured.win_p999_ns),
        batch_difference: difference(simulated.batch_share, measured.batch_share),
        measured,
        simulated,
    }
}

fn difference(simulated: f64, measured: f64) -> Option<f64> {
    (measured > 0.0).then(|| simulated / measured - 1.0)
}

/// Returns the rows as a table: three figures, each measured, simulated and the difference.
#[must_use]
pub fn table(rows: &[BesideRow]) -> Table {
    let mut table = Table::new(
        "load | p50 us | simulated p50 | p50 off | win p99.9 us | simulated p99.9 | p99.9 off | \
         batch | simulated batch | batch off",
    );
    for r in rows {
        let latency = |ns: f64, saturated: bool| if saturated { "saturated".to_owned() } else { us(ns) };
        let signed = |d: Option<f64>| d.map_or("-".to_owned(), |d| format!("{:+.0}%", 100.0 * d));
        let (m, s) = (&r.measured, &r.simulated);
        table.row([
            percent(m.load),
            latency(m.p50_ns, m.saturated),
            latency(s.p50_ns.value, s.saturated),
            signed(r.p50_difference),
            latency(m.win_p999_ns, m.saturated),
            latency(s.p999_ns.value, s.saturated),
            signed(r.p999_difference),
            format!("{:.2}", m.batch_share),
            format!("{:.2}", s.batch_share),
            signed(r.batch_difference),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("../../tests/demo.json");

    #[test]
    fn the_points_of_tailwater_are_read_and_linux_is_left_out() {
        let measured = MeasuredDemo::parse(FILE).unwrap();
        assert_eq!((measured.service.as_str(), measured.commit.as_str()), ("exp:10us", "36a17e5"));
        assert_eq!(measured.loads(), [0.3, 0.9]);
        let first = measured.points[0];
        assert_eq!((first.p50_ns, first.win_p999_ns, first.batch_share), (14_500.0, 130_000.0, 0.5));
    }

    #[test]
    fn each_load_has_its_difference_and_a_saturated_one_has_none() {
        let measured = MeasuredDemo::parse(FILE).unwrap();
        let effort = Effort { requests: 5_000, replications: 1, seed: 3, threads: 1 };
        let rows = run(&measured, &Costs::load("vm-2vcpu").unwrap(), &effort, &|| ()).unwrap();
        let of = |r: &BesideRow| r.simulated.p50_ns.value / r.measured.p50_ns - 1.0;
        assert_eq!(rows[0].p50_difference, Some(of(&rows[0])));
        assert!(
            (rows[0].batch_difference.unwrap() - (rows[0].simulated.batch_share / 0.5 - 1.0)).abs() < 1e-12
        );
        assert!(rows[1].measured.saturated);
        assert_eq!((rows[1].p50_difference, rows[1].p999_difference), (None, None));
        let text = table(&rows).to_string();
        let last = text.lines().last().unwrap();
        assert!(last.contains("saturated") && last.ends_with(" -"), "{text}");
    }

    #[test]
    fn a_file_that_cannot_stand_beside_the_scenario_is_explained() {
        let why = |text: &str| format!("{:#}", MeasuredDemo::parse(text).unwrap_err());
        assert!(why("{}").contains("not a demo.json"));
        assert!(why(&FILE.replace("[1]", "[1, 2]")).contains("2 managed cores"));
        assert!(why(&FILE.replace("\"tailwater\"", "\"other\"")).contains("no point of Tailwater"));
        let missing = MeasuredDemo::read(Path::new("/nonexistent/demo.json")).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent/demo.json"), "{missing}");
    }
}
