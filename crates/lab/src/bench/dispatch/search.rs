//! The highest load that a server carries within a limit, without preemption and with it.
//!
//! Owns the order of the steps, which alternate between the two servers, and what a search counts
//! as found: only a load that was measured within the limit. A first search, in which two of three
//! measurements decide a step, finds about where each limit lies. In each round a finer one around
//! it then measures each step once, so that a stall of the host lowers a load as often as luck
//! raises one; the results are medians over the rounds.

use serde::Serialize;
use tailwater_testbed::table::{Table, number};

use crate::bench::median;

/// Loads between which the highest within the limit is searched.
const LEAST_RPS: f64 = 50.0;
const MOST_RPS: f64 = 500_000.0;
/// The range at which the first search ends, and each round's.
const ROUGH: f64 = 1.5;
const FINE: f64 = 1.06;
/// A round searches so many times below and above what the first search found.
const AROUND: f64 = 2.0;
/// Requests of a step, as far as its time allows.
const STEP_REQUESTS: f64 = 4_000.0;
/// Least and most time of a step, in seconds.
const STEP: (f64, f64) = (0.5, 2.0);

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Plain,
    Preemptive,
}

const SERVERS: [Server; 2] = [Server::Plain, Server::Preemptive];

/// Highest loads within the limit; `None` where no load that was tried was within it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Loads {
    load_no_preempt_rps: Option<f64>,
    load_preempt_rps: Option<f64>,
    ratio: Ratio,
    /// The loads of each round.
    rounds: Vec<[Option<f64>; 2]>,
}

/// The load with preemption over that without.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ratio {
    /// Of the medians, and the least and the most of a round.
    Measured { median: f64, least: f64, most: f64 },
    /// Without preemption not even the lowest load that was tried was within the limit.
    AtLeast(f64),
    /// No load was within the limit with preemption.
    None,
}

/// Returns how long a load is measured.
pub fn step_seconds(rps: f64) -> f64 {
    (STEP_REQUESTS / rps).clamp(STEP.0, STEP.1)
}

/// Searches the highest loads for which `is_within` is true.
pub fn search(
    rounds: u16,
    mut is_within: impl FnMut(Server, f64) -> anyhow::Result<bool>,
) -> anyhow::Result<Loads> {
    let rough = alternate([Bisection::new(LEAST_RPS, MOST_RPS, ROUGH); 2], |server, rps| {
        let (first, second) = (is_within(server, rps)?, is_within(server, rps)?);
        if first == second { Ok(first) } else { is_within(server, rps) }
    })?;
    let around = |found: Option<f64>| {
        let centre = found.unwrap_or(LEAST_RPS * AROUND);
        Bisection::new(centre / AROUND, centre * AROUND, FINE)
    };
    let found: Result<Vec<_>, _> =
        (0..rounds).map(|_| alternate(rough.map(around), &mut is_within)).collect();
    Ok(Loads::of(found?, around(rough[0]).low))
}

/// Takes the steps of both searches in turn; returns what they found.
fn alternate(
    mut searches: [Bisection; 2],
    mut is_within: impl FnMut(Server, f64) -> anyhow::Result<bool>,
) -> anyhow::Result<[Option<f64>; 2]> {
    while searches.iter().any(Bisection::is_open) {
        for (server, search) in SERVERS.into_iter().zip(&mut searches).filter(|(_, one)| one.is_open()) {
            search.record(is_within(server, search.next())?);
        }
    }
    Ok(searches.map(|search| search.within))
}

impl Loads {
    /// Returns the figures of rounds of which the plain server's searches began at `lowest`.
    fn of(rounds: Vec<[Option<f64>; 2]>, lowest: f64) -> Self {
        let over_rounds = |server: usize| {
            let median = median(rounds.iter().map(|round| round[server].unwrap_or(0.0)));
            (median > 0.0).then_some(median)
        };
        let (plain, preemptive) = (over_rounds(0), over_rounds(1));
        let ratios: Vec<f64> =
            rounds.iter().filter_map(|[plain, preemptive]| Some((*preemptive)? / (*plain)?)).collect();
        let ratio = match (plain, preemptive) {
            (Some(plain), Some(preemptive)) => Ratio::Measured {
                median: preemptive / plain,
                least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
                most: ratios.iter().copied().fold(0.0, f64::max),
            },
            (None, Some(preemptive)) => Ratio::AtLeast(preemptive / lowest),
            (_, None) => Ratio::None,
        };
        Self { load_no_preempt_rps: plain, load_preempt_rps: preemptive, ratio, rounds }
    }

    /// Appends the loads to a table of name, load without and with preemption, and ratio.
    pub fn add_to(&self, table: &mut Table, name: &str) {
        let ratio = match self.ratio {
            Ratio::Measured { median, least, most } => {
                format!("{} ({} to {})", number(median), number(least), number(most))
            }
            Ratio::AtLeast(ratio) => format!("at least {}", number(ratio)),
            Ratio::None => "-".to_owned(),
        };
        table.row([name.to_owned(), shown(self.load_no_preempt_rps), shown(self.load_preempt_rps), ratio]);
    }
}

fn shown(load: Option<f64>) -> String {
    load.map_or_else(|| "none that was tried".to_owned(), number)
}

/// Highest loads that the simulator finds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Simulated {
    pub simulated_no_preempt_rps: Option<f64>,
    pub simulated_preempt_rps: Option<f64>,
}

impl Simulated {
    /// Searches the highest loads for which `is_within` is true.
    pub fn search(is_within: impl FnMut(Server, f64) -> anyhow::Result<bool>) -> anyhow::Result<Self> {
        let [plain, preemptive] = alternate([Bisection::new(LEAST_RPS, MOST_RPS, FINE); 2], is_within)?;
        Ok(Self { simulated_no_preempt_rps: plain, simulated_preempt_rps: preemptive })
    }

    /// Appends the loads to a table, as [`Loads::add_to`].
    pub fn add_to(&self, table: &mut Table, name: &str) {
        let (plain, preemptive) = (self.simulated_no_preempt_rps, self.simulated_preempt_rps);
        let ratio = plain.zip(preemptive).map(|(plain, preemptive)| preemptive / plain);
        let ratio = ratio.map_or_else(|| "-".to_owned(), number);
        table.row([name.to_owned(), shown(plain), shown(preemptive), ratio]);
    }
}

/// A search by halving the logarithm of the range.
#[derive(Debug, Clone, Copy)]
struct Bisection {
    low: f64,
    high: f64,
    /// Ratio of the range's ends at which the search ends.
    end: f64,
    /// Highest value that was found within the limit.
    within: Option<f64>,
}

impl Bisection {
    fn new(low: f64, high: f64, end: f64) -> Self {
        Self { low, high, end, within: None }
    }

    fn is_open(&self) -> bool {
        self.high / self.low > self.end
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_reports_only_loads_that_were_within_the_limit() {
        let search = |limit: f64| {
            let mut bisection = Bisection::new(LEAST_RPS, MOST_RPS, FINE);
            while bisection.is_open() {
                let within = bisection.next() <= limit;
                bisection.record(within);
            }
            bisection.within
        };
        assert_eq!(search(0.0), None);
        let found = search(10_000.0).unwrap();
        assert!((10_000.0 / FINE..=10_000.0).contains(&found), "{found}");
    }

    #[test]
    fn each_round_searches_around_what_two_of_three_measurements_found() {
        let mut tried = 0;
        let loads = search(3, |server, rps| {
            tried += 1;
            // Every seventh measurement meets a stall of the host.
            let limit = if server == Server::Plain { 4_000.0 } else { 120_000.0 };
            Ok(rps <= limit && tried % 7 != 0)
        })
        .unwrap();
        let (plain, preemptive) = (loads.load_no_preempt_rps.unwrap(), loads.load_preempt_rps.unwrap());
        assert!((1_300.0..=4_000.0).contains(&plain), "{loads:?}");
        assert!((40_000.0..=120_000.0).contains(&preemptive), "{loads:?}");
        assert_eq!(loads.rounds.len(), 3);
    }

    #[test]
    fn a_ratio_has_the_range_of_the_rounds() {
        let loads = Loads::of(
            vec![[Some(100.0), Some(2_000.0)], [Some(200.0), Some(2_000.0)], [Some(100.0), Some(3_000.0)]],
            50.0,
        );
        assert_eq!(loads.ratio, Ratio::Measured { median: 20.0, least: 10.0, most: 30.0 });
        let mut table = Table::new(" | without | with | ratio");
        loads.add_to(&mut table, "p99 within");
        let text = table.to_string();
        assert!(text.contains("20.0 (10.0 to 30.0)"), "{text}");
    }

    #[test]
    fn where_no_load_was_within_the_limit_the_ratio_is_that_to_the_lowest_tried() {
        let loads = |preemptive| Loads::of(vec![[None, preemptive], [None, preemptive]], 50.0);
        assert_eq!(loads(Some(5_000.0)).ratio, Ratio::AtLeast(100.0));
        assert_eq!(loads(None).ratio, Ratio::None);
        let mut table = Table::new(" | without | with | ratio");
        loads(Some(5_000.0)).add_to(&mut table, "p99 within");
        let text = table.to_string();
        assert!(text.contains("none that was tried") && text.contains("at least 100"), "{text}");
    }
}
