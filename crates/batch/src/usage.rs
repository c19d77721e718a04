//! What a batch job got: processor time, by core, threads.
//!
//! Owns [`Account`], the account of all descendants of a process that adopts them
//! (`PR_SET_CHILD_SUBREAPER`), or of a control group. The total is Linux's own. Of descendants it
//! is exact to a clock tick: the time of processes that run and, of those that ended, of all that
//! were waited for. Of a group it is that in `cpu.stat` (version 2) or `cpuacct.usage_percpu`
//! (version 1, by core); without these, that of its threads as sampled. Linux does not keep the
//! time of a thread by core, nor that of a group in version 2. It is sampled: what a thread got
//! since the last sample counts for the core on which it ran last, and the total is divided in that
//! proportion.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::group::{account_folder, members_within};
use crate::keep::PART;
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
    Descendants(Option<i32>),
    Group { folder: PathBuf, kept: Option<Kept> },
}

/// The file in which Linux keeps the processor time of a group.
#[derive(Debug)]
enum Kept {
    /// `cpu.stat` of version 2: of all cores together.
    Total(PathBuf),
    /// `cpuacct.usage_percpu` of version 1: of each core, ended processes included.
    ByCore(PathBuf),
}

/// What is read from it, in nanoseconds.
#[derive(Debug, PartialEq, Eq)]
enum Time {
    Total(u64),
    ByCore(BTreeMap<usize, u64>),
}

impl Kept {
    /// Returns the file for the group in a folder, if there is one.
    fn of(folder: &Path) -> Option<Self> {
        let total = Self::Total(folder.join("cpu.stat"));
        let by_core = || Some(Self::ByCore(account_folder(folder)?.join("cpuacct.usage_percpu")));
        let is_read = |kept: &Self| kept.read().is_some();
        Some(total).filter(is_read).or_else(|| by_core().filter(is_read))
    }

    fn read(&self) -> Option<Time> {
        match self {
            Self::Total(file) => {
                let text = fs::read_to_string(file).ok()?;
                let mut lines = text.lines();
                let us =
                    lines.find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse::<u64>().ok())?;
                Some(Time::Total(us.checked_mul(1_000)?))
            }
            Self::ByCore(file) => {
                let text = fs::read_to_string(file).ok()?;
                let times = text.split_ascii_whitespace().map(|ns| ns.parse::<u64>().ok());
                let by_core: BTreeMap<_, _> =
                    times.collect::<Option<Vec<_>>>()?.into_iter().enumerate().collect();
                (!by_core.is_empty()).then_some(Time::ByCore(by_core))
            }
        }
    }
}

/// The account of a job.
#[derive(Debug)]
pub struct Account {
    source: Source,
    /// The total that Linux had kept before the account began.
    before: u64,
    /// What it had kept of each core at the last sample.
    kept: BTreeMap<usize, u64>,
    /// Processor time of each thread at the last sample.
    threads: HashMap<i32, u64>,
    /// Sampled processor time by core.
    sampled: BTreeMap<usize, u64>,
    at: Instant,
    /// Time between two samples, which take a hundredth of a core at most; none before the first,
    /// so that the first question is answered with what is there.
    period: Duration,
    usage: Usage,
}

impl Account {
    /// Begins the account of the descendants of process `root`; `None`: they are not known.
    #[must_use]
    pub fn of_descendants(root: Option<i32>) -> Self {
        Self::new(Source::Descendants(root), 0)
    }

    /// Begins the account of the control group in a folder.
    #[must_use]
    pub fn of_group(folder: &Path) -> Self {
        let kept = Kept::of(folder);
        let before = match kept.as_ref().and_then(Kept::read) {
            Some(Time::Total(ns)) => ns,
            Some(Time::ByCore(_)) | None => 0,
        };
        let mut account = Self::new(Source::Group { folder: folder.to_owned(), kept }, before);
        // What its threads got before is no part of it.
        account.sample(Duration::ZERO);
        (account.usage, account.sampled, account.period) =
            (Usage::default(), BTreeMap::new(), Duration::ZERO);
        account
    }

    fn new(source: Source, before: u64) -> Self {
        let (threads, sampled, kept) = (HashMap::new(), BTreeMap::new(), BTreeMap::new());
        let (at, period, usage) = (Instant::now(), Duration::ZERO, Usage::default());
        Self { source, before, kept, threads, sampled, at, period, usage }
    }

    /// Returns what they got, with a new sample if the last one is old enough.
    pub fn usage(&mut self) -> &Usage {
        let passed = self.at.elapsed();
        if passed >= self.period {
            self.sample(passed);
        }
        &self.usage
    }

    fn sample(&mut self, passed: Duration) {
        let begun = Instant::now();
        let mut seen = HashMap::new();
        let mut delta: BTreeMap<usize, u64> = BTreeMap::new();
        let (processes, mut total): (Vec<i32>, u64) = match &self.source {
            Source::Descendants(root) => {
                let ended = root.and_then(Stat::of_process).map_or(0, |stat| stat.children_ns);
                (root.map(descendants).into_iter().flatten().skip(1).collect(), ended)
            }
            Source::Group { folder, .. } => (members_within(folder), 0),
        };
        for &pid in &processes {
            let Some(first) = Stat::of_process(pid) else { continue };
            total += first.process_ns + first.children_ns;
            for tid in threads(pid) {
                let Some(ns) = thread_ns(pid, tid) else { continue };
                seen.insert(tid, ns);
                let got = ns.saturating_sub(self.threads.get(&tid).copied().unwrap_or(0));
                // Most threads of a large job sleep: their cores need not be read.
                if let Some(stat) = (got > 0).then(|| Stat::of_thread(pid, tid)).flatten() {
                    *delta.entry(stat.core).or_default() += got;
                }
            }
        }
        if let Source::Group { kept, .. } = &self.source {
            let kept_total = match kept.as_ref().and_then(Kept::read) {
                Some(Time::Total(ns)) => Some(ns.saturating_sub(self.before)),
                Some(Time::ByCore(now)) => {
                    delta = difference(&now, &self.kept);
                    self.kept = now;
                    None
                }
                None => None,
            };
            total = kept_total.unwrap_or_else(|| self.usage.core_ns + delta.values().sum::<u64>());
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
        self.period = PERIOD.max(PART * begun.elapsed());
    }
}

/// Returns by how much each core's time is above that before.
fn difference(now: &BTreeMap<usize, u64>, before: &BTreeMap<usize, u64>) -> BTreeMap<usize, u64> {
    let more = |(&core, &ns): (&usize, &u64)| {
        let more = ns.saturating_sub(before.get(&core).copied().unwrap_or(0));
        (more > 0).then_some((core, more))
    };
    now.iter().filter_map(more).collect()
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
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};
    use tailwater_testkit::until;

    #[test]
    fn a_total_is_divided_as_it_was_sampled() {
        let parts = BTreeMap::from([(1, 30), (2, 10)]);
        assert_eq!(divide(&parts, 100), BTreeMap::from([(1, 75), (2, 25)]));
        assert_eq!(divide(&BTreeMap::from([(1, 0)]), 100), BTreeMap::from([(1, 0)]));
        assert!(divide(&BTreeMap::new(), 100).is_empty());
        let large = BTreeMap::from([(0, u64::MAX), (1, u64::MAX)]);
        assert_eq!(divide(&large, 10), BTreeMap::from([(0, 5), (1, 5)]));
    }

    #[test]
    fn what_linux_keeps_of_a_group_is_read_in_both_versions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(Kept::of(path).is_none());
        fs::write(path.join("cpuacct.usage_percpu"), "5 0 70 \n").unwrap();
        let read = || Kept::of(path).unwrap().read().unwrap();
        assert_eq!(read(), Time::ByCore(BTreeMap::from([(0, 5), (1, 0), (2, 70)])));
        // That of `cpu` in version 1 has no time.
        fs::write(path.join("cpu.stat"), "nr_periods 0\n").unwrap();
        assert!(matches!(read(), Time::ByCore(_)));
        fs::write(path.join("cpu.stat"), "usage_usec 12\nuser_usec 12\n").unwrap();
        assert_eq!(read(), Time::Total(12_000));
        let before = BTreeMap::from([(0, 5), (2, 10)]);
        let now = BTreeMap::from([(0, 5), (1, 3), (2, 70)]);
        assert_eq!(difference(&now, &before), BTreeMap::from([(1, 3), (2, 60)]));
    }

    #[test]
    fn a_job_without_threads_is_sampled_no_more_often_than_others() {
        let folder = tempfile::tempdir().unwrap();
        for mut account in [Account::of_group(folder.path()), Account::of_descendants(None)] {
            let begun = account.at;
            account.usage();
            assert!(account.at > begun && account.period >= PERIOD, "the first question is answered at once");
            account.period = Duration::from_secs(3_600);
            let sampled = account.at;
            account.usage();
            assert_eq!(account.at, sampled);
        }
    }

    /// Where Linux has mounted groups that keep processor time.
    fn points() -> Vec<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let of_line = |line: &str| {
            let mut fields = line.split(' ').skip(1);
            let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            let keeps =
                kind == "cgroup2" || kind == "cgroup" && options.split(',').any(|one| one == "cpuacct");
            keeps.then(|| PathBuf::from(point))
        };
        mounts.lines().filter_map(of_line).collect()
    }

    #[test]
    fn the_account_of_a_group_has_the_time_of_processes_that_have_ended() {
        for point in points() {
            let folder = point.join(format!("tailwater-account-{}", std::process::id()));
            if let Err(error) = fs::create_dir(&folder) {
                eprintln!("not checked: cannot make {}: {error}", folder.display());
                continue;
            }
            let script = "read go; sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; echo; read go";
            let piped = || Stdio::piped();
            let mut shell =
                Command::new("sh").args(["-c", script]).stdin(piped()).stdout(piped()).spawn().unwrap();
            let moved = fs::write(folder.join("cgroup.procs"), shell.id().to_string());
            let mut account = Account::of_group(&folder);
            let is_kept = matches!(&account.source, Source::Group { kept: Some(_), .. });
            shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
            // The child has ended.
            shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            let ended = Stat::of_process(shell.id().cast_signed()).unwrap().children_ns;
            until("a sample has it", || moved.is_err() || account.usage().core_ns + 20_000_000 >= ended);
            let usage = account.usage().clone();
            drop(shell.stdin.take());
            shell.wait().unwrap();
            until("the group is removed", || fs::remove_dir(&folder).is_ok() || !folder.exists());
            if let Err(error) = moved {
                eprintln!("not checked: cannot move a process to {}: {error}", folder.display());
                continue;
            }
            assert!(is_kept && ended > 0, "{}", point.display());
            assert_eq!((usage.processes, usage.threads), (1, 1));
            assert!(usage.by_core_ns.values().sum::<u64>().abs_diff(usage.core_ns) < 1_000, "{usage:?}");
        }
    }
}
