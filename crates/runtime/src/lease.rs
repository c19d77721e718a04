//! Cores on loan: the runtime's side of the grant protocol (`tailwater_shm::grant` has the tables).
//!
//! Owns the transitions of this process's state words. A kthread enters here from the scheduler context only, with no user
//! thread on the core, so giving the core up is: say `Parked`, wake the successor, sleep.
//!
//! When the IOKernel dies the loan is over: [`Runtime::orphan`] marks the runtime, every kthread is woken, and from
//! then on they share whatever cores Linux gives them, as a standalone runtime does.

use crate::handover::{self, Found};
use crate::kthread::{Kthread, NO_CORE, count};
use crate::net;
use crate::runtime::Runtime;
use crate::uthread::Uthread;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use tailwater_shm::clock;
use tailwater_shm::grant::{Generation, Grant};
use tailwater_shm::lot::YIELDS;
use tailwater_shm::sync::spin_hint;

/// Timers are put off at most so often, in nanoseconds. It takes some hundreds of them, which a client that asks again at once would wait
/// for; a kthread that idles so often is not about to sleep for long.
const TIDY_NS: u64 = 20_000;

/// Sleeps until the IOKernel grants this kthread its first core.
pub fn wait_for_first_core(kthread: &Kthread, runtime: &Runtime) {
    wait_for_core(kthread, runtime, 0);
}

/// Waits until a grant of a new generation, then begins that tenancy. Lets others on the core run `yields` times before it
/// sleeps: for who has just woken its successor there (see `tailwater_shm::lot`).
fn wait_for_core(kthread: &Kthread, runtime: &Runtime, mut yields: u32) {
    // Ends with a grant or with the IOKernel; spurious wakes, even hostile ones, go round again.
    while runtime.is_attached() {
        // The ticket before the grant: see `tailwater_shm::lot`.
        let ticket = kthread.slot.ticket();
        match kthread.shared.grant.0.load() {
            (Grant::Run { core }, generation) if generation != kthread.generation.get() => {
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

/// Begins a tenancy, unless the IOKernel has withdrawn it: then false, and the kthread is parked again.
///
/// A kthread that is descheduled between reading its grant and saying `Running` may wake up in a tenancy that was taken back,
/// or even followed by another; running on in it, it would ignore every word that is meant for it.
fn begin(kthread: &Kthread, runtime: &Runtime, core: u16, generation: Generation) -> bool {
    kthread.generation.set(generation);
    kthread.core.store(core, Relaxed);
    kthread.shared.state.0.set_running(generation);
    // Store-load: `Running` before the second look. The IOKernel writes the grant, pauses, and then looks at the state, so
    // either it sees `Running` and waits for this tenancy to end, or the new grant is seen here.
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

/// Wakes whom the grant names, if it speaks of the tenancy `mine`, which has just ended. True if it named somebody.
fn wake_successor(runtime: &Runtime, seen: (Grant, Generation), mine: Generation) -> bool {
    match seen {
        (Grant::Cede { next: Some(next) }, of) if of == mine => {
            runtime.wake_slot(next);
            true
        }
        _ => false,
    }
}

/// Gives the core up as the grant asks: parks, wakes the successor on this very core, sleeps until granted again.
pub fn cede(kthread: &Kthread, runtime: &Runtime) {
    let mine = kthread.generation.get();
    let seen = kthread.shared.grant.0.load();
    if !matches!(seen, (Grant::Cede { .. }, generation) if generation == mine) {
        return;
    }
    count(&kthread.counters.cedes, 1);
    kthread.core.store(NO_CORE, Relaxed);
    kthread.shared.state.0.set_parked(mine);
    let shared_core = wake_successor(runtime, seen, mine);
    wait_for_core(kthread, runtime, if shared_core { YIELDS } else { 0 });
}

/// Polls without work until there is some, the core is taken, or `idle_timeout` has passed and the kthread parks. Returns the
/// thread that was handed over, if one was.
pub fn idle(kthread: &Kthread, runtime: &Runtime) -> Option<&'static Uthread> {
    // While the core is still ours: the IOKernel may take it as soon as it sees `Idle`.
    let now = clock::now();
    if now >= kthread.tidy_at.get() {
        kthread.tidy_at.set(now.saturating_add(runtime.clock.from_ns(TIDY_NS)));
        if net::put_off_timers() {
            return None;
        }
    }
    let generation = kthread.generation.get();
    let state = &kthread.shared.state.0;
    state.set_idle(generation);
    let deadline = runtime.idle_deadline(now);
    let found =
        handover::poll(kthread, runtime, deadline, || kthread.asked_to_cede() || !runtime.is_attached());
    let resumed = state.try_resume(generation);
    match found {
        Found::Thread(uthread) if resumed && !kthread.asked_to_cede() => return Some(uthread),
        Found::Thread(uthread) => {
            // The IOKernel sees it in the queue, and others steal it.
            kthread.runq.push(uthread).expect("the queue of a kthread that polls is empty");
        }
        Found::Nothing if resumed => park(kthread, runtime),
        _ => {}
    }
    if !resumed {
        cede_when_asked(kthread, runtime);
    }
    None
}

/// The IOKernel took the core; its `Cede`, which names the successor, is a store away.
fn cede_when_asked(kthread: &Kthread, runtime: &Runtime) {
    while !kthread.asked_to_cede() {
        if !runtime.is_attached() {
            return;
        }
        spin_hint();
    }
    cede(kthread, runtime);
}

/// Gives the core back unasked. Work that arrives meanwhile is seen by the IOKernel, which looks at the queues of parked
/// kthreads after it has seen the state.
fn park(kthread: &Kthread, runtime: &Runtime) {
    count(&kthread.counters.parks, 1);
    kthread.core.store(NO_CORE, Relaxed);
    let mine = kthread.generation.get();
    kthread.shared.state.0.set_parked(mine);
    // Store-load: `Parked` before the look at the grant. The IOKernel may have asked for the core without seeing this
    // kthread park; then the successor is woken here rather than by the IOKernel's watchdog 20 us later.
    fence(SeqCst);
    let shared_core = wake_successor(runtime, kthread.shared.grant.0.load(), mine);
    wait_for_core(kthread, runtime, if shared_core { YIELDS } else { 0 });
}
