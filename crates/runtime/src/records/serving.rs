//! Threads that run requests of a dispatcher, as the scheduler sees them.
//!
//! Owns the link from a user thread to its dispatcher while it runs a request. The scheduler
//! follows it where such a thread leaves its core; what happens then is decided in
//! [`dispatch`](crate::dispatch).
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `number`, `slice` | the dispatcher, under its lock, before the request runs | the thread's kthread |
//! | `ask_at` | the same; the thread's kthread | the thread's kthread |
//! | `stop` | any thread (true); the dispatcher, before the request runs (false) | the thread's kthread |
//! | `lane` | the thread itself; the thread that resumes it, before that | the thread's kthread |

use super::uthread::Runnable;
use core::fmt::Debug;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};
use tailwater_shm::Cycles;

/// A dispatcher, as the scheduler calls it: with preemption off, on the kthread that the thread
/// leaves.
pub trait Requests: Debug + Sync {
    /// Takes a preempted request's thread, which suspends itself next.
    ///
    /// # Errors
    /// The thread, to be queued as any other: requests are not preempted, or there is no room for
    /// one more that is.
    fn preempted(&'static self, thread: &'static RequestThread, runnable: Runnable) -> Result<(), Runnable>;

    /// The thread blocks within its request.
    fn blocked(&'static self, thread: &'static RequestThread);

    /// The thread runs again after it has blocked.
    fn unblocked(&'static self, thread: &'static RequestThread);

    /// Returns whether a request that has used up its slice gives way, and when to ask again.
    fn is_over(&'static self, thread: &'static RequestThread, now: Cycles) -> (bool, Cycles);

    /// Returns whether the request of this thread, which has `lane`, was ordered to give way. Takes
    /// no lock.
    fn is_ordered(&self, thread: &RequestThread, lane: usize) -> bool {
        let _ = (thread, lane);
        false
    }

    /// Returns whether there is room for the request if it is preempted.
    fn may_preempt(&self, thread: &RequestThread) -> bool;

    /// Returns whether requests wait and a running one may be preempted. Takes no lock.
    fn makes_way(&self) -> bool;
}

/// A thread of a dispatcher. Lives as long as the process.
#[derive(Debug)]
pub struct RequestThread {
    requests: &'static dyn Requests,
    number: AtomicU32,
    slice: AtomicU64,
    ask_at: AtomicU64,
    stop: AtomicBool,
    /// The lane that it has, where its dispatcher has a kthread of its own.
    lane: AtomicU32,
}

/// No lane.
const NONE: u32 = u32::MAX;

impl RequestThread {
    /// Returns one that runs nothing.
    pub fn new(requests: &'static dyn Requests) -> Self {
        Self {
            requests,
            number: AtomicU32::new(0),
            slice: AtomicU64::new(Cycles::MAX),
            ask_at: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            lane: AtomicU32::new(NONE),
        }
    }

    /// Returns the lane that the thread has.
    pub fn lane(&self) -> Option<usize> {
        Some(self.lane.load(Relaxed)).filter(|&lane| lane != NONE).map(|lane| lane as usize)
    }

    /// Sets the lane that the thread has.
    pub fn set_lane(&self, lane: Option<usize>) {
        self.lane.store(lane.map_or(NONE, |lane| lane as u32), Relaxed);
    }

    /// Sets when the request may next give way.
    pub fn ask_again_at(&self, at: Cycles) {
        self.ask_at.store(at, Relaxed);
    }

    /// Begins a run of request `number`, which gives way after `slice`.
    pub fn begin(&self, number: u32, slice: Cycles) {
        self.number.store(number, Relaxed);
        self.resume(slice);
    }

    /// Begins another run of the same request.
    pub fn resume(&self, slice: Cycles) {
        self.slice.store(slice, Relaxed);
        self.ask_at.store(0, Relaxed);
        self.stop.store(false, Relaxed);
    }

    /// Returns the number of the request.
    pub fn number(&self) -> u32 {
        self.number.load(Relaxed)
    }

    /// Returns how long the request may run before it competes with others.
    pub fn slice(&self) -> Cycles {
        self.slice.load(Relaxed)
    }

    /// Makes the request give way at its next look at the clock.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Returns whether the request was to give way, and there is room for one that does.
    pub fn is_stopped(&self) -> bool {
        match self.lane() {
            Some(lane) => self.requests.is_ordered(self, lane),
            None => self.stop.load(Relaxed) && self.requests.may_preempt(self),
        }
    }

    /// Returns whether the request, whose slice is over, gives way.
    pub fn is_over(&'static self, now: Cycles) -> bool {
        if now < self.ask_at.load(Relaxed) {
            return false;
        }
        let (over, ask_at) = self.requests.is_over(self, now);
        self.ask_at.store(ask_at, Relaxed);
        over
    }

    /// As [`Requests::makes_way`].
    pub fn makes_way(&self) -> bool {
        self.requests.makes_way()
    }

    /// As [`Requests::preempted`].
    ///
    /// # Errors
    /// As there.
    pub fn preempted(&'static self, runnable: Runnable) -> Result<(), Runnable> {
        self.requests.preempted(self, runnable)
    }

    /// As [`Requests::blocked`].
    pub fn blocked(&'static self) {
        self.requests.blocked(self);
    }

    /// As [`Requests::unblocked`].
    pub fn unblocked(&'static self) {
        self.requests.unblocked(self);
    }
}

/// The request thread that a user thread is, while it runs a request.
#[derive(Debug, Default)]
pub struct Serving(AtomicPtr<RequestThread>);

impl Serving {
    /// Returns it.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static RequestThread> {
        // SAFETY: null, or of a reference for ever.
        unsafe { self.0.load(Relaxed).as_ref() }
    }

    /// Sets it. Called by the user thread itself.
    pub fn set(&self, thread: Option<&'static RequestThread>) {
        let pointer = thread.map_or(core::ptr::null(), core::ptr::from_ref);
        self.0.store(pointer.cast_mut(), Relaxed);
    }
}
