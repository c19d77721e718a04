//! Watches which of its cores Linux lets the IOKernel use: a cpuset may be narrowed or a processor
//! taken offline while it runs.
//!
//! Owns the question, asked every [`LOOK`], and the comparison with the answer before. The calling
//! thread asks for all the cores on behalf of a [`Sleeper`], and reads what Linux has made of that
//! (the cores that its cpuset and the machine have, sched_setaffinity(2)): two system calls of a
//! microsecond, for any version of control groups. If it asked for itself, it would run on any core
//! for a moment, even one that other threads are kept off; in an emulated machine that happened at
//! every second look, for milliseconds. While the sleeper has all cores, which Linux takes from it
//! with those of the process, and the calling thread its own, reading both is enough. Otherwise the
//! calling thread also sets its own affinity to what it was at the start, because Linux may have
//! changed it: the thread and those it starts would stay on those cores once the others are back.
//! What is missing or back is logged once. The polling thread takes managed cores out of its ledger
//! and puts them back; it goes on where Linux has moved it if its own core is gone, and is bound to
//! that core again when it is back.

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use tailwater_sched::CoreId;

use crate::cpu_set;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// Stack of a thread that does nothing.
const STACK: usize = 64 << 10;

/// A thread of this process that sleeps until this is dropped, whatever its affinity is.
#[derive(Debug)]
struct Sleeper {
    id: Pid,
    /// Dropped to wake it.
    gate: Option<Sender<()>>,
    handle: Option<JoinHandle<()>>,
}

impl Sleeper {
    fn start() -> io::Result<Self> {
        let (gate, end) = channel::<()>();
        let (report, id) = channel();
        let body = move || {
            // The receiver waits.
            let _ = report.send(gettid());
            // Nothing is sent: it fails when the sender is gone.
            let _ = end.recv();
        };
        let handle = Builder::new().name("tailwater-cores".to_owned()).stack_size(STACK).spawn(body)?;
        let id = id.recv().map_err(io::Error::other)?;
        Ok(Self { id, gate: Some(gate), handle: Some(handle) })
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // Back to where this thread runs, for its last moments.
        if let Ok(home) = sched_getaffinity(None) {
            let _ = sched_setaffinity(Some(self.id), &home);
        }
        drop(self.gate.take());
        // It cannot panic.
        let _ = self.handle.take().map(JoinHandle::join);
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Presence {
    /// `None` if Linux has refused one: then nothing is asked.
    sleeper: Option<Sleeper>,
    /// All cores that the process might use when it started.
    all: CpuSet,
    /// Affinity of the calling thread at the start.
    home: CpuSet,
    polling: u16,
    managed: Vec<u16>,
    /// Those of the cores in use that were missing at the last look, ascending.
    missing: Vec<u16>,
    looked: Instant,
}

/// What a look has found to be different.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    gone: Vec<u16>,
    back: Vec<u16>,
}

impl Presence {
    /// Begins to watch the core of the polling thread and the managed cores, which are among all
    /// those that the process may use. To be called by the thread that looks.
    #[must_use]
    pub fn new(polling: u16, managed: Vec<u16>, all: CpuSet) -> Self {
        let sleeper = Sleeper::start().inspect_err(
            |error| tracing::warn!(%error, "cores that are taken from the IOKernel are not noticed"),
        );
        Self {
            sleeper: sleeper.ok(),
            all,
            home: sched_getaffinity(None).unwrap_or(all),
            polling,
            managed,
            missing: Vec::new(),
            looked: Instant::now(),
        }
    }

    /// Looks if that is due. Returns the managed cores that can be used, if cores are gone or back
    /// since the last look. `polling` is the polling thread, which is bound to its core again when
    /// that is back.
    pub fn look(&mut self, polling: Pid) -> Option<CpuSet> {
        let now = Instant::now();
        if now.saturating_duration_since(self.looked) < LOOK {
            return None;
        }
        self.looked = now;
        if self.has_all() {
            return None;
        }
        // Fails if these cores are gone; then the thread may use all that are left.
        let _ = sched_setaffinity(None, &self.home);
        let usable = self.sleeper.as_ref().and_then(|sleeper| usable(sleeper, &self.all))?;
        let change = self.compare(&usable);
        if !self.missing.contains(&self.polling) {
            // A change loses bindings to cores that remain, before Linux 6.2. Fails if the core is
            // gone again, which the next look finds.
            let _ = sched_setaffinity(Some(polling), &cpu_set([&CoreId(self.polling)]));
        }
        let Change { gone, back } = change?;
        for core in gone {
            if core == self.polling {
                tracing::error!(
                    core,
                    "Linux does not let the IOKernel use the core it polls on (cpuset, or offline); it polls where \
                     Linux has moved it, beside other programs: give the core back, or restart with another core"
                );
            } else {
                tracing::warn!(
                    core,
                    "Linux does not let the IOKernel use a managed core (cpuset, or offline); it is lent to no program \
                     until it is back"
                );
            }
        }
        for core in back {
            tracing::info!(core, "the IOKernel may use a core again");
        }
        let present: Vec<CoreId> = self.managed.iter().copied().map(CoreId).collect();
        Some(cpu_set(present.iter().filter(|core| !self.missing.contains(&core.0))))
    }

    /// Returns whether the sleeper, which was given all cores, still has them, so that none is
    /// missing, and the calling thread those of the start: before Linux 6.2 a thread that is moved
    /// to a group of the same cores has all of them.
    fn has_all(&self) -> bool {
        let has = |thread, cores| sched_getaffinity(thread).is_ok_and(|has| has == cores);
        let has_all = |sleeper: &Sleeper| has(Some(sleeper.id), self.all);
        self.missing.is_empty() && self.sleeper.as_ref().is_some_and(has_all) && has(None, self.home)
    }

    /// Compares the cores in use with those that can be used, and remembers which are missing.
    fn compare(&mut self, usable: &CpuSet) -> Option<Change> {
        let mut missing: Vec<u16> = self.managed.iter().copied().chain([self.polling]).collect();
        missing.retain(|&core| !usable.is_set(core.into()));
        missing.sort_unstable();
        let before = core::mem::replace(&mut self.missing, missing);
        let without = |cores: &[u16], others: &[u16]| -> Vec<u16> {
            cores.iter().copied().filter(|core| !others.contains(core)).collect()
        };
        let change = Change { gone: without(&self.missing, &before), back: without(&before, &self.missing) };
        (!change.gone.is_empty() || !change.back.is_empty()).then_some(change)
    }
}

/// Returns which of `all` cores the process may use; `None` if Linux does not say so.
fn usable(sleeper: &Sleeper, all: &CpuSet) -> Option<CpuSet> {
    match sched_setaffinity(Some(sleeper.id), all) {
        Ok(()) => sched_getaffinity(Some(sleeper.id)).ok(),
        // None of them (sched_setaffinity(2)): the cpuset was moved to others.
        Err(Errno::INVAL) => Some(CpuSet::new()),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cores: &[u16]) -> CpuSet {
        let cores: Vec<CoreId> = cores.iter().copied().map(CoreId).collect();
        cpu_set(&cores)
    }

    fn presence() -> Presence {
        Presence {
            sleeper: Some(Sleeper::start().unwrap()),
            all: set(&[0, 1, 2, 3]),
            home: set(&[3]),
            polling: 0,
            managed: vec![1, 2],
            missing: Vec::new(),
            looked: Instant::now(),
        }
    }

    #[test]
    fn a_core_that_is_gone_or_back_is_found_once() {
        let mut presence = presence();
        assert_eq!(presence.compare(&set(&[0, 1, 2, 3])), None);
        let change = presence.compare(&set(&[0, 1]));
        assert_eq!(change, Some(Change { gone: vec![2], back: vec![] }), "3 is not in use");
        assert_eq!(presence.compare(&set(&[0, 1])), None);
        let change = presence.compare(&set(&[2]));
        assert_eq!(change, Some(Change { gone: vec![0, 1], back: vec![2] }));
        let change = presence.compare(&set(&[0, 1, 2]));
        assert_eq!(change, Some(Change { gone: vec![], back: vec![0, 1] }));
    }

    /// Returns this thread's affinity, and one that no machine has.
    fn affinities() -> (CpuSet, CpuSet) {
        let mut none = CpuSet::new();
        none.set(CpuSet::MAX_CPU - 1);
        (sched_getaffinity(None).unwrap(), none)
    }

    #[test]
    fn the_question_names_the_cores_that_linux_allows_and_the_calling_thread_stays() {
        let (before, _) = affinities();
        let cores = (0..CpuSet::MAX_CPU).filter(|&core| before.is_set(core));
        let sleeper = Sleeper::start().unwrap();
        let mut wide = before;
        // No machine has it.
        wide.set(CpuSet::MAX_CPU - 1);
        for core in cores {
            let mut one = CpuSet::new();
            one.set(core);
            // As the control thread's, which may use few cores.
            sched_setaffinity(None, &one).unwrap();
            assert_eq!(usable(&sleeper, &wide), Some(before));
            assert_eq!(usable(&sleeper, &one), Some(one));
            assert_eq!(sched_getaffinity(None), Ok(one));
        }
    }

    #[test]
    fn cores_that_are_all_gone_are_an_answer() {
        let (before, none) = affinities();
        let sleeper = Sleeper::start().unwrap();
        assert_eq!(usable(&sleeper, &none), Some(CpuSet::new()));
        assert_eq!(sched_getaffinity(None), Ok(before));
        let mut presence = presence();
        let change = presence.compare(&CpuSet::new());
        assert_eq!(change, Some(Change { gone: vec![0, 1, 2], back: vec![] }));
    }

    #[test]
    fn a_thread_that_linux_has_moved_is_back_where_it_started_once_the_cores_are() {
        let (before, _) = affinities();
        let first = (0..CpuSet::MAX_CPU).find(|&core| before.is_set(core)).unwrap();
        let mut narrowed = CpuSet::new();
        narrowed.set(first);
        let (polling, managed) = (first as u16, Vec::new());
        let mut presence = Presence { home: before, all: before, polling, managed, ..presence() };
        presence.looked -= LOOK;
        // As a cpuset does that leaves one core.
        sched_setaffinity(None, &narrowed).unwrap();
        let polling = presence.sleeper.as_ref().unwrap().id;
        presence.look(polling);
        assert_eq!(sched_getaffinity(None), Ok(before));
        assert_eq!(sched_getaffinity(Some(polling)), Ok(narrowed), "bound to its core");
    }
}
