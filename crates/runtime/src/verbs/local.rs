//! Idle kthreads of a standalone runtime: how they sleep and are woken.
//!
//! Without an IOKernel no other program watches the queues. A thread that queues work which no
//! polling kthread took therefore wakes a sleeper, if there is one and none is on its way already;
//! a thief that finds more than one thread wakes the next.
//! [`Sleepers`](crate::ground::sleepers::Sleepers) explains the race.

use super::handover::{self, Found};
use super::host;
use super::look::any_work_visible;
use crate::ground::sleepers::MAX_SLEEPERS;
use crate::records::kthread::{Kthread, ThisKthread};
use crate::records::runtime::Runtime;
use crate::records::uthread::Runnable;
use core::sync::atomic::{Ordering, fence};
use std::time::Duration;
use tailwater_shm::{Cycles, clock};

/// Maximum sleep of a kthread that the set of sleepers has no bit for, and which no producer wakes:
/// one of an orphaned runtime, which may be larger than a standalone one.
const UNLISTED_SLEEP: Duration = Duration::from_millis(10);

/// Wakes a sleeper if the runtime is standalone: a user thread was queued on a kthread.
#[inline]
pub fn work_added(runtime: &Runtime) {
    if runtime.kthreads.len() > 1 && !runtime.is_attached() {
        wake_one(runtime, false);
    }
}

/// Wakes a sleeper if the runtime is standalone, unless one wakes in time for the earliest timer:
/// the caller's kthread runs a thread next, for as long as that likes, and those that sleep may not
/// have seen the timers that were set since. Each that wakes sees to the same before it runs
/// anything, so a timer waits for a computing thread only if all kthreads have one.
#[inline]
pub fn watch_timers(runtime: &Runtime) {
    if runtime.kthreads.len() < 2 || runtime.is_attached() || runtime.sleepers.is_empty() {
        return;
    }
    // Between a timer that was set, or the end of the own sleep, and the looks: of two kthreads
    // that do so, one sees what the other one stored.
    fence(Ordering::SeqCst);
    let next = next_timer(runtime);
    let wakes_in_time = |k: &&Kthread| k.sleeps_until.load(Ordering::Relaxed) <= next;
    if next != Cycles::MAX && !runtime.kthreads.iter().any(wakes_in_time) {
        wake_one(runtime, true);
    }
}

/// Wakes a sleeper: a user thread was injected by an ordinary thread.
pub fn work_injected(runtime: &Runtime) {
    // Pairs with the fence in `Sleepers::enter`.
    fence(Ordering::SeqCst);
    wake_one(runtime, true);
}

#[inline]
fn wake_one(runtime: &Runtime, fenced: bool) {
    if let Some(index) = runtime.sleepers.claim(fenced) {
        runtime.kthreads[index].shared.parker.wake();
    }
}

/// Polls for a while, then sleeps until woken or a timer is due. Returns the thread that was handed
/// over, if one was.
pub fn idle(kthread: ThisKthread<'_>, runtime: &Runtime) -> Option<Runnable> {
    // Another IOKernel may be about to take this runtime: see `rejoin`.
    let is_stopped = || kthread.head().cede_requested();
    match handover::poll(kthread, runtime, runtime.idle_deadline(clock::now()), is_stopped) {
        Found::Thread(runnable) => {
            watch_timers(runtime);
            return Some(runnable);
        }
        Found::Work => {
            watch_timers(runtime);
            return None;
        }
        Found::Stop => return None,
        Found::Nothing if kthread.hosts() => {
            // An ordinary kthread looks for other work before it sleeps.
            host::release(kthread, runtime);
            return None;
        }
        Found::Nothing => {}
    }
    // The ticket before the grant: see `tailwater_shm::park`.
    let ticket = kthread.shared.parker.ticket();
    if is_stopped() {
        return None;
    }
    if kthread.index >= MAX_SLEEPERS {
        let timer = until(runtime, next_timer(runtime));
        let sleep = timer.map_or(UNLISTED_SLEEP, |timer| timer.min(UNLISTED_SLEEP));
        kthread.shared.parker.wait(ticket, Some(sleep));
        return None;
    }
    runtime.sleepers.enter(kthread.index);
    if !any_work_visible(&kthread, runtime, clock::now()) {
        let next = next_timer(runtime);
        kthread.sleeps_until.store(next, Ordering::Relaxed);
        kthread.shared.parker.wait(ticket, until(runtime, next));
        kthread.sleeps_until.store(Cycles::MAX, Ordering::Relaxed);
        keep_apart(&kthread, runtime);
    }
    runtime.sleepers.leave(kthread.index);
    watch_timers(runtime);
    None
}

/// Moves the calling OS thread, `kthread`'s, off a CPU on which another kthread was last seen, to
/// one on which none was, if there is one.
///
/// Linux wakes a thread where its waker runs if the CPU that the thread ran on last shares no cache
/// with any idle one, as between virtual CPUs that a host declares as sockets. Two kthreads that
/// have met so stay together: each runs while the other sleeps, the load balancer sees nothing to
/// balance, and a wake costs the waker its core while the other one polls.
pub fn keep_apart(kthread: &Kthread, runtime: &Runtime) {
    let here = rustix::thread::sched_getcpu();
    kthread.cpu.store(here, Ordering::Relaxed);
    let taken = |cpu| {
        runtime.kthreads.iter().any(|k| k.index != kthread.index && k.cpu.load(Ordering::Relaxed) == cpu)
    };
    if !taken(here) {
        return;
    }
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let free = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu) && !taken(cpu));
    if let Some(cpu) = free {
        let mut only = rustix::thread::CpuSet::new();
        only.set(cpu);
        // Refused or not, the kthread may run wherever it might before: this moves it and does not
        // bind it.
        let moved = rustix::thread::sched_setaffinity(None, &only).is_ok();
        if moved && rustix::thread::sched_setaffinity(None, &allowed).is_ok() {
            kthread.cpu.store(cpu, Ordering::Relaxed);
        }
    }
}

/// Returns the time of the earliest timer of any kthread; [`Cycles::MAX`] if there is none.
fn next_timer(runtime: &Runtime) -> Cycles {
    let timers = runtime.kthreads.iter().map(|k| k.shared.status.next_timer.load(Ordering::Relaxed));
    timers.min().unwrap_or(Cycles::MAX)
}

/// Returns the time until `timer`; `None` if there is no timer.
fn until(runtime: &Runtime, timer: Cycles) -> Option<Duration> {
    (timer != Cycles::MAX)
        .then(|| Duration::from_nanos(runtime.clock.to_ns(timer.saturating_sub(clock::now()))))
}
