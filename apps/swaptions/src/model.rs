//! The interest-rate model: an initial forward curve and the factors that move it.
//!
//! Owns the Gaussian HJM model in discrete time. Forward rates f(t, T) live on a grid of equal
//! steps of h years; a step adds to each of them a drift and, per factor i, sigma_i(T - t) sqrt(h)
//! Z_i with independent standard normals. The drift is not the continuous one but the one that
//! makes every discounted bond an exact martingale *on the grid* (Glasserman, Monte Carlo Methods
//! in Financial Engineering, section 3.6.2). So the grid has no bias: a price that is known in
//! closed form for the discrete model must be reproduced within the statistical error, and the
//! tests check that.
//!
//! Not here: random numbers and contracts.

/// Maximum number of factors of a model; PARSEC uses three.
pub const MAX_FACTORS: usize = 4;

/// Initial instantaneous forward rates in the form of Nelson and Siegel (Journal of Business 1987):
/// a long rate, a short-end spread and a hump, all continuously compounded per year.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ForwardCurve {
    /// Rate at the long end, for instance 0.03.
    pub long_rate: f64,
    /// Rate at the short end minus that at the long end.
    pub short_spread: f64,
    /// Size of the hump between.
    pub hump: f64,
    /// Years after which spread and hump have mostly decayed; above 0.
    pub decay_years: f64,
}

impl ForwardCurve {
    /// Returns a curve with the same rate for all maturities.
    #[must_use]
    pub fn flat(rate: f64) -> Self {
        Self { long_rate: rate, short_spread: 0.0, hump: 0.0, decay_years: 1.0 }
    }

    /// Returns the forward rate for maturity `years` from now.
    #[must_use]
    pub fn forward(&self, years: f64) -> f64 {
        let x = years / self.decay_years;
        self.long_rate + (self.short_spread + self.hump * x) * (-x).exp()
    }

    pub(crate) fn is_finite(&self) -> bool {
        [self.long_rate, self.short_spread, self.hump].iter().all(|x| x.is_finite())
            && self.decay_years.is_finite()
            && self.decay_years > 0.0
    }
}

/// One source of randomness: its volatility sigma(tau) = (level + slope tau) exp(-decay tau), per
/// square root of a year, for a rate that matures in tau years.
///
/// `slope` and `decay` of 0 give the Ho-Lee model, `slope` of 0 the Hull-White (extended Vasicek)
/// model, all three a humped volatility (Ritchken and Chuang).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factor {
    /// Volatility of the shortest rate, for instance 0.01.
    pub level: f64,
    /// Its change per year of maturity, before decay. A negative slope makes short and long rates
    /// move in opposite directions.
    pub slope: f64,
    /// Decay per year of maturity; at least 0.
    pub decay: f64,
}

impl Factor {
    /// Returns the volatility of a rate that matures in `years`.
    #[must_use]
    pub fn volatility(&self, years: f64) -> f64 {
        (self.level + self.slope * years) * (-self.decay * years).exp()
    }

    pub(crate) fn is_finite(&self) -> bool {
        self.level.is_finite() && self.slope.is_finite() && self.decay.is_finite() && self.decay >= 0.0
    }
}

/// The model on a grid of `steps` steps, as tables that a simulation reads in order.
///
/// All rates are stored multiplied by the step h, so that a sum of them is the logarithm of a bond
/// price. Index e of a step's tables belongs to the rate that has e whole steps left when the step
/// ends.
#[derive(Debug, Clone)]
pub(crate) struct GridModel {
    /// h f(0, t_j).
    pub initial: Vec<f64>,
    /// h times a step's drift.
    pub drift: Vec<f64>,
    /// Per factor: h sqrt(h) sigma.
    pub diffusion: Vec<Vec<f64>>,
}

impl GridModel {
    pub(crate) fn new(curve: &ForwardCurve, factors: &[Factor], step_years: f64, steps: usize) -> Self {
        let h = step_years;
        let initial = (0..steps).map(|j| h * curve.forward(j as f64 * h)).collect();
        let sigma = |factor: &Factor, e: usize| factor.volatility((e + 1) as f64 * h);
        let diffusion =
            factors.iter().map(|f| (0..steps).map(|e| h * h.sqrt() * sigma(f, e)).collect()).collect();
        let mut drift = vec![0.0; steps];
        for factor in factors {
            // A(e) = h (sigma(0) + ... + sigma(e-1)); the drifts of the first e rates must sum to h
            // A(e)^2 / 2, so that the bond they discount has the expectation that it has today.
            let mut bond_volatility = 0.0;
            for (e, drift) in drift.iter_mut().enumerate() {
                let before = bond_volatility;
                bond_volatility += h * sigma(factor, e);
                *drift += 0.5 * h * (bond_volatility * bond_volatility - before * before);
            }
        }
        Self { initial, drift, diffusion }
    }

    /// Returns the number of steps.
    pub(crate) fn steps(&self) -> usize {
        self.initial.len()
    }

    /// Returns the tables, each with an entry for every step: today's curve, drift, diffusion.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &[f64]> {
        [&self.initial, &self.drift].into_iter().chain(&self.diffusion).map(Vec::as_slice)
    }

    /// Today's price of a bond that pays 1 at grid point `j`.
    pub(crate) fn bond_price(&self, j: usize) -> f64 {
        (-self.initial[..j].iter().sum::<f64>()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_runs_from_the_short_to_the_long_rate() {
        let curve = ForwardCurve { long_rate: 0.04, short_spread: -0.02, hump: 0.01, decay_years: 2.0 };
        assert!((curve.forward(0.0) - 0.02).abs() < 1e-15);
        assert!((curve.forward(2.0) - (0.04 - 0.01 * (-1.0f64).exp())).abs() < 1e-15);
        assert!((curve.forward(100.0) - 0.04).abs() < 1e-9);
    }

    #[test]
    fn the_drift_of_constant_volatility_nears_the_continuous_one() {
        // Continuous HJM: drift = sigma^2 tau. On the grid: sigma^2 h (e + 1/2), and the rate is
        // stored times h.
        let (sigma, h) = (0.01, 0.25);
        let factor = Factor { level: sigma, slope: 0.0, decay: 0.0 };
        let grid = GridModel::new(&ForwardCurve::flat(0.03), &[factor], h, 8);
        for (e, drift) in grid.drift.iter().enumerate() {
            let want = sigma * sigma * h * (e as f64 + 0.5) * h * h;
            assert!((drift / want - 1.0).abs() < 1e-12, "{e}: {drift} instead of {want}");
        }
    }
}
