//! The scheduler of one kthread: what runs next, and how control moves there.
//!
//! Owns the switch between user threads and the scheduler context (the OS thread's own stack), the search for work, and the
//! queues' entry points ([`ready`], [`block`], [`arm`]). When there is nothing to do it turns to [`lease`] (cores
//! lent by an IOKernel) or [`local`] (own OS threads).
//!
//! # Invariants
//! * Preemption is off in the scheduler and across every switch: a context is always left and entered with a depth of 1.
//! * A user thread is in at most one place: running, in one queue, or on one wait list.
//! * A thread may be queued before it has left its stack; who resumes it waits in [`Uthread::claim`].
//!
//! # Order of work (Shenango section 5)
//! Timers due and packets waiting first, in bounded batches, since they make threads runnable; then the local run queue;
//! then threads readied from outside; then other kthreads: the one on the sibling hyperthread, a random one, all in turn, and
//! of each its threads, its packets, its timers. A thread that blocks switches to the next local thread without
//! visiting the scheduler as long as nothing of the above waits.
//!
//! Frames are an exception: those that a batch made runnable run before the next batch is taken, while their connections are in the
//! cache (IX section 3.1), but not for longer than [`FRAME_DELAY_NS`]. Run queue and overflow list are one queue, first in, first out.

use crate::arch;
use crate::handover::offer;
use crate::kthread::{Kthread, NO_CORE, NoPreempt, count};
use crate::net;
use crate::runtime::{Runtime, runtime};
use crate::stack::Stack;
use crate::timer::TimerNode;
use crate::trace;
use crate::uthread::Uthread;
use crate::{lease, local};
use core::sync::atomic::Ordering::Relaxed;
use tailwater_shm::Cycles;
use tailwater_shm::clock;
use tailwater_shm::trace::FLAG_TRACED;

/// Direct switches between two visits to the scheduler: bounds how late a timer is noticed.
const SWITCH_BUDGET: u32 = 64;
/// Frames handled in one go (IX section 3: bounded batches keep latency low and locality high).
const FRAME_BATCH: usize = 32;
/// Frames that wait are looked at again after so long, whatever is left of the last batch: an acknowledgment should not wait for many
/// threads that compute.
const FRAME_DELAY_NS: u64 = 50_000;
/// Timers fired in one go.
const TIMER_BATCH: usize = 64;
/// Threads moved from an overflow or injection list to a run queue in one go.
const REFILL_BATCH: usize = 64;

/// Makes `uthread` runnable: on the caller's kthread, or through the injection list from an ordinary thread.
#[inline]
pub fn ready(uthread: &'static Uthread) {
    let guard = NoPreempt::new();
    let runtime = runtime();
    let Some(kthread) = guard.kthread() else {
        return runtime.inject(uthread);
    };
    if hand_over(kthread, runtime, uthread) {
        return;
    }
    if let Err(uthread) = enqueue(kthread, uthread) {
        let mut overflow = kthread.overflow.lock();
        overflow.push_back(uthread);
        publish_overflow(kthread, overflow.len());
    }
    local::work_added(runtime);
}

/// Appends to the run queue, unless it is full or others that found it full wait for room: those came first.
#[inline]
fn enqueue(kthread: &Kthread, uthread: &'static Uthread) -> Result<(), &'static Uthread> {
    // Relaxed: this kthread's own threads write it, and whoever takes from the list meanwhile only makes it less.
    if kthread.shared.status.overflow.load(Relaxed) > 0 {
        return Err(uthread);
    }
    kthread.runq.push(uthread)
}

/// Makes all `uthreads` runnable, as [`ready`] does with one: those that the run queue does not take overflow under one lock.
pub fn ready_all(uthreads: impl Iterator<Item = &'static Uthread>) {
    let guard = NoPreempt::new();
    let Some(kthread) = guard.kthread() else {
        return uthreads.for_each(|uthread| runtime().inject(uthread));
    };
    let runtime = runtime();
    let mut left = uthreads
        .skip_while(|uthread| hand_over(kthread, runtime, uthread) || enqueue(kthread, uthread).is_ok());
    if let Some(first) = left.next() {
        let mut overflow = kthread.overflow.lock();
        overflow.push_back(first);
        overflow.extend(left);
        publish_overflow(kthread, overflow.len());
    }
    local::work_added(runtime);
}

/// Gives `uthread` to a kthread that polls; false if none does, or this one would run it at once.
#[inline]
fn hand_over(kthread: &Kthread, runtime: &Runtime, uthread: &'static Uthread) -> bool {
    runtime.kthreads.len() > 1
        && !runtime.pollers.is_empty()
        && !turns_to_it_now(kthread)
        && offer(runtime, Some(kthread), uthread)
}

/// Whether what is queued here is what this kthread runs next: it is in the scheduler, and nothing else is queued.
fn turns_to_it_now(kthread: &Kthread) -> bool {
    kthread.current().is_none() && kthread.runq.is_empty()
}

fn publish_overflow(kthread: &Kthread, len: usize) {
    kthread.shared.status.overflow.store(len as u32, Relaxed);
}

/// Gives the core to somebody else until this thread is made runnable. The caller has queued or listed the thread, and
/// hands over its one preemption-off proof.
///
/// # Panics
/// If the caller is not a user thread, or holds another spin lock.
#[inline]
pub fn block(guard: NoPreempt) {
    leave_core(guard, false);
}

/// As [`block`]; `gives_up` because the core or the time slice was asked back, which may have been answered already.
#[inline]
fn leave_core(guard: NoPreempt, gives_up: bool) {
    let kthread = guard.kthread().expect("only a user thread can block here");
    let me = kthread.current().expect("the scheduler does not block");
    assert!(kthread.preempt_depth() == 1, "a user thread blocked while it held a spin lock");
    let traced = me.carried.is_some();
    if traced {
        trace::leaves(kthread, me, gives_up || kthread.asked_to_yield());
    }
    leave(kthread, me);
    // From here on possibly on another kthread, whose count the guard now stands for.
    if traced {
        trace::returns(&guard, me);
    }
    drop(guard);
}

/// Switches away from `me`, directly to the next local thread if nothing else wants attention.
#[inline]
fn leave(kthread: &Kthread, me: &'static Uthread) {
    let next = if wants_scheduler(kthread) { None } else { kthread.runq.pop() };
    let (save, released) = me.leave_slots();
    match next {
        Some(next) if core::ptr::eq(next, me) => {}
        Some(next) => {
            kthread.switch_budget.set(kthread.switch_budget.get() - 1);
            let (left, until) = kthread.batch.get();
            kthread.batch.set((left.saturating_sub(1), until));
            count(&kthread.counters.switches, 1);
            let rsp = next.claim();
            kthread.set_current(Some(next));
            // SAFETY: `claim` made `next` ours to resume, `fs` is its block, preemption is off, `me` lives for ever.
            unsafe { arch::switch(save, rsp, released, next.fs) };
        }
        None => {
            kthread.set_current(None);
            // SAFETY: the scheduler context of this kthread waits in `run`; its block is the OS thread's own.
            unsafe { arch::switch(save, kthread.sched_rsp.get(), released, kthread.own_fs()) };
        }
    }
}

/// Whether something other than a local thread waits.
#[inline]
fn wants_scheduler(kthread: &Kthread) -> bool {
    kthread.switch_budget.get() == 0
        || kthread.asked_to_cede()
        || (kthread.has_frame() && is_batch_through(kthread))
        || runtime().injected() > 0
}

/// Whether the next frames may be taken: the threads that were queued when the last were have run, or have taken too long.
#[inline]
fn is_batch_through(kthread: &Kthread) -> bool {
    let (left, until) = kthread.batch.get();
    // Others may have taken what was queued.
    left == 0 || kthread.runq.is_empty() || clock::now() >= until
}

/// Lets other threads run, then continues. Returns at once when there are none.
pub fn yield_now() {
    let guard = NoPreempt::new();
    let Some(kthread) = guard.kthread() else {
        drop(guard);
        return std::thread::yield_now();
    };
    let me = kthread.current().expect("the scheduler does not yield");
    assert!(kthread.preempt_depth() == 1, "a user thread yielded while it held a spin lock");
    if is_alone(kthread) && !wants_scheduler(kthread) {
        // Only the scheduler notices timers, and this thread may wait for whom one wakes.
        kthread.switch_budget.set(kthread.switch_budget.get() - 1);
        kthread.answer();
        return;
    }
    ready(me);
    block(guard);
}

/// Whether no other thread is runnable here.
fn is_alone(kthread: &Kthread) -> bool {
    // Relaxed: as in `enqueue`.
    kthread.runq.is_empty() && kthread.shared.status.overflow.load(Relaxed) == 0
}

/// The poll point's slow path and the preempt signal's work: queues the running thread and gives the core up. Does nothing when
/// the request is gone or preemption is off.
#[cold]
pub fn give_up_core() {
    let guard = NoPreempt::new();
    let Some(kthread) = guard.kthread() else { return };
    kthread.answer();
    if kthread.preempt_depth() != 1 || !kthread.asked_to_yield() {
        return;
    }
    let Some(me) = kthread.current() else { return };
    kthread.set_turn_over(false);
    // What waits may be a timer or a frame, which only the scheduler notices.
    kthread.switch_budget.set(0);
    ready(me);
    leave_core(guard, true);
}

/// First function of every user thread.
pub extern "sysv64" fn uthread_main(record: *mut u8) -> ! {
    // SAFETY: the kthread that resumed us left its one count to us.
    let guard = unsafe { NoPreempt::adopt() };
    // SAFETY: the record is that of the running thread (`Uthread::prepare`), and records live for ever.
    let me = unsafe { &*record.cast::<Uthread>() };
    if me.carried.is_some() {
        trace::returns(&guard, me);
    }
    drop(guard);
    let entry = me.take_entry();
    // SAFETY: `entry` is what the creator prepared; each function is called once, in this order.
    unsafe {
        (entry.run)(entry.data);
        me.destructors.run();
        (entry.finish)(entry.data);
    }
    exit(me)
}

fn exit(me: &'static Uthread) -> ! {
    let guard = NoPreempt::new();
    let kthread = guard.kthread().expect("user threads run on kthreads");
    if me.carried.is_some() {
        trace::drop_request(me);
    }
    // SAFETY: the thread is about to leave its stack for good, with preemption off.
    runtime().stacks.give(unsafe { Stack::reclaim(me) }, kthread, &guard);
    leave(kthread, me);
    unreachable!("a thread that has ended was resumed");
}

/// Starts the timer `node` on the caller's kthread.
///
/// # Safety
/// The node stays where it is until [`disarm`] has been called with the returned kthread.
pub unsafe fn arm(guard: &NoPreempt, node: &TimerNode, deadline: Cycles) -> &'static Kthread {
    let kthread = runtime().kthreads[guard.kthread().expect("user threads run on kthreads").index as usize];
    let mut timers = kthread.timers.lock();
    // SAFETY: by the caller's contract.
    unsafe { timers.insert(node, deadline) };
    kthread.shared.status.next_timer.store(timers.next(), Relaxed);
    kthread
}

/// Stops the timer `node` if it has not fired; when this returns nobody will touch the node again.
pub fn disarm(kthread: &'static Kthread, node: &TimerNode) {
    let mut timers = kthread.timers.lock();
    if timers.remove(node) {
        kthread.shared.status.next_timer.store(timers.next(), Relaxed);
    }
}

fn fire_timers(kthread: &Kthread, now: Cycles) {
    if kthread.shared.status.next_timer.load(Relaxed) > now {
        return;
    }
    if let Some(mut timers) = kthread.timers.try_lock() {
        timers.fire_due(now, TIMER_BATCH);
        kthread.shared.status.next_timer.store(timers.next(), Relaxed);
    }
}

/// Handles a batch of frames from `from`'s ring; returns how many.
fn poll_ingress(from: &Kthread, guard: &NoPreempt) -> u64 {
    let Some(ingress) = from.ingress.as_ref().filter(|i| i.has_record()) else { return 0 };
    ingress
        .try_with(guard, |consumer| {
            let mut frames = 0;
            let mut batch = net::Batch::default();
            while frames < FRAME_BATCH as u64 {
                let record = match consumer.peek() {
                    Ok(Some(record)) => record,
                    Ok(None) => break,
                    Err(lie) => panic!("the IOKernel broke the ring protocol: {lie}"),
                };
                // SAFETY: the IOKernel, which this process attached to and trusts, writes no record before it is freed; the
                // record is the latest peeked.
                let frame = unsafe { consumer.frame(&record) };
                if record.flags & FLAG_TRACED == 0 {
                    batch.input(frame, record.flags);
                } else {
                    batch.input_traced(frame, record.flags, trace::taken(record.hash, from.index, frame));
                }
                consumer.advance(&record);
                frames += 1;
            }
            consumer.publish();
            drop(batch);
            frames
        })
        .unwrap_or(0)
}

/// Moves threads readied from outside, or that overflowed, to the run queue.
fn refill(kthread: &Kthread, runtime: &Runtime) {
    if runtime.injected() > 0 {
        runtime.take_injected(REFILL_BATCH, |uthread| kthread.runq.push(uthread).is_ok());
    }
    take_overflow(kthread, kthread);
}

/// Moves threads from `from`'s overflow list to `to`'s run queue.
fn take_overflow(from: &Kthread, to: &Kthread) {
    if from.shared.status.overflow.load(Relaxed) == 0 {
        return;
    }
    let Some(mut overflow) = from.overflow.try_lock() else { return };
    for _ in 0..REFILL_BATCH {
        let Some(uthread) = overflow.pop_front() else { break };
        if let Err(uthread) = to.runq.push(uthread) {
            overflow.push_front(uthread);
            break;
        }
    }
    publish_overflow(from, overflow.len());
}

/// The kthread's main loop: runs in the scheduler context and never returns.
pub fn run_kthread(kthread: &'static Kthread) -> ! {
    // SAFETY: the kthread was made with a count of 1, which stands for the scheduler.
    let guard = unsafe { NoPreempt::adopt() };
    let runtime = runtime();
    if runtime.is_attached() {
        lease::wait_for_first_core(kthread, runtime);
    } else {
        local::keep_apart(kthread, runtime);
    }
    loop {
        if kthread.asked_to_cede() {
            lease::cede(kthread, runtime);
        }
        kthread.set_preempt_pending(false);
        let found = find_work(kthread, runtime, &guard).or_else(|| {
            if runtime.is_attached() { lease::idle(kthread, runtime) } else { local::idle(kthread, runtime) }
        });
        if let Some(uthread) = found {
            run(kthread, uthread);
        }
    }
}

fn run(kthread: &Kthread, uthread: &'static Uthread) {
    kthread.switch_budget.set(SWITCH_BUDGET);
    count(&kthread.counters.switches, 1);
    let rsp = uthread.claim();
    kthread.set_current(Some(uthread));
    // SAFETY: `claim` made the thread ours to resume; preemption is off; the save slots are this kthread's.
    unsafe { arch::switch(kthread.sched_rsp.as_ptr(), rsp, kthread.unused_flag.as_ptr(), uthread.fs) };
}

fn find_work(kthread: &Kthread, runtime: &Runtime, guard: &NoPreempt) -> Option<&'static Uthread> {
    let now = clock::now();
    fire_timers(kthread, now);
    count(&kthread.counters.frames, poll_ingress(kthread, guard));
    refill(kthread, runtime);
    let found = kthread.runq.pop();
    let until = now.saturating_add(runtime.clock.from_ns(FRAME_DELAY_NS));
    kthread.batch.set((kthread.runq.len().min(FRAME_BATCH as u32), until));
    found.or_else(|| steal(kthread, runtime, guard, now))
}

fn steal(kthread: &Kthread, runtime: &Runtime, guard: &NoPreempt, now: Cycles) -> Option<&'static Uthread> {
    let n = runtime.kthreads.len();
    if n == 1 {
        return None;
    }
    let start = kthread.random.below(n);
    let sibling = runtime.sibling_of(kthread);
    for victim in sibling.into_iter().chain((0..n).map(|i| runtime.kthreads[(start + i) % n])) {
        if victim.index == kthread.index {
            continue;
        }
        if let Some((uthread, taken)) = victim.runq.steal_into(&kthread.runq) {
            count(&kthread.counters.stolen_threads, taken as u64);
            if taken > 1 {
                // There is work for a third.
                local::work_added(runtime);
            }
            return Some(uthread);
        }
        if lets_take_frames(victim, runtime) {
            let frames = poll_ingress(victim, guard);
            count(&kthread.counters.stolen_frames, frames);
        }
        fire_timers(victim, now);
        take_overflow(victim, kthread);
        if let Some(uthread) = kthread.runq.pop() {
            return Some(uthread);
        }
    }
    None
}

/// Whether there is anything this kthread could do: what an idle kthread polls.
pub fn work_visible(kthread: &Kthread, runtime: &Runtime, now: Cycles) -> bool {
    waits_for(kthread, runtime, now)
        || (runtime.kthreads.len() > 1 && runtime.kthreads.iter().any(|k| has_stealable(k, runtime, now)))
}

/// Whether others may handle the frames in this kthread's ring: unless that is turned off; and where the kthread has no core,
/// always, for it may not get one while others idle.
fn lets_take_frames(kthread: &Kthread, runtime: &Runtime) -> bool {
    runtime.steals_packets || kthread.core.load(Relaxed) == NO_CORE
}

/// Whether something waits that this kthread would turn to by itself, before it looked at others.
pub fn waits_for(kthread: &Kthread, runtime: &Runtime, now: Cycles) -> bool {
    has_work(kthread, now) || runtime.injected() > 0
}

fn has_work(kthread: &Kthread, now: Cycles) -> bool {
    kthread.has_frame() || has_threads(kthread, now)
}

fn has_stealable(kthread: &Kthread, runtime: &Runtime, now: Cycles) -> bool {
    (kthread.has_frame() && lets_take_frames(kthread, runtime)) || has_threads(kthread, now)
}

/// Whether user threads are runnable, or become so by a timer that is due.
fn has_threads(kthread: &Kthread, now: Cycles) -> bool {
    !kthread.runq.is_empty()
        || kthread.shared.status.overflow.load(Relaxed) > 0
        || kthread.shared.status.next_timer.load(Relaxed) <= now
}
