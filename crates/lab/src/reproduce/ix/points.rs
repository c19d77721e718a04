//! Points of figures whose clients have a fixed number of requests outstanding: samples by panel,
//! system and position on the x axis, over the rounds.

use tailwater_loadgen::tcp::Outcome as Echoed;
use tailwater_plot::{Line, Panel};
use tailwater_sim::report::Table;

use super::super::spread::{Spread, cell};

pub const TAILWATER: &str = "Tailwater";
pub const LINUX: &str = "Linux";

/// A point in one round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Messages per second.
    pub rate_rps: f64,
    /// Payload in one direction.
    pub gbps: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Sample {
    /// Returns what a client counted of messages of `bytes` bytes.
    pub fn new(echoed: &Echoed, bytes: usize) -> Self {
        Self::of(echoed.rate(), bytes, echoed.latency_us(0.5), echoed.latency_us(0.99))
    }

    /// Returns the sample of messages of `bytes` bytes with this rate and these latencies.
    pub fn of(rate_rps: f64, bytes: usize, p50_us: f64, p99_us: f64) -> Self {
        Self { rate_rps, gbps: rate_rps * bytes as f64 * 8.0 / 1e9, p50_us, p99_us }
    }
}

/// A system at a position, and a sample for each round.
#[derive(Debug, Clone)]
pub struct Point {
    pub panel: &'static str,
    pub system: &'static str,
    /// The position on the x axis.
    pub x: u64,
    pub samples: Vec<Sample>,
}

impl Point {
    /// Returns a value over the rounds.
    pub fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }

    /// Median of a value; NaN without samples.
    pub fn median(&self, value: impl Fn(&Sample) -> f64) -> f64 {
        self.spread(value).map_or(f64::NAN, |spread| spread.median)
    }
}

/// All points of a figure, in the order in which they are shown.
#[derive(Debug, Clone, Default)]
pub struct Points(pub Vec<Point>);

impl Points {
    /// Adds a sample to its point, which comes to be with the first one.
    pub fn add(&mut self, panel: &'static str, system: &'static str, x: u64, sample: Sample) {
        let known = self.0.iter_mut().find(|p| (p.panel, p.system, p.x) == (panel, system, x));
        match known {
            Some(point) => point.samples.push(sample),
            None => self.0.push(Point { panel, system, x, samples: vec![sample] }),
        }
    }

    /// Returns a system's points, by position.
    pub fn of(&self, panel: &str, system: &str) -> Vec<&Point> {
        let mut points: Vec<&Point> =
            self.0.iter().filter(|point| point.panel == panel && point.system == system).collect();
        points.sort_by_key(|point| point.x);
        points
    }

    /// Returns a system's point at a position.
    pub fn at(&self, panel: &str, system: &str, x: u64) -> Option<&Point> {
        self.of(panel, system).into_iter().find(|point| point.x == x)
    }

    /// Returns Tailwater's median of a value over a system's, at every position that both have.
    pub fn ratios(&self, panel: &str, to: &str, value: impl Fn(&Sample) -> f64) -> Vec<(u64, f64)> {
        let ratio = |point: &Point| {
            let other = self.at(panel, to, point.x)?;
            Some((point.x, point.median(&value) / other.median(&value)))
        };
        self.of(panel, TAILWATER).into_iter().filter_map(ratio).collect()
    }

    /// Returns a table with a row for each point and round.
    pub fn data(&self, x: &str) -> Table {
        let mut table = Table::new(&["panel", "system", x, "round", "rate_rps", "gbps", "p50_us", "p99_us"]);
        for Point { panel, system, x, samples } in &self.0 {
            for (round, Sample { rate_rps, gbps, p50_us, p99_us }) in samples.iter().enumerate() {
                table.push(vec![
                    (*panel).to_owned(),
                    (*system).to_owned(),
                    x.to_string(),
                    round.to_string(),
                    format!("{rate_rps:.0}"),
                    format!("{gbps:.4}"),
                    format!("{p50_us:.3}"),
                    format!("{p99_us:.3}"),
                ]);
            }
        }
        table
    }

    /// Returns a table with a row for each point: medians with their extremes.
    pub fn summary(&self, x: &str) -> Table {
        let columns = ["panel", x, "system", "thousand messages/s", "Gbit/s", "p50 us", "p99 us"];
        let mut table = Table::new(&columns);
        for point in &self.0 {
            table.push(vec![
                point.panel.to_owned(),
                point.x.to_string(),
                point.system.to_owned(),
                cell(point.spread(|sample| sample.rate_rps / 1e3)),
                cell(point.spread(|sample| sample.gbps)),
                cell(point.spread(|sample| sample.p50_us)),
                cell(point.spread(|sample| sample.p99_us)),
            ]);
        }
        table
    }

    /// Returns a chart of a panel's systems: medians of `value` over the position.
    pub fn chart(
        &self,
        panel: &str,
        systems: &[&str],
        (title, x_label, y_label): (&str, &str, &str),
        value: impl Fn(&Sample) -> f64,
    ) -> Panel {
        let line = |system: &&str| {
            let points = self.of(panel, system).into_iter();
            Line::new(*system, points.map(|point| (point.x as f64, point.median(&value))).collect())
        };
        Panel {
            title: title.to_owned(),
            x_label: x_label.to_owned(),
            y_label: y_label.to_owned(),
            log_x: true,
            lines: systems.iter().map(line).collect(),
            ..Panel::default()
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns a sample of this rate and median latency.
    pub fn sample(rate_rps: f64, p50_us: f64) -> Sample {
        Sample { rate_rps, gbps: rate_rps * 512.0 / 1e9, p50_us, p99_us: 2.0 * p50_us }
    }

    #[test]
    fn samples_of_a_position_are_one_point_and_ratios_need_both_systems() {
        let mut points = Points::default();
        for rate in [30.0, 10.0, 20.0] {
            points.add("a", TAILWATER, 64, sample(rate, 1.0));
        }
        points.add("a", LINUX, 64, sample(5.0, 9.0));
        points.add("a", TAILWATER, 1, sample(7.0, 1.0));
        points.add("b", LINUX, 1, sample(7.0, 1.0));
        assert_eq!(points.of("a", TAILWATER).iter().map(|point| point.x).collect::<Vec<_>>(), [1, 64]);
        assert_eq!(points.ratios("a", LINUX, |sample| sample.rate_rps), [(64, 4.0)]);
        assert_eq!((points.data("bytes").rows().len(), points.summary("bytes").rows().len()), (6, 4));
        let chart = points.chart("a", &[TAILWATER, LINUX], ("t", "x", "y"), |sample| sample.p50_us);
        assert_eq!(chart.lines[0].points, [(1.0, 1.0), (64.0, 1.0)]);
    }
}
