//! A service, a batch job and a load generator on the cores of this machine, on Tailwater or on Linux: what `demo` and
//! `reproduce` measure with.
//!
//! Owns which core does what, and one *point*: a system started anew, measured under one plan, and ended. Both systems get
//! the same requests (plan and seed), the same calibration of work and the same cores. During the counted part of a point
//! nothing of this program runs but the generator: everybody else waits in the kernel for its end.
//!
//! | module | owns |
//! |---|---|
//! | [`child`] | service and batch processes, and that none outlives this one |
//! | [`on_tailwater`], [`on_linux`] | one system each: start, measure, end |
//! | [`port`] | the generator as the IOKernel's port, over datagrams or connections |
//! | [`program`] | programs with protocols of their own, ours and others' |
//! | [`name_server`] | those that serve a zone |
//! | [`tokio_spin`] | the service as a user of Tokio would write it |
//! | [`handoffs`] | how fast cores changed hands meanwhile |
//! | [`wait`] | how the Linux server waits for requests: both ways tried |

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tailwater_loadgen::clock::Clock;
use tailwater_loadgen::noise::{Probe, probe};
use tailwater_loadgen::pin::PinnedThread;
use tailwater_loadgen::plan::DEFAULT_TIMEOUT_NS;
use tailwater_loadgen::{Measurement, Plan};
use tailwater_spin::Spinner;
use tailwater_workload::{Figures, ServiceTime};

use crate::interrupt::Interrupt;
use crate::machine;

pub mod child;
pub mod handoffs;
pub mod name_server;
pub mod on_linux;
pub mod on_tailwater;
pub mod port;
pub mod program;
pub mod tokio_spin;
pub mod wait;

/// Losing more than this part of its requests, a system is saturated: it achieves less than 99 % of the rate that is offered.
const SATURATED_LOSS: f64 = 0.01;

/// A system whose median latency is longer has a standing queue and is saturated, whether or not its buffers hold that queue
/// to the end of the point: loss alone would call the one with larger buffers the better. So many mean services: of a
/// queue with random arrivals and services the median is that high from 99 % load on (M/M/1: ln 2 / (1 - load) services).
const STANDING_QUEUE_SERVICES: f64 = 100.0;

/// The same in microseconds, at least: for servers whose service is not known, and shorter than 10 us.
const STANDING_QUEUE_US: f64 = 1_000.0;

/// Most managed cores: the one generator, on kernel sockets, sends about 300,000 requests a second.
const MOST_MANAGED: usize = 3;

/// Stretches in which the batch job alone is measured.
const SOLO_STRETCHES: u32 = 3;

/// How long a started process may take until it answers.
pub const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Which core does what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorePlan {
    /// All that may be used.
    pub usable: Vec<usize>,
    /// The IOKernel's and the generator's.
    pub polling: usize,
    /// Those that service and batch job share.
    pub managed: Vec<usize>,
}

impl CorePlan {
    /// The first core polls, up to three others are shared.
    ///
    /// # Errors
    /// When there are fewer than two.
    pub fn new(usable: Vec<usize>) -> anyhow::Result<Self> {
        anyhow::ensure!(usable.len() >= 2, "two cores are needed: one polls, the other is shared");
        let managed = usable[1..].iter().copied().take(MOST_MANAGED).collect();
        Ok(Self { polling: usable[0], managed, usable })
    }

    /// Who has which, for a person.
    pub fn describe(&self) -> String {
        let Self { usable, polling, managed } = self;
        let shared = if managed.len() == 1 {
            format!("service and batch share core {}", managed[0])
        } else {
            format!("service (up to {} cores) and batch share cores {managed:?}", managed.len())
        };
        let unused = usable.len() - 1 - managed.len();
        let rest = if unused > 0 { format!("; {unused} more cores are left alone") } else { String::new() };
        format!("core {polling} polls and generates load, {shared}{rest}")
    }
}

/// What every point needs.
#[derive(Debug)]
pub struct Testbed {
    pub cores: CorePlan,
    pub interrupt: Arc<Interrupt>,
    /// How long the batch job runs alone before and again after each point.
    pub solo: Duration,
}

/// One measured point of either system, before it becomes figures.
#[derive(Debug)]
pub struct Measured {
    pub measurement: Measurement,
    /// The batch job, where one ran beside the service.
    pub batch: Option<BatchRates>,
}

/// Trials per second of a batch job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchRates {
    /// Over the counted time.
    pub beside: f64,
    /// With nothing beside it, before or after.
    pub solo: f64,
}

impl BatchRates {
    /// What of its full speed the batch job had beside the service.
    pub fn share(self) -> f64 {
        self.beside / self.solo
    }
}

/// The median latency above which requests for `service` stand in a queue, in microseconds.
pub fn standing_queue_us(service: &ServiceTime) -> f64 {
    (STANDING_QUEUE_SERVICES * service.mean_ns() / 1e3).max(STANDING_QUEUE_US)
}

/// Whether a system did not keep up: it lost over a hundredth of the requests, or half of them took longer than `standing_us`, which is
/// [`standing_queue_us`] and what the system waits by design.
pub fn is_saturated(figures: &Figures, standing_us: f64) -> bool {
    let Figures { completed, lost, p50_us, .. } = *figures;
    lost as f64 > SATURATED_LOSS * (completed + lost) as f64 || p50_us.is_some_and(|us| us > standing_us)
}

/// A latency in microseconds; if nothing was answered, the time after which the generator gave up.
pub fn latency_or_timeout(us: Option<f64>) -> f64 {
    us.unwrap_or(DEFAULT_TIMEOUT_NS as f64 / 1e3)
}

impl Testbed {
    /// Gaps of all cores at the same time, with nothing else of ours running: the polling core first.
    ///
    /// # Errors
    /// When a core cannot be had, or a signal came.
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

    /// The speed of work on a managed core, for all servers of a run.
    ///
    /// # Errors
    /// When the core cannot be had.
    pub fn calibrate(&self) -> anyhow::Result<u64> {
        let _pinned = PinnedThread::new(self.cores.managed[0])?;
        // The fastest of three, for a stall may last as long as one of them.
        let speeds = (0..3).map(|_| Spinner::calibrate().iterations_per_ms());
        Ok(speeds.max().unwrap_or(1))
    }

    /// Measures a batch job that has its cores to itself: the median of several stretches, so that a stall in one of them
    /// does not make every share that is compared with this rate too large. Goes on while other programs let it do nothing.
    ///
    /// Done right before and after each point, with the same process, and the larger counts: a host may run its cores at
    /// 660,000 trials a second now and at 920,000 some seconds later, and a share of the slower one could exceed 1.
    fn solo_rate(&self, batch: &mut child::Batch) -> anyhow::Result<f64> {
        let stretch = self.solo / SOLO_STRETCHES;
        let give_up = Instant::now() + START_TIMEOUT;
        let mut rates = Vec::new();
        while rates.len() < SOLO_STRETCHES as usize {
            let from = Instant::now();
            let rate = self.batch_rate(batch, from, from + stretch)?;
            if rate > 0.0 {
                rates.push(rate);
            }
            anyhow::ensure!(
                Instant::now() < give_up,
                "the batch job gets no core even alone: the machine is overloaded"
            );
        }
        rates.sort_by(f64::total_cmp);
        Ok(rates[rates.len() / 2])
    }

    /// Measures a system's batch job between two points in time, during which this thread sleeps.
    fn batch_rate(&self, batch: &mut child::Batch, from: Instant, to: Instant) -> anyhow::Result<f64> {
        self.interrupt.sleep_until(from)?;
        let first = batch.progress(&self.interrupt)?;
        self.interrupt.sleep_until(to)?;
        let last = batch.progress(&self.interrupt)?;
        Ok(last.rate_since(first))
    }

    /// The counted part's batch rate where there is a batch job; without one, sleeps through it.
    fn beside(
        &self,
        batch: Option<&mut child::Batch>,
        (from, to): (Instant, Instant),
    ) -> anyhow::Result<Option<f64>> {
        match batch {
            Some(batch) => self.batch_rate(batch, from, to).map(Some),
            None => Ok(self.interrupt.sleep_until(to).map(|()| None)?),
        }
    }

    /// Keeps the calling thread, and the processes it starts, off the cores under measurement while it lives.
    fn stay_off_managed_cores(&self) -> anyhow::Result<OffManaged> {
        let before = machine::usable_cores();
        let elsewhere: Vec<usize> =
            before.iter().copied().filter(|core| !self.cores.managed.contains(core)).collect();
        rustix::thread::sched_setaffinity(None, &machine::cpu_set(&elsewhere))
            .context("cannot leave the cores to measure")?;
        Ok(OffManaged { before })
    }
}

/// A batch job and its rate alone before a point.
struct Companion {
    job: child::Batch,
    before: f64,
}

impl Companion {
    /// Measures a job that has just been started.
    fn new(testbed: &Testbed, mut job: child::Batch) -> anyhow::Result<Self> {
        let before = testbed.solo_rate(&mut job)?;
        Ok(Self { job, before })
    }

    /// Measures it alone again, after the service ended.
    fn rates(&mut self, testbed: &Testbed, beside: f64) -> anyhow::Result<BatchRates> {
        let after = testbed.solo_rate(&mut self.job)?;
        Ok(BatchRates { beside, solo: self.before.max(after) })
    }
}

/// See [`Testbed::stay_off_managed_cores`].
struct OffManaged {
    before: Vec<usize>,
}

impl Drop for OffManaged {
    fn drop(&mut self) {
        // Fails only if those cores went offline since.
        let _ = rustix::thread::sched_setaffinity(None, &machine::cpu_set(&self.before));
    }
}

/// Beginning and end of the counted part of a plan that starts at `start`.
fn counted_part(plan: &Plan, start: Instant) -> (Instant, Instant) {
    (start + Duration::from_nanos(plan.warm_up_ns), start + Duration::from_nanos(plan.schedule.length_ns()))
}

#[cfg(test)]
mod tests {
    use tailwater_workload::Summary;

    use super::*;

    #[test]
    fn one_core_polls_and_up_to_three_are_shared() {
        assert!(CorePlan::new(vec![4]).is_err());
        let two = CorePlan::new(vec![4, 6]).unwrap();
        assert_eq!((two.polling, &two.managed[..]), (4, &[6][..]));
        assert_eq!(two.describe(), "core 4 polls and generates load, service and batch share core 6");
        let eight = CorePlan::new((0..8).collect()).unwrap();
        assert_eq!(eight.managed, [1, 2, 3]);
        assert!(eight.describe().ends_with("4 more cores are left alone"));
    }

    #[test]
    fn more_than_a_hundredth_lost_or_a_standing_queue_is_saturated() {
        let saturated = |completed, lost, p50_us, service: &str| {
            let figures = Figures { completed, lost, p50_us, ..Summary::default().figures() };
            is_saturated(&figures, standing_queue_us(&service.parse().unwrap()))
        };
        assert!(!saturated(99, 1, Some(900.0), "exp:10us") && saturated(98, 2, Some(10.0), "exp:10us"));
        assert!(!saturated(0, 0, None, "exp:10us") && saturated(0, 1, None, "exp:10us"));
        // Ten milliseconds of requests wait in buffers that hold them all.
        assert!(saturated(100, 0, Some(10_000.0), "exp:10us"));
        assert!(!saturated(100, 0, Some(9_000.0), "exp:100us"), "ninety services are no standing queue");
    }

    #[test]
    fn a_share_is_one_of_the_rate_alone() {
        assert_eq!(BatchRates { beside: 450.0, solo: 500.0 }.share(), 0.9);
    }
}
