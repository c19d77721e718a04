//! What a batch job got: processor time, by core, threads.
//!
//! Owns [`Account`], the account of all descendants of a process that adopts them
//! (`PR_SET_CHILD_SUBREAPER`), or of a control group. The total is Linux's own. Of descendants it
//! is exact to a clock tick: the time of processes that run and, of those that ended, of all that
//! were waited for. Of a group it is that in `cpu.stat` (version 2); in version 1 that of its
//! threads as sampled. Linux does not keep the time of a thread by core. It is sampled: what a
//! thread got since the last sample counts for the core on which it ran last, and the total is
//! divided in that proportion.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::group::members;
use crate::proc::{Stat, descendants, thread_ns, threads};

/// Shortest time between two samples, whose difference is the present share.
const PERIOD: Duration = Duration::from_millis(500);

/// What a job got.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Processes that run.
    pub processes: usize,
    /// Their threads.
    pub threads: usize,
    /// Processor time in nanoseconds.
    pub core_ns: u64,
    /// The same by core.
    pub by_core_ns: BTreeMap<usize, u64>,
    /// Part of each core that it had between the last two samples.
    pub share: BTreeMap<usize, f64>,
}

/// Whose account it is.
#[derive(Debug)]
enum Source {
    Descendants(i32),
    Group(PathBuf),
}

/// The account of a job.
#[derive(Debug)]
pub struct Account {
    source: Source,
    /// The total before the account began.
    before: u64,
    /// Processor time of each thread at the last sample.
    threads: HashMap<i32, u64>,
    /// Sampled processor time by core.
    sampled: BTreeMap<usize, u64>,
    at: Instant,
    usage: Usage,
}

impl Account {
    /// Begins the account of the descendants of process `root`.
    #[must_use]
    pub fn of_descendants(root: i32) -> Self {
        Self::new(Source::Descendants(root), 0)
    }

    /// Begins the account of the control group in a folder.
    #[must_use]
    pub fn of_group(folder: &Path) -> Self {
        let mut account = Self::new(Source::Group(folder.to_owned()), group_ns(folder).unwrap_or(0));
        // What its threads got before is no part of it.
        account.sample(Duration::ZERO);
        (account.usage, account.sampled) = (Usage::default(), BTreeMap::new());
        account
    }

    fn new(source: Source, before: u64) -> Self {
        let (threads, sampled) = (HashMap::new(), BTreeMap::new());
        Self { source, before, threads, sampled, at: Instant::now(), usage: Usage::default() }
    }

    /// Returns what they got, with a new sample if the last one is old enough.
    pub fn usage(&mut self) -> &Usage {
        let passed = self.at.elapsed();
        if passed >= PERIOD || self.usage.threads == 0 {
            self.sample(passed);
        }
        &self.usage
    }

    fn sample(&mut self, passed: Duration) {
        let mut seen = HashMap::new();
        let mut delta: BTreeMap<usize, u64> = BTreeMap::new();
        let (processes, mut total): (Vec<i32>, u64) = match &self.source {
            Source::Descendants(root) => {
                let ended = Stat::of_process(*root).map_or(0, |stat| stat.children_ns);
                (descendants(*root).into_iter().skip(1).collect(), ended)
            }
            Source::Group(folder) => (members(folder), 0),
        };
        for &pid in &processes {
            let Some(first) = Stat::of_process(pid) else { continue };
            total += first.process_ns + first.children_ns;
            for tid in threads(pid) {
                let core = Stat::of_thread(pid, tid).map(|stat| stat.core);
                let Some((core, ns)) = core.zip(thread_ns(pid, tid)) else { continue };
                let before = self.threads.get(&tid).copied().unwrap_or(0);
                *delta.entry(core).or_default() += ns.saturating_sub(before);
                seen.insert(tid, ns);
            }
        }
        if let Source::Group(folder) = &self.source {
            let sampled = self.usage.core_ns + delta.values().sum::<u64>();
            total = group_ns(folder).map_or(sampled, |ns| ns.saturating_sub(self.before));
        }
        let threads = seen.len();
        let advanced = total.saturating_sub(self.usage.core_ns);
        let share = divide(&delta, advanced).into_iter();
        let share = share.map(|(core, ns)| (core, ns as f64 / passed.as_nanos().max(1) as f64)).collect();
        for (core, ns) in delta {
            *self.sampled.entry(core).or_default() += ns;
        }
        let core_ns = total.max(self.usage.core_ns);
        let by_core_ns = divide(&self.sampled, core_ns);
        self.usage = Usage { processes: processes.len(), threads, core_ns, by_core_ns, share };
        (self.threads, self.at) = (seen, Instant::now());
    }
}

/// Returns the processor time of a group in nanoseconds, where Linux keeps it (version 2).
fn group_ns(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join("cpu.stat")).ok()?;
    let us = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse::<u64>().ok())?;
    us.checked_mul(1_000)
}

/// Divides a total in the proportion of the parts.
fn divide(parts: &BTreeMap<usize, u64>, total: u64) -> BTreeMap<usize, u64> {
    let sum: u128 = parts.values().map(|&ns| u128::from(ns)).sum();
    let part = |ns: u64| (u128::from(ns) * u128::from(total)).checked_div(sum).unwrap_or(0) as u64;
    parts.iter().map(|(&core, &ns)| (core, part(ns))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_is_divided_as_it_was_sampled() {
        let parts = BTreeMap::from([(1, 30), (2, 10)]);
        assert_eq!(divide(&parts, 100), BTreeMap::from([(1, 75), (2, 25)]));
        assert_eq!(divide(&BTreeMap::from([(1, 0)]), 100), BTreeMap::from([(1, 0)]));
        assert!(divide(&BTreeMap::new(), 100).is_empty());
        let large = BTreeMap::from([(0, u64::MAX), (1, u64::MAX)]);
        assert_eq!(divide(&large, 10), BTreeMap::from([(0, 5), (1, 5)]));
    }
}
