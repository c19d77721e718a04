//! What a runtime writes down about requests that the IOKernel chose to trace.
//!
//! Owns the way of a trace's number through this process: from the ring record to the socket ([`taken`], [`delivered`]), to the
//! user thread that reads it ([`received`]), to a thread that one starts ([`pass_on`]), to the record of the reply ([`reply`]).
//! Steps go into the kthread's buffer in the region (`tailwater_shm::trace`), with preemption off; nobody waits for them.
//!
//! # Which frame is the reply
//! The next frame with data that the thread which carries the request sends on the request's flow, reversed. With one request to a
//! datagram that is exact. Of TCP it is the first segment with data that leaves from the thread's own call after it read from
//! the segment's connection, and before it waits there for more. A request that a thread hands to another, other than by starting it, loses its reply.
//!
//! A thread carries one request at a time; it drops it when it receives another datagram, or ends. What is not traced pays one
//! predicted branch at each place.

use crate::kthread::{Kthread, NoPreempt, current_uthread};
use crate::uthread::Uthread;
use core::cell::Cell;
use tailwater_shm::clock;
use tailwater_shm::trace::{FLAG_TRACED, FlowKeys, Step};

/// A traced request on its way through this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Number of the trace; not zero.
    pub id: u32,
    /// Flow key of its reply.
    pub back: u64,
}

/// The request that a user thread works on. Touched by the thread itself, and by its creator before it is queued.
#[derive(Debug, Default)]
pub struct Carried {
    /// Zero: none.
    id: Cell<u32>,
    back: Cell<u64>,
}

impl Carried {
    /// Whether there is one.
    #[inline(always)]
    pub fn is_some(&self) -> bool {
        self.id.get() != 0
    }

    fn set(&self, request: Request) {
        self.id.set(request.id);
        self.back.set(request.back);
    }
}

fn write(kthread: &Kthread, id: u32, step: Step) {
    if let Some(trace) = &kthread.trace {
        trace.write(id, step, clock::now());
    }
}

/// A traced frame was taken out of the ingress ring of kthread `ring`. `None` if it cannot be answered.
#[cold]
pub fn taken(id: u32, ring: u16, frame: &[u8]) -> Option<Request> {
    let guard = NoPreempt::new();
    taken_by(guard.kthread()?, id, ring, frame)
}

fn taken_by(kthread: &Kthread, id: u32, ring: u16, frame: &[u8]) -> Option<Request> {
    write(kthread, id, Step::Taken { ring });
    let back = FlowKeys::of(frame)?.back;
    (id != 0).then_some(Request { id, back })
}

/// What became of a traced request at its socket. The kthread's run queue is looked at.
#[cold]
pub fn delivered(request: Request, outcome: Outcome) {
    let guard = NoPreempt::new();
    let Some(kthread) = guard.kthread() else { return };
    let step = match outcome {
        Outcome::Queued { woke, ahead } => Step::Delivered { woke, ahead, queue: kthread.runq.len() },
        Outcome::Refused => Step::Refused,
        Outcome::Untracked => Step::Untracked,
    };
    write(kthread, request.id, step);
}

/// What a socket did with a traced request.
#[derive(Debug, Clone, Copy)]
pub enum Outcome {
    /// It waits behind `ahead` others; somebody was made runnable for it.
    Queued {
        /// A reader was woken.
        woke: bool,
        /// Datagrams before it.
        ahead: u32,
    },
    /// There was no room.
    Refused,
    /// Too many traced requests wait there.
    Untracked,
}

/// The running thread has taken a datagram: a traced one, or another, which ends what it carried.
#[inline(always)]
pub fn received(request: Option<Request>) {
    let Some(me) = current_uthread() else { return };
    if request.is_some() || me.carried.is_some() {
        adopt(me, request);
    }
}

#[cold]
fn adopt(me: &Uthread, request: Option<Request>) {
    let guard = NoPreempt::new();
    if let Some(kthread) = guard.kthread() {
        turn_to(kthread, me, request);
    }
}

/// `me` turns from what it carried to `request`, or to something that is not traced.
fn turn_to(kthread: &Kthread, me: &Uthread, request: Option<Request>) {
    let former = me.carried.id.take();
    if former != 0 {
        write(kthread, former, Step::Ended);
    }
    if let Some(request) = request {
        me.carried.set(request);
        write(kthread, request.id, Step::Received);
    }
}

/// The running thread has read all there is of the stream whose replies have flow key `back`.
#[cold]
pub fn wants_more(back: u64) {
    if let Some(me) = current_uthread()
        && carries_of(me, back)
    {
        drop_request(me);
    }
}

/// Whether `me` carries a request of the flow whose replies have the key `back`.
fn carries_of(me: &Uthread, back: u64) -> bool {
    me.carried.is_some() && me.carried.back.get() == back
}

/// `me`, which runs, turns to something else.
#[cold]
pub fn drop_request(me: &Uthread) {
    adopt(me, None);
}

/// `me`, which runs, starts `child`: the request is the child's from now on.
#[cold]
pub fn pass_on(kthread: &Kthread, me: &Uthread, child: &Uthread) {
    let request = Request { id: me.carried.id.take(), back: me.carried.back.get() };
    child.carried.set(request);
    write(kthread, request.id, Step::Passed);
}

/// `me` is about to leave its core: because that or its time slice was `asked` back, or by itself.
#[cold]
pub fn leaves(kthread: &Kthread, me: &Uthread, asked: bool) {
    write(kthread, me.carried.id.get(), Step::Off { asked });
}

/// `me` runs again.
#[cold]
pub fn returns(guard: &NoPreempt, me: &Uthread) {
    if let Some(kthread) = guard.kthread() {
        runs_on(kthread, me);
    }
}

fn runs_on(kthread: &Kthread, me: &Uthread) {
    write(kthread, me.carried.id.get(), Step::On);
}

/// Flags and hash word of a frame that `me` sends, while it carries a request.
#[cold]
pub fn reply(kthread: &Kthread, me: &Uthread, frame: &[u8]) -> (u8, u32) {
    if FlowKeys::of(frame).is_none_or(|keys| keys.there != me.carried.back.get()) {
        return (0, 0);
    }
    let id = me.carried.id.take();
    write(kthread, id, Step::Sent);
    (FLAG_TRACED, id)
}

#[cfg(test)]
mod tests;
