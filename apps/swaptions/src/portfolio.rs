//! A portfolio to price: many swaptions on one grid and one model, with terms spread around the
//! market.
//!
//! Owns the fictitious but plausible market of the default portfolio. All its swaptions share one
//! time grid, so a trial of any of them is the same amount of work: trials per second is an exact
//! measure of the core time that the job got.

use tailwater_workload::random::{stream, unit_open_closed};

use crate::model::{Factor, ForwardCurve};
use crate::spec::{Side, SpecError, SwaptionSpec};

/// Maximum number of swaptions in one portfolio.
pub const MAX_SWAPTIONS: usize = 65_536;

/// Swaptions to price; each is valid, and there is at least one.
#[derive(Debug, Clone)]
pub struct Portfolio {
    swaptions: Vec<SwaptionSpec>,
}

/// Why a portfolio was refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum PortfolioError {
    /// No swaptions or too many.
    #[error("a portfolio has 1 to {MAX_SWAPTIONS} swaptions, not {count}")]
    Count {
        /// Swaptions given.
        count: usize,
    },
    /// One of them is invalid.
    #[error("swaption {index}: {source}")]
    Swaption {
        /// Its index, from 0.
        index: usize,
        /// What is wrong with it.
        source: SpecError,
    },
}

impl Portfolio {
    /// Returns a portfolio of the given swaptions.
    ///
    /// # Errors
    /// A [`PortfolioError`] that names the first invalid swaption.
    pub fn new(swaptions: Vec<SwaptionSpec>) -> Result<Self, PortfolioError> {
        if swaptions.is_empty() || swaptions.len() > MAX_SWAPTIONS {
            return Err(PortfolioError::Count { count: swaptions.len() });
        }
        for (index, spec) in swaptions.iter().enumerate() {
            spec.check().map_err(|source| PortfolioError::Swaption { index, source })?;
        }
        Ok(Self { swaptions })
    }

    /// `count` swaptions five years out on ten-year swaps with half-yearly coupons, quarterly
    /// steps, three factors. `seed` decides strikes (up to 1 % around the par rate), sides, and
    /// each one's shift of the curve.
    ///
    /// # Errors
    /// [`PortfolioError::Count`].
    pub fn generate(count: usize, seed: u64) -> Result<Self, PortfolioError> {
        if count == 0 || count > MAX_SWAPTIONS {
            return Err(PortfolioError::Count { count });
        }
        let mut prng = stream(seed, 0);
        let mut around = |centre: f64, width: f64| centre + width * (2.0 * unit_open_closed(&mut prng) - 1.0);
        let swaptions = (0..count)
            .map(|index| {
                let mut spec = SwaptionSpec {
                    curve: ForwardCurve {
                        long_rate: around(0.04, 0.005),
                        short_spread: around(-0.01, 0.005),
                        hump: around(0.01, 0.005),
                        decay_years: 2.5,
                    },
                    factors: market_factors(),
                    step_years: 0.25,
                    expiry_steps: 20,
                    period_steps: 2,
                    periods: 20,
                    strike: 0.0,
                    side: Side::Payer,
                };
                let par = spec.par_rate().map_err(|source| PortfolioError::Swaption { index, source })?;
                spec.strike = around(par, 0.01);
                spec.side = if around(0.0, 1.0) < 0.0 { Side::Payer } else { Side::Receiver };
                Ok(spec)
            })
            .collect::<Result<_, _>>()?;
        Self::new(swaptions)
    }

    /// Returns the swaptions, in order.
    #[must_use]
    pub fn swaptions(&self) -> &[SwaptionSpec] {
        &self.swaptions
    }
}

/// Level, slope and curvature, the three movements that explain nearly all of what curves do
/// (Litterman and Scheinkman, Journal of Fixed Income 1991), in sizes of about 1 % a year.
fn market_factors() -> Vec<Factor> {
    vec![
        Factor { level: 0.009, slope: 0.0, decay: 0.02 },
        Factor { level: 0.006, slope: -0.0012, decay: 0.08 },
        Factor { level: 0.0, slope: 0.003, decay: 0.4 },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_portfolio_repeats_and_varies() {
        let portfolio = Portfolio::generate(64, 1).unwrap();
        assert_eq!(portfolio.swaptions(), Portfolio::generate(64, 1).unwrap().swaptions());
        assert_ne!(portfolio.swaptions(), Portfolio::generate(64, 2).unwrap().swaptions());
        let payers = portfolio.swaptions().iter().filter(|s| s.side == Side::Payer).count();
        assert!((16..=48).contains(&payers), "{payers} payers of 64");
        let grid = |s: &SwaptionSpec| (s.expiry_steps, s.period_steps, s.periods, s.factors.len());
        assert!(portfolio.swaptions().iter().all(|s| grid(s) == grid(&portfolio.swaptions()[0])));
    }

    #[test]
    fn an_unusable_portfolio_is_refused() {
        assert_eq!(Portfolio::new(vec![]).unwrap_err(), PortfolioError::Count { count: 0 });
        assert!(Portfolio::generate(MAX_SWAPTIONS + 1, 0).is_err());
        let mut swaptions = Portfolio::generate(3, 1).unwrap().swaptions().to_vec();
        swaptions[2].periods = 0;
        let want = PortfolioError::Swaption { index: 2, source: SpecError::Grid };
        assert_eq!(Portfolio::new(swaptions).unwrap_err(), want);
    }
}
