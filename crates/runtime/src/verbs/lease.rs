//! Cores on loan: the runtime's side of the grant protocol (`tailwater_shm::grant` has the tables).
//!
//! Owns the transitions of this process's state words. A kthread enters here from the scheduler
//! context only, with no user thread on the core, so to give the core up is to write `Parked`, wake
//! the successor, and sleep.
//!
//! When the IOKernel ends, so does the loan: [`Runtime::orphan`] marks the runtime and wakes every
//! kthread, and from then on they share whatever cores Linux gives them, as in a standalone
//! runtime.

use super::handover::{self, Found};
use super::hooks;
use crate::records::kthread::{NO_CORE, ThisKthread, count};
use crate::records::runtime::Runtime;
use crate::records::uthread::Runnable;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use tailwater_shm::clock;
use tailwater_shm::control::Class;
use tailwater_shm::grant::{Generation, Grant};
use tailwater_shm::priority;
use tailwater_shm::sync::spin_hint;

/// Minimum time between two prunings of stale timers. One costs a few hundred nanoseconds, for
/// which a client that asks again at once would wait; a kthread that idles so often is not about to
/// sleep for long.
const PRUNE_NS: u64 = 20_000;

/// Sleeps until the IOKernel grants this kthread its first core.
pub fn wait_for_first_core(kthread: ThisKthread<'_>, runtime: &Runtime) {
    wait_for_core(kthread, runtime, 0);
}

/// Waits for a grant of a new generation, then begins that tenancy. Lets other kthreads on the core
/// run `yields` times before it sleeps, for a caller that has just woken its successor there (see
/// `tailwater_shm::lot`).
fn wait_for_core(kthread: ThisKthread<'_>, runtime: &Runtime, mut yields: u32) {
    // Ends with a grant or with the IOKernel. Spurious wakes, even hostile ones, repeat.
    while runtime.is_attached() {
        // The ticket before the grant: see `tailwater_shm::lot`.
        let ticket = kthread.slot.ticket();
        match kthread.shared.grant.0.load() {
            (Grant::Run { core }, generation) if generation != kthread.private().generation.get() => {
                if begin(kthread, runtime, core, generation) {
                    return;
                }
            }
            _ if yields > 0 => {
                yields -= 1;
                kthread.slot.let_successor_run();
            }
            _ => kthread.slot.wait(ticket, None),
        }
    }
}

/// Begins a tenancy; false if the IOKernel has withdrawn it: then the kthread is parked again.
///
/// A kthread that is descheduled between reading its grant and writing `Running` may resume in a
/// tenancy that was taken back, or even followed by another. If it ran on, it would ignore every
/// later word, since that is of another generation.
fn begin(kthread: ThisKthread<'_>, runtime: &Runtime, core: u16, generation: Generation) -> bool {
    kthread.private().generation.set(generation);
    kthread.core.store(core, Relaxed);
    kthread.shared.state.0.set_running(generation);
    // Store-load: `Running` before the second look. The IOKernel writes the grant, pauses, and then
    // looks at the state. So either it sees `Running` and waits for this tenancy to end, or the new
    // grant is seen here.
    fence(SeqCst);
    let seen = kthread.shared.grant.0.load();
    if seen == (Grant::Run { core }, generation) {
        return true;
    }
    kthread.core.store(NO_CORE, Relaxed);
    kthread.shared.state.0.set_parked(generation);
    wake_successor(runtime, seen, generation);
    false
}

/// Wakes the successor that the grant names, if it is a grant of the tenancy `mine`, which has just
/// ended. True if it names one.
fn wake_successor(runtime: &Runtime, seen: (Grant, Generation), mine: Generation) -> bool {
    match seen {
        (Grant::Cede { next: Some(next) }, of) if of == mine => {
            runtime.wake_slot(next);
            true
        }
        _ => false,
    }
}

/// Gives the core up as the grant requests: parks, wakes the successor on this core, sleeps until
/// granted again.
pub fn cede(kthread: ThisKthread<'_>, runtime: &Runtime) {
    let mine = kthread.private().generation.get();
    let seen = kthread.shared.grant.0.load();
    if !matches!(seen, (Grant::Cede { .. }, generation) if generation == mine) {
        return;
    }
    count(&kthread.counters.cedes, 1);
    kthread.core.store(NO_CORE, Relaxed);
    kthread.shared.state.0.set_parked(mine);
    let shared_core = wake_successor(runtime, seen, mine);
    wait_for_core(kthread, runtime, yields(runtime, shared_core));
}

/// How often a kthread that has given up its core yields before it sleeps.
fn yields(runtime: &Runtime, shared_core: bool) -> u32 {
    match runtime.loan {
        Some(loan) if shared_core => priority::yields(loan.class, loan.dedicated),
        _ => 0,
    }
}

/// Polls until there is work, the core is taken, or `idle_timeout` has passed and the kthread
/// parks. Returns the thread that was handed over, if one was.
pub fn idle(kthread: ThisKthread<'_>, runtime: &Runtime) -> Option<Runnable> {
    // Before the kthread is `Idle`: from then on the IOKernel may take the core.
    let now = clock::now();
    let next_prune = &kthread.private().next_prune;
    if now >= next_prune.get() {
        next_prune.set(now.saturating_add(runtime.clock.from_ns(PRUNE_NS)));
        if hooks::network().is_some_and(|network| (network.prune_timers)()) {
            return None;
        }
    }
    let generation = kthread.private().generation.get();
    let state = &kthread.shared.state.0;
    state.set_idle(generation);
    let deadline = runtime.idle_deadline(now);
    let found = handover::poll(kthread, runtime, deadline, || {
        kthread.head().cede_requested() || !runtime.is_attached()
    });
    let resumed = state.try_resume(generation);
    match found {
        Found::Thread(runnable) if resumed && !kthread.head().cede_requested() => return Some(runnable),
        Found::Thread(runnable) => {
            // The IOKernel sees it in the queue, and other kthreads steal it.
            kthread.private().runq.push(runnable).expect("the queue of a kthread that polls is empty");
        }
        Found::Nothing if resumed => park(kthread, runtime),
        _ => {}
    }
    if !resumed {
        cede_when_requested(kthread, runtime);
    }
    None
}

/// Wakes the IOKernel if it sleeps beside a free core, which a kthread of this best-effort runtime
/// could use: threads wait in a run queue. While the IOKernel polls, it sees them by itself.
#[inline]
pub fn report_surplus(runtime: &Runtime) {
    let Some(loan) = runtime.loan.filter(|loan| loan.class == Class::BestEffort) else { return };
    if loan.sleeps_beside_free_cores() && runtime.kthreads.iter().any(|k| k.core.load(Relaxed) == NO_CORE) {
        loan.ring_doorbell();
    }
}

/// Cedes the core, which the IOKernel has taken, once its `Cede` names the successor: that store
/// follows the one that took it.
fn cede_when_requested(kthread: ThisKthread<'_>, runtime: &Runtime) {
    while !kthread.head().cede_requested() {
        if !runtime.is_attached() {
            return;
        }
        spin_hint();
    }
    cede(kthread, runtime);
}

/// Gives the core back without a request. The IOKernel looks at the queues of a parked kthread
/// after it has seen the state, so it sees work that arrives meanwhile.
fn park(kthread: ThisKthread<'_>, runtime: &Runtime) {
    count(&kthread.counters.parks, 1);
    kthread.core.store(NO_CORE, Relaxed);
    let mine = kthread.private().generation.get();
    kthread.shared.state.0.set_parked(mine);
    // Store-load: `Parked` before the look at the grant. The IOKernel may have requested the core
    // without seeing this kthread park. The successor is then woken here rather than by the
    // IOKernel's watchdog 20 us later.
    fence(SeqCst);
    let shared_core = wake_successor(runtime, kthread.shared.grant.0.load(), mine);
    if let Some(loan) = runtime.loan {
        loan.ring_doorbell_from_core();
    }
    wait_for_core(kthread, runtime, yields(runtime, shared_core));
}
