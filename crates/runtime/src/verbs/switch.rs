//! Switches between user threads: block, yield, start and end.
//!
//! A thread that blocks switches to the next local thread, or to the scheduler context if something
//! else needs the scheduler ([`wants_scheduler`]).
//!
//! # Invariants
//! * Preemption is off across every switch: a context is left and entered with a depth of 1.
//! * A thread may be queued before it has left its stack; the kthread that resumes it waits in
//!   [`Runnable::claim`](crate::records::uthread::Runnable::claim).

use super::ready::ready;
use super::{pinned, quantum, trace};
use crate::ground::guard::{NoPreempt, poll_is_counted, poll_requested};
use crate::ground::runq::Owner;
use crate::ground::{arch, edge, tls};
use crate::records::kthread::{ThisKthread, count};
use crate::records::runtime::runtime;
use crate::records::stack::Stack;
use crate::records::uthread::{Runnable, Uthread, prefetch_record};
use core::hint::cold_path;
use tailwater_shm::clock;

/// Number of queued threads from which on they are fetched into the cache ahead of their turn.
/// Fewer stay in the first level: each uses a kilobyte. A thousand threads that are started and
/// joined cost 290 ns each rather than 450, with shared TLS 170 rather than 320 (2-vCPU VM, AMD
/// EPYC), together with the caches of free blocks and stacks.
const LONG_QUEUE: u32 = 24;
/// Threads that run between the fetch and the fetched one's turn.
const AHEAD: u32 = 1;

/// Gives the core up if the IOKernel reclaims it, or if the thread's
/// [`quantum`](crate::RuntimeBuilder::quantum) is over. Costs about a nanosecond otherwise. For
/// long loops.
///
/// # Examples
/// ```
/// let mut sum = 0u64;
/// for (i, n) in (0..100_000u64).enumerate() {
///     sum += n;
///     if i % 256 == 0 {
///         tailwater::poll();
///     }
/// }
/// assert_eq!(sum, 4_999_950_000);
/// ```
#[inline(always)]
pub fn poll() {
    if poll_requested() {
        poll_slowly();
    }
}

/// As [`poll`], where the path that gives the core up should cost the function around it nothing.
#[inline(always)]
pub fn poll_at_entry() {
    if poll_requested() {
        cold_path();
        poll_at_edge();
    }
}

/// As [`poll`], with a few instructions in the caller and a call of some ns: see [`edge`].
#[inline(always)]
pub fn poll_at_edge() {
    edge::poll::<AtEdge>();
}

/// What `poll_at_edge` calls, for callers in other languages.
///
/// # Safety
/// That of `edge::edge`; the call is an instruction of its own, on a stack of any alignment.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn poll_keeping_registers() {
    core::arch::naked_asm!("jmp {edge}", edge = sym edge::edge::<AtEdge>)
}

/// The slow path of [`poll_at_edge`].
struct AtEdge;

impl edge::Slow for AtEdge {
    extern "sysv64" fn poll() {
        poll();
    }
}

/// The slow path of a poll point.
#[cold]
fn poll_slowly() {
    if !poll_is_counted() {
        give_up_core();
    }
}

/// Suspends the calling thread until it is made runnable. The caller has left its
/// [`Runnable`](crate::records::uthread::Runnable), or what makes one, in a queue or list; `guard`
/// is its only proof.
///
/// # Panics
/// If the caller is not a user thread, or holds another spin lock.
#[inline]
pub fn block(guard: NoPreempt) {
    drop(leave_core(guard, Why::Blocks, None));
}

/// Why a thread leaves its kthread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It waits for something, or ends.
    Blocks,
    /// It lets others run, and is queued.
    Yields,
    /// The core or the time slice was asked back, even if that request is over by now; it is
    /// queued.
    Requested,
}

/// As [`block`], in favour of `first` if there is one, which may run here. Returns the proof for
/// the kthread that resumed the thread.
#[inline]
fn leave_core(guard: NoPreempt, why: Why, first: Option<Runnable>) -> NoPreempt {
    let requested = why == Why::Requested;
    let kthread = guard.kthread().expect("only a user thread can block here");
    let me = kthread.current().expect("the scheduler does not block");
    assert!(
        kthread.head().preempt_depth() == 1,
        "a user thread blocked while it held a spin lock or in no_preempt"
    );
    let serving = if requested { None } else { me.serving.get() };
    if let Some(serving) = serving {
        serving.blocked();
    }
    let traced = me.carried.is_some();
    if traced {
        trace::leaves(kthread, me, requested || kthread.yield_requested());
    }
    if let Some((rsp, fs)) = next_context(kthread, me, why, first) {
        let (save, released) = me.leave_slots();
        // SAFETY: `next_context` gives this kthread the right to resume the context; preemption is
        // off; `me` lives as long as the process.
        unsafe { arch::switch(save, rsp, released, fs) };
    }
    // The guard stands for the count of the kthread that resumed the thread from here on.
    if traced {
        trace::returns(&guard, me);
    }
    if let Some(serving) = serving {
        serving.unblocked();
    }
    guard
}

/// Chooses what runs after `me` on this kthread, and makes it current: `first`, else the next local
/// thread, or the scheduler if something else wants attention. Returns its stack pointer and FS
/// base, of which the caller has the one right to resume it, or `None` if that is `me`.
///
/// Inlined, so that a blocked thread comes back through one call less: each that the switch returns
/// through is mispredicted, unless the last thread blocked in the same place.
#[inline(always)]
pub fn next_context(
    kthread: ThisKthread<'_>,
    me: &'static Uthread,
    why: Why,
    first: Option<Runnable>,
) -> Option<(usize, usize)> {
    let private = kthread.private();
    let next = match first {
        Some(first) => Some(first),
        None if wants_scheduler(kthread) => None,
        None => private.runq.pop(),
    };
    match next {
        Some(next) if core::ptr::eq(next.thread(), me) => None,
        Some(next) => {
            prefetch_ahead(&private.runq);
            private.switch_budget.set(private.switch_budget.get().saturating_sub(1));
            let (left, until) = private.batch.get();
            private.batch.set((left.saturating_sub(1), until));
            kthread.begin_turn();
            let (next, rsp) = next.claim();
            // SAFETY: the caller resumes it.
            unsafe { kthread.set_current(Some(next)) };
            Some((rsp, next.fs()))
        }
        None => {
            private.ran_is_queued.set(why != Why::Blocks);
            // SAFETY: as above. The scheduler context of this kthread waits in `worker::run`, and
            // its block is the OS thread's own.
            unsafe { kthread.set_current(None) };
            Some((private.sched_rsp.get(), kthread.head().own_fs()))
        }
    }
}

/// Has the processor fetch what the thread after the next one uses, if the queue is so long that it
/// has left the cache since it was queued.
#[inline(always)]
fn prefetch_ahead(queue: &Owner<Runnable>) {
    if queue.len() < LONG_QUEUE {
        return;
    }
    if let Some(record) = queue.peek(AHEAD) {
        prefetch_record(record);
        if let Ok(shape) = tls::shape() {
            shape.prefetch(record.wrapping_add(1).cast());
        }
    }
}

/// Returns whether something other than a local thread needs the scheduler.
#[inline]
fn wants_scheduler(kthread: ThisKthread<'_>) -> bool {
    kthread.private().switch_budget.get() == 0
        || kthread.head().cede_requested()
        || (kthread.has_frame() && is_batch_through(kthread))
        || runtime().injected() > 0
        || kthread.has_pinned()
}

/// Returns whether the next frames may be taken: the threads that were queued when the last ones
/// were have run, or have taken too long.
#[inline]
fn is_batch_through(kthread: ThisKthread<'_>) -> bool {
    let (left, until) = kthread.private().batch.get();
    // Thieves may have taken what was queued.
    left == 0 || kthread.runq.is_empty() || clock::now() >= until
}

/// Lets other threads run, then continues. Returns at once if there are none.
pub fn yield_now() {
    let guard = NoPreempt::new();
    let Some(kthread) = guard.kthread() else {
        drop(guard);
        return std::thread::yield_now();
    };
    let me = kthread.current().expect("the scheduler does not yield");
    assert!(
        kthread.head().preempt_depth() == 1,
        "a user thread yielded while it held a spin lock or in no_preempt"
    );
    if is_alone(kthread) && !wants_scheduler(kthread) {
        // Only the scheduler notices timers, and this thread may wait for one that a timer wakes.
        let budget = &kthread.private().switch_budget;
        budget.set(budget.get() - 1);
        kthread.head().note_poll();
        return;
    }
    // SAFETY: 1. it runs here, and `block` suspends it. 2. A running thread has no other.
    ready(unsafe { Runnable::new(me) });
    drop(leave_core(guard, Why::Yields, None));
}

/// Returns whether no other thread is runnable here.
fn is_alone(kthread: ThisKthread<'_>) -> bool {
    kthread.runq.is_empty() && kthread.overflowed() == 0
}

/// Queues the running thread and gives the core up: what a poll point does for the IOKernel and for
/// the quantum. Does nothing if the request is over or preemption is off.
#[cold]
pub fn give_up_core() {
    // A loop: if the end of a proof called this, threads that get a signal before each is resumed
    // would use up their stacks.
    while give_up(NoPreempt::new(), true).end() {}
}

/// As [`give_up_core`], which is also the work of the preempt signal. Returns the proof, which is
/// `guard` or that of the kthread that resumed the thread.
#[cold]
pub fn give_up(guard: NoPreempt, at_poll_point: bool) -> NoPreempt {
    let Some(kthread) = guard.kthread() else { return guard };
    kthread.head().note_poll();
    if kthread.head().preempt_depth() != 1 {
        return guard;
    }
    kthread.head().clear_preempt_pending();
    let Some(me) = kthread.current() else { return guard };
    if kthread.head().counts_polls() {
        quantum::look_at_clock(kthread, me);
    }
    if !kthread.yield_requested() {
        return guard;
    }
    if at_poll_point && !kthread.head().cede_requested() {
        count(&kthread.counters.yields, 1);
    }
    // What waits may be a timer or a frame, which only the scheduler notices.
    kthread.private().switch_budget.set(0);
    // SAFETY: 1. it runs here, and `leave_core` suspends it. 2. A running thread has no other.
    let runnable = unsafe { Runnable::new(me) };
    let queued = match me.serving.get() {
        Some(serving) => serving.preempted(runnable),
        None => Err(runnable),
    };
    if let Err(runnable) = queued {
        ready(runnable);
    }
    leave_core(guard, Why::Requested, None)
}

/// Returns whether another thread is runnable on this kthread, or the scheduler has something to
/// do. False on ordinary threads.
pub fn others_wait() -> bool {
    let guard = NoPreempt::new();
    guard.kthread().is_some_and(|kthread| !is_alone(kthread) || wants_scheduler(kthread))
}

/// What a thread does after it has looked for something to do.
pub enum Choice<T> {
    /// It goes on; the right to resume it is dropped.
    Stay(T),
    /// It is suspended; the right to resume it is kept elsewhere. The other thread runs next on
    /// this kthread, before those that are queued there, unless the core is asked back or the
    /// thread must run elsewhere.
    Leave(Option<Runnable>),
}

/// Suspends the calling user thread, or not: `choose` takes the right to resume it and drops it, or
/// keeps it somewhere. Returns `None` when the thread was suspended and resumes. `choose` runs with
/// preemption off; the process ends if it panics, which would leave a running thread with a second
/// right to resume it.
///
/// # Panics
/// As [`block`].
pub fn suspend_or<T>(choose: impl FnOnce(Runnable) -> Choice<T>) -> Option<T> {
    let guard = NoPreempt::new();
    let kthread = guard.kthread().expect("only a user thread can be suspended");
    let me = kthread.current().expect("the scheduler is not suspended");
    let abort = AbortOnUnwind;
    // SAFETY: 1. it runs here, and `block` suspends it unless the right is dropped; preemption is
    // off until then. 2. A running thread has no other.
    let choice = choose(unsafe { Runnable::new(me) });
    core::mem::forget(abort);
    match choice {
        Choice::Stay(found) => Some(found),
        Choice::Leave(next) => {
            let next = next.and_then(|next| {
                if may_run_here(kthread, &next) {
                    return Some(next);
                }
                ready(next);
                None
            });
            drop(leave_core(guard, Why::Blocks, next));
            None
        }
    }
}

/// Returns whether this kthread may run `next` at once.
#[inline]
fn may_run_here(kthread: ThisKthread<'_>, next: &Runnable) -> bool {
    let thread = next.thread();
    let is_elsewhere = || {
        thread.is_background()
            || thread.is_exclusive()
            || !pinned::may_run_on(&kthread, next)
            || kthread.hosts()
    };
    let must_wait = kthread.head().cede_requested() || runtime().has_classes() && is_elsewhere();
    !must_wait
}

/// Ends the process when it is dropped.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// First function of every user thread.
///
/// # Safety
/// 1. Called by a switch to a stack that `Uthread::prepare` laid out for `record`.
/// 2. The record's entry may be run.
pub unsafe extern "sysv64" fn uthread_main(record: *mut u8) -> ! {
    // SAFETY: the kthread that resumed this thread left its one count to it.
    let guard = unsafe { NoPreempt::adopt() };
    // SAFETY: the record is that of the running thread, and records live as long as the process.
    let me = unsafe { &*record.cast::<Uthread>() };
    if me.carried.is_some() {
        trace::returns(&guard, me);
    }
    drop(guard);
    // SAFETY: this is the thread that runs on the record. Each function is called once, in this
    // order, by point 2.
    let joiner = unsafe {
        let entry = me.take_entry();
        (entry.run)(entry.data);
        me.destructors.run();
        (entry.finish)(entry.data)
    };
    exit(me, joiner)
}

/// Ends the calling thread, for which `joiner` waits. Inlined into the thread's first function: see
/// [`arch::leave_for_good`].
#[inline(always)]
fn exit(me: &'static Uthread, joiner: Option<Runnable>) -> ! {
    let guard = NoPreempt::new();
    let kthread = guard.kthread().expect("user threads run on kthreads");
    if me.carried.is_some() {
        trace::drop_request(me);
    }
    // Queued, it would be taken from the queue next, or another kthread that polls would get it.
    let first = joiner.and_then(|joiner| {
        if is_alone(kthread) && !wants_scheduler(kthread) && may_run_here(kthread, &joiner) {
            return Some(joiner);
        }
        ready(joiner);
        None
    });
    // SAFETY: the thread leaves its stack for good below, with preemption off.
    let stack = unsafe { Stack::reclaim(me) };
    runtime().stacks.give(stack, kthread, &guard);
    let (rsp, fs) = next_context(kthread, me, Why::Blocks, first).expect("a thread that ends is not queued");
    let (_, released) = me.leave_slots();
    // SAFETY: 1. as in `leave_core`. 2. The record outlives the thread, whose stack ends here.
    unsafe { arch::leave_for_good(rsp, released, fs) }
}
