//! The price in closed form, where there is one: a single factor with exponentially decaying
//! volatility.
//!
//! Owns the decomposition of a swaption into bond options (Jamshidian, "An exact bond option
//! formula", Journal of Finance 1989), written for the discrete model that [`crate::model`]
//! simulates, so that it agrees with the Monte Carlo price up to the statistical error only. Shares
//! only today's bond prices with the pricer.
//!
//! Under one factor sigma exp(-a tau) the whole curve at expiry is a function of one normal
//! variable x: every rate moves by x times exp(-a (T - expiry)). All bonds fall in x, so the swap
//! changes sign at one x*, and the option is a sum of normal probabilities on one side of it.

use crate::spec::{Side, SpecError, SwaptionSpec};

/// Why there is no closed form.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum AnalyticError {
    /// The swaption's specification is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// More than one factor, or one with a hump.
    #[error(
        "a closed form needs exactly one factor, with slope 0 and a level above 0; this has {factors} factors, the first with slope {slope} and level {level}"
    )]
    Factors {
        /// Factors of the model.
        factors: usize,
        /// Slope of the first.
        slope: f64,
        /// Level of the first.
        level: f64,
    },
    /// With a negative fixed rate the swap's value need not change sign exactly once.
    #[error("a closed form needs a strike of at least 0, not {strike}")]
    Strike {
        /// The swaption's strike.
        strike: f64,
    },
}

/// One payment of the fixed leg (with the notional at the end), seen from expiry.
struct Payment {
    amount: f64,
    /// Its forward price: the value of 1 paid then, in units of 1 paid at expiry.
    forward: f64,
    /// Its logarithm falls by `beta` per unit of x.
    beta: f64,
}

/// Returns the price of `spec` on a notional of 1.
///
/// # Errors
/// An [`AnalyticError`] that says what the model or contract lacks.
pub fn one_factor_price(spec: &SwaptionSpec) -> Result<f64, AnalyticError> {
    spec.check()?;
    let factor = spec.factors[0];
    if spec.factors.len() != 1 || factor.slope != 0.0 || factor.level <= 0.0 {
        let (factors, slope, level) = (spec.factors.len(), factor.slope, factor.level);
        return Err(AnalyticError::Factors { factors, slope, level });
    }
    if spec.strike < 0.0 {
        return Err(AnalyticError::Strike { strike: spec.strike });
    }
    let h = spec.step_years;
    let grid = spec.grid();
    let to_expiry = grid.bond_price(spec.expiry_steps);
    // x is the sum of one normal per step, each decayed over the steps that remain from the step's
    // start to expiry.
    let variance = factor.level.powi(2)
        * h
        * (1..=spec.expiry_steps).map(|n| decay(factor.decay, n, h).powi(2)).sum::<f64>();
    let payments: Vec<Payment> = spec
        .payment_steps()
        .map(|j| Payment {
            amount: spec.coupon() + if j == spec.total_steps() { 1.0 } else { 0.0 },
            forward: grid.bond_price(j) / to_expiry,
            beta: h * (0..j - spec.expiry_steps).map(|n| decay(factor.decay, n, h)).sum::<f64>(),
        })
        .collect();
    let deviation = variance.sqrt();
    let threshold = sign_change(&payments, variance);
    // Each bond's expectation on one side of x*: its own lognormal weight moves the mean of x by
    // -beta * variance.
    let sign = match spec.side {
        Side::Payer => 1.0,
        Side::Receiver => -1.0,
    };
    let side_of = |x: f64| normal_distribution(-sign * x / deviation);
    let fixed_leg: f64 =
        payments.iter().map(|p| p.amount * p.forward * side_of(threshold + p.beta * variance)).sum();
    Ok(to_expiry * sign * (side_of(threshold) - fixed_leg))
}

fn decay(rate: f64, steps: usize, h: f64) -> f64 {
    (-rate * steps as f64 * h).exp()
}

/// Returns the x at which the fixed leg is worth exactly the notional. The leg falls from infinity
/// to 0 in x.
fn sign_change(payments: &[Payment], variance: f64) -> f64 {
    let leg = |x: f64| -> f64 {
        payments.iter().map(|p| p.amount * p.forward * (-p.beta * (x + 0.5 * p.beta * variance)).exp()).sum()
    };
    let (mut low, mut high) = (-1.0, 1.0);
    // 64 doublings reach rates of 10^19; 200 halvings exhaust an f64.
    for _ in 0..64 {
        low *= if leg(low) < 1.0 { 2.0 } else { 1.0 };
        high *= if leg(high) > 1.0 { 2.0 } else { 1.0 };
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if leg(middle) > 1.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// Returns the standard normal distribution function, to full precision in both tails.
fn normal_distribution(x: f64) -> f64 {
    0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Factor, ForwardCurve};

    fn at_the_money(side: Side) -> SwaptionSpec {
        let mut spec = SwaptionSpec {
            curve: ForwardCurve::flat(0.04),
            factors: vec![Factor { level: 0.01, slope: 0.0, decay: 0.0 }],
            step_years: 0.25,
            expiry_steps: 8,
            period_steps: 2,
            periods: 8,
            strike: 0.0,
            side,
        };
        spec.strike = spec.par_rate().unwrap();
        spec
    }

    #[test]
    fn payer_and_receiver_differ_by_the_swap() {
        for strike in [0.01, 0.04, 0.08] {
            let price = |side| one_factor_price(&SwaptionSpec { strike, ..at_the_money(side) }).unwrap();
            let spec = SwaptionSpec { strike, ..at_the_money(Side::Payer) };
            let bond = |j: usize| (-0.04 * 0.25 * j as f64).exp();
            let swap =
                bond(8) - bond(24) - spec.payment_steps().map(|j| spec.coupon() * bond(j)).sum::<f64>();
            assert!((price(Side::Payer) - price(Side::Receiver) - swap).abs() < 1e-14, "{strike}");
        }
    }

    #[test]
    fn an_at_the_money_price_nears_the_normal_model() {
        // Bachelier: annuity * sigma_swap * sqrt(T / 2 pi). In Ho-Lee the swap rate moves about as
        // much as every rate.
        let spec = at_the_money(Side::Payer);
        let annuity: f64 = spec.payment_steps().map(|j| 0.5 * (-0.04 * 0.25 * j as f64).exp()).sum();
        let bachelier = annuity * 0.01 * (2.0 / std::f64::consts::TAU).sqrt();
        let price = one_factor_price(&spec).unwrap();
        assert!((price / bachelier - 1.0).abs() < 0.03, "{price} against {bachelier}");
    }

    #[test]
    fn a_price_without_closed_form_is_refused() {
        let mut spec = at_the_money(Side::Payer);
        spec.strike = -0.01;
        assert_eq!(one_factor_price(&spec), Err(AnalyticError::Strike { strike: -0.01 }));
        spec.factors[0].slope = 0.001;
        assert!(one_factor_price(&spec).unwrap_err().to_string().contains("slope 0.001"));
        spec.expiry_steps = 0;
        assert_eq!(one_factor_price(&spec), Err(AnalyticError::Spec(SpecError::Grid)));
    }

    #[test]
    fn the_normal_distribution_has_known_values() {
        assert!((normal_distribution(0.0) - 0.5).abs() < 1e-16);
        assert!((normal_distribution(1.959_963_984_540_054) - 0.975).abs() < 1e-15);
        assert!((normal_distribution(-8.0) / 6.220_960_574_271_785e-16 - 1.0).abs() < 1e-10);
    }
}
