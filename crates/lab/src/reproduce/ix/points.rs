//! Points of figures whose clients have a fixed number of requests outstanding: samples by panel,
//! system and position on the x axis, over the rounds.

use tailwater_loadgen::tcp::Outcome as Echoed;

use super::super::figure::{Line, Panel, Table};
use super::super::rounds;

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

/// A panel, a system, and a position on the x axis.
pub type Key = (&'static str, &'static str, u64);
pub type Point = rounds::Point<Key, Sample>;

const VALUES: [(&str, usize, rounds::Value<Sample>); 4] = [
    ("rate_rps", 0, |sample| sample.rate_rps),
    ("gbps", 4, |sample| sample.gbps),
    ("p50_us", 3, |sample| sample.p50_us),
    ("p99_us", 3, |sample| sample.p99_us),
];
const SHOWN: [(&str, rounds::Value<Sample>); 4] = [
    ("thousand messages/s", |sample| sample.rate_rps / 1e3),
    ("Gbit/s", |sample| sample.gbps),
    ("p50 us", |sample| sample.p50_us),
    ("p99 us", |sample| sample.p99_us),
];

/// All points of a figure, in the order in which they are shown.
#[derive(Debug, Clone, Default)]
pub struct Points(pub Vec<Point>);

impl Points {
    /// Adds a sample to its point, which comes to be with the first one.
    pub fn add(&mut self, panel: &'static str, system: &'static str, x: u64, sample: Sample) {
        let key = (panel, system, x);
        let known = self.0.iter_mut().find(|point| point.key == key);
        match known {
            Some(point) => point.samples.push(sample),
            None => self.0.push(Point { key, samples: vec![sample] }),
        }
    }

    /// Returns a system's points, by position.
    pub fn of(&self, panel: &str, system: &str) -> Vec<&Point> {
        let is_its = |point: &&Point| (point.key.0, point.key.1) == (panel, system);
        let mut points: Vec<&Point> = self.0.iter().filter(is_its).collect();
        points.sort_by_key(|point| point.key.2);
        points
    }

    /// Returns a system's point at a position.
    pub fn at(&self, panel: &str, system: &str, x: u64) -> Option<&Point> {
        self.of(panel, system).into_iter().find(|point| point.key.2 == x)
    }

    /// Returns Tailwater's median of a value over a system's, at every position that both have.
    pub fn ratios(&self, panel: &str, to: &str, value: impl Fn(&Sample) -> f64) -> Vec<(u64, f64)> {
        let ratio = |point: &Point| {
            let other = self.at(panel, to, point.key.2)?;
            Some((point.key.2, point.median(&value) / other.median(&value)))
        };
        self.of(panel, TAILWATER).into_iter().filter_map(ratio).collect()
    }

    /// Returns a table with a row for each point and round.
    pub fn data(&self, x: &str) -> Table {
        let cells = |&(panel, system, x): &Key| vec![panel.to_owned(), system.to_owned(), x.to_string()];
        rounds::data(&self.0, &format!("panel | system | {x}"), cells, &VALUES)
    }

    /// Returns a table with a row for each point: medians with their extremes.
    pub fn summary(&self, x: &str) -> Table {
        let cells = |&(panel, system, x): &Key| vec![panel.to_owned(), x.to_string(), system.to_owned()];
        rounds::summary(&self.0, &format!("panel | {x} | system"), cells, &SHOWN)
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
            Line::new(*system, points.map(|point| (point.key.2 as f64, point.median(&value))).collect())
        };
        Panel::new(title, x_label, y_label, systems.iter().map(line).collect()).log_x()
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
        assert_eq!(points.of("a", TAILWATER).iter().map(|point| point.key.2).collect::<Vec<_>>(), [1, 64]);
        assert_eq!(points.ratios("a", LINUX, |sample| sample.rate_rps), [(64, 4.0)]);
        assert_eq!((points.data("bytes").rows().len(), points.summary("bytes").rows().len()), (6, 4));
        let chart = points.chart("a", &[TAILWATER, LINUX], ("t", "x", "y"), |sample| sample.p50_us);
        assert_eq!(chart.lines[0].points, [(1.0, 1.0), (64.0, 1.0)]);
    }
}
