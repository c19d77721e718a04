//! Figures with their uncertainty: batch means and confidence intervals.
//!
//! Owns a figure's value per batch and the interval they give. The requests of one run depend on
//! each other (a long queue is long for many of them), so their spread says nothing about the error
//! of the run's mean or percentile. Batches of thousands of requests are nearly independent; from
//! their spread Student's t gives the interval (Law and Kelton, Simulation Modeling and Analysis,
//! section 9.5.3).
//!
//! Never takes a percentile of percentiles: the value comes from all requests together; the batches
//! give its error.

use serde::Serialize;

/// Confidence of every interval the simulator prints.
pub const CONFIDENCE: f64 = 0.99;
/// Two-sided 99 % point of the normal distribution.
const Z99: f64 = 2.575_829_303_548_901;

/// A value and half the width of its 99 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// The interval is `value - error ..= value + error`; infinite with fewer than two batches.
    pub error: f64,
}

impl Estimate {
    /// Creates an estimate of `value` from its values in independent batches.
    #[must_use]
    pub fn from_batches(value: f64, batches: &[f64]) -> Self {
        let n = batches.len() as f64;
        if batches.len() < 2 {
            return Self { value, error: f64::INFINITY };
        }
        let mean = batches.iter().sum::<f64>() / n;
        let variance = batches.iter().map(|b| (b - mean) * (b - mean)).sum::<f64>() / (n - 1.0);
        Self { value, error: student_t99(n - 1.0) * (variance / n).sqrt() }
    }

    /// Returns the error as a fraction of the value.
    #[must_use]
    pub fn relative_error(&self) -> f64 {
        self.error / self.value.abs()
    }

    /// Returns true if `truth` is compatible with the estimate: within the interval, or within
    /// `tolerance` (a fraction) of it.
    #[must_use]
    pub fn agrees_with(&self, truth: f64, tolerance: f64) -> bool {
        (self.value - truth).abs() <= self.error.max(tolerance * truth.abs())
    }
}

/// Returns the two-sided 99 % point of Student's t, by the expansion in 1/df (Abramowitz and Stegun
/// 26.7.5). Within 0.1 % from 8 degrees of freedom on; below that the expansion's slight
/// underestimate stays under 5 % down to 4.
fn student_t99(df: f64) -> f64 {
    let z = Z99;
    let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
    z + (z3 + z) / (4.0 * df)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * df * df)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * df.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn students_t_matches_the_tables() {
        for (df, t) in [(9.0, 3.250), (19.0, 2.861), (31.0, 2.744), (1e9, 2.576)] {
            assert!((student_t99(df) - t).abs() < 0.004, "{df}: {}", student_t99(df));
        }
    }

    #[test]
    fn intervals_of_independent_batches_cover_the_truth_as_often_as_promised() {
        let mut prng = tailwater_workload::random::stream(11, 0);
        let exponentials = |prng: &mut _| {
            (0..50).map(|_| tailwater_workload::random::unit_exponential(prng)).sum::<f64>() / 50.0
        };
        let (runs, mut missed) = (2_000, 0);
        for _ in 0..runs {
            let batches: Vec<f64> = (0..20).map(|_| exponentials(&mut prng)).collect();
            let mean = batches.iter().sum::<f64>() / 20.0;
            missed += usize::from(!Estimate::from_batches(mean, &batches).agrees_with(1.0, 0.0));
        }
        // 1 % of 2000 is 20; six standard deviations of a binomial are 27.
        assert!((5..47).contains(&missed), "{missed} of {runs} intervals miss the truth");
    }

    #[test]
    fn a_single_batch_claims_nothing() {
        assert_eq!(Estimate::from_batches(3.0, &[3.0]).error, f64::INFINITY);
    }
}
