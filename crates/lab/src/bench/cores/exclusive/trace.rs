//! What Linux runs on the core of an exclusive thread.
//!
//! Owns the counts. The slices of time are those that `tailwater trace` draws
//! ([`core_use`](tailwater_testbed::core_use)). A thread that came to the core before the watch, or
//! leaves it afterwards, has no slice, and interrupts are not counted.

use std::collections::{BTreeMap, HashMap};

use tailwater_bpf::core_time::{Refused, is_of_the_kernel};
use tailwater_shm::clock::Cycles;
use tailwater_testbed::core_use::{Linux, Seen, Slice, Use};

use super::child::Period;

/// Most slices: some minutes of ten thousand switches a second.
const MOST: usize = 1 << 22;

/// A watch of some cores; it ends when this is dropped.
pub struct Trace {
    linux: Linux,
    /// The threads so far, and whether each is one of the kernel's own.
    threads: HashMap<u32, bool>,
    /// Slices whose threads were looked up.
    known: usize,
}

impl Trace {
    /// Begins to watch these cores.
    ///
    /// # Errors
    /// Why that is refused.
    pub fn begin(cores: &[usize]) -> Result<Self, Refused> {
        let cores: Vec<u16> = cores.iter().map(|&core| core as u16).collect();
        Ok(Self { linux: Linux::watch(&cores, MOST)?, threads: HashMap::new(), known: 0 })
    }

    /// Takes what has happened; called again and again. A thread that has ended before cannot be
    /// looked up, and counts as ordinary.
    pub fn take(&mut self) {
        self.linux.take();
        let seen = self.linux.seen();
        for slice in seen.slices.range(self.known..) {
            if let Use::Thread { tid, .. } = slice.used {
                self.threads.entry(tid).or_insert_with(|| is_of_the_kernel(tid) == Some(true));
            }
        }
        self.known = seen.slices.len();
    }

    /// Counts what ran within these periods.
    ///
    /// # Errors
    /// If there were too many switches to keep.
    pub fn finish(mut self, periods: &[Period]) -> anyhow::Result<Counts> {
        self.take();
        let seen = self.linux.seen();
        let is_whole = seen.lost == 0 && seen.slices.len() < MOST;
        anyhow::ensure!(is_whole, "switches of the core are missing: the machine is too busy");
        Ok(count(&seen, periods, |tid| self.threads.get(&tid) == Some(&true)))
    }
}

/// What ran on the exclusive thread's core while that thread had it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that an ordinary thread ran.
    pub ordinary: u64,
    /// These threads, by name and id, and how often each ran.
    pub who: BTreeMap<String, u64>,
    /// For how long, in cycles.
    pub ordinary_cycles: Cycles,
    /// Times that a thread of the kernel's own ran.
    pub kernel: u64,
}

/// Counts what ran within these periods, beside the thread that they are of.
fn count(seen: &Seen<'_>, periods: &[Period], is_kernel: impl Fn(u32) -> bool) -> Counts {
    let mut counts = Counts::default();
    for Slice { core, from_ns, to_ns, used } in seen.slices {
        let Use::Thread { command, tid, .. } = used else { continue };
        let others = |period: &&Period| period.core == u32::from(*core) && period.tid != *tid;
        for period in periods.iter().filter(others) {
            let from = seen.cycles(*from_ns).max(period.from);
            let to = seen.cycles(*to_ns).min(period.to);
            if from >= to {
                continue;
            }
            if is_kernel(*tid) {
                counts.kernel += 1;
            } else {
                counts.ordinary += 1;
                counts.ordinary_cycles += to - from;
                *counts.who.entry(format!("{command} ({tid})")).or_default() += 1;
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tailwater_testbed::core_use::Moment;

    use super::*;

    #[test]
    fn threads_count_while_the_exclusive_thread_has_the_core() {
        let thread = |core, from_ns, to_ns, tid, command: &str| {
            let used = Use::Thread { command: command.to_owned(), pid: tid, tid };
            Slice { core, from_ns, to_ns, used }
        };
        let slices = VecDeque::from([
            thread(1, 10, 100, 50, "before"),
            thread(1, 100, 200, 9, "exclusive"),
            thread(2, 120, 400, 50, "elsewhere"),
            thread(1, 200, 210, 7, "ksoftirqd"),
            thread(1, 300, 330, 51, "job"),
            Slice { core: 1, from_ns: 340, to_ns: 350, used: Use::Interrupt("local_timer") },
            thread(1, 900, 1_000, 52, "after"),
        ]);
        // A cycle is a nanosecond, later by 5.
        let (began, now) = (Moment { ns: 0, cycles: 5 }, Moment { ns: 2_000, cycles: 2_005 });
        let seen = Seen { slices: &slices, began, now, lost: 0 };
        let counts = |from: u64, to: u64| {
            count(&seen, &[Period { core: 1, tid: 9, from: from + 5, to: to + 5 }], |tid| tid == 7)
        };
        let who = |names: &[&str]| names.iter().map(|&name| (name.to_owned(), 1)).collect();
        let all = who(&["before (50)", "job (51)", "after (52)"]);
        let whole = Counts { ordinary: 3, who: all, ordinary_cycles: 90 + 30 + 100, kernel: 1 };
        assert_eq!(counts(0, 2_000), whole);
        let part = Counts { ordinary: 1, who: who(&["job (51)"]), ordinary_cycles: 20, kernel: 1 };
        assert_eq!(counts(100, 320), part);
        assert_eq!(counts(340, 900), Counts::default());
    }
}
