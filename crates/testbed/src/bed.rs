//! What every point needs: its cores, its end by Ctrl-C, and the machine's noise and speed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tailwater_loadgen::clock::Clock;
use tailwater_loadgen::noise::{Probe, probe};
use tailwater_loadgen::pin::PinnedThread;
use tailwater_spin::Spinner;

use crate::cores::CorePlan;
use crate::interrupt::Interrupt;
use crate::machine;

/// Time within which a process that was started has to answer: so long because one in `SCHED_IDLE`
/// waits for all others of a busy machine. One that ends is noticed at once.
pub const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A machine on which an idle core loses more than this part of its time is busy with other
/// programs; quiet virtual machines lost 1 to 2.3 %.
pub const BUSY_MACHINE: f64 = 0.05;

/// Time to start and end a system: as measured on a virtual machine with 2 vCPUs, and half again
/// for slower machines.
pub const OVERHEAD: Duration = Duration::from_millis(350);

/// What every point needs.
#[derive(Debug)]
pub struct Testbed {
    /// Which core does what.
    pub cores: CorePlan,
    /// Ends a point early.
    pub interrupt: Arc<Interrupt>,
    /// How long the batch job runs alone before each point, and again after it.
    pub solo: Duration,
    /// The program, with its arguments, that is the batch job; empty: `swaptions`, which is written
    /// for Tailwater.
    pub job: Vec<String>,
}

impl Testbed {
    /// Returns a testbed on these cores, beside whose services the batch job is `swaptions`, and
    /// runs alone for `solo` before and after.
    ///
    /// # Errors
    /// If there are too few cores.
    pub fn new(usable: Vec<usize>, interrupt: Arc<Interrupt>, solo: Duration) -> anyhow::Result<Self> {
        Ok(Self { cores: CorePlan::new(usable)?, interrupt, solo, job: Vec::new() })
    }

    /// Returns the same with another program as the batch job.
    #[must_use]
    pub fn with_job(&self, job: Vec<String>) -> Self {
        let Self { cores, interrupt, solo, .. } = self;
        Self { cores: cores.clone(), interrupt: Arc::clone(interrupt), solo: *solo, job }
    }

    /// Measures the gaps of all cores at the same time, the polling core first. No other thread of
    /// this program runs.
    ///
    /// # Errors
    /// If a core cannot be used, or on a signal.
    pub fn probe_noise(&self, duration: Duration) -> anyhow::Result<Vec<(usize, Probe)>> {
        let clock = Clock::start();
        let probe_on = |core: usize| -> anyhow::Result<Probe> {
            let _pinned = PinnedThread::new(core)?;
            Ok(probe(&clock, duration))
        };
        let managed = self.cores.managed.iter().copied();
        let cores: Vec<usize> = [self.cores.polling].into_iter().chain(managed).collect();
        let probes = std::thread::scope(|scope| {
            let threads: Vec<_> = cores.iter().map(|&core| scope.spawn(move || probe_on(core))).collect();
            let joined = threads.into_iter().map(|thread| thread.join().expect("probing does not panic"));
            joined.collect::<anyhow::Result<Vec<_>>>()
        })?;
        self.interrupt.check()?;
        Ok(cores.into_iter().zip(probes).collect())
    }

    /// Measures the speed of a spin server's work on a managed core; all servers of a run get the
    /// same.
    ///
    /// # Errors
    /// If the core cannot be used.
    pub fn calibrate(&self) -> anyhow::Result<u64> {
        let _pinned = PinnedThread::new(self.cores.managed[0])?;
        // The middle of three: a stall may last as long as one of them, and so may a burst of the
        // clock frequency, at whose speed all work of the run would be too long.
        let mut speeds = [0; 3].map(|_: u64| Spinner::calibrate().iterations_per_ms());
        speeds.sort_unstable();
        Ok(speeds[1])
    }

    /// Keeps the calling thread, and the processes it starts, off the managed cores until the guard
    /// is dropped.
    pub(crate) fn stay_off_managed_cores(&self) -> anyhow::Result<OffManaged> {
        OffManaged::new(&self.cores.managed)
    }
}

/// Keeps the calling thread, and the processes it starts, off some cores until it is dropped.
#[derive(Debug)]
pub struct OffManaged {
    before: Vec<usize>,
}

impl OffManaged {
    /// Leaves these cores.
    ///
    /// # Errors
    /// If the thread may use no others.
    pub fn new(managed: &[usize]) -> anyhow::Result<Self> {
        let before = machine::usable_cores();
        let elsewhere: Vec<usize> = before.iter().copied().filter(|core| !managed.contains(core)).collect();
        rustix::thread::sched_setaffinity(None, &machine::cpu_set(&elsewhere))
            .context("cannot leave the cores to measure")?;
        Ok(Self { before })
    }
}

impl Drop for OffManaged {
    fn drop(&mut self) {
        // Fails only if those cores have gone offline since.
        let _ = rustix::thread::sched_setaffinity(None, &machine::cpu_set(&self.before));
    }
}
