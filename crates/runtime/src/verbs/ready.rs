//! Makes threads runnable.
//!
//! A thread goes to a kthread that polls, else to the caller's run queue, else to its overflow
//! list. Run queue and overflow list are one queue, first in, first out. Ordinary threads have no
//! run queue and use the injection list. Background threads have a queue of their own. An exclusive
//! thread goes to its host; on a [`host`](super::host) no other thread is queued. A
//! [pinned](super::pinned) thread goes to the kthread that has its core.

use super::{handover, hooks, local, pinned};
use crate::ground::guard::NoPreempt;
use crate::records::kthread::ThisKthread;
use crate::records::runtime::{Runtime, runtime};
use crate::records::uthread::Runnable;

/// Makes a thread runnable.
#[inline]
pub fn ready(runnable: Runnable) {
    let guard = NoPreempt::new();
    let runtime = runtime();
    let kthread = guard.kthread();
    let Err(runnable) = queue_by_class(kthread, runtime, runnable) else { return };
    let Some(kthread) = kthread else { return inject(runtime, runnable) };
    let Err(runnable) = hand_over(kthread, runtime, runnable) else { return };
    if let Err(runnable) = enqueue(kthread, runnable) {
        let mut overflow = kthread.overflow.lock();
        overflow.push_back(runnable);
        kthread.publish_overflow(overflow.len());
    }
    local::work_added(runtime);
}

/// Makes all `runnables` runnable, as [`ready`] does with one. Those that the run queue does not
/// take overflow under one lock.
pub fn ready_all(runnables: impl Iterator<Item = Runnable>) {
    let guard = NoPreempt::new();
    // Without any there may be no runtime either.
    let kthread = guard.kthread();
    let mut runnables = runnables.filter_map(|runnable| queue_by_class(kthread, runtime(), runnable).err());
    let Some(kthread) = kthread else {
        return runnables.for_each(|runnable| inject(runtime(), runnable));
    };
    let runtime = runtime();
    let place =
        |runnable| hand_over(kthread, runtime, runnable).or_else(|runnable| enqueue(kthread, runnable));
    while let Some(runnable) = runnables.next() {
        if let Err(first) = place(runnable) {
            let mut overflow = kthread.overflow.lock();
            overflow.push_back(first);
            overflow.extend(runnables);
            kthread.publish_overflow(overflow.len());
            break;
        }
    }
    local::work_added(runtime);
}

/// Makes a thread runnable, on any kthread. It is no background thread.
pub fn inject(runtime: &Runtime, runnable: Runnable) {
    if let Err(runnable) = offer_to_any(runtime, runnable) {
        runtime.push_injected(runnable);
        announce_injected(runtime);
    }
}

/// As [`inject`], before all threads that were injected already.
pub fn inject_first(runtime: &Runtime, runnable: Runnable) {
    if let Err(runnable) = offer_to_any(runtime, runnable) {
        runtime.push_injected_first(runnable);
        announce_injected(runtime);
    }
}

fn offer_to_any(runtime: &Runtime, runnable: Runnable) -> Result<(), Runnable> {
    if runtime.pollers.is_empty() { Err(runnable) } else { handover::offer(runtime, None, runnable) }
}

/// Has a kthread look at the injection list.
pub fn announce_injected(runtime: &Runtime) {
    if runtime.is_attached() {
        runtime.ring_doorbell();
        // After the doorbell's fence: if the IOKernel is lost later than this, `orphan` wakes the
        // kthreads, and they find the thread.
        if runtime.is_attached() {
            return;
        }
    }
    local::work_injected(runtime);
}

/// Queues a background thread, an exclusive thread, a pinned one whose core the program has, and
/// any thread where the caller's kthread is a host; returns all others.
#[inline]
pub fn queue_by_class(
    kthread: Option<ThisKthread<'_>>,
    runtime: &Runtime,
    runnable: Runnable,
) -> Result<(), Runnable> {
    if !runtime.has_classes() {
        return Err(runnable);
    }
    let thread = runnable.thread();
    if thread.is_background() {
        queue_in_background(runtime, runnable);
    } else if thread.is_exclusive() {
        queue_exclusive(kthread, runtime, runnable);
    } else if thread.pinned().is_some() {
        let Err(unpinned) = pinned::queue(kthread, runtime, runnable) else { return Ok(()) };
        return queue_on_host(kthread, runtime, unpinned);
    } else {
        return queue_on_host(kthread, runtime, runnable);
    }
    Ok(())
}

/// Queues any thread where the caller's kthread is a host; returns it otherwise.
fn queue_on_host(
    kthread: Option<ThisKthread<'_>>,
    runtime: &Runtime,
    runnable: Runnable,
) -> Result<(), Runnable> {
    if kthread.is_none_or(|kthread| !kthread.hosts()) {
        return Err(runnable);
    }
    inject(runtime, runnable);
    Ok(())
}

/// Queues an exclusive thread: at its host, else for the next kthread that visits its scheduler.
#[cold]
fn queue_exclusive(kthread: Option<ThisKthread<'_>>, runtime: &Runtime, runnable: Runnable) {
    let Some(index) = runnable.thread().host() else { return inject_first(runtime, runnable) };
    if let Some(kthread) = kthread.filter(|kthread| kthread.index == index && kthread.hosts()) {
        kthread.private().own.replace(Some(runnable));
        return;
    }
    let host = runtime.kthreads[usize::from(index)];
    let Err(runnable) = handover::offer_to(host, runnable) else { return };
    // The caller may hold the lock of another list.
    let Some(mut overflow) = host.overflow.try_lock().filter(|_| host.hosts()) else {
        return inject_first(runtime, runnable);
    };
    overflow.push_back(runnable);
    host.publish_overflow(overflow.len());
    drop(overflow);
    // The host may have become an ordinary kthread, and sleep.
    announce_injected(runtime);
}

/// Queues a background thread, for a kthread that idles or will.
#[cold]
fn queue_in_background(runtime: &Runtime, runnable: Runnable) {
    let keeper_rests = runtime.background.push(runnable);
    if !runtime.is_attached() {
        local::work_injected(runtime);
    }
    if keeper_rests {
        hooks::rouse_keeper();
    }
}

/// Appends to the run queue. Returns the thread if the queue is full, or if others that found it
/// full still wait for room: those came first.
#[inline]
fn enqueue(kthread: ThisKthread<'_>, runnable: Runnable) -> Result<(), Runnable> {
    // Other kthreads take from the overflow list meanwhile, or add a thread that is placed here
    // (`place`): one that is added now and one that is queued now are in no order.
    if kthread.overflowed() > 0 {
        return Err(runnable);
    }
    kthread.private().runq.push(runnable)
}

/// Gives a thread to a kthread that polls; returns it if none does, or if this one would run it
/// next anyway.
#[inline]
fn hand_over(kthread: ThisKthread<'_>, runtime: &Runtime, runnable: Runnable) -> Result<(), Runnable> {
    if runtime.kthreads.len() > 1 && !runtime.pollers.is_empty() && !turns_to_it_now(kthread) {
        handover::offer(runtime, Some(kthread.index), runnable)
    } else {
        Err(runnable)
    }
}

/// Returns whether this kthread runs what is queued here next: it is in the scheduler, and the run
/// queue is empty.
fn turns_to_it_now(kthread: ThisKthread<'_>) -> bool {
    kthread.current().is_none() && kthread.runq.is_empty()
}
