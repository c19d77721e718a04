//! Settings of IX's control loop.
//!
//! Owns the table `ix` of a configuration: names, units, defaults, limits; and what a step stands
//! for on a machine with given clock rates.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tailwater_sched::alloc::{Clock, Clocks, HYPERTHREAD_GAIN, Step};

use super::{ConfigError, out_of_range};

/// Settings of the policies that follow IX's control loop, `ix-consolidation` and `ix-energy`.
///
/// # Examples
/// ```
/// use tailwater_iokernel::Config;
///
/// let text = "policy = \"ix-energy\"\n[ix]\ndelay-bound-us = 100\nclocks = false";
/// assert_eq!(Config::from_toml(text).unwrap().ix.delay_bound_us, 100);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct IxSettings {
    /// Queueing delay in microseconds; the next step is taken when more than 1 % of what a service
    /// served in a period had waited for longer.
    pub delay_bound_us: u64,
    /// Time between decisions, in milliseconds (IX section 4.6: 100).
    pub period_ms: u64,
    /// Time constant of the averages over several periods, in milliseconds.
    pub smoothing_ms: u64,
    /// Time between two looks at rings and run queues, in microseconds.
    pub sample_us: u64,
    /// Percentage of the step before that must be idle after a step back, 0 to 90.
    pub hysteresis: u8,
    /// True if the policy sets clock rates, where Linux permits it.
    pub clocks: bool,
    /// File that keeps what clock settings were before, while they are changed.
    pub state_file: PathBuf,
    /// Steps in place of the policy's own, least first; empty: those.
    pub steps: Vec<IxStep>,
}

/// A step of [`IxSettings`].
///
/// # Examples
/// ```
/// use tailwater_iokernel::Config;
///
/// let text = "[[ix.steps]]\ncores = 2\nthreads = 1\nmhz = 1200";
/// assert_eq!(Config::from_toml(text).unwrap().ix.steps[0].mhz, Some(1200));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct IxStep {
    /// Physical cores.
    pub cores: u16,
    /// Hyperthreads of each.
    pub threads: u16,
    /// Clock rate; `None` leaves it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mhz: Option<u32>,
    /// True for Turbo Boost; then `mhz` has no effect.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub turbo: bool,
}

impl Default for IxSettings {
    fn default() -> Self {
        Self {
            delay_bound_us: 50,
            period_ms: 100,
            smoothing_ms: 100,
            sample_us: 20,
            hysteresis: 25,
            clocks: true,
            state_file: PathBuf::from("/run/tailwater-clocks"),
            steps: Vec::new(),
        }
    }
}

impl IxStep {
    /// Returns whether the step has more cores, hyperthreads or clock than another one, or a clock
    /// that cannot be compared.
    fn has_more_than(&self, other: &Self) -> bool {
        let clock = |step: &Self| if step.turbo { Some(u32::MAX) } else { step.mhz };
        let is_faster = match (clock(self), clock(other)) {
            (Some(mhz), Some(other)) => mhz > other,
            (None, None) => false,
            _ => true,
        };
        self.cores > other.cores || self.threads > other.threads || is_faster
    }

    /// Returns whether the step has less throughput than another one before it, whatever turbo
    /// gives.
    fn is_slower_than(&self, before: &Self, turbo_mhz: u32) -> bool {
        let throughput = |step: &Self| {
            let threads = 1.0 + HYPERTHREAD_GAIN * f64::from(step.threads.saturating_sub(1));
            let mhz = if step.turbo { turbo_mhz } else { step.mhz.unwrap_or(1) };
            f64::from(step.cores) * threads * f64::from(mhz)
        };
        let is_known = before.turbo || !self.turbo;
        is_known && throughput(self) < throughput(before)
    }

    fn has_clock(&self) -> bool {
        self.turbo || self.mhz.is_some()
    }

    /// Returns the step on a machine with these clock rates: without any it leaves the clock alone,
    /// and a rate that is out of range is the nearest that is not.
    pub(crate) fn resolve(&self, clocks: &Clocks) -> Step {
        let ends = clocks.mhz.first().zip(clocks.mhz.last());
        let clock = ends.and_then(|(&low, &high)| match (self.turbo, self.mhz) {
            (true, _) if clocks.turbo_mhz.is_some() => Some(Clock::Turbo),
            (true, _) => Some(Clock::Mhz(high)),
            (false, mhz) => Some(Clock::Mhz(mhz?.clamp(low, high))),
        });
        Step { cores: self.cores, threads: self.threads, clock }
    }
}

impl IxSettings {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !(1..=1_000_000).contains(&self.delay_bound_us) {
            return Err(out_of_range(
                "ix.delay-bound-us",
                self.delay_bound_us,
                "1 to 1000000 us are allowed",
            ));
        }
        if !(1..=60_000).contains(&self.period_ms) {
            return Err(out_of_range("ix.period-ms", self.period_ms, "1 to 60000 ms are allowed"));
        }
        if !(1..=600_000).contains(&self.smoothing_ms) {
            return Err(out_of_range("ix.smoothing-ms", self.smoothing_ms, "1 to 600000 ms are allowed"));
        }
        let most_us = (self.period_ms * 1000).min(10_000);
        if !(1..=most_us).contains(&self.sample_us) {
            let expected = format!("1 to {most_us} us are allowed, at most ix.period-ms");
            return Err(out_of_range("ix.sample-us", self.sample_us, expected));
        }
        if self.hysteresis > 90 {
            return Err(out_of_range("ix.hysteresis", self.hysteresis, "0 to 90 percent are possible"));
        }
        if !self.state_file.is_absolute() {
            let expected = "an absolute path is needed, such as /run/tailwater-clocks";
            return Err(out_of_range("ix.state-file", self.state_file.display(), expected));
        }
        let most = tailwater_sched::topology::MAX_CORES;
        if self.steps.len() > most {
            return Err(out_of_range("ix.steps", self.steps.len(), format!("at most {most} steps")));
        }
        let wrong = |step: &IxStep, expected: &str| {
            let value = format!("cores = {}, threads = {}", step.cores, step.threads);
            Err(out_of_range("ix.steps", value, expected))
        };
        if let Some(step) = self.steps.iter().find(|step| step.cores == 0 || step.threads == 0) {
            return wrong(step, "a step has at least one core and one thread");
        }
        if let Some(pair) = self.steps.windows(2).find(|pair| pair[0].has_clock() != pair[1].has_clock()) {
            return wrong(&pair[1], "either all steps have `mhz` or `turbo`, or none has");
        }
        // Turbo is at least as fast as any other rate.
        let turbo_mhz = self.steps.iter().filter_map(|step| step.mhz).max().unwrap_or(1);
        let is_in_order =
            |pair: &[IxStep]| pair[1].has_more_than(&pair[0]) && !pair[1].is_slower_than(&pair[0], turbo_mhz);
        match self.steps.windows(2).find(|pair| !is_in_order(pair)) {
            Some(pair) => wrong(
                &pair[1],
                "the least step comes first: each has more of something than the one before, and no less throughput",
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_with_less_throughput_than_the_one_before_is_refused() {
        let step = |cores, threads, mhz| IxStep { cores, threads, mhz, turbo: false };
        let check = |steps: &[IxStep]| IxSettings { steps: steps.to_vec(), ..IxSettings::default() }.check();
        let (small, fast) = (step(2, 1, Some(1200)), step(2, 1, Some(2400)));
        let turbo = |cores, threads| IxStep { turbo: true, ..step(cores, threads, None) };
        assert!(check(&[small, fast, step(4, 1, Some(1200)), step(4, 2, Some(1200))]).is_ok());
        assert!(check(&[fast, turbo(2, 1)]).is_ok());
        assert!(check(&[step(3, 1, Some(2400)), turbo(2, 2)]).is_ok(), "what turbo gives is not known");
        assert!(check(&[step(1, 1, None), step(1, 2, None), step(2, 1, None)]).is_ok());
        for wrong in [
            [fast, small],
            [small, small],
            [step(8, 1, None), step(2, 1, None)],
            [step(8, 1, Some(1200)), fast],
            [turbo(4, 1), step(3, 1, Some(2400))],
        ] {
            let error = check(&wrong).unwrap_err().to_string();
            assert!(error.contains("least step comes first"), "{error}");
        }
        let error = check(&[small, step(4, 1, None)]).unwrap_err().to_string();
        assert!(error.contains("all steps have `mhz`"), "{error}");
    }

    #[test]
    fn a_step_is_of_the_rates_that_the_machine_has() {
        let clocks = Clocks { mhz: vec![1200, 2400], turbo_mhz: None };
        let step = |mhz, turbo| IxStep { cores: 3, threads: 2, mhz, turbo };
        let clock = |mhz, turbo, clocks: &Clocks| step(mhz, turbo).resolve(clocks).clock;
        assert_eq!(clock(Some(800), false, &clocks), Some(Clock::Mhz(1200)));
        assert_eq!(clock(None, true, &clocks), Some(Clock::Mhz(2400)), "without Turbo Boost the nominal one");
        assert_eq!(
            clock(None, true, &Clocks { turbo_mhz: Some(3000), ..clocks.clone() }),
            Some(Clock::Turbo)
        );
        assert_eq!(clock(None, false, &clocks), None);
        assert_eq!(clock(Some(1200), true, &Clocks::default()), None);
    }
}
