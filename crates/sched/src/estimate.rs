//! Estimates the cores that a program needs, by its load (Arachne section 6.1).
//!
//! Owns the estimate of one program. Once per interval [`Estimator::decide`] gets the averages
//! over it:
//! - If the load factor, the runnable user threads per core, is at or above the threshold, one core
//!   more is needed. The utilisation at which that happened is kept for the new number.
//! - If the utilisation has fallen below the one kept for the present number by more than the
//!   hysteresis, or than half of it if that is less, one core less is.
//!
//! A load factor is a measure of how long threads wait, whatever the load, so it decides when to
//! grow. It does not say what it would be with one core less, so utilisation decides when to
//! shrink. Threads may wait at any utilisation, for instance many that are woken together once in a
//! while. Half of the level bounds the hysteresis there: a program that idles comes down to the
//! number it began with.
//!
//! Never measures: the simulator samples what it knows, a program's runtime what its scheduler
//! counts.

use heap::vec;
use heap::vec::Vec;

/// Settings of an [`Estimator`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EstimateSettings {
    /// Runnable user threads per core, running ones included, from which one more core is needed;
    /// 1.5 in Arachne. Above 1: a busy core has one.
    pub load_factor: f64,
    /// How far utilisation must fall below the level at which the core was added, in cores, but no
    /// further than to half of that level; 0.09 in Arachne.
    pub hysteresis: f64,
}

/// Least utilisation that is kept for a number of cores: below half of it a program idles. Half a
/// percent of a core is the timers of a service without requests.
const LEAST_LEVEL: f64 = 0.01;

impl Default for EstimateSettings {
    fn default() -> Self {
        Self { load_factor: 1.5, hysteresis: 0.09 }
    }
}

/// Averages over an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadAverage {
    /// Busy cores.
    pub utilisation: f64,
    /// Runnable user threads, running ones included.
    pub runnable: f64,
}

/// The estimate of one program. See the module header.
#[derive(Clone, Debug)]
pub struct Estimator {
    settings: EstimateSettings,
    cores: u16,
    /// Utilisation, in cores, at which the number was raised to the one given by the index.
    raised_at: Vec<Option<f64>>,
}

impl Estimator {
    /// Returns one that starts with `cores` and never estimates more than `most`, which is at least
    /// `cores`, or fewer than one.
    ///
    /// # Panics
    /// If `cores` exceeds `most`.
    #[must_use]
    pub fn new(settings: EstimateSettings, cores: u16, most: u16) -> Self {
        assert!(cores <= most, "starts with {cores} of at most {most} cores");
        Self { settings, cores, raised_at: vec![None; usize::from(most) + 1] }
    }

    /// Returns the estimate.
    #[must_use]
    pub fn cores(&self) -> u16 {
        self.cores
    }

    /// Computes the new estimate from the averages of an interval. `over` is the number of cores by
    /// which the runnable threads are divided.
    pub fn decide(&mut self, load: LoadAverage, over: u16) -> u16 {
        let load_factor = load.runnable / f64::from(over.max(1));
        let floor = self.raised_at[usize::from(self.cores)].map(|level| self.floor(level));
        if load_factor >= self.settings.load_factor && usize::from(self.cores) + 1 < self.raised_at.len() {
            self.cores += 1;
            self.raised_at[usize::from(self.cores)] = Some(load.utilisation.max(LEAST_LEVEL));
        } else if self.cores > 1 && floor.is_some_and(|floor| load.utilisation < floor) {
            self.cores -= 1;
        }
        self.cores
    }

    /// Returns the utilisation below which a core that was added at `level` is not needed.
    fn floor(&self, level: f64) -> f64 {
        (level - self.settings.hysteresis).max(level / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimator() -> Estimator {
        Estimator::new(EstimateSettings::default(), 1, 4)
    }

    fn period(estimator: &mut Estimator, utilisation: f64, runnable: f64) -> u16 {
        let cores = estimator.cores();
        estimator.decide(LoadAverage { utilisation, runnable }, cores)
    }

    #[test]
    fn a_core_is_added_at_load_factor_1_5_and_released_when_utilisation_falls_nine_percent_below() {
        let mut e = estimator();
        assert_eq!(period(&mut e, 0.8, 1.4), 1);
        assert_eq!(period(&mut e, 0.9, 1.6), 2);
        assert_eq!(period(&mut e, 0.85, 1.0), 2, "5 % below 0.9 is within the hysteresis");
        assert_eq!(period(&mut e, 0.80, 1.0), 1);
    }

    #[test]
    fn each_count_remembers_its_own_level_and_the_limit_holds() {
        let mut e = estimator();
        for busy in [0.9, 1.8, 2.7, 4.0, 4.0] {
            period(&mut e, busy, 20.0);
        }
        assert_eq!(e.cores(), 4);
        assert_eq!(period(&mut e, 2.6, 2.6), 3, "raised to 4 at 2.7");
        assert_eq!(period(&mut e, 1.75, 1.8), 3, "raised to 3 at 1.8");
        assert_eq!(period(&mut e, 1.7, 1.8), 2);
    }

    #[test]
    fn the_estimate_never_falls_below_one_nor_below_where_it_began() {
        let mut e = estimator();
        assert_eq!(period(&mut e, 0.0, 0.0), 1);
        let mut e = Estimator::new(EstimateSettings::default(), 3, 4);
        assert_eq!(period(&mut e, 0.0, 0.0), 3, "at which utilisation three were needed is not known");
    }

    #[test]
    fn an_idle_program_comes_down_to_one_core_from_every_state() {
        for hysteresis in [0.0, 0.09, 0.5, 1.0] {
            for busy in [0.0, 0.001, 0.06, 0.09, 0.5, 0.9, 1.0, 3.0] {
                for idle in [0.0, 0.004] {
                    let settings = EstimateSettings { hysteresis, ..EstimateSettings::default() };
                    let mut e = Estimator::new(settings, 1, 4);
                    (0..5).for_each(|_| _ = period(&mut e, busy, 100.0));
                    assert_eq!(e.cores(), 4);
                    (0..3).for_each(|_| _ = period(&mut e, idle, idle));
                    assert_eq!(e.cores(), 1, "hysteresis {hysteresis}, raised at {busy}, idle at {idle}");
                }
            }
        }
    }

    #[test]
    fn cores_added_for_bursts_are_kept_while_the_bursts_go_on() {
        let mut e = estimator();
        // 100 threads are woken together every 50 ms and run for 30 us each.
        assert_eq!([3.0, 3.0, 3.0, 1.0].map(|runnable| period(&mut e, 0.06, runnable)), [2, 3, 3, 3]);
        assert!((0..10).all(|_| period(&mut e, 0.05, 1.0) == 3), "nearly as many");
        assert_eq!(period(&mut e, 0.02, 0.4), 2);
        assert_eq!(period(&mut e, 0.02, 0.4), 1);
    }
}
