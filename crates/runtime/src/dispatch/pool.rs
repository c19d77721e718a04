//! The lanes of a dispatcher and its threads without a request: what its lock protects.
//!
//! Owns the [`Board`], the spare threads and the thread that runs each lane's request. Makes no
//! thread and queues none: it returns those that its caller makes runnable after it has unlocked.
//!
//! Each lane is at any time in one place: a thread runs it, a thread that was given it is on its
//! way, or the lane idles.
//!
//! # Invariants
//! - There is a spare for each lane that idles. So a lane that is called always finds a thread; who
//!   needs one for another reason takes it only if one more is there ([`Pool::has_spare`]).
//! - A dispatcher keeps at most [`SPARES`] spares beyond one for each lane. More of them end, and
//!   leave their stacks to the other threads of the program.

use super::board::{Board, Number};
use crate::ground::spin::SpinLock;
use crate::records::request;
use crate::records::serving::RequestThread;
use crate::records::uthread::Runnable;
use tailwater_sched::dispatch::{Reaction, WorkerId};
use tailwater_shm::Cycles;

/// Spare threads that are kept beyond one for each lane. A dispatcher whose requests block or are
/// preempted in waves of this size makes no thread for them.
pub const SPARES: usize = 64;

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
pub struct Place {
    /// The thread, as the scheduler sees it.
    pub thread: RequestThread,
    /// What the thread does when it resumes.
    pub task: SpinLock<Task>,
}

/// What a thread of the dispatcher does next.
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
    pub place: &'static Place,
}

impl Spare {
    /// Leaves the thread `task`; returns the right to resume it.
    pub fn given(self, task: Task) -> Runnable {
        *self.place.task.lock() = task;
        self.runnable
    }
}

/// See the module documentation.
pub struct Pool<P> {
    pub board: Board<Work<P>, Suspended>,
    /// The thread that runs each lane's request.
    pub running: Box<[Option<&'static RequestThread>]>,
    spares: Vec<Spare>,
    /// Places of threads that have ended.
    places: Vec<&'static Place>,
    /// Lanes that idle.
    idle: usize,
}

impl<P> Pool<P> {
    /// Returns a pool without threads, whose lanes all have to ask once.
    pub fn new(board: Board<Work<P>, Suspended>, lanes: usize) -> Self {
        let running = vec![None; lanes].into();
        let spares = Vec::with_capacity(lanes + SPARES);
        Self { board, running, spares, places: Vec::new(), idle: 0 }
    }

    /// Returns whether there is a spare that no idle lane may need.
    pub fn has_spare(&self) -> bool {
        self.spares.len() > self.idle
    }

    /// Adds a thread that was made because there was no spare: at most one for each lane.
    pub fn add(&mut self, spare: Spare) {
        self.spares.push(spare);
    }

    /// Returns the place of a thread that has ended.
    pub fn free_place(&mut self) -> Option<&'static Place> {
        self.places.pop()
    }

    /// Keeps the place of a thread that does not use it any more.
    pub fn return_place(&mut self, place: &'static Place) {
        self.places.push(place);
    }

    /// Keeps a thread without a request.
    ///
    /// # Errors
    /// The right to resume it, if there are enough: the thread ends and does not use its place
    /// again.
    pub fn keep(&mut self, spare: Spare) -> Result<(), Runnable> {
        if self.spares.len() < self.running.len() + SPARES {
            self.spares.push(spare);
            Ok(())
        } else {
            self.return_place(spare.place);
            Err(spare.runnable)
        }
    }

    /// Records that a lane idles from now on. Its thread is kept next.
    pub fn idles(&mut self) {
        self.idle += 1;
    }

    /// Takes `lane` from the thread of its request; returns the thread that asks for it, as
    /// [`has_spare`](Self::has_spare) said that there is one.
    pub fn hand_over(&mut self, lane: WorkerId) -> Runnable {
        self.running[lane.index()] = None;
        self.spares.pop().expect("the caller has checked").given(Task::Ask(lane))
    }

    /// Does what the policy demands of a lane; returns the thread that is to run for it.
    pub fn apply(&mut self, reaction: Reaction) -> Option<Runnable> {
        match reaction {
            Reaction::Queue => None,
            Reaction::Run(lane) => {
                self.idle -= 1;
                Some(self.hand_over(lane))
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
