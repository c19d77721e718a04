//! The contract: a European option to enter an interest-rate swap.
//!
//! Owns the terms of a swaption together with the model it is valued in, and their checks. Times
//! are counted in steps of the model's grid, so that no cash flow falls between grid points.

use crate::model::{Factor, ForwardCurve, GridModel, MAX_FACTORS};

/// Maximum length of the time grid in steps; it bounds the work between two polls and the memory of
/// a worker (60 KiB).
pub const MAX_STEPS: usize = 1024;

/// Maximum number of steps in one coupon period; it bounds the work between two polls.
pub const MAX_PERIOD_STEPS: usize = 64;

/// Which leg of the swap the option's holder would pay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Pay the fixed rate: valuable if rates have risen.
    Payer,
    /// Receive the fixed rate.
    Receiver,
}

/// A swaption on a notional of 1 and the model to value it in. [`SwaptionSpec::check`] returns
/// whether it is valid.
#[derive(Debug, Clone, PartialEq)]
pub struct SwaptionSpec {
    /// Forward rates today.
    pub curve: ForwardCurve,
    /// Its factors: 1 to [`MAX_FACTORS`].
    pub factors: Vec<Factor>,
    /// Length of a grid step in years, above 0 and at most 10.
    pub step_years: f64,
    /// Steps until the option expires and the swap starts, at least 1.
    pub expiry_steps: usize,
    /// Steps per coupon period, 1 to [`MAX_PERIOD_STEPS`].
    pub period_steps: usize,
    /// Coupon periods of the swap, at least 1.
    pub periods: usize,
    /// Fixed rate of the swap per year, simply compounded over a period.
    pub strike: f64,
    /// Which leg the holder pays.
    pub side: Side,
}

/// Why a swaption cannot be priced.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// No factors, or too many.
    #[error("a swaption needs 1 to {MAX_FACTORS} factors, not {count}")]
    FactorCount {
        /// Factors given.
        count: usize,
    },
    /// A number in the curve or a factor is not finite, or a decay is out of range.
    #[error(
        "the {part} of a swaption must be finite numbers, a curve's decay_years above 0, a factor's decay at least 0"
    )]
    NotFinite {
        /// `curve`, `factors` or `strike`.
        part: &'static str,
    },
    /// The length of a step is out of range.
    #[error("step_years must be above 0 and at most 10, not {step_years}")]
    Step {
        /// The given length.
        step_years: f64,
    },
    /// A count of steps or periods is out of range.
    #[error(
        "expiry_steps and periods must be at least 1, period_steps 1 to {MAX_PERIOD_STEPS}, and the last payment at most \
         {MAX_STEPS} steps away"
    )]
    Grid,
}

impl SwaptionSpec {
    /// Checks every field's range.
    ///
    /// # Errors
    /// The first field that is out of range, as a [`SpecError`].
    pub fn check(&self) -> Result<(), SpecError> {
        if self.factors.is_empty() || self.factors.len() > MAX_FACTORS {
            return Err(SpecError::FactorCount { count: self.factors.len() });
        }
        if !self.curve.is_finite() {
            return Err(SpecError::NotFinite { part: "curve" });
        }
        if !self.factors.iter().all(Factor::is_finite) {
            return Err(SpecError::NotFinite { part: "factors" });
        }
        if !self.strike.is_finite() {
            return Err(SpecError::NotFinite { part: "strike" });
        }
        if !(self.step_years > 0.0 && self.step_years <= 10.0) {
            return Err(SpecError::Step { step_years: self.step_years });
        }
        let swap_steps = self.periods.checked_mul(self.period_steps);
        let last = swap_steps.and_then(|s| s.checked_add(self.expiry_steps));
        let usable = self.expiry_steps >= 1
            && self.periods >= 1
            && (1..=MAX_PERIOD_STEPS).contains(&self.period_steps)
            && last.is_some_and(|last| last <= MAX_STEPS);
        if usable { Ok(()) } else { Err(SpecError::Grid) }
    }

    /// Steps until the swap's last payment, the length of the grid. The spec has been checked.
    #[must_use]
    pub fn total_steps(&self) -> usize {
        self.expiry_steps + self.periods * self.period_steps
    }

    /// Coupon of one period on a notional of 1.
    #[must_use]
    pub fn coupon(&self) -> f64 {
        self.strike * self.step_years * self.period_steps as f64
    }

    /// Returns the fixed rate at which the swap is worth nothing today.
    ///
    /// # Errors
    /// As [`SwaptionSpec::check`].
    pub fn par_rate(&self) -> Result<f64, SpecError> {
        self.check()?;
        let grid = self.grid();
        let accrual = self.step_years * self.period_steps as f64;
        let annuity: f64 = self.payment_steps().map(|j| accrual * grid.bond_price(j)).sum();
        Ok((grid.bond_price(self.expiry_steps) - grid.bond_price(self.total_steps())) / annuity)
    }

    /// Returns the grid points at which the swap pays.
    pub(crate) fn payment_steps(&self) -> impl Iterator<Item = usize> {
        let (expiry, period) = (self.expiry_steps, self.period_steps);
        (1..=self.periods).map(move |i| expiry + i * period)
    }

    /// Returns the model on this swaption's grid.
    pub(crate) fn grid(&self) -> GridModel {
        GridModel::new(&self.curve, &self.factors, self.step_years, self.total_steps())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usable() -> SwaptionSpec {
        SwaptionSpec {
            curve: ForwardCurve::flat(0.03),
            factors: vec![Factor { level: 0.01, slope: 0.0, decay: 0.1 }],
            step_years: 0.25,
            expiry_steps: 4,
            period_steps: 2,
            periods: 4,
            strike: 0.03,
            side: Side::Payer,
        }
    }

    #[test]
    fn each_field_out_of_range_is_refused() {
        assert_eq!(usable().check(), Ok(()));
        let refused = |change: fn(&mut SwaptionSpec)| {
            let mut spec = usable();
            change(&mut spec);
            spec.check().unwrap_err()
        };
        assert_eq!(refused(|s| s.factors.clear()), SpecError::FactorCount { count: 0 });
        assert_eq!(refused(|s| s.curve.decay_years = 0.0), SpecError::NotFinite { part: "curve" });
        assert_eq!(refused(|s| s.factors[0].decay = -1.0), SpecError::NotFinite { part: "factors" });
        assert_eq!(refused(|s| s.strike = f64::NAN), SpecError::NotFinite { part: "strike" });
        assert!(matches!(refused(|s| s.step_years = 0.0), SpecError::Step { .. }));
        assert_eq!(refused(|s| s.expiry_steps = 0), SpecError::Grid);
        assert_eq!(refused(|s| s.periods = 0), SpecError::Grid);
        assert_eq!(refused(|s| s.periods = usize::MAX), SpecError::Grid);
        assert_eq!(refused(|s| s.period_steps = 65), SpecError::Grid);
        assert_eq!(refused(|s| s.expiry_steps = MAX_STEPS), SpecError::Grid);
    }

    #[test]
    fn the_par_rate_of_a_flat_curve_is_that_rate_simply_compounded() {
        // Half a year at 3 % continuously compounded.
        let want = ((0.03f64 * 0.5).exp() - 1.0) / 0.5;
        assert!((usable().par_rate().unwrap() - want).abs() < 1e-14);
    }
}
