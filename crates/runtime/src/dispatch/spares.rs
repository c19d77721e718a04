//! Threads of a dispatcher that have no request, and records of those that have ended.
//!
//! Owns both lists, under the dispatcher's lock. Makes no thread and queues none.
//!
//! # Invariants
//! - There is a spare for each lane that idles. So a lane that is called always finds a thread; who
//!   needs one for another reason takes it only if one more is there ([`Spares::has_spare`]).
//! - At most [`SPARES`] are kept beyond one for each lane. More of them end, and leave their stacks
//!   to the other threads of the program.

use super::pool::{Spare, Task, ThreadRecord};
use crate::records::uthread::Runnable;
use tailwater_sched::dispatch::WorkerId;

/// Spare threads that are kept beyond one for each lane. A dispatcher whose requests block or are
/// preempted in waves of this size makes no thread for them.
pub const SPARES: usize = 64;

/// See the module documentation.
pub struct Spares {
    spares: Vec<Spare>,
    /// Records of threads that have ended.
    records: Vec<&'static ThreadRecord>,
    lanes: usize,
    /// Lanes that idle.
    idle: usize,
}

impl Spares {
    /// Returns none, for `lanes` lanes of which none idles.
    pub fn new(lanes: usize) -> Self {
        Self { spares: Vec::with_capacity(lanes + SPARES), records: Vec::new(), lanes, idle: 0 }
    }

    /// Returns whether there is a spare that no idle lane may need.
    pub fn has_spare(&self) -> bool {
        self.spares.len() > self.idle
    }

    /// Adds a thread that was made because there was no spare: at most one for each lane.
    pub fn add(&mut self, spare: Spare) {
        self.spares.push(spare);
    }

    /// Returns the record of a thread that has ended.
    pub fn free_record(&mut self) -> Option<&'static ThreadRecord> {
        self.records.pop()
    }

    /// Keeps the record of a thread that does not use it any more.
    pub fn return_record(&mut self, record: &'static ThreadRecord) {
        self.records.push(record);
    }

    /// Keeps a thread without a request.
    ///
    /// # Errors
    /// The right to resume it, if there are enough: the thread ends and does not use its record
    /// again.
    pub fn keep(&mut self, spare: Spare) -> Result<(), Runnable> {
        if self.spares.len() < self.lanes + SPARES {
            self.spares.push(spare);
            Ok(())
        } else {
            self.return_record(spare.record);
            Err(spare.runnable)
        }
    }

    /// Records that a lane idles from now on. Its thread is kept next.
    pub fn idles(&mut self) {
        self.idle += 1;
    }

    /// Records that an idle lane is called; returns the thread that asks for it.
    pub fn call(&mut self, lane: WorkerId) -> Runnable {
        self.idle -= 1;
        self.hand_over(lane)
    }

    /// Returns the thread that asks for `lane`, as [`has_spare`](Self::has_spare) said that there
    /// is one.
    pub fn hand_over(&mut self, lane: WorkerId) -> Runnable {
        self.spares.pop().expect("the caller has checked").given(Task::Ask(lane))
    }
}
