//! Steps of the requests that the IOKernel chose to trace.
//!
//! Owns the way of a trace's number through this process: from the ring record to the socket
//! ([`taken`], [`delivered`]), to the user thread that reads it ([`received`]), to a thread that
//! this one starts ([`pass_on`]) or the thread of a dispatcher to which it submits it ([`queue`],
//! [`begin`]), to the record of the reply ([`reply`]). Steps go into the
//! kthread's buffer in the region (`tailwater_shm::trace`), with preemption off.
//!
//! # Which frame is the reply
//! The next frame with data that the thread which carries the request sends on the request's flow,
//! reversed. With one request to a datagram that is exact. Of TCP it is the first segment with data
//! that leaves from the thread's own call after it read from the segment's connection, and before
//! it waits there for more. A request that a thread hands to another thread, other than by starting
//! it or through a dispatcher, loses its reply.
//!
//! A thread carries one request at a time; it drops it when it receives another datagram, or ends.
//! Code that handles no traced request pays one predicted branch at each place.

use crate::ground::guard::NoPreempt;
use crate::records::kthread::{ThisKthread, current_uthread};
pub use crate::records::request::Request;
use crate::records::uthread::Uthread;
use tailwater_net::Outcome;
use tailwater_shm::clock;
use tailwater_shm::trace::{FLAG_TRACED, FlowKeys, Step, TraceWriter};

/// A kthread's buffer of steps, `None` standalone.
#[derive(Debug, Clone, Copy)]
struct Log<'a>(Option<&'a TraceWriter>);

impl<'a> Log<'a> {
    fn of(kthread: ThisKthread<'a>) -> Self {
        Self(kthread.private().trace.as_ref())
    }

    fn write(self, id: u32, step: Step) {
        if let Some(writer) = self.0 {
            writer.write(id, step, clock::now());
        }
    }

    /// A frame of trace `id` was taken out of the ingress ring of kthread `ring`. `None` if it
    /// cannot be answered.
    fn taken(self, id: u32, ring: u16, frame: &[u8]) -> Option<Request> {
        self.write(id, Step::Taken { ring });
        let back = FlowKeys::of(frame)?.back;
        (id != 0).then_some(Request { id, back })
    }

    /// `me` turns from the request that it carries to `request`, or to none.
    fn turn_to(self, me: &Uthread, request: Option<Request>) {
        let former = me.carried.take();
        if former.id != 0 {
            self.write(former.id, Step::Ended);
        }
        if let Some(request) = request {
            me.carried.set(request);
            self.write(request.id, Step::Received);
        }
    }

    fn passed_on(self, me: &Uthread, child: &Uthread) {
        let request = me.carried.take();
        child.carried.set(request);
        self.write(request.id, Step::Passed);
    }

    fn queued(self, me: &Uthread, class: u16) -> Request {
        let request = me.carried.take();
        self.write(request.id, Step::Queued { class });
        request
    }

    fn begun(self, me: &Uthread, request: Request) {
        me.carried.set(request);
        self.write(request.id, Step::On);
    }

    fn left(self, me: &Uthread, asked: bool) {
        self.write(me.carried.id(), Step::Off { asked });
    }

    fn returned(self, me: &Uthread) {
        self.write(me.carried.id(), Step::On);
    }

    fn replied(self, me: &Uthread, frame: &[u8]) -> (u8, u32) {
        if FlowKeys::of(frame).is_none_or(|keys| keys.there != me.carried.back()) {
            return (0, 0);
        }
        let id = me.carried.take().id;
        self.write(id, Step::Sent);
        (FLAG_TRACED, id)
    }
}

/// Records that a traced frame was taken out of the ingress ring of kthread `ring`. `None` if it
/// cannot be answered.
#[cold]
pub fn taken(id: u32, ring: u16, frame: &[u8]) -> Option<Request> {
    let guard = NoPreempt::new();
    Log::of(guard.kthread()?).taken(id, ring, frame)
}

/// Records what a socket did with a traced request, and the length of the kthread's run queue.
#[cold]
pub fn delivered(request: Request, outcome: Outcome) {
    let guard = NoPreempt::new();
    let Some(kthread) = guard.kthread() else { return };
    let step = match outcome {
        Outcome::Queued { woke, ahead } => {
            Step::Delivered { woke, ahead, queue: kthread.private().runq.len() }
        }
        Outcome::Refused => Step::Refused,
        Outcome::Untracked => Step::Untracked,
    };
    Log::of(kthread).write(request.id, step);
}

/// Records that the running thread has taken a datagram: a traced one, or another, which ends the
/// request that it carried.
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
        Log::of(kthread).turn_to(me, request);
    }
}

/// Records that the running thread has read all there is of the stream whose replies have flow key
/// `back`.
#[cold]
pub fn wants_more(back: u64) {
    if let Some(me) = current_uthread()
        && carries_of(me, back)
    {
        drop_request(me);
    }
}

/// Returns whether `me` carries a request of the flow whose replies have the key `back`.
fn carries_of(me: &Uthread, back: u64) -> bool {
    me.carried.is_some() && me.carried.back() == back
}

/// Records that `me`, which runs, turns to something else.
#[cold]
pub fn drop_request(me: &Uthread) {
    adopt(me, None);
}

/// Makes the request that `me`, which runs, carries that of `child`, which it starts.
#[cold]
pub fn pass_on(kthread: ThisKthread<'_>, me: &Uthread, child: &Uthread) {
    Log::of(kthread).passed_on(me, child);
}

/// Takes the request that `me`, which runs, carries: it waits from now on in the queue of a
/// dispatcher, as a request of `class`.
#[cold]
pub fn queue(kthread: ThisKthread<'_>, me: &Uthread, class: u16) -> Request {
    Log::of(kthread).queued(me, class)
}

/// Records that `me`, which runs, begins a request that waited in the queue of a dispatcher.
#[cold]
pub fn begin(kthread: ThisKthread<'_>, me: &Uthread, request: Request) {
    Log::of(kthread).begun(me, request);
}

/// Records that `me` is about to leave its core, by itself or because core or time slice were
/// `asked` back.
#[cold]
pub fn leaves(kthread: ThisKthread<'_>, me: &Uthread, asked: bool) {
    Log::of(kthread).left(me, asked);
}

/// Records that `me` runs again.
#[cold]
pub fn returns(guard: &NoPreempt, me: &Uthread) {
    if let Some(kthread) = guard.kthread() {
        Log::of(kthread).returned(me);
    }
}

/// Flags and hash word of a frame that `me` sends while it carries a request.
#[cold]
pub fn reply(kthread: ThisKthread<'_>, me: &Uthread, frame: &[u8]) -> (u8, u32) {
    Log::of(kthread).replied(me, frame)
}

#[cfg(test)]
mod tests;
