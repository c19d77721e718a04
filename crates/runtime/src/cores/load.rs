//! [`Load`]: what the scheduler measures, averaged over an interval.
//!
//! Owns the switch that has kthreads measure: on while any [`LoadMeter`] exists.

use super::{granted, held};
use crate::records::kthread::Kthread;
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
    /// Busy kthreads: 1.0 if one was busy all the time. At most the number of kthreads. Time of
    /// [background threads](crate::thread::ThreadClass) is left out, and that of exclusive ones.
    pub utilisation: f64,
    /// Runnable user threads, running ones included. Not counted are threads that wait for a
    /// kthread without a core, those that ordinary threads have just made runnable, and exclusive
    /// ones.
    pub runnable: f64,
    /// Kthreads that run an exclusive thread, or wait for one; a core is requested for each such
    /// thread whatever a [policy](super::CorePolicy) decides.
    pub exclusive: f64,
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
    /// The latest one at each kthread.
    looks: Vec<Look>,
}

/// A look at a kthread.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Cycles,
    totals: Totals,
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
        Self { looks: look(runtime) }
    }

    /// Returns the load since the last call, or since the meter was made.
    pub fn load(&mut self) -> Load {
        let before = core::mem::replace(&mut self.looks, look(runtime()));
        let mut load = Load { held: held().len(), granted: granted(), ..Load::default() };
        for (now, before) in self.looks.iter().zip(before) {
            let more = now.totals.since(before.totals).over(now.at.saturating_sub(before.at));
            load.utilisation += more.busy;
            load.runnable += more.runnable;
            load.exclusive += more.hosted;
        }
        load
    }
}

impl Drop for LoadMeter {
    fn drop(&mut self) {
        runtime().meters.fetch_sub(1, Relaxed);
    }
}

fn look(runtime: &Runtime) -> Vec<Look> {
    let look = |kthread: &&Kthread| {
        let at = clock::now();
        Look { at, totals: kthread.look_at_meter(at) }
    };
    runtime.kthreads.iter().map(look).collect()
}
