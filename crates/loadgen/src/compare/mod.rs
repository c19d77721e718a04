//! Whether one measurement is better than another, or the difference may be chance.
//!
//! Owns ratios of percentiles with bootstrap confidence intervals, and the verdict. Draws only from
//! the seed it is given.
//!
//! # Method
//! A measurement consists of units: runs, or the windows of one run. Requests of one unit are not
//! independent (they queue behind each other, and a stall of the machine affects many), so units
//! are resampled, not requests (Efron and Tibshirani, An Introduction to the Bootstrap, chapters 8
//! and 13): as many units as there are, with replacement, from each side, their requests pooled,
//! the percentiles of both pools divided. The interval of a ratio is that of the middle part of all
//! resamples. Several percentiles are compared, so each interval is wider, and all of them together
//! hold with the given confidence (Bonferroni).
//!
//! For few units that middle part is too narrow: n units resampled vary as (n - 1) / n of the
//! population (the same book, chapter 5), and the spread itself is estimated from n units only. So
//! each interval is widened on the scale of logarithms by the square root of n / (n - 1), and by
//! the ratio of Student's t to the normal distribution, with the degrees of freedom that Welch
//! gives two sides of different spread (Biometrika 34, 1947). With 5 units that is 1.4 to 1.9
//! times, with 30 it is 1.05 to 1.1 times.
//!
//! Windows of one run do not contain what differs from run to run, such as the placement of memory;
//! runs do. A lost request counts as the longest possible latency.
//!
//! B is *worse* at a percentile if the whole interval of B / A lies above 1 by more than the
//! margin, *better* if below.

mod student;

use serde::Serialize;
use tailwater_workload::random::{stream, unit_open_closed};
use tailwater_workload::summary::MAX_LATENCY_NS;
use tailwater_workload::{Interval, Prng};

/// The percentiles compared.
pub const QUANTILES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// Fewest units of each side; with fewer, resampling says little.
pub const FEWEST_UNITS: usize = 5;

/// Maximum number of resamples.
pub const MAX_RESAMPLES: u32 = 100_000;

/// The options of a comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Resamples, 100 to [`MAX_RESAMPLES`].
    pub resamples: u32,
    /// Probability with which all intervals together contain the true ratios; above 0, below 1.
    pub confidence: f64,
    /// Differences up to this part count as none; at least 0.
    pub margin: f64,
    /// Seed of the resamples.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { resamples: 4_000, confidence: 0.95, margin: 0.05, seed: 1 }
    }
}

/// Why measurements cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum CompareError {
    /// Too few windows or runs.
    #[error(
        "{side} has {units} windows or runs with answers; at least {FEWEST_UNITS} are needed: measure longer, with a shorter --interval, or more --runs"
    )]
    TooFew {
        /// A or B.
        side: char,
        /// Their number.
        units: usize,
    },
    /// A number out of its range.
    #[error(
        "resamples are 100 to {MAX_RESAMPLES}, confidence is above 0 and below 1, the margin is finite and at least 0"
    )]
    Options,
}

/// The verdict on a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// B is faster.
    Better,
    /// B is slower.
    Worse,
    /// The difference may be chance, or is within the margin.
    NoDifference,
    /// B is faster at one percentile and slower at another.
    Mixed,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoDifference => "no difference",
            Self::Mixed => "mixed",
        })
    }
}

/// One percentile of both.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// The quantile, 0 to 1.
    pub quantile: f64,
    /// Of A, in microseconds.
    pub a_us: f64,
    /// Of B, in microseconds.
    pub b_us: f64,
    /// B / A.
    pub ratio: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
    /// The verdict on B at this percentile.
    pub verdict: Verdict,
}

/// The comparison of two measurements.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Units of A and of B.
    pub units: [usize; 2],
    /// One for each of [`QUANTILES`].
    pub ratios: Vec<Ratio>,
    /// The verdict on B over all percentiles.
    pub verdict: Verdict,
}

/// Units of one side over the values that occur on either.
struct Side {
    units: Vec<Vec<(usize, u64)>>,
    pool: Vec<u64>,
}

impl Side {
    fn new(units: &[&Interval], values: &[u64]) -> Self {
        let place = |value: u64| values.partition_point(|&v| v < value);
        let unit = |interval: &&Interval| {
            let mut cells: Vec<(usize, u64)> =
                interval.latencies().into_iter().map(|(value, count)| (place(value), count)).collect();
            cells.push((place(MAX_LATENCY_NS), interval.counts.lost));
            cells
        };
        Self { units: units.iter().map(unit).collect(), pool: vec![0; values.len()] }
    }

    /// Returns the percentiles, in nanoseconds, of the units that `choose` picks, given how many
    /// there are.
    fn percentiles(
        &mut self,
        values: &[u64],
        mut choose: impl FnMut(usize) -> usize,
    ) -> [u64; QUANTILES.len()] {
        self.pool.fill(0);
        let mut total = 0;
        for _ in 0..self.units.len() {
            for &(place, count) in &self.units[choose(self.units.len())] {
                self.pool[place] += count;
                total += count;
            }
        }
        let mut results = [MAX_LATENCY_NS; QUANTILES.len()];
        let (mut below, mut next) = (0, 0);
        for (place, &count) in self.pool.iter().enumerate() {
            below += count;
            while next < QUANTILES.len() && below as f64 >= QUANTILES[next] * total as f64 && below > 0 {
                results[next] = values[place].max(1);
                next += 1;
            }
        }
        results
    }
}

/// The variation of a percentile over resamples, on the scale of logarithms.
#[derive(Debug, Clone, Copy, Default)]
struct Spread {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Spread {
    /// Welford's method (Technometrics 4, 1962).
    fn add(&mut self, latency_ns: u64) {
        let value = (latency_ns as f64).ln();
        self.count += 1.0;
        let off = value - self.mean;
        self.mean += off / self.count;
        self.squares += off * (value - self.mean);
    }

    fn variance(self) -> f64 {
        self.squares / self.count.max(1.0)
    }
}

fn pick(prng: &mut Prng, count: usize) -> usize {
    // The draw is above 0 and at most 1.
    ((unit_open_closed(prng) * count as f64).ceil() as usize).clamp(1, count) - 1
}

/// Compares the units of `b` with those of `a`.
///
/// # Errors
/// [`CompareError`] if either has too few units in which something was settled, or an option is
/// out of range.
pub fn compare(a: &[Interval], b: &[Interval], options: &Options) -> Result<Comparison, CompareError> {
    let valid = (100..=MAX_RESAMPLES).contains(&options.resamples)
        && options.confidence > 0.0
        && options.confidence < 1.0
        && options.margin.is_finite()
        && options.margin >= 0.0;
    if !valid {
        return Err(CompareError::Options);
    }
    let settled = |units: &'_ [Interval]| -> Vec<usize> {
        (0..units.len()).filter(|&i| units[i].counts.completed + units[i].counts.lost > 0).collect()
    };
    let a: Vec<&Interval> = settled(a).into_iter().map(|i| &a[i]).collect();
    let b: Vec<&Interval> = settled(b).into_iter().map(|i| &b[i]).collect();
    for (side, units) in [('A', a.len()), ('B', b.len())] {
        if units < FEWEST_UNITS {
            return Err(CompareError::TooFew { side, units });
        }
    }
    let mut values: Vec<u64> =
        a.iter().chain(&b).flat_map(|unit| unit.latencies()).map(|(value, _)| value).collect();
    values.push(MAX_LATENCY_NS);
    values.sort_unstable();
    values.dedup();
    let (mut side_a, mut side_b) = (Side::new(&a, &values), Side::new(&b, &values));
    let all = |side: &mut Side| {
        let mut order = 0..;
        side.percentiles(&values, |_| order.next().unwrap_or(0))
    };
    let (whole_a, whole_b) = (all(&mut side_a), all(&mut side_b));
    let mut prng = stream(options.seed, 0);
    let mut ratios: [Vec<f64>; QUANTILES.len()] = Default::default();
    let mut spreads = [[Spread::default(); 2]; QUANTILES.len()];
    for _ in 0..options.resamples {
        let from_a = side_a.percentiles(&values, |count| pick(&mut prng, count));
        let from_b = side_b.percentiles(&values, |count| pick(&mut prng, count));
        for i in 0..QUANTILES.len() {
            ratios[i].push(from_b[i] as f64 / from_a[i] as f64);
            spreads[i][0].add(from_a[i]);
            spreads[i][1].add(from_b[i]);
        }
    }
    let tail = (1.0 - options.confidence) / QUANTILES.len() as f64 / 2.0;
    let normal = student::upper_quantile(tail, student::MAX_FREEDOM);
    let ratios: Vec<Ratio> = (0..QUANTILES.len())
        .map(|i| {
            let reach = |freedom| student::upper_quantile(tail, freedom) / normal;
            let factor = widening(spreads[i].map(Spread::variance), [a.len(), b.len()], reach);
            let whole = (whole_a[i], whole_b[i]);
            let interval = widened(middle(&mut ratios[i], tail), whole.1 as f64 / whole.0 as f64, factor);
            ratio(QUANTILES[i], whole, interval, options.margin)
        })
        .collect();
    let any = |verdict| ratios.iter().any(|ratio| ratio.verdict == verdict);
    let verdict = match (any(Verdict::Better), any(Verdict::Worse)) {
        (true, true) => Verdict::Mixed,
        (true, false) => Verdict::Better,
        (false, true) => Verdict::Worse,
        (false, false) => Verdict::NoDifference,
    };
    Ok(Comparison { units: [a.len(), b.len()], ratios, verdict })
}

/// Returns how many times as wide as that of resamples an interval must be, given how much
/// resamples of each side vary, how many units it has, at least 2, and how many times further than
/// the normal distribution Student's t reaches.
fn widening(variances: [f64; 2], units: [usize; 2], reach: impl Fn(u32) -> f64) -> f64 {
    let freedom = units.map(|units| (units - 1) as f64);
    let corrected = [0, 1].map(|side| variances[side] * units[side] as f64 / freedom[side]);
    let (sum, resampled) = (corrected[0] + corrected[1], variances[0] + variances[1]);
    if resampled == 0.0 {
        return 1.0;
    }
    let welch =
        sum * sum / (corrected[0] * corrected[0] / freedom[0] + corrected[1] * corrected[1] / freedom[1]);
    // The cast saturates.
    (sum / resampled).sqrt() * reach(welch as u32).max(1.0)
}

/// Returns the interval `factor` times as wide around `ratio`, on the scale of logarithms; never
/// narrower at either end.
fn widened((low, high): (f64, f64), ratio: f64, factor: f64) -> (f64, f64) {
    let end = |end: f64| ratio * (end / ratio).powf(factor);
    (low.min(end(low)), high.max(end(high)))
}

/// Returns the ends of the middle part of `ratios`, with the part `tail` of them on either side.
fn middle(ratios: &mut [f64], tail: f64) -> (f64, f64) {
    ratios.sort_unstable_by(f64::total_cmp);
    let cut = ((tail * ratios.len() as f64) as usize).min((ratios.len() - 1) / 2);
    (ratios[cut], ratios[ratios.len() - 1 - cut])
}

fn ratio(quantile: f64, (a, b): (u64, u64), (low, high): (f64, f64), margin: f64) -> Ratio {
    let verdict = if low > 1.0 + margin {
        Verdict::Worse
    } else if high < 1.0 / (1.0 + margin) {
        Verdict::Better
    } else {
        Verdict::NoDifference
    };
    let us = |ns: u64| ns as f64 / 1e3;
    Ratio { quantile, a_us: us(a), b_us: us(b), ratio: b as f64 / a as f64, low, high, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_workload::random::unit_exponential;
    use tailwater_workload::{LatencyRecorder, Summary};

    fn measured(windows: u64, mean_ns: f64, sigma: f64, seed: u64) -> Summary {
        measured_with(windows, 500, mean_ns, sigma, seed)
    }

    /// Returns windows of `requests` exponential latencies each, every window off by a factor of
    /// its own.
    fn measured_with(windows: u64, requests: u64, mean_ns: f64, sigma: f64, seed: u64) -> Summary {
        let mut prng = stream(seed, 0);
        let mut recorder = LatencyRecorder::with_intervals(0, 100_000_000);
        for window in 0..windows {
            let factor = (sigma * tailwater_workload::random::standard_normal(&mut prng)).exp();
            for _ in 0..requests {
                let latency_ns = factor * mean_ns * unit_exponential(&mut prng);
                recorder.record(window * 100_000_000, latency_ns as u64);
            }
        }
        recorder.finish(windows * 100_000_000)
    }

    fn verdict(a: &Summary, b: &Summary) -> Comparison {
        let options = Options { resamples: 400, ..Options::default() };
        compare(&a.intervals().list, &b.intervals().list, &options).unwrap()
    }

    #[test]
    fn a_clear_difference_is_seen_in_both_directions() {
        let (a, b) = (measured(30, 20e3, 0.05, 1), measured(30, 30e3, 0.05, 2));
        let worse = verdict(&a, &b);
        assert_eq!(worse.verdict, Verdict::Worse, "{worse:?}");
        for ratio in &worse.ratios {
            assert!(ratio.low <= ratio.ratio && ratio.ratio <= ratio.high, "{ratio:?}");
        }
        assert!((worse.ratios[0].ratio / 1.5 - 1.0).abs() < 0.1, "{:?}", worse.ratios[0]);
        assert_eq!(verdict(&b, &a).verdict, Verdict::Better);
    }

    #[test]
    fn a_measurement_does_not_differ_from_itself() {
        let a = measured(20, 20e3, 0.3, 5);
        let same = verdict(&a, &a);
        assert_eq!(same.verdict, Verdict::NoDifference);
        assert!(same.ratios.iter().all(|ratio| ratio.ratio == 1.0 && ratio.low <= 1.0 && ratio.high >= 1.0));
    }

    #[test]
    fn noise_alone_is_seldom_called_a_difference() {
        let false_alarms = (0..40)
            .filter(|&i| {
                let (a, b) = (measured(30, 20e3, 0.2, 2 * i), measured(30, 20e3, 0.2, 2 * i + 1));
                verdict(&a, &b).verdict != Verdict::NoDifference
            })
            .count();
        assert!(false_alarms <= 4, "{false_alarms} of 40");
    }

    #[test]
    fn the_confidence_holds_for_the_fewest_units() {
        // 5 runs a side, mostly off by what differs from run to run. No margin hides an interval
        // that is too narrow.
        let options = Options { resamples: 400, margin: 0.0, ..Options::default() };
        let pairs = 300;
        let false_alarms = (0..pairs)
            .filter(|&i| {
                let side = |seed| measured_with(FEWEST_UNITS as u64, 60, 20e3, 0.3, seed);
                let (a, b) = (side(2 * i + 1000), side(2 * i + 1001));
                let compared = compare(&a.intervals().list, &b.intervals().list, &options).unwrap();
                compared.verdict != Verdict::NoDifference
            })
            .count();
        // 15 are expected of 5 %, and 26 are three standard deviations more.
        assert!(false_alarms <= 26, "{false_alarms} of {pairs}");
    }

    #[test]
    fn five_runs_still_tell_what_differs_by_much() {
        let side = |mean_ns, seed| measured_with(FEWEST_UNITS as u64, 500, mean_ns, 0.05, seed);
        let seen = (0..20)
            .filter(|&i| verdict(&side(20e3, i), &side(26e3, 100 + i)).verdict == Verdict::Worse)
            .count();
        assert!(seen >= 18, "{seen} of 20");
    }

    #[test]
    fn lost_requests_make_the_tail_worse() {
        let a = measured(20, 20e3, 0.0, 1);
        let mut lossy = a.intervals().list.clone();
        lossy.iter_mut().for_each(|interval| interval.counts.lost += 5);
        let options = Options { resamples: 200, ..Options::default() };
        let compared = compare(&a.intervals().list, &lossy, &options).unwrap();
        assert_eq!(compared.verdict, Verdict::Worse);
        assert_eq!(compared.ratios[3].b_us, MAX_LATENCY_NS as f64 / 1e3);
        assert_eq!(compared.ratios[0].verdict, Verdict::NoDifference);
    }

    #[test]
    fn too_little_to_compare_is_refused() {
        let (few, enough) = (measured(4, 20e3, 0.0, 1), measured(5, 20e3, 0.0, 1));
        let compared = |a: &Summary, b: &Summary, options: Options| {
            compare(&a.intervals().list, &b.intervals().list, &options)
        };
        let options = Options { resamples: 100, ..Options::default() };
        assert_eq!(compared(&enough, &few, options), Err(CompareError::TooFew { side: 'B', units: 4 }));
        assert!(compared(&enough, &enough, options).is_ok());
        for bad in [
            Options { resamples: 99, ..options },
            Options { confidence: 1.0, ..options },
            Options { margin: f64::NAN, ..options },
        ] {
            assert_eq!(compared(&enough, &enough, bad), Err(CompareError::Options));
        }
    }
}
