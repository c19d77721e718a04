//! Idle workers, and workers that a reaction named and that have not asked yet: the state shared by
//! every policy that may give a request to any worker.
//!
//! Owns the two sets and the steps between them. It never looks at a queue.
//!
//! | a worker | `idle` | `called` |
//! |---|---|---|
//! | is named by [`Crew::call_idle`] | leaves | enters |
//! | is named otherwise ([`Crew::call`]) | | enters |
//! | asks | enters if there is nothing for it, else leaves | leaves |
//! | leaves | leaves | leaves |

use super::protocol::{Assignment, Broken, Reaction, WorkerId};
use super::worker_set::WorkerSet;

/// See the module header.
#[derive(Clone, Debug)]
pub(super) struct Crew {
    idle: WorkerSet,
    /// Workers named by a reaction that have not asked yet.
    called: WorkerSet,
}

impl Crew {
    /// Creates the sets for workers `0..workers`, none of them idle. Panics as [`WorkerSet::new`]
    /// does.
    pub(super) fn new(workers: usize) -> Self {
        Self { idle: WorkerSet::new(workers), called: WorkerSet::new(workers) }
    }

    /// Calls the idle worker with the lowest number; [`Reaction::Queue`] if none idles.
    pub(super) fn call_idle(&mut self) -> Reaction {
        self.call_idle_from(WorkerId(0))
    }

    /// Calls the first idle worker at or after `start`, going round.
    pub(super) fn call_idle_from(&mut self, start: WorkerId) -> Reaction {
        let Some(worker) = self.idle.first_from(start) else { return Reaction::Queue };
        self.idle.remove(worker);
        self.called.insert(worker);
        Reaction::Run(worker)
    }

    /// Records that a reaction names a busy worker, to be preempted.
    pub(super) fn call(&mut self, worker: WorkerId) {
        self.called.insert(worker);
    }

    /// Records that a worker asked and what it was given; returns what it was given.
    pub(super) fn asked(&mut self, worker: WorkerId, given: Option<Assignment>) -> Option<Assignment> {
        self.called.remove(worker);
        if given.is_some() {
            self.idle.remove(worker);
        } else {
            self.idle.insert(worker);
        }
        given
    }

    pub(super) fn leave(&mut self, worker: WorkerId) {
        self.idle.remove(worker);
        self.called.remove(worker);
    }

    pub(super) fn idle(&self) -> usize {
        self.idle.len()
    }

    pub(super) fn called(&self) -> usize {
        self.called.len()
    }

    /// Verifies that the sets are sound, and that no worker idles while one of the `queued`
    /// requests waits without a worker called for it.
    pub(super) fn check(&self, queued: usize) -> Result<(), Broken> {
        self.idle.check()?;
        self.called.check()?;
        if queued > self.called.len() && !self.idle.is_empty() {
            return Err(Broken::IdleWhileWaiting);
        }
        Ok(())
    }
}
