//! Hosts: kthreads that run one exclusive thread and no other thread.
//!
//! Owns how a kthread becomes the host of an exclusive thread, what it runs as a host, and how it
//! becomes an ordinary kthread again. How an exclusive thread that wakes reaches its host is in
//! [`ready`](super::ready).
//!
//! * A kthread that takes an exclusive thread becomes its host: the threads that are queued there
//!   move to the injection list, from which other kthreads take them. A thread that is made
//!   runnable on a host goes to another kthread that polls, or to the injection list.
//! * A host takes no thread from others, announces no mailbox, and runs no background thread. Other
//!   kthreads take its frames, and fire its timers, while its thread computes.
//! * While its thread waits, a host polls, for the idle timeout at most. Before it gives its core
//!   up it becomes an ordinary kthread ([`release`]): no kthread without a core is a host, unless
//!   the IOKernel has ended.
//! * A host that is the only kthread with a core shares it: when its thread yields or waits and
//!   other work is visible, the host becomes an ordinary kthread, and its thread is queued last.
//!
//! An exclusive thread is in its host's [`own`](crate::records::kthread::Private::own), in the
//! mailbox or the overflow list of a kthread, or in the injection list. It is never in a run queue,
//! from which a switch between threads would resume it on a kthread that is no host.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `Kthread::hosted` | its OS thread | any thread, as a hint where to queue and what to take |
//! | `Uthread::host` | the kthread that takes the thread; its host, if it still is | any thread that makes it runnable, as a hint |
//!
//! Both words are hints: a thread that finds an old value queues a thread where it is found later,
//! by the host's next visit, or by any kthread that takes from that queue.

use super::ready::{self, inject, inject_first};
use super::{local, look, pinned};
use crate::records::kthread::{Kthread, ThisKthread};
use crate::records::runtime::Runtime;
use crate::records::uthread::{Runnable, Uthread};
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;
use std::collections::VecDeque;
use tailwater_shm::{Cycles, clock};

/// Decides about a thread that this kthread was handed or has taken: returns it if the kthread runs
/// it now, as its host if it is exclusive. Otherwise it is queued elsewhere: the thread may be
/// pinned to a core that this kthread has lost since it was handed over.
#[inline]
pub fn admit(kthread: ThisKthread<'_>, runtime: &Runtime, runnable: Runnable) -> Option<Runnable> {
    if runtime.has_bound() { admit_bound(kthread, runtime, runnable) } else { Some(runnable) }
}

/// As [`admit`], where there may be exclusive or pinned threads.
#[cold]
fn admit_bound(kthread: ThisKthread<'_>, runtime: &Runtime, runnable: Runnable) -> Option<Runnable> {
    let thread = runnable.thread();
    match (kthread.hosts(), thread.is_exclusive()) {
        (false, false) => pinned::send_home(kthread, runtime, runnable).err(),
        (false, true) => {
            begin(kthread, runtime, thread);
            Some(runnable)
        }
        (true, true) if thread.host() == Some(kthread.index) => Some(runnable),
        (true, true) => {
            inject_first(runtime, runnable);
            None
        }
        (true, false) => {
            if let Err(runnable) = pinned::send_home(kthread, runtime, runnable) {
                inject(runtime, runnable);
            }
            None
        }
    }
}

/// Makes the kthread the host of `thread`, which it runs next.
fn begin(kthread: ThisKthread<'_>, runtime: &Runtime, thread: &'static Uthread) {
    thread.set_host(kthread.index);
    kthread.set_hosted(Some(thread));
    runtime.pollers.withdraw(kthread.index);
    let mut moved = false;
    while let Some(other) = kthread.private().runq.pop() {
        runtime.push_injected(other);
        moved = true;
    }
    for other in pinned::take_all(&kthread) {
        runtime.push_injected(other);
        moved = true;
    }
    for other in take_overflow(&kthread) {
        if other.thread().is_exclusive() {
            runtime.push_injected_first(other);
        } else {
            runtime.push_injected(other);
        }
        moved = true;
    }
    // A producer wakes no kthread while one is on its way, and this one may have been that one: it
    // takes nothing else now. The fence pairs with the one in `work_injected`: either the producer
    // finds this kthread awake, or this one finds the thread.
    fence(SeqCst);
    if moved || runtime.injected() > 0 {
        ready::announce_injected(runtime);
    } else if !runtime.is_attached() && look::any_work_visible(&kthread, runtime, clock::now()) {
        local::work_added(runtime);
    }
}

/// Returns the thread that a host is to run, if it is runnable. What others have queued here goes
/// to the injection list. The kthread may be no host afterwards: see the module documentation.
pub fn next(kthread: ThisKthread<'_>, runtime: &Runtime, now: Cycles) -> Option<Runnable> {
    if kthread.overflowed() > 0 {
        for runnable in take_overflow(&kthread) {
            if let Some(own) = admit(kthread, runtime, runnable) {
                kthread.private().own.replace(Some(own));
            }
        }
    }
    if look::host_shares(&kthread, runtime, now) {
        let own = kthread.private().own.take();
        end(kthread);
        if let Some(own) = own {
            runtime.push_injected(own);
        }
        return None;
    }
    kthread.private().own.take()
}

/// Makes a host an ordinary kthread: its thread, if it is runnable, is queued before all others. On
/// an ordinary kthread this does nothing.
pub fn release(kthread: ThisKthread<'_>, runtime: &Runtime) {
    if !kthread.hosts() {
        return;
    }
    let own = kthread.private().own.take();
    end(kthread);
    if let Some(own) = own {
        inject_first(runtime, own);
    }
}

fn end(kthread: ThisKthread<'_>) {
    if let Some(thread) = kthread.hosted() {
        thread.leave_host(kthread.index);
    }
    kthread.set_hosted(None);
}

/// Moves the exclusive threads in `overflow`, the overflow list of `from`, to where they are found,
/// unless `from` is a host, which takes them itself. Returns whether the caller may take the rest.
pub fn sort_out(from: &Kthread, overflow: &mut VecDeque<Runnable>, runtime: &Runtime) -> bool {
    while let Some(at) = overflow.iter().position(|runnable| runnable.thread().is_exclusive()) {
        if from.hosts() {
            return false;
        }
        if let Some(exclusive) = overflow.remove(at) {
            runtime.push_injected_first(exclusive);
        }
    }
    from.publish_overflow(overflow.len());
    true
}

fn take_overflow(kthread: &Kthread) -> VecDeque<Runnable> {
    let mut overflow = kthread.overflow.lock();
    let taken = core::mem::take(&mut *overflow);
    kthread.publish_overflow(0);
    taken
}
