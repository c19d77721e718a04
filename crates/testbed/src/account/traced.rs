//! What tracepoints tell of the managed cores, and its deduction from the phases.

use std::cell::RefCell;
use std::sync::Arc;

use serde_json::Value;
use tailwater_bpf::core_time::{CoreTime, Strangers, Watch};

use super::takers;

/// The tracepoints of the managed cores, or why there are none.
#[derive(Debug)]
pub struct Tracepoints(Result<RefCell<Watch>, Arc<str>>);

impl Tracepoints {
    /// Begins to add up the time of an IOKernel's cores, as its statistics name them.
    #[must_use]
    pub fn watch(stats: &Value) -> Self {
        Self(Self::try_watch(stats).map(RefCell::new).map_err(|why| why.to_string().into()))
    }

    /// Returns none, for measurements to which they would cost too much.
    #[must_use]
    pub fn unused() -> Self {
        Self(Err("no tracepoints here".into()))
    }

    fn try_watch(stats: &Value) -> anyhow::Result<Watch> {
        let accounts = stats["account"].as_array().into_iter().flatten();
        let cores: Vec<u16> = accounts.filter_map(core_of).collect();
        let kthreads = kthreads_of(stats)?;
        let is_here = |kthread: &Kthread| {
            std::fs::exists(format!("/proc/{}/task/{}", kthread.pid, kthread.tid)).unwrap_or(false)
        };
        anyhow::ensure!(kthreads.iter().all(is_here), "needs the PID namespace of the IOKernel");
        Ok(Watch::start(&cores, &tids(&kthreads))?)
    }

    /// Returns the threads that are no kthreads and ran on the cores since the watch began.
    ///
    /// # Errors
    /// Why it is unknown.
    pub fn strangers(&self, stats: &Value) -> takers::Strangers {
        self.read(stats)?;
        self.last_strangers()
    }

    /// Returns those of the last look.
    pub(super) fn last_strangers(&self) -> takers::Strangers {
        Ok(self.0.as_ref().map_err(Arc::clone)?.borrow().strangers())
    }

    /// Returns the times of now.
    pub(super) fn read(&self, stats: &Value) -> Result<Vec<CoreTime>, Arc<str>> {
        let watch = self.0.as_ref().map_err(Arc::clone)?;
        // With too many to name, those of the last look count.
        let kthreads = kthreads_of(stats).ok().map(|kthreads| tids(&kthreads));
        watch.borrow_mut().read(kthreads.as_deref()).map_err(|why| why.to_string().into())
    }
}

pub(super) fn core_of(account: &Value) -> Option<u16> {
    account["core"].as_u64().and_then(|core| u16::try_from(core).ok())
}

/// A kthread, as the IOKernel numbers it.
pub(super) struct Kthread {
    pid: i64,
    tid: i32,
}

pub(super) fn tids(kthreads: &[Kthread]) -> Vec<i32> {
    kthreads.iter().map(|kthread| kthread.tid).collect()
}

/// Returns all kthreads.
pub(super) fn kthreads_of(stats: &Value) -> anyhow::Result<Vec<Kthread>> {
    let mut kthreads = Vec::new();
    for runtime in stats["runtimes"].as_array().into_iter().flatten() {
        let shown = runtime["threads"].as_array().map_or(&[][..], Vec::as_slice);
        let count = runtime["kthreads"].as_u64().unwrap_or(0);
        anyhow::ensure!(shown.len() as u64 == count, "the IOKernel does not name all kthreads");
        let pid = runtime["pid"].as_i64().unwrap_or(0);
        let tids = shown.iter().filter_map(|tid| i32::try_from(tid.as_i64()?).ok());
        kthreads.extend(tids.map(|tid| Kthread { pid, tid }));
    }
    Ok(kthreads)
}

/// What the kernel and other programs took of a core's time, as shares of it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    /// From whatever phase the lent core was in.
    kernel: f64,
    other: f64,
    /// While a woken kthread had not started.
    kernel_in_wake: f64,
    other_in_wake: f64,
}

/// What is left of a core's time after the deductions.
pub(super) struct Left {
    /// What the phases, without the free time, are to be multiplied by.
    pub(super) rest: f64,
    /// The hand-off's wake, before that.
    pub(super) wake: f64,
    pub(super) kernel: f64,
    pub(super) other: f64,
    pub(super) steal: f64,
}

impl Taken {
    /// Returns what was taken between two looks at the tracepoints; `None` if no time passed.
    /// `free` and `wake` are shares by the IOKernel's account.
    pub(super) fn between(from: &CoreTime, to: &CoreTime, free: f64, wake: f64) -> Option<Self> {
        let all = to.all().saturating_sub(from.all()) as f64;
        if all <= 0.0 {
            return None;
        }
        let share = |now: u64, then: u64| now.saturating_sub(then) as f64 / all;
        let kernel = |now: &Strangers, then: &Strangers| {
            share(now.interrupts, then.interrupts) + share(now.kernel, then.kernel)
        };
        let other = |now: &Strangers, then: &Strangers| share(now.programs, then.programs);
        let unknown = [kernel(&to.free, &from.free), other(&to.free, &from.free)];
        let sum: f64 = unknown.iter().sum();
        let room = (free + wake - share(to.idle, from.idle)).max(0.0);
        let fits = if sum > room { room / sum } else { 1.0 };
        let in_wake = if free + wake > 0.0 { fits * wake / (free + wake) } else { 0.0 };
        Some(Self {
            kernel: kernel(&to.taken, &from.taken) + (1.0 - fits) * unknown[0],
            other: other(&to.taken, &from.taken) + (1.0 - fits) * unknown[1],
            kernel_in_wake: in_wake * unknown[0],
            other_in_wake: in_wake * unknown[1],
        })
    }

    /// Returns what Linux counted as interrupts.
    pub(super) fn by_ticks(kernel: f64) -> Self {
        Self { kernel, ..Self::default() }
    }

    /// Deducts it, and what the host took, from the time that the core was lent.
    pub(super) fn deduct(&self, free: f64, wake: f64, steal: f64) -> Left {
        let in_wake = self.kernel_in_wake + self.other_in_wake;
        let lent = (1.0 - free - in_wake).max(0.0);
        let lost = self.kernel + self.other + steal;
        // A tick that is counted late may exceed the time that the core was lent, and the windows
        // of the two sides are some microseconds apart.
        let fits = if lost > lent { lent / lost } else { 1.0 };
        Left {
            rest: if lent > 0.0 { (lent - fits * lost).max(0.0) / lent } else { 0.0 },
            wake: wake - in_wake,
            kernel: fits * self.kernel + self.kernel_in_wake,
            other: fits * self.other + self.other_in_wake,
            steal: fits * steal,
        }
    }
}
