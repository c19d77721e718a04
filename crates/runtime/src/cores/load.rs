//! [`Load`]: what the scheduler measures, averaged over an interval.
//!
//! Owns the switch that has kthreads measure: on while any [`LoadMeter`] exists.

use super::{granted, held};
use crate::records::meter::Totals;
use crate::records::runtime::{Runtime, runtime};
use core::sync::atomic::Ordering::Relaxed;
use tailwater_shm::{Cycles, clock};

/// The load of the program, averaged over an interval (Arachne section 6).
///
/// # Examples
/// ```
/// use tailwater::cores::Load;
///
/// let load = Load { runnable: 3.0, utilisation: 1.2, ..Load::default() };
/// assert_eq!(load.per_core(2), 1.5);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Busy kthreads: 1.0 if one was busy all the time.
    pub utilisation: f64,
    /// Runnable user threads, running ones included. Not counted are threads that wait for a
    /// kthread without a core, and those that ordinary threads have just made runnable.
    pub runnable: f64,
    /// Cores held at the end.
    pub held: usize,
    /// Requested cores that are the program's own at the end.
    pub granted: usize,
}

impl Load {
    /// Returns the load factor over this many cores: the runnable user threads for each.
    pub fn per_core(&self, cores: usize) -> f64 {
        self.runnable / cores.max(1) as f64
    }
}

/// Measures the load of the program. While one exists, each kthread counts at its visits to the
/// scheduler, which takes some nanoseconds each.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::cores::LoadMeter;
///
/// #[tailwater::main]
/// fn main() {
///     let mut meter = LoadMeter::new();
///     let sum: u64 = (0..1_000_000).sum();
///     let load = meter.load();
///     println!("{sum}: {:.2} cores, {:.2} threads", load.utilisation, load.runnable);
/// }
/// ```
#[derive(Debug)]
pub struct LoadMeter {
    looked: Cycles,
    /// By kthread.
    totals: Vec<Totals>,
}

impl LoadMeter {
    /// Begins to measure.
    ///
    /// # Panics
    /// If there is no runtime.
    #[allow(clippy::new_without_default, reason = "a default would begin to measure")]
    pub fn new() -> Self {
        let runtime = runtime();
        runtime.meters.fetch_add(1, Relaxed);
        let now = clock::now();
        Self { looked: now, totals: totals(runtime) }
    }

    /// Returns the load since the last call, or since the meter was made.
    pub fn load(&mut self) -> Load {
        let (before, after) = (&self.totals, totals(runtime()));
        let (mut busy, mut runnable) = (0.0, 0.0);
        for more in after.iter().zip(before).map(|(after, &before)| after.since(before)) {
            (busy, runnable) = (busy + more.busy as f64, runnable + more.runnable as f64);
        }
        let now = clock::now();
        let time = now.saturating_sub(self.looked).max(1) as f64;
        (self.looked, self.totals) = (now, after);
        Load { utilisation: busy / time, runnable: runnable / time, held: held().len(), granted: granted() }
    }
}

impl Drop for LoadMeter {
    fn drop(&mut self) {
        runtime().meters.fetch_sub(1, Relaxed);
    }
}

fn totals(runtime: &Runtime) -> Vec<Totals> {
    runtime.kthreads.iter().map(|kthread| kthread.meter.totals(clock::now(), kthread.waiting())).collect()
}
