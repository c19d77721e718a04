//! What a quantum that helps nobody costs: the plain spin server, without one and with one, under
//! several loads.
//!
//! Owns the loads and the comparison. The server has one thread for each core, which handles one
//! request at a time, so it leaves the quantum off. Both are measured in turn in each round; a
//! round is one pair, and the figures are medians over the rounds.

use serde::Serialize;
use tailwater_testbed::progress;
use tailwater_testbed::table::{Table, number};
use tailwater_workload::ServiceTime;
use tailwater_workload::summary::NEVER_NS;

use super::bed::{self, Bench};
use super::service::{BIMODAL, QUANTUM_DEFAULT_US};
use crate::bench::median;

const SERVICES: [&str; 2] = [BIMODAL, "exp:10us"];
/// Parts of the core's time that requests take, with the network's part of them.
const LOADS: [f64; 4] = [0.12, 0.4, 0.7, 0.95];
/// The network's part of a request.
const PACKET_NS: f64 = 1_000.0;
const SECONDS: f64 = 1.0;

/// One load.
#[derive(Debug, Serialize)]
pub struct Load {
    service: &'static str,
    load_percent: f64,
    without_us: Percentiles,
    with_us: Percentiles,
    /// Medians of the ratios in a round.
    ratio: Percentiles,
}

/// 50th, 99th, 99.9th percentiles.
#[derive(Debug, Clone, Copy, Serialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
    p999: f64,
}

impl Percentiles {
    fn median(rounds: &[Self]) -> Self {
        let of = |value: fn(&Self) -> f64| median(rounds.iter().map(value));
        Self { p50: of(|one| one.p50), p99: of(|one| one.p99), p999: of(|one| one.p999) }
    }

    fn over(self, other: Self) -> Self {
        Self { p50: self.p50 / other.p50, p99: self.p99 / other.p99, p999: self.p999 / other.p999 }
    }
}

/// Measures all loads, `rounds` times each.
pub fn measure(bench: &Bench, rounds: u16) -> anyhow::Result<Vec<Load>> {
    let mut loads = Vec::new();
    for service in SERVICES {
        let mean_ns = service.parse::<ServiceTime>()?.mean_ns();
        let server = bench.spin(service, None)?;
        for load in LOADS {
            let rps = load * 1e9 / (mean_ns + PACKET_NS);
            let mut found = [Vec::new(), Vec::new()];
            for round in progress::over(service, 0..rounds) {
                // Each is first every other time.
                for variant in [usize::from(round % 2), usize::from(round % 2 == 0)] {
                    let quantum_us = if variant == 0 { 0 } else { QUANTUM_DEFAULT_US };
                    let point =
                        bench.point(&server, bed::Load { quantum_us, ..bed::Load::new(rps, SECONDS) })?;
                    let us = |quantile| point.quiet_us(quantile);
                    found[variant].push(Percentiles { p50: us(0.5), p99: us(0.99), p999: us(0.999) });
                }
            }
            loads.push(compare(service, 100.0 * load, &found));
        }
    }
    Ok(loads)
}

/// Returns the figures of a load from its rounds without a quantum, and with one.
fn compare(service: &'static str, load_percent: f64, [without, with]: &[Vec<Percentiles>; 2]) -> Load {
    let ratios: Vec<Percentiles> = without.iter().zip(with).map(|(off, on)| on.over(*off)).collect();
    let [without_us, with_us, ratio] = [without, with, &ratios].map(|rounds| Percentiles::median(rounds));
    Load { service, load_percent, without_us, with_us, ratio }
}

/// Returns the table of the figures.
pub fn describe(loads: &[Load]) -> String {
    let mut table = Table::new(
        "spin server, one core: us without / with a quantum of 15 us | load, % | p50 | p99 | \
         p99.9",
    );
    for Load { service, load_percent, without_us: off, with_us: on, ratio } in loads {
        let cell =
            |of: fn(&Percentiles) -> f64| format!("{} / {} ({:.2})", us(of(off)), us(of(on)), of(ratio));
        table.row([
            (*service).to_owned(),
            format!("{load_percent:.0}"),
            cell(|one| one.p50),
            cell(|one| one.p99),
            cell(|one| one.p999),
        ]);
    }
    table.to_string()
}

/// Returns a latency in words; a lost request's is longer than any.
fn us(latency: f64) -> String {
    if latency < NEVER_NS as f64 / 1e3 { number(latency) } else { "lost".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_request_is_no_number() {
        let never_us = NEVER_NS as f64 / 1e3;
        assert_eq!((us(2.5), us(never_us)), ("2.50".to_owned(), "lost".to_owned()));
    }

    #[test]
    fn a_ratio_compares_the_runs_of_a_round() {
        let all = |us: f64| Percentiles { p50: us, p99: 2.0 * us, p999: 4.0 * us };
        // The machine is three times slower in the second round.
        let load = compare(
            "exp:10us",
            40.0,
            &[vec![all(1.0), all(3.0), all(1.0)], vec![all(1.0), all(3.3), all(1.2)]],
        );
        assert_eq!((load.without_us.p50, load.with_us.p99), (1.0, 2.4));
        assert!((load.ratio.p999 - 1.1).abs() < 1e-12, "{load:?}");
        let text = describe(&[load]);
        assert!(text.contains("1.00 / 1.20 (1.10)"), "{text}");
    }
}
