//! The lanes of a dispatcher and its threads without a request: what its lock protects.
//!
//! Owns the [`RequestTable`], the spare threads and the thread that runs each lane's request. Makes
//! no thread and queues none: it returns those that its caller makes runnable after it has
//! unlocked.
//!
//! Each lane is at any time in one place: a thread runs it, a thread that was given it is on its
//! way, or the lane idles.

use super::spares::Spares;
use super::table::{Number, RequestTable};
use crate::ground::spin::SpinLock;
use crate::records::request;
use crate::records::serving::RequestThread;
use crate::records::uthread::Runnable;
use tailwater_sched::dispatch::{Reaction, WorkerId};
use tailwater_shm::Cycles;

/// A suspended thread that is amid a request.
pub struct Suspended {
    pub thread: &'static RequestThread,
    pub runnable: Runnable,
}

/// A request that waits: what the handler gets, and the trace that follows it; its number is 0 if
/// none does.
pub struct Work<P> {
    pub payload: P,
    pub traced: request::Request,
}

/// What a thread of a dispatcher needs beside its stack. Used by a later thread when it has ended.
#[derive(Debug)]
pub struct ThreadRecord {
    /// The thread, as the scheduler sees it.
    pub thread: RequestThread,
    /// The task of the thread when it resumes.
    pub task: SpinLock<Task>,
}

/// The next task of a thread of the dispatcher.
#[derive(Debug, Clone, Copy)]
pub enum Task {
    /// Initialises the lane, then asks for it.
    Begin(WorkerId),
    /// Asks for a lane.
    Ask(WorkerId),
    /// Has finished a request, at this time if it let others go first.
    Finish { number: Number, panicked: bool, ended: Option<Cycles> },
    /// Ends.
    End,
}

/// A thread without a request.
pub struct Spare {
    pub runnable: Runnable,
    pub record: &'static ThreadRecord,
}

impl Spare {
    /// Leaves the thread `task`; returns the right to resume it.
    pub fn given(self, task: Task) -> Runnable {
        *self.record.task.lock() = task;
        self.runnable
    }
}

/// See the module documentation.
pub struct Pool<P> {
    pub table: RequestTable<Work<P>, Suspended>,
    /// The thread that runs each lane's request.
    pub running: Box<[Option<&'static RequestThread>]>,
    pub spares: Spares,
}

impl<P> Pool<P> {
    /// Returns a pool without threads, whose lanes all have to ask once.
    pub fn new(table: RequestTable<Work<P>, Suspended>, lanes: usize) -> Self {
        Self { table, running: vec![None; lanes].into(), spares: Spares::new(lanes) }
    }

    /// Takes `lane` from the thread of its request; returns the thread that asks for it, as
    /// [`Spares::has_spare`] said that there is one.
    pub fn hand_over(&mut self, lane: WorkerId) -> Runnable {
        self.running[lane.index()] = None;
        self.spares.hand_over(lane)
    }

    /// Does what the policy demands of a lane; returns the thread that is to run for it.
    pub fn apply(&mut self, reaction: Reaction) -> Option<Runnable> {
        match reaction {
            Reaction::Queue => None,
            Reaction::Run(lane) => {
                self.running[lane.index()] = None;
                Some(self.spares.call(lane))
            }
            Reaction::Preempt(lane) => {
                if let Some(thread) = self.running[lane.index()] {
                    thread.stop();
                }
                None
            }
        }
    }
}
