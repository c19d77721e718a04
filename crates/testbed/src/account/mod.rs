//! Where the time of managed cores went between two looks at an IOKernel's account.
//!
//! Owns the shares, which add up to 1 for each core. Three sides see a part each:
//!
//! - The IOKernel's account (`tailwater_stats`) gives the time of each phase and samples of what
//!   busy kthreads did.
//! - Tracepoints of Linux (`bpf::core_time`) give the time of interrupts, of threads of the
//!   kernel and of other programs, to the nanosecond. Where that is refused, Linux's own count of
//!   interrupts takes its place (`/proc/stat`, proc(5)), in steps of a clock tick. It counts an
//!   interrupt where a tick finds it, so the cost of the ticks themselves stays in the phases, and
//!   so does the time of other programs.
//! - `/proc/stat` gives the time that the host took.
//!
//! What is taken from a core that was lent is taken from whatever phase it was in, which neither
//! side sees: it is deducted from the phases in proportion. The tracepoints tell whether a kthread
//! ran or waited meanwhile. If none is known to, the core was free, which is no loss, or its
//! kthread had been woken and not started, so such time is divided between *free* and *wake*, as
//! far as they have room beside the time in which the core was idle. The module `traced` has both.
//! `takers` names the threads that ran meanwhile.

mod takers;
mod traced;

use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use tailwater_bpf::core_time::CoreTime;

use crate::table::Table;
pub use takers::{Strangers, Taker, takers, takers_table};
pub use traced::Tracepoints;
use traced::{Left, Taken, core_of};

/// Samples are this many standard deviations from the truth at most, in 95 of 100 cases.
const CONFIDENCE: f64 = 1.96;

/// An IOKernel's account, and what Linux counted, at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    cores: Vec<Counters>,
    /// Why no core has a time by tracepoints.
    by_ticks: Option<Arc<str>>,
}

/// Counters of one core since some moment in the past.
#[derive(Debug, Clone, PartialEq)]
struct Counters {
    core: u16,
    /// Nanoseconds by phase: an object of numbers.
    ns: Value,
    /// Samples of services and of batch jobs: an object of objects of numbers.
    samples: Value,
    /// Seconds in interrupts, and seconds taken by the host.
    lost_s: (f64, f64),
    /// Times by tracepoints.
    traced: Option<CoreTime>,
}

impl Snapshot {
    /// Takes the account out of an IOKernel's statistics, beside this moment's `/proc/stat` and
    /// times by tracepoints.
    ///
    /// # Errors
    /// If the IOKernel keeps no account, being of another version.
    pub fn new(stats: &Value, tracepoints: &Tracepoints) -> anyhow::Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
        Self::parse(stats, &stat, ticks_per_s, tracepoints.read(stats))
    }

    /// Returns the threads that are no kthreads and ran on the cores until this snapshot, which is
    /// the last look at the tracepoints.
    ///
    /// # Errors
    /// Why it is unknown.
    pub fn strangers(&self, tracepoints: &Tracepoints) -> Strangers {
        self.by_ticks.clone().map_or_else(|| tracepoints.last_strangers(), Err)
    }

    fn parse(
        stats: &Value,
        stat: &str,
        ticks_per_s: f64,
        traced: Result<Vec<CoreTime>, Arc<str>>,
    ) -> anyhow::Result<Self> {
        let accounts = stats["account"].as_array();
        let accounts =
            accounts.context("the IOKernel keeps no account of its cores: is it of another version?")?;
        let (traced, by_ticks) = traced.map_or_else(|why| (Vec::new(), Some(why)), |times| (times, None));
        let counters = |account: &Value| {
            let core = core_of(account)?;
            let (interrupts, steal) = lost_ticks(stat, core);
            Some(Counters {
                core,
                ns: account["ns"].clone(),
                samples: account["samples"].clone(),
                lost_s: (interrupts as f64 / ticks_per_s, steal as f64 / ticks_per_s),
                traced: traced.iter().find(|time| time.core == core).copied(),
            })
        };
        Ok(Self { cores: accounts.iter().filter_map(counters).collect(), by_ticks })
    }
}

/// Returns a core's ticks in interrupts, hard and soft, and its ticks taken by the host, by
/// `/proc/stat`; 0 for a core that the text does not name.
#[must_use]
pub fn lost_ticks(stat: &str, core: u16) -> (u64, u64) {
    let name = format!("cpu{core}");
    let line = stat.lines().find(|line| line.split(' ').next() == Some(&name));
    let ticks: Vec<u64> =
        line.into_iter().flat_map(|line| line.split(' ').skip(1)).filter_map(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let tick = |at: usize| ticks.get(at).copied().unwrap_or(0);
    (tick(5) + tick(6), tick(7))
}

/// Shares of one core's time; they add up to 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Shares {
    /// The core.
    pub core: u16,
    /// User threads of services.
    pub service_threads: f64,
    /// Frames for services, in the network stack.
    pub service_stack: f64,
    /// Schedulers of services.
    pub service_scheduler: f64,
    /// Services that poll without work.
    pub service_idle: f64,
    /// Hand-off of a free core.
    pub handoff_wake: f64,
    /// Hand-off: from the end of the owner's work until it was seen ceding.
    pub handoff_cede: f64,
    /// Hand-off: from there until the new owner was seen running.
    pub handoff_start: f64,
    /// User threads of batch jobs.
    pub batch_threads: f64,
    /// Network stack and schedulers of batch jobs.
    pub batch_runtime: f64,
    /// Batch jobs that poll without work.
    pub batch_idle: f64,
    /// Lent to no program.
    pub free: f64,
    /// Other programs ran on the core although it was lent; `None` without tracepoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other: Option<f64>,
    /// Interrupts and threads of the kernel; without tracepoints, interrupts as far as Linux counts
    /// them.
    pub kernel: f64,
    /// Taken by the host.
    pub steal: f64,
    /// Half the width of the interval that contains the largest sampled share in 95 of 100 cases.
    pub sampling_error: f64,
    /// Why there are no tracepoints.
    #[serde(skip)]
    pub by_ticks: Option<Arc<str>>,
}

impl Shares {
    /// Returns the part of the time that batch jobs held the core, with what the kernel and the
    /// host took of it, and without what other programs did.
    pub fn held_by_batch(&self) -> f64 {
        let of_batch = self.batch_threads + self.batch_runtime + self.batch_idle;
        let lent = 1.0 - self.free - self.kernel - self.steal - self.other.unwrap_or(0.0);
        if lent > 0.0 { (of_batch / lent).min(1.0) * (lent + self.kernel + self.steal) } else { 0.0 }
    }

    /// Returns the shares between two looks at one core; `None` if no time passed.
    fn between(from: &Counters, to: &Counters) -> Option<Self> {
        let gained = |now: &Value, then: &Value| {
            now.as_u64().unwrap_or(0).saturating_sub(then.as_u64().unwrap_or(0)) as f64
        };
        let fields = to.ns.as_object()?;
        let total: f64 = fields.iter().map(|(name, now)| gained(now, &from.ns[name])).sum();
        if total <= 0.0 {
            return None;
        }
        let part = |name: &str| gained(&to.ns[name], &from.ns[name]) / total;
        let samples = |class: &str, name: &str| gained(&to.samples[class][name], &from.samples[class][name]);
        let service =
            Split::new(part("service"), ["thread", "stack", "scheduler"].map(|s| samples("service", s)));
        let batch = Split::new(part("batch"), ["thread", "stack", "scheduler"].map(|s| samples("batch", s)));
        let seconds = total / 1e9;
        let free = part("free");
        let lost = |now: f64, then: f64| ((now - then) / seconds).max(0.0);
        let steal = lost(to.lost_s.1, from.lost_s.1);
        let wake = part("wake");
        let traced = from.traced.zip(to.traced).and_then(|(from, to)| Taken::between(&from, &to, free, wake));
        let exact = traced.is_some();
        let taken = traced.unwrap_or_else(|| Taken::by_ticks(lost(to.lost_s.0, from.lost_s.0)));
        let Left { rest, wake, kernel, other, steal } = taken.deduct(free, wake, steal);
        Some(Self {
            core: to.core,
            service_threads: rest * service.parts[0],
            service_stack: rest * service.parts[1],
            service_scheduler: rest * service.parts[2],
            service_idle: rest * part("service_idle"),
            handoff_wake: rest * wake,
            handoff_cede: rest * part("cede"),
            handoff_start: rest * part("start"),
            batch_threads: rest * batch.parts[0],
            batch_runtime: rest * (batch.parts[1] + batch.parts[2]),
            batch_idle: rest * part("batch_idle"),
            free,
            other: exact.then_some(other),
            kernel,
            steal,
            sampling_error: rest * service.error.max(batch.error),
            by_ticks: None,
        })
    }

    fn percent(&self) -> [Option<f64>; 14] {
        [
            Some(self.service_threads),
            Some(self.service_stack),
            Some(self.service_scheduler),
            Some(self.service_idle),
            Some(self.handoff_wake),
            Some(self.handoff_cede),
            Some(self.handoff_start),
            Some(self.batch_threads),
            Some(self.batch_runtime),
            Some(self.batch_idle),
            Some(self.free),
            self.other,
            Some(self.kernel),
            Some(self.steal),
        ]
        .map(|share| share.map(|share| 100.0 * share))
    }
}

/// A share of the time, divided by samples.
struct Split {
    parts: [f64; 3],
    error: f64,
}

impl Split {
    /// Divides `whole` as the samples are; without any, all of it is the first part, and the error
    /// is `whole`.
    fn new(whole: f64, samples: [f64; 3]) -> Self {
        let count: f64 = samples.iter().sum();
        if count == 0.0 {
            return Self { parts: [whole, 0.0, 0.0], error: whole };
        }
        let deviation = |n: f64| (n / count * (1.0 - n / count) / count).sqrt();
        let widest = samples.map(deviation).into_iter().fold(0.0, f64::max);
        Self { parts: samples.map(|n| whole * n / count), error: CONFIDENCE * widest * whole }
    }
}

/// Returns the shares of every core between two looks; cores for which no time passed are left out.
pub fn between(from: &Snapshot, to: &Snapshot) -> Vec<Shares> {
    let pairs = from.cores.iter().zip(&to.cores).filter(|(from, to)| from.core == to.core);
    let why = from.by_ticks.as_ref().or(to.by_ticks.as_ref());
    pairs
        .filter_map(|(from, to)| Some(Shares { by_ticks: why.cloned(), ..Shares::between(from, to)? }))
        .collect()
}

/// Returns the sum over all cores of the time that batch jobs held them, in cores.
pub fn held_by_batch(cores: &[Shares]) -> f64 {
    cores.iter().map(Shares::held_by_batch).sum()
}

/// Returns a table with one row for each core, after a cell of the caller's.
pub fn table<'a>(head: &str, rows: impl IntoIterator<Item = (String, &'a Shares)>) -> String {
    let mut table = Table::new(&format!(
        "{head} | core | service | stack | sched | idle | wake | cede | start | batch | runtime | idle | free | \
         other | kernel | host"
    ));
    let (mut error, mut by_ticks) = (0.0f64, None);
    for (first, shares) in rows {
        let numbers =
            shares.percent().map(|share| share.map_or("-".to_owned(), |percent| format!("{percent:.1}")));
        table.row([first, shares.core.to_string()].into_iter().chain(numbers));
        error = error.max(100.0 * shares.sampling_error);
        by_ticks = by_ticks.or(shares.by_ticks.as_deref());
    }
    let by_ticks = by_ticks.map_or(String::new(), |why| format!("kernel by clock ticks: {why}\n"));
    format!(
        "{table}in % of the core; service: user threads, network stack, scheduler, idle; hand-offs: wake of a free core, \
         from the owner's end until it was seen ceding, until the next was seen started; batch: user threads, runtime, idle; \
         other: programs of Linux on the lent core; sampled parts +- {error:.1}\n{by_ticks}"
    )
}

#[cfg(test)]
mod tests;
