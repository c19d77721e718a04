//! The number of connections that receive-side scaling needs to balance cores (Shinjuku section
//! 3.5, figure 4).
//!
//! Monte Carlo: connections hash to queues at random; the imbalance is the excess of the fullest
//! queue over the mean. The answer is the smallest number of connections for which the imbalance
//! stays below a bound with a given probability.

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use tailwater_sched::dispatch::FlowHash;
use tailwater_workload::random::{stream, unit_open_closed};

use crate::scenario::{parallel, seed_of};
use tailwater_plot::table::Table;
use tailwater_plot::{Line, Panel};

/// The parameters of the study.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConnectionStudy {
    /// Numbers of queues (cores) to answer for.
    pub queues: Vec<usize>,
    /// Largest tolerated excess of the fullest queue over the mean, as a fraction.
    pub imbalance: f64,
    /// Probability with which it must hold.
    pub probability: f64,
    /// Random assignments per candidate.
    pub trials: u32,
    /// Seed.
    pub seed: u64,
    /// Threads; 0 for all.
    pub threads: usize,
}

impl Default for ConnectionStudy {
    fn default() -> Self {
        let queues = vec![2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24];
        Self { queues, imbalance: 0.1, probability: 0.9, trials: 2_000, seed: 1, threads: 0 }
    }
}

/// The answer for one number of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectionRow {
    /// Queues.
    pub queues: usize,
    /// Smallest number of connections found, within 2 %.
    pub connections: u64,
}

/// Largest number of connections tried.
const MAX_CONNECTIONS: u64 = 1 << 24;

impl ConnectionStudy {
    /// Runs the study.
    ///
    /// # Errors
    ///
    /// If a parameter is out of range.
    pub fn run(&self, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Vec<ConnectionRow>> {
        let open = |x: f64| x > 0.0 && x < 1.0;
        ensure!(open(self.probability), "probability {}: use a number between 0 and 1", self.probability);
        ensure!(
            self.imbalance >= 0.01 && self.imbalance <= 10.0,
            "imbalance {}: use 0.01 to 10",
            self.imbalance
        );
        ensure!((10..=1_000_000).contains(&self.trials), "{} trials: use 10 to 1000000", self.trials);
        ensure!(
            self.queues.iter().all(|q| (2..=1024).contains(q)),
            "imbalance is defined for 2 to 1024 queues"
        );
        let threads = if self.threads == 0 { crate::scenario::default_threads() } else { self.threads };
        Ok(parallel(self.queues.len(), threads, tick, |i| {
            let queues = self.queues[i];
            ConnectionRow { queues, connections: self.smallest(queues) }
        }))
    }

    /// Doubles until the bound holds, then halves the gap to 2 %.
    fn smallest(&self, queues: usize) -> u64 {
        let mut high = queues as u64;
        while high < MAX_CONNECTIONS && !self.holds(queues, high) {
            high *= 2;
        }
        let mut low = high / 2;
        while high - low > (high / 50).max(1) {
            let middle = low.midpoint(high);
            if self.holds(queues, middle) { high = middle } else { low = middle }
        }
        high
    }

    fn holds(&self, queues: usize, connections: u64) -> bool {
        self.balanced(queues, connections) >= self.probability
    }

    /// Returns the fraction of random assignments of `connections` to `queues` whose imbalance
    /// stays below the bound.
    #[must_use]
    pub fn balanced(&self, queues: usize, connections: u64) -> f64 {
        let mut prng = stream(seed_of(self.seed, queues as u32), 0);
        let limit = (1.0 + self.imbalance) * connections as f64 / queues as f64;
        let mut counts = vec![0u32; queues];
        let mut good = 0u32;
        for _ in 0..self.trials {
            counts.fill(0);
            for _ in 0..connections {
                let hash = FlowHash((unit_open_closed(&mut prng) * f64::from(u32::MAX)) as u32);
                counts[hash.home(queues).index()] += 1;
            }
            let fullest = counts.iter().copied().max().unwrap_or(0);
            good += u32::from(f64::from(fullest) < limit);
        }
        f64::from(good) / f64::from(self.trials)
    }
}

/// Returns the rows as a table.
#[must_use]
pub fn table(rows: &[ConnectionRow]) -> Table {
    let mut table = Table::new("queues | connections");
    for r in rows {
        table.row([r.queues.to_string(), r.connections.to_string()]);
    }
    table
}

/// Connections over queues.
#[must_use]
pub fn panels(rows: &[ConnectionRow]) -> Vec<Panel> {
    let points = rows.iter().map(|r| (r.queues as f64, r.connections as f64)).collect();
    vec![Panel::new("", "queues (cores)", "connections", vec![Line::new("connections needed", points)])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_queues_and_tighter_bounds_need_more_connections() {
        let base =
            ConnectionStudy { queues: vec![2, 8], trials: 200, threads: 2, ..ConnectionStudy::default() };
        let rows = base.run(&|| ()).unwrap();
        let loose = ConnectionStudy { imbalance: 0.3, ..base.clone() }.run(&|| ()).unwrap();
        assert!(rows[1].connections > 2 * rows[0].connections, "{rows:?}");
        assert!(rows[1].connections > 4 * loose[1].connections, "{rows:?} {loose:?}");
    }

    #[test]
    fn two_queues_agree_with_the_normal_approximation() {
        // The fuller of two queues exceeds the mean by 10 % when |X - n/2| > n/20; 1.645 sigma of a
        // binomial is 1.645 * sqrt(n)/2, so n is about (1.645 * 10)^2 = 271.
        let study =
            ConnectionStudy { queues: vec![2], trials: 4_000, threads: 1, ..ConnectionStudy::default() };
        let n = study.run(&|| ()).unwrap()[0].connections;
        assert!((230..320).contains(&n), "{n}");
    }

    #[test]
    fn senseless_bounds_are_refused() {
        let refused = |s: ConnectionStudy| s.run(&|| ()).unwrap_err().to_string();
        let base = ConnectionStudy::default();
        assert!(refused(ConnectionStudy { probability: 1.0, ..base.clone() }).contains("probability"));
        assert!(refused(ConnectionStudy { imbalance: 0.0, ..base.clone() }).contains("imbalance"));
        assert!(refused(ConnectionStudy { queues: vec![1], ..base }).contains("queues"));
    }
}
