//! Where the time of managed cores went between two looks at an IOKernel's account.
//!
//! Owns the shares, which add up to 1 for each core. The IOKernel's account (`iokernel::stats`)
//! gives the time of each phase and samples of what busy kthreads did. Linux gives the time that
//! the host took and that interrupts took (`/proc/stat`, proc(5)), in steps of a clock tick. These
//! fall into all phases alike, and neither side sees into which: they are deducted from the phases
//! of a lent core in proportion. Linux counts an interrupt where a tick finds it, so the cost of
//! the ticks themselves stays in the phases.

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use crate::table::Table;

/// Samples are this many standard deviations from the truth at most, in 95 of 100 cases.
const CONFIDENCE: f64 = 1.96;

/// An IOKernel's account, and what Linux counted, at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    cores: Vec<Counters>,
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
}

impl Snapshot {
    /// Takes the account out of an IOKernel's statistics, beside this moment's `/proc/stat`.
    ///
    /// # Errors
    /// If the IOKernel keeps no account, being of another version.
    pub fn new(stats: &Value) -> anyhow::Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self::parse(stats, &stat, rustix::param::clock_ticks_per_second() as f64)
    }

    fn parse(stats: &Value, stat: &str, ticks_per_s: f64) -> anyhow::Result<Self> {
        let accounts = stats["account"].as_array();
        let accounts =
            accounts.context("the IOKernel keeps no account of its cores: is it of another version?")?;
        let counters = |account: &Value| {
            let core = account["core"].as_u64().and_then(|core| u16::try_from(core).ok())?;
            let (interrupts, steal) = lost_ticks(stat, core);
            let lost_s = (interrupts as f64 / ticks_per_s, steal as f64 / ticks_per_s);
            Some(Counters { core, ns: account["ns"].clone(), samples: account["samples"].clone(), lost_s })
        };
        Ok(Self { cores: accounts.iter().filter_map(counters).collect() })
    }
}

/// Returns a core's ticks in interrupts, hard and soft, and its ticks taken by the host; 0 for a
/// core that the text does not name.
fn lost_ticks(stat: &str, core: u16) -> (u64, u64) {
    let name = format!("cpu{core}");
    let line = stat.lines().find(|line| line.split(' ').next() == Some(&name));
    let ticks: Vec<u64> =
        line.into_iter().flat_map(|line| line.split(' ').skip(1)).filter_map(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let tick = |at: usize| ticks.get(at).copied().unwrap_or(0);
    (tick(5) + tick(6), tick(7))
}

/// Shares of one core's time; they add up to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
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
    /// Interrupts, as far as Linux counts them.
    pub kernel: f64,
    /// Taken by the host.
    pub steal: f64,
    /// Half the width of the interval that contains the largest sampled share in 95 of 100 cases.
    pub sampling_error: f64,
}

impl Shares {
    /// Returns the part of the time that batch jobs held the core, with what interrupts and the
    /// host took of it.
    pub fn held_by_batch(&self) -> f64 {
        let of_batch = self.batch_threads + self.batch_runtime + self.batch_idle;
        let lent = 1.0 - self.free - self.kernel - self.steal;
        if lent > 0.0 { of_batch * (lent + self.kernel + self.steal) / lent } else { 0.0 }
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
        let (kernel, steal) = (lost(to.lost_s.0, from.lost_s.0), lost(to.lost_s.1, from.lost_s.1));
        // A tick that is counted late may exceed the time that the core was lent.
        let fits = if kernel + steal > 1.0 - free { (1.0 - free) / (kernel + steal) } else { 1.0 };
        let (kernel, steal) = (kernel * fits, steal * fits);
        let rest = if free < 1.0 { (1.0 - free - kernel - steal) / (1.0 - free) } else { 0.0 };
        Some(Self {
            core: to.core,
            service_threads: rest * service.parts[0],
            service_stack: rest * service.parts[1],
            service_scheduler: rest * service.parts[2],
            service_idle: rest * part("service_idle"),
            handoff_wake: rest * part("wake"),
            handoff_cede: rest * part("cede"),
            handoff_start: rest * part("start"),
            batch_threads: rest * batch.parts[0],
            batch_runtime: rest * (batch.parts[1] + batch.parts[2]),
            batch_idle: rest * part("batch_idle"),
            free,
            kernel,
            steal,
            sampling_error: rest * service.error.max(batch.error),
        })
    }

    fn percent(&self) -> [f64; 13] {
        [
            self.service_threads,
            self.service_stack,
            self.service_scheduler,
            self.service_idle,
            self.handoff_wake,
            self.handoff_cede,
            self.handoff_start,
            self.batch_threads,
            self.batch_runtime,
            self.batch_idle,
            self.free,
            self.kernel,
            self.steal,
        ]
        .map(|share| 100.0 * share)
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
    pairs.filter_map(|(from, to)| Shares::between(from, to)).collect()
}

/// Returns the sum over all cores of the time that batch jobs held them, in cores.
pub fn held_by_batch(cores: &[Shares]) -> f64 {
    cores.iter().map(Shares::held_by_batch).sum()
}

/// Returns a table with one row for each core, after a cell of the caller's.
pub fn table<'a>(head: &str, rows: impl IntoIterator<Item = (String, &'a Shares)>) -> String {
    let mut table = Table::new([
        head, "core", "service", "stack", "sched", "idle", "wake", "cede", "start", "batch", "runtime",
        "idle", "free", "kernel", "host",
    ]);
    let mut error: f64 = 0.0;
    for (first, shares) in rows {
        let numbers = shares.percent().map(|percent| format!("{percent:.1}"));
        table.row([first, shares.core.to_string()].into_iter().chain(numbers));
        error = error.max(100.0 * shares.sampling_error);
    }
    format!(
        "{table}in % of the core; service: user threads, network stack, scheduler, idle; hand-offs: wake of a free core, \
         from the owner's end until it was seen ceding, until the next was seen started; batch: user threads, runtime, idle; sampled parts +- {error:.1}\n"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn look(ns: &Value, service: [u64; 3], stat: &str) -> Snapshot {
        let [thread, stack, scheduler] = service;
        let stats = json!({ "account": [{ "core": 3, "ns": ns, "samples": {
            "service": { "thread": thread, "stack": stack, "scheduler": scheduler },
            "batch": { "thread": 0, "stack": 0, "scheduler": 0 } } }] });
        Snapshot::parse(&stats, stat, 100.0).unwrap()
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn shares_follow_phases_and_samples_and_add_up_with_what_the_host_took() {
        let before = json!({ "free": 7_000, "service": 5, "batch": 0, "cede": 0, "start": 0 });
        let after = json!({ "free": 200_007_000u64, "service": 400_000_005u64, "batch": 300_000_000u64,
            "cede": 40_000_000u64, "start": 60_000_000u64 });
        let from = look(&before, [10, 10, 10], "cpu  9 9 9 9 9 9 9 9\ncpu3 1 1 1 1 1 10 10 50 0 0\n");
        let to = look(&after, [70, 40, 20], "cpu3 1 1 1 1 1 11 11 56 0 0\ncpu30 0 0 0 0 0 99 99 99\n");
        let shares = between(&from, &to)[0];
        assert!(near(shares.percent().iter().sum(), 100.0), "{shares:?}");
        // 20 ms in interrupts and 60 ms of the host, of 800 ms that the core was lent.
        assert!(
            near(shares.kernel, 0.02) && near(shares.steal, 0.06) && near(shares.free, 0.2),
            "{shares:?}"
        );
        assert!(near(shares.service_threads, 0.9 * 0.4 * 0.6) && near(shares.service_stack, 0.9 * 0.4 * 0.3));
        assert!(near(shares.service_scheduler, 0.9 * 0.4 * 0.1) && near(shares.handoff_cede, 0.9 * 0.04));
        // No sample: all of it counts as user threads.
        assert!(near(shares.batch_threads, 0.9 * 0.3) && near(shares.sampling_error, 0.9 * 0.3));
        assert!(near(shares.held_by_batch(), 0.3), "{shares:?}");
    }

    #[test]
    fn a_core_without_time_and_an_answer_without_account_are_no_account() {
        let one = look(&json!({ "free": 5 }), [0; 3], "");
        assert_eq!(between(&one, &one), []);
        assert!(Snapshot::parse(&json!({}), "", 100.0).is_err());
        let more = look(&json!({ "free": 9 }), [0; 3], "cpu3 0 0 0 0 0 0 0 500\n");
        let shares = between(&one, &more)[0];
        assert!(near(shares.free, 1.0) && near(shares.steal, 0.0), "{shares:?}");
    }

    #[test]
    fn rows_name_core_and_error() {
        let shares =
            Shares { core: 3, service_threads: 0.25, free: 0.75, sampling_error: 0.002, ..Shares::default() };
        let text = table("load", [("50 %".to_owned(), &shares)]);
        assert!(text.contains("50 %") && text.contains("25.0") && text.contains("+- 0.2"), "{text}");
    }
}
