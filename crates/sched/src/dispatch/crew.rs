//! Who of the workers idles, and who was named by a reaction and has not asked yet: what every policy keeps that may give a
//! request to any worker.
//!
//! Owns the two sets and the steps between them. Never looks at a queue.
//!
//! | a worker | `idle` | `called` |
//! |---|---|---|
//! | is named by [`Crew::call_idle`] | leaves | enters |
//! | is named otherwise ([`Crew::call`]) | | enters |
//! | asks | enters if there is nothing for it, else leaves | leaves |
//! | leaves | leaves | leaves |

use super::{Assignment, Broken, Reaction, WorkerId, WorkerSet};

/// See the module header.
#[derive(Clone, Debug)]
pub(super) struct Crew {
    idle: WorkerSet,
    /// Workers named by a reaction that have not asked yet.
    called: WorkerSet,
}

impl Crew {
    /// For workers `0..workers`, all of them busy elsewhere. Panics as [`WorkerSet::new`].
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

    /// A busy worker is named, to be preempted.
    pub(super) fn call(&mut self, worker: WorkerId) {
        self.called.insert(worker);
    }

    /// A worker asks, and this is what it is given.
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

    /// The sets are whole, and nobody idles while one of `queued` requests waits that no worker was called for.
    pub(super) fn check(&self, queued: usize) -> Result<(), Broken> {
        self.idle.check()?;
        self.called.check()?;
        if queued > self.called.len() && !self.idle.is_empty() {
            return Err(Broken("a worker is idle while a request waits"));
        }
        Ok(())
    }
}
