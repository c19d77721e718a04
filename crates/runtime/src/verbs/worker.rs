//! The scheduler of one kthread: what runs next.
//!
//! Owns the main loop and the search for work. If there is none, it turns to [`lease`] (cores lent
//! by an IOKernel) or [`local`] (the process's own OS threads).
//!
//! # Order of work (Shenango section 5)
//! 1. Timers that are due and frames that wait, in bounded batches, since they make threads
//!    runnable.
//! 2. The local run queue, refilled with threads readied from outside and with those that
//!    overflowed.
//! 3. Other kthreads: the one on the sibling hyperthread, then all from a random one on; of each
//!    its threads, frames, timers.
//! 4. A [`background`] thread.
//!
//! The [`host`] of an exclusive thread has its own timers, its own frames and that thread only.
//!
//! A kthread that never runs out of its own work takes that of kthreads without a core, too, every
//! [`ROUND_NS`]: the program may have no other core, and those get none while this one is busy.
//!
//! A thread that blocks switches to the next local thread without visiting the scheduler as long as
//! nothing of the above waits. Frames are an exception: the threads that a batch made runnable run
//! before the next batch is taken, while their connections are in the cache (IX section 3.1), but
//! for at most [`FRAME_DELAY_NS`].

use super::look::lets_take_frames;
use super::{background, hooks, host, lease, local, pinned, rejoin, timers};
use crate::ground::arch;
use crate::ground::guard::NoPreempt;
use crate::ground::runq::{CAPACITY, STEAL_MAX};
use crate::records::ingress::read_older_first;
use crate::records::kthread::{Kthread, NO_CORE, ThisKthread, count};
use crate::records::runtime::{Runtime, runtime};
use crate::records::uthread::Runnable;
use core::sync::atomic::Ordering::Relaxed;
use tailwater_shm::layout::{IN_SCHEDULER, IN_STACK, IN_THREAD};
use tailwater_shm::{Cycles, clock};

/// Direct switches between two visits to the scheduler: bounds how late a timer is noticed.
const SWITCH_BUDGET: u32 = 64;
/// Frames handled in one go (IX section 3: bounded batches keep latency low and locality high).
const FRAME_BATCH: u32 = 32;
/// Time after which waiting frames are looked at again, whatever is left of the last batch: an
/// acknowledgment should not wait for many threads that compute.
const FRAME_DELAY_NS: u64 = 50_000;
/// Time between two looks at kthreads without a core, by one that is busy.
const ROUND_NS: u64 = 1_000_000;
/// Threads moved from an overflow or injection list to a run queue in one go.
const REFILL_BATCH: usize = 64;

/// The main loop of the kthread that `guard` stands for: runs in the scheduler context and never
/// returns.
///
/// # Panics
/// If the caller is a user thread or an ordinary thread.
pub fn run_kthread(guard: &NoPreempt) -> ! {
    let kthread = guard.kthread().expect("the calling OS thread is a kthread");
    assert!(kthread.current().is_none(), "a user thread is not the scheduler");
    let runtime = runtime();
    if runtime.is_attached() {
        lease::wait_for_first_core(kthread, runtime);
    } else {
        local::keep_apart(&kthread, runtime);
    }
    resume_meter(kthread, runtime);
    loop {
        // Before the look: a signal that comes between them has its request seen, or is noted.
        kthread.head().clear_preempt_pending();
        if kthread.head().cede_requested() {
            give_way(kthread, runtime);
        }
        if let Some(runnable) = find_work(kthread, runtime, guard) {
            run(kthread, runnable, SWITCH_BUDGET);
        } else if background::run_next(kthread, runtime, |runnable| run(kthread, runnable, 0)) {
            resume_meter(kthread, runtime);
        } else if let Some(runnable) =
            idle(kthread, runtime).and_then(|runnable| host::admit(kthread, runtime, runnable))
        {
            run(kthread, runnable, SWITCH_BUDGET);
        }
    }
}

/// Leaves the core, and returns with another one, or when the gate is open.
fn give_way(kthread: ThisKthread<'_>, runtime: &Runtime) {
    if runtime.measures() {
        let queued = (!kthread.hosts()).then(|| kthread.waiting());
        kthread.meter_visit(clock::now(), queued);
    }
    kthread.meter.pause();
    host::release(kthread, runtime);
    if runtime.is_attached() {
        lease::cede(kthread, runtime);
    } else {
        rejoin::stop(kthread, runtime);
    }
    resume_meter(kthread, runtime);
}

/// Begins to count the time that follows; where nothing measures, from the first look on.
fn resume_meter(kthread: ThisKthread<'_>, runtime: &Runtime) {
    kthread.meter.resume(runtime.measures().then(clock::now));
}

/// Waits for work, with or without a core. Returns the thread that was handed over, if one was.
fn idle(kthread: ThisKthread<'_>, runtime: &Runtime) -> Option<Runnable> {
    kthread.meter.pause();
    let found =
        if runtime.is_attached() { lease::idle(kthread, runtime) } else { local::idle(kthread, runtime) };
    resume_meter(kthread, runtime);
    found
}

/// Runs a thread until it, or one that it switched to, switches back to the scheduler. `budget` is
/// the number of direct switches until that.
fn run(kthread: ThisKthread<'_>, runnable: Runnable, budget: u32) {
    let private = kthread.private();
    private.switch_budget.set(budget);
    kthread.begin_turn();
    let (uthread, rsp) = runnable.claim();
    kthread.note_doing(IN_THREAD);
    // SAFETY: `claim` gave this kthread the right to resume the thread; preemption is off; the save
    // slots are this kthread's.
    unsafe {
        kthread.set_current(Some(uthread));
        arch::switch(private.sched_rsp.as_ptr(), rsp, private.unused_flag.as_ptr(), uthread.fs());
    }
    kthread.note_doing(IN_SCHEDULER);
}

fn find_work(kthread: ThisKthread<'_>, runtime: &Runtime, guard: &NoPreempt) -> Option<Runnable> {
    let now = clock::now();
    timers::fire(&kthread, now);
    count(&kthread.counters.frames, poll_ingress(&kthread, kthread, guard));
    if kthread.hosts() {
        let own = host::next(kthread, runtime, now);
        meter_visit(kthread, runtime, now, None);
        if own.is_some() || kthread.hosts() {
            return own;
        }
    }
    if let Some(exclusive) = refill(kthread, runtime) {
        meter_visit(kthread, runtime, now, Some(kthread.waiting()));
        return host::admit(kthread, runtime, exclusive);
    }
    let private = kthread.private();
    if now >= private.next_round.get() {
        private.next_round.set(now.saturating_add(runtime.clock.from_ns(ROUND_NS)));
        take_from_coreless(kthread, runtime, guard, now);
    }
    let found = pinned::next(kthread).or_else(|| private.runq.pop());
    let until = now.saturating_add(runtime.clock.from_ns(FRAME_DELAY_NS));
    let left = private.runq.len();
    if left > 0 {
        lease::report_surplus(runtime);
    }
    private.batch.set((left.min(FRAME_BATCH), until));
    let queued = kthread.waiting() + u32::from(found.is_some());
    meter_visit(kthread, runtime, now, Some(queued));
    found.or_else(|| steal(kthread, runtime, guard, now))
}

/// Ends a slice of the meter, if the program measures: see [`ThisKthread::meter_visit`].
fn meter_visit(kthread: ThisKthread<'_>, runtime: &Runtime, now: Cycles, queued: Option<u32>) {
    if runtime.measures() {
        kthread.meter_visit(now, queued);
    }
}

fn steal(kthread: ThisKthread<'_>, runtime: &Runtime, guard: &NoPreempt, now: Cycles) -> Option<Runnable> {
    let n = runtime.kthreads.len();
    if n == 1 {
        return None;
    }
    let private = kthread.private();
    let start = private.random.below(n);
    let sibling = runtime.sibling_of(&kthread);
    for victim in sibling.into_iter().chain((0..n).map(|i| runtime.kthreads[(start + i) % n])) {
        if victim.index == kthread.index {
            continue;
        }
        if let Some((runnable, taken)) = victim.runq.steal_into(&private.runq) {
            count(&kthread.counters.stolen_threads, taken as u64);
            if taken > 1 {
                // There is work for a third kthread.
                local::work_added(runtime);
            }
            local::watch_timers(runtime);
            return Some(runnable);
        }
        if lets_take_frames(victim, runtime) {
            count(&kthread.counters.stolen_frames, poll_ingress(victim, kthread, guard));
        }
        count(&kthread.counters.stolen_timers, timers::fire(victim, now));
        take_overflow(victim, kthread, runtime);
        if let Some(runnable) = private.runq.pop() {
            local::watch_timers(runtime);
            return Some(runnable);
        }
    }
    None
}

/// Handles a batch of frames from `from`'s ring on kthread `on`; returns how many. Where flows have
/// moved to this ring while frames of theirs waited in another one, that one is read first, so that
/// they stay in order (IX section 4.5): as much of it as a batch, and this ring at the next visit.
/// Kthreads whose frames may not be taken otherwise are no exception: their flows have moved here.
fn poll_ingress(from: &Kthread, on: ThisKthread<'_>, guard: &NoPreempt) -> u64 {
    if !from.has_frame() {
        return 0;
    }
    let Some(network) = hooks::network() else { return 0 };
    on.note_doing(IN_STACK);
    let kthreads = &runtime().kthreads;
    let handled = read_older_first(from.index, kthreads.len(), |ring| {
        let ingress = kthreads[usize::from(ring)].ingress.as_ref()?;
        ingress.try_with(guard, |consumer| (network.take_frames)(consumer, ring, FRAME_BATCH.into()))
    });
    on.note_doing(IN_SCHEDULER);
    handled
}

/// Handles a batch of frames of the kthread that the calling user thread runs on; returns true if
/// there were any. Otherwise the thread would block, and the scheduler take the frames and resume
/// it. Does nothing if the scheduler has something else to do, or was not visited for long.
#[cfg(feature = "tcp")]
pub fn take_frames_here() -> bool {
    let guard = NoPreempt::new();
    let Some(kthread) = guard.kthread().filter(|kthread| kthread.has_frame()) else { return false };
    let (private, head) = (kthread.private(), kthread.head());
    let budget = private.switch_budget.get();
    let others = kthread.waiting() > 0 || runtime().injected() > 0;
    if budget == 0 || others || head.cede_requested() || kthread.current().is_none() {
        return false;
    }
    private.switch_budget.set(budget - 1);
    let handled = poll_ingress(&kthread, kthread, &guard);
    kthread.note_doing(IN_THREAD);
    count(&kthread.counters.frames, handled);
    handled > 0
}

/// Takes frames, timers and threads of kthreads that have no core, or run an exclusive thread.
fn take_from_coreless(kthread: ThisKthread<'_>, runtime: &Runtime, guard: &NoPreempt, now: Cycles) {
    let lent = runtime.is_attached();
    if !lent && !runtime.exclusive.is_used() {
        return;
    }
    let private = kthread.private();
    // The caller's own is so marked while the program loses its IOKernel.
    let is_absent = |other: &&&Kthread| {
        let leaves_work = (lent && other.core.load(Relaxed) == NO_CORE) || other.hosts();
        leaves_work && other.index != kthread.index
    };
    for other in runtime.kthreads.iter().filter(is_absent) {
        count(&kthread.counters.stolen_frames, poll_ingress(other, kthread, guard));
        count(&kthread.counters.stolen_timers, timers::fire(other, now));
        take_overflow(other, kthread, runtime);
        // There is room for all that one steal takes.
        if private.runq.len() as usize <= CAPACITY - STEAL_MAX
            && let Some((runnable, taken)) = other.runq.steal_into(&private.runq)
        {
            count(&kthread.counters.stolen_threads, taken as u64);
            private.runq.push(runnable).expect("there is room");
        }
    }
}

/// Moves threads that were injected, or that overflowed, to the run queue. If the first injected
/// one is an exclusive thread, that one is returned.
fn refill(kthread: ThisKthread<'_>, runtime: &Runtime) -> Option<Runnable> {
    if runtime.injected() > 0 {
        if let Some(exclusive) = runtime.take_exclusive() {
            return Some(exclusive);
        }
        runtime.take_injected(REFILL_BATCH, |runnable| kthread.private().runq.push(runnable));
        local::watch_timers(runtime);
    }
    take_overflow(&kthread, kthread, runtime);
    None
}

/// Moves threads from `from`'s overflow list to `to`'s run queue.
fn take_overflow(from: &Kthread, to: ThisKthread<'_>, runtime: &Runtime) {
    if from.overflowed() == 0 {
        return;
    }
    let Some(mut overflow) = from.overflow.try_lock() else { return };
    if runtime.exclusive.is_used() && !host::sort_out(from, &mut overflow, runtime) {
        return;
    }
    for _ in 0..REFILL_BATCH {
        let Some(runnable) = overflow.pop_front() else { break };
        if let Err(runnable) = to.private().runq.push(runnable) {
            overflow.push_front(runnable);
            break;
        }
    }
    from.publish_overflow(overflow.len());
}
