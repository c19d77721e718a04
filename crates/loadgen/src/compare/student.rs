//! Quantiles of Student's t distribution, for intervals from few units.
//!
//! Owns the distribution for whole degrees of freedom, by its finite sums (Abramowitz and Stegun,
//! Handbook of Mathematical Functions, 26.7.3 and 26.7.4), and its inversion by halving.

use std::f64::consts::FRAC_2_PI;

/// Maximum number of degrees of freedom distinguished: there t differs from the normal distribution
/// by 0.02 % at the ends of intervals.
pub const MAX_FREEDOM: u32 = 10_000;

/// Halvings of an inversion: more precise than any printed figure.
const HALVINGS: u32 = 60;

/// Returns the probability that a t of `freedom` degrees lies between `-t` and `t`, which is not
/// negative.
fn within(t: f64, freedom: u32) -> f64 {
    let freedom = freedom.clamp(1, MAX_FREEDOM);
    let nu = f64::from(freedom);
    let theta = (t / nu.sqrt()).atan();
    let (sin, cos_squared) = (theta.sin(), theta.cos().powi(2));
    // Terms of the sum: 1, then each the one before times cos² and (k - 1) / k, for k = 2, 4, ...
    // or 3, 5, ...
    let first = if freedom % 2 == 1 { 3 } else { 2 };
    let (mut sum, mut term) = (1.0, 1.0);
    for k in (first..freedom.saturating_sub(1)).step_by(2) {
        term *= cos_squared * f64::from(k - 1) / f64::from(k);
        sum += term;
    }
    match freedom {
        1 => FRAC_2_PI * theta,
        _ if freedom % 2 == 1 => FRAC_2_PI * (theta + sin * theta.cos() * sum),
        _ => sin * sum,
    }
}

/// Returns the value that a t of `freedom` degrees, from 1 to [`MAX_FREEDOM`], exceeds with
/// probability `tail`, above 0 and at most a half.
#[must_use]
pub fn upper_quantile(tail: f64, freedom: u32) -> f64 {
    let wanted = 1.0 - 2.0 * tail;
    let mut high = 1.0;
    // Bounded by the range of a double.
    while within(high, freedom) < wanted && high < 1e300 {
        high *= 2.0;
    }
    let mut low = 0.0;
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if within(middle, freedom) < wanted { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (tail, freedom, want) in [
            (0.025, 1, 12.706),
            (0.025, 2, 4.303),
            (0.05, 3, 2.353),
            (0.025, 4, 2.776),
            (0.005, 4, 4.604),
            (0.025, 5, 2.571),
            (0.005, 8, 3.355),
            (0.025, 29, 2.045),
            (0.005, 30, 2.750),
            (0.025, MAX_FREEDOM, 1.960),
            (0.025, u32::MAX, 1.960),
        ] {
            let got = upper_quantile(tail, freedom);
            assert!((got - want).abs() < 1e-3, "{tail} of {freedom}: {got}, not {want}");
        }
        assert!(upper_quantile(0.5, 4).abs() < 1e-12);
        assert!(upper_quantile(1e-300, 1).is_finite());
    }
}
