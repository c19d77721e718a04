//! Service-time distributions: the time for which a request keeps a core busy.
//!
//! Owns the families used in the papers (constant, exponential, bimodal and general mixtures of
//! constants, log-normal, Pareto), their notation, their exact mean and variance, and sampling.
//!
//! Invariant: a [`ServiceTime`] is valid by construction; drawing cannot fail. The first duration
//! in the notation is always the **mean**, so that every family with the same mean offers the same
//! load.
//!
//! | notation | distribution |
//! |---|---|
//! | `const:10us` | always 10 us |
//! | `exp:10us` | exponential |
//! | `bimodal:0.9*5us+0.1*55us` | 5 us with probability 0.9, else 55 us |
//! | `modes:0.7*2us+0.2*20us+0.1*50us` | up to [`MAX_MODES`] constants with probabilities |
//! | `lognormal:10us,sigma=1.5` | log-normal; sigma is the deviation of the logarithm |
//! | `pareto:10us,alpha=2.1` | Pareto with tail exponent alpha > 1 |
//! | `pareto:10us,alpha=1.2,max=1ms` | bounded Pareto, no draw above 1 ms |
//!
//! Draws are rounded to whole nanoseconds; mean and variance are those of the distribution before
//! rounding.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::random::{Prng, standard_normal, unit_exponential, unit_open_closed};
use crate::units::UnitError;

/// Maximum number of constants in one mixture; a draw checks them one by one.
pub const MAX_MODES: usize = 16;

/// Tolerance of the sum of a mixture's probabilities, which should be 1.
const PROBABILITY_TOLERANCE: f64 = 1e-9;

/// Why a service-time distribution was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ServiceTimeError {
    /// The word before the colon names no distribution.
    #[error(
        "`{kind}` is not a service-time distribution; use const, exp, bimodal, modes, lognormal or pareto, for instance exp:10us"
    )]
    Kind {
        /// What was given.
        kind: String,
    },
    /// A duration could not be read.
    #[error("service time `{spec}`: {source}")]
    Duration {
        /// The whole notation.
        spec: String,
        /// What was wrong with the duration.
        source: UnitError,
    },
    /// A mode is not of the form `PROBABILITY*DURATION`.
    #[error("mode `{mode}` is not of the form PROBABILITY*DURATION, for instance 0.9*5us")]
    Mode {
        /// What was given.
        mode: String,
    },
    /// `bimodal` with more or fewer than two modes.
    #[error("bimodal takes exactly two modes, not {count}; use modes: for another number")]
    NotBimodal {
        /// Modes given.
        count: usize,
    },
    /// A mixture with no modes or too many.
    #[error("a mixture has 1 to {MAX_MODES} modes, not {count}")]
    ModeCount {
        /// Modes given.
        count: usize,
    },
    /// The probabilities are not probabilities or do not sum to 1.
    #[error("the probabilities of a mixture must each be in 0..=1 and sum to 1; these sum to {sum}")]
    Probabilities {
        /// Their sum.
        sum: f64,
    },
    /// A parameter such as `sigma=` is missing.
    #[error("service time `{spec}` lacks {name}=")]
    Missing {
        /// The whole notation.
        spec: String,
        /// The parameter.
        name: &'static str,
    },
    /// A parameter that this distribution does not have, or given twice.
    #[error("service time `{spec}`: `{parameter}` is not understood here, or given twice")]
    Parameter {
        /// The whole notation.
        spec: String,
        /// What was given.
        parameter: String,
    },
    /// A parameter outside its range.
    #[error("{name} of a service time must be {range}, not {value}")]
    Range {
        /// The parameter.
        name: &'static str,
        /// The accepted range in words.
        range: &'static str,
        /// What was given.
        value: f64,
    },
}

/// A service-time distribution; valid by construction, written and read as in the
/// [module table](self).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceTime(Law);

/// The parameters, with the constants of drawing precomputed.
#[derive(Debug, Clone, PartialEq)]
enum Law {
    Constant { ns: u64 },
    Exponential { mean_ns: u64 },
    Modes(Vec<Mode>),
    LogNormal { mean_ns: u64, sigma: f64 },
    Pareto { mean_ns: u64, alpha: f64, low_ns: f64 },
    BoundedPareto { mean_ns: u64, alpha: f64, max_ns: u64, low_ns: f64 },
}

/// One constant of a mixture.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Mode {
    probability: f64,
    ns: u64,
}

impl ServiceTime {
    /// Creates the distribution that always gives `ns`.
    #[must_use]
    pub fn constant(ns: u64) -> Self {
        Self(Law::Constant { ns })
    }

    /// Creates an exponential distribution with mean `mean_ns`.
    #[must_use]
    pub fn exponential(mean_ns: u64) -> Self {
        Self(Law::Exponential { mean_ns })
    }

    /// Creates a mixture of constants, given as (probability, nanoseconds).
    ///
    /// # Errors
    /// [`ServiceTimeError::ModeCount`] or [`ServiceTimeError::Probabilities`].
    pub fn modes(modes: &[(f64, u64)]) -> Result<Self, ServiceTimeError> {
        if modes.is_empty() || modes.len() > MAX_MODES {
            return Err(ServiceTimeError::ModeCount { count: modes.len() });
        }
        let sum: f64 = modes.iter().map(|m| m.0).sum();
        let each = modes.iter().all(|m| (0.0..=1.0).contains(&m.0));
        if !each || (sum - 1.0).abs() > PROBABILITY_TOLERANCE {
            return Err(ServiceTimeError::Probabilities { sum });
        }
        Ok(Self(Law::Modes(modes.iter().map(|&(probability, ns)| Mode { probability, ns }).collect())))
    }

    /// Creates a log-normal distribution with mean `mean_ns`; `sigma` is the standard deviation of
    /// the natural logarithm.
    ///
    /// # Errors
    /// [`ServiceTimeError::Range`] unless `mean_ns` is at least 1 and `sigma` is above 0 and at
    /// most 10.
    pub fn log_normal(mean_ns: u64, sigma: f64) -> Result<Self, ServiceTimeError> {
        positive_mean(mean_ns)?;
        if !(sigma > 0.0 && sigma <= 10.0) {
            return Err(ServiceTimeError::Range {
                name: "sigma",
                range: "above 0 and at most 10",
                value: sigma,
            });
        }
        Ok(Self(Law::LogNormal { mean_ns, sigma }))
    }

    /// Creates a Pareto distribution with mean `mean_ns` and tail exponent `alpha`: P(X > x) falls
    /// as x^-alpha.
    ///
    /// # Errors
    /// [`ServiceTimeError::Range`] unless `mean_ns` is at least 1 and `alpha` is above 1 (else
    /// there is no mean) and at most 1000.
    pub fn pareto(mean_ns: u64, alpha: f64) -> Result<Self, ServiceTimeError> {
        positive_mean(mean_ns)?;
        if !(alpha > 1.0 && alpha <= 1000.0) {
            return Err(ServiceTimeError::Range {
                name: "alpha",
                range: "above 1 and at most 1000 (give max= for a bounded Pareto with a smaller one)",
                value: alpha,
            });
        }
        Ok(Self(Law::Pareto { mean_ns, alpha, low_ns: mean_ns as f64 * (alpha - 1.0) / alpha }))
    }

    /// Creates a Pareto distribution truncated to values up to `max_ns`, with mean `mean_ns` and
    /// tail exponent `alpha`.
    ///
    /// # Errors
    /// [`ServiceTimeError::Range`] unless `mean_ns` is at least 1, `max_ns` is above `mean_ns`,
    /// `alpha` is in 0.1..=100, and a smallest value with that mean exists.
    pub fn bounded_pareto(mean_ns: u64, alpha: f64, max_ns: u64) -> Result<Self, ServiceTimeError> {
        positive_mean(mean_ns)?;
        if !(0.1..=100.0).contains(&alpha) {
            return Err(ServiceTimeError::Range { name: "alpha", range: "in 0.1..=100", value: alpha });
        }
        if max_ns <= mean_ns {
            return Err(ServiceTimeError::Range {
                name: "max",
                range: "above the mean",
                value: max_ns as f64,
            });
        }
        let low_ns =
            bounded_pareto_low(mean_ns as f64, alpha, max_ns as f64).ok_or(ServiceTimeError::Range {
                name: "max",
                range: "small enough that some smallest value gives the mean",
                value: max_ns as f64,
            })?;
        Ok(Self(Law::BoundedPareto { mean_ns, alpha, max_ns, low_ns }))
    }

    /// Draws one service time in nanoseconds.
    #[inline]
    pub fn sample_ns(&self, prng: &mut Prng) -> u64 {
        match &self.0 {
            Law::Constant { ns } => *ns,
            Law::Exponential { mean_ns } => round_ns(*mean_ns as f64 * unit_exponential(prng)),
            Law::Modes(modes) => sample_modes(modes, unit_open_closed(prng)),
            Law::LogNormal { mean_ns, sigma } => {
                round_ns(*mean_ns as f64 * libm::exp(sigma * standard_normal(prng) - 0.5 * sigma * sigma))
            }
            Law::Pareto { alpha, low_ns, .. } => {
                round_ns(low_ns * libm::pow(unit_open_closed(prng), -1.0 / alpha))
            }
            Law::BoundedPareto { alpha, max_ns, low_ns, .. } => {
                let max = *max_ns as f64;
                // Inversion: the survival function runs from 1 at low to (low/max)^alpha, which
                // becomes 0 by truncation.
                let floor = libm::pow(low_ns / max, *alpha);
                let survival = floor + unit_open_closed(prng) * (1.0 - floor);
                round_ns((low_ns * libm::pow(survival, -1.0 / alpha)).min(max))
            }
        }
    }

    /// Returns the exact mean in nanoseconds.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        match &self.0 {
            Law::Constant { ns } => *ns as f64,
            Law::Modes(modes) => modes.iter().map(|m| m.probability * m.ns as f64).sum(),
            Law::Exponential { mean_ns }
            | Law::LogNormal { mean_ns, .. }
            | Law::Pareto { mean_ns, .. }
            | Law::BoundedPareto { mean_ns, .. } => *mean_ns as f64,
        }
    }

    /// Returns the exact variance in square nanoseconds; infinite for an unbounded Pareto with
    /// alpha of at most 2.
    #[must_use]
    pub fn variance_ns2(&self) -> f64 {
        let mean = self.mean_ns();
        match &self.0 {
            Law::Constant { .. } => 0.0,
            Law::Exponential { .. } => mean * mean,
            Law::Modes(modes) => modes.iter().map(|m| m.probability * square(m.ns as f64 - mean)).sum(),
            Law::LogNormal { sigma, .. } => mean * mean * libm::expm1(sigma * sigma),
            Law::Pareto { alpha, .. } if *alpha <= 2.0 => f64::INFINITY,
            Law::Pareto { alpha, .. } => mean * mean / (alpha * (alpha - 2.0)),
            Law::BoundedPareto { alpha, max_ns, low_ns, .. } => {
                bounded_pareto_moment(2.0, *low_ns, *alpha, *max_ns as f64) - mean * mean
            }
        }
    }

    /// Returns the squared coefficient of variation, variance over squared mean: 0 for constant, 1
    /// for exponential. Not a number when the mean is 0.
    #[must_use]
    pub fn squared_cv(&self) -> f64 {
        self.variance_ns2() / square(self.mean_ns())
    }
}

fn positive_mean(mean_ns: u64) -> Result<(), ServiceTimeError> {
    if mean_ns == 0 {
        return Err(ServiceTimeError::Range { name: "the mean", range: "at least 1 ns", value: 0.0 });
    }
    Ok(())
}

fn square(x: f64) -> f64 {
    x * x
}

/// Rounds to the nearest whole nanosecond; the cast saturates.
fn round_ns(ns: f64) -> u64 {
    (ns + 0.5) as u64
}

fn sample_modes(modes: &[Mode], mut uniform: f64) -> u64 {
    for mode in modes {
        if uniform <= mode.probability {
            return mode.ns;
        }
        uniform -= mode.probability;
    }
    // Only reached through rounding of the probabilities' sum.
    modes.last().map_or(0, |mode| mode.ns)
}

/// Returns E[X^k] of a Pareto distribution with exponent `alpha` truncated to `low..=max`.
fn bounded_pareto_moment(k: f64, low: f64, alpha: f64, max: f64) -> f64 {
    let ratio_log = libm::log(max / low);
    let norm = alpha * libm::pow(low, k) / -libm::expm1(-alpha * ratio_log);
    let exponent = k - alpha;
    // The integral of x^(exponent-1) over 1..max/low; its limit at exponent 0 is the logarithm.
    let integral =
        if exponent.abs() < 1e-9 { ratio_log } else { libm::expm1(exponent * ratio_log) / exponent };
    norm * integral
}

/// Returns the lower end at which a bounded Pareto has mean `mean`; `None` if even the smallest
/// float does not reach it.
fn bounded_pareto_low(mean: f64, alpha: f64, max: f64) -> Option<f64> {
    const SMALLEST_NS: f64 = 1e-6;
    let (mut below, mut above) = (SMALLEST_NS, mean);
    if bounded_pareto_moment(1.0, below, alpha, max) > mean {
        return None;
    }
    // The mean grows with the lower end and exceeds it, so it lies between; 100 halvings exhaust an
    // f64.
    for _ in 0..100 {
        let middle = 0.5 * (below + above);
        if bounded_pareto_moment(1.0, middle, alpha, max) < mean {
            below = middle;
        } else {
            above = middle;
        }
    }
    Some(0.5 * (below + above))
}

mod notation;
#[cfg(test)]
mod tests;
