//! [`Estimation`]: the supplied core policy, by Arachne's estimate of the cores that a program
//! needs (section 6.1). The estimate itself is `tailwater_sched::estimate`.

use super::policy::{CorePolicy, CorePolicyError, set_policy};
use super::{Load, PRIORITIES, Priorities};
use crate::records::runtime::runtime;
use core::ops::RangeInclusive;
use core::time::Duration;
use tailwater_sched::estimate::{EstimateSettings, Estimator, LoadAverage};

/// Arachne's interval.
const INTERVAL: Duration = Duration::from_millis(50);

/// Settings of [`estimate`]. The defaults are Arachne's.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tailwater::cores::Estimation;
///
/// let eager = Estimation::default().load_factor(1.2).interval(Duration::from_millis(20));
/// assert_ne!(eager, Estimation::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimation {
    load_factor: f64,
    hysteresis: f64,
    interval: Duration,
    priority: usize,
    at_most: usize,
}

impl Default for Estimation {
    fn default() -> Self {
        let EstimateSettings { load_factor, hysteresis } = EstimateSettings::default();
        Self { load_factor, hysteresis, interval: INTERVAL, priority: 0, at_most: usize::MAX }
    }
}

impl Estimation {
    /// Sets the number of runnable user threads per requested core from which one more core is
    /// requested: 1.05 to 100; 1.5 by default. The lower, the shorter threads wait.
    #[must_use]
    pub fn load_factor(mut self, threads: f64) -> Self {
        self.load_factor = threads;
        self
    }

    /// Sets how far utilisation must fall, in cores, below that at which a core was added, before
    /// it is given back: 0 to 1; 0.09 by default. At half of that utilisation it is given back
    /// whatever the setting.
    #[must_use]
    pub fn hysteresis(mut self, cores: f64) -> Self {
        self.hysteresis = cores;
        self
    }

    /// Sets the time over which load is averaged, and between two decisions: 1 ms to 10 s; 50 ms by
    /// default.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets the priority at which the cores are requested: 0, the default, to 7.
    #[must_use]
    pub fn priority(mut self, priority: usize) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the largest number of cores to request: 1 to the number of kthreads, the default.
    #[must_use]
    pub fn at_most(mut self, cores: usize) -> Self {
        self.at_most = cores;
        self
    }

    fn check(&self) -> Result<(), CorePolicyError> {
        within("load_factor", &self.load_factor, 1.05..=100.0, "1.05 to 100")?;
        within("hysteresis", &self.hysteresis, 0.0..=1.0, "0 to 1")?;
        within("priority", &self.priority, 0..=PRIORITIES - 1, "0 to 7")?;
        within("at_most", &self.at_most, 1..=usize::MAX, "at least 1")
    }

    /// Returns the policy of a program with this many kthreads.
    fn policy(self, kthreads: usize) -> Normal {
        let settings = EstimateSettings { load_factor: self.load_factor, hysteresis: self.hysteresis };
        let most = u16::try_from(self.at_most.min(kthreads)).unwrap_or(u16::MAX);
        Normal { settings: self, estimator: Estimator::new(settings, 1, most.max(1)) }
    }
}

fn within<T: PartialOrd + ToString>(
    setting: &'static str,
    value: &T,
    allowed: RangeInclusive<T>,
    range: &'static str,
) -> Result<(), CorePolicyError> {
    // Also false for a float that is not a number.
    if allowed.contains(value) {
        Ok(())
    } else {
        Err(CorePolicyError::OutOfRange { setting, value: value.to_string(), range })
    }
}

/// Requests as many cores as the program needs by Arachne's estimate, in place of any
/// [policy](super::set_policy) before: at first one; one more after an interval in which its
/// runnable user threads were `load_factor` or more for each requested core; one fewer when
/// utilisation has fallen to where that core was added.
///
/// [`clear_policy`](super::clear_policy) ends it.
///
/// # Errors
/// As [`set_policy`](super::set_policy), and if a setting is out of range.
///
/// # Panics
/// If there is no runtime.
///
/// # Examples
/// ```no_run,standalone_crate
/// use tailwater::cores::{self, Estimation};
///
/// #[tailwater::main]
/// fn main() {
///     if let Err(why) = cores::estimate(Estimation::default()) {
///         eprintln!("cores are lent by load alone: {why}");
///     }
/// }
/// ```
pub fn estimate(settings: Estimation) -> Result<(), CorePolicyError> {
    settings.check()?;
    set_policy(settings.policy(runtime().kthreads.len()))
}

/// The policy that [`estimate`] sets.
#[derive(Debug)]
struct Normal {
    settings: Estimation,
    estimator: Estimator,
}

impl CorePolicy for Normal {
    fn interval(&self) -> Duration {
        self.settings.interval
    }

    /// Divides the threads by the requested cores rather than by those held: beyond its own cores
    /// the program is lent others by load, and those may be taken.
    fn cores(&mut self, load: &Load) -> Priorities {
        let average = LoadAverage { utilisation: load.utilisation, runnable: load.runnable };
        let cores = self.estimator.decide(average, self.estimator.cores());
        Priorities::default().with(self.settings.priority, cores.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(utilisation: f64, runnable: f64) -> Load {
        Load { utilisation, runnable, ..Load::default() }
    }

    #[test]
    fn cores_that_are_lent_by_load_are_requested_if_they_are_needed() {
        let mut policy = Estimation::default().priority(2).policy(8);
        // Three cores are busy, and no thread waits.
        let mut requested: Vec<usize> = (0..4).map(|_| policy.cores(&load(3.0, 3.0)).total()).collect();
        assert_eq!(requested, [2, 3, 3, 3], "three threads on two cores would wait");
        assert_eq!(policy.cores(&load(3.0, 3.0)), Priorities::default().with(2, 3));
        requested = (0..3).map(|_| policy.cores(&load(0.4, 0.4)).total()).collect();
        assert_eq!(requested, [2, 1, 1]);
    }

    #[test]
    fn no_more_cores_are_requested_than_allowed() {
        for (settings, kthreads, most) in
            [(Estimation::default(), 3, 3), (Estimation::default().at_most(2), 8, 2)]
        {
            let mut policy = settings.policy(kthreads);
            let last = (0..20).map(|_| policy.cores(&load(3.0, 50.0)).total()).last();
            assert_eq!(last, Some(most));
        }
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let refused = |settings: Estimation| settings.check().unwrap_err().to_string();
        assert!(refused(Estimation::default().load_factor(1.0)).contains("load_factor = 1 "));
        assert!(refused(Estimation::default().load_factor(f64::NAN)).contains("NaN"));
        assert!(refused(Estimation::default().hysteresis(-0.1)).contains("hysteresis"));
        assert!(refused(Estimation::default().priority(8)).contains("0 to 7"));
        assert!(refused(Estimation::default().at_most(0)).contains("at least 1"));
    }
}
