//! Lent cores: the runtime's side of the grant protocol (`tailwater_shm::grant` has the tables).
//!
//! Owns the transitions of this process's state words. A kthread enters here from the scheduler
//! context only, with no user thread on the core, so to give the core up is to write `Parked`, let
//! the successor run, and sleep. A successor that sleeps is woken here, at the board, if the
//! request to cede says where, or else by the IOKernel.
//!
//! When the IOKernel ends, no core is lent any more: [`Runtime::orphan`] marks the runtime and
//! wakes every kthread, and from then on they share whatever cores Linux gives them, as in a
//! standalone runtime, until another IOKernel takes them ([`rejoin`](super::rejoin)).

use super::handover::{self, Found};
use super::hooks;
use super::host;
use super::pinned;
use super::ready;
use crate::ground::guard::NoPreempt;
use crate::records::iokernel::IoKernel;
use crate::records::kthread::{NO_CORE, ThisKthread, count};
use crate::records::runtime::Runtime;
use crate::records::uthread::Runnable;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use tailwater_shm::adaptive_spin::AdaptiveSpin;
use tailwater_shm::control::ProgramClass;
use tailwater_shm::grant::{Generation, Grant, NextOwner};
use tailwater_shm::park::{BACKSTOP, Sleep};
use tailwater_shm::priority;
use tailwater_shm::ring::Consumer;
use tailwater_shm::sync::spin_hint;
use tailwater_shm::{Cycles, clock};

/// Minimum time between two prunings of stale timers. One costs a few hundred nanoseconds, for
/// which a client that asks again at once would wait; a kthread that idles so often is not about to
/// sleep for long.
const PRUNE_NS: u64 = 20_000;
/// Shortest time for which an idle kthread polls, whatever its idle times were: work that follows
/// so soon, such as the next frame of a burst, costs no wake.
const SHORTEST_IDLE_NS: u64 = 5_000;
/// Sleeps that ended without a grant, by wakes of other programs or by signals, after which a
/// kthread sleeps at its own word only, until fewer are remembered.
const FREE_STRAYS: Cycles = 50;
/// Time in which one of them is forgotten. Each takes a core 3 us.
const STRAY_PACE_NS: u64 = 10_000_000;

/// Sleeps until the IOKernel grants this kthread its first core.
pub fn wait_for_first_core(kthread: ThisKthread<'_>, runtime: &Runtime) {
    wait_for_core(kthread, runtime, NextOwner::None);
}

/// Waits for a grant of a new generation, then begins that tenancy. Before it sleeps, it lets the
/// successor run to which the core has just been ceded (see `tailwater_shm::park`).
fn wait_for_core(kthread: ThisKthread<'_>, runtime: &Runtime, successor: NextOwner) {
    let began = clock::now();
    let waited_ns = runtime.clock.to_ns(kthread.private().waited.get());
    let mut yields = runtime.iokernel.map_or(0, |iokernel| {
        priority::yields(iokernel.class, iokernel.region.ranks_differ(), successor, waited_ns)
    });
    let parker = &kthread.shared.parker;
    // Ends with a grant or with the IOKernel. Spurious wakes repeat.
    loop {
        // The ticket before the grant: see `tailwater_shm::park`. Also before the flag: a new
        // ticket of `orphan` implies what that wrote before, and an old one ends the wait.
        let ticket = parker.ticket();
        if !runtime.is_attached() {
            return;
        }
        if let (Grant::Run { core }, generation) = kthread.shared.grant.0.load()
            && generation != kthread.private().generation.get()
            && begin(kthread, core, generation)
        {
            let private = kthread.private();
            private.waited.set(private.works_since.get().saturating_sub(began));
            return;
        }
        if yields > 0 {
            yields -= 1;
            parker.let_successor_run();
        } else if sleep(kthread, runtime, ticket) == Sleep::WakeLost {
            // Relaxed: a statistic with one writer.
            kthread.shared.status.lost_wakes.fetch_add(1, Relaxed);
        }
    }
}

/// Sleeps, at the board as well if there is one and sleeps there have not ended too often without a
/// grant.
fn sleep(kthread: ThisKthread<'_>, runtime: &Runtime, ticket: u32) -> Sleep {
    let parker = &kthread.shared.parker;
    let pace = runtime.clock.from_ns(STRAY_PACE_NS);
    let mut strays = kthread.private().strays.get();
    let wake_place = runtime.iokernel.and_then(|iokernel| iokernel.wake_place(kthread.index));
    let Some((board, place)) = wake_place.filter(|_| !strays.is_over(FREE_STRAYS * pace, clock::now()))
    else {
        return parker.wait(ticket, Some(BACKSTOP));
    };
    let sleep = parker.wait_at_board(ticket, board, place, BACKSTOP);
    if sleep == Sleep::Ended && parker.ticket() == ticket {
        // No grant came with it.
        strays.charge(pace, 1, clock::now());
        kthread.private().strays.set(strays);
    }
    sleep
}

/// Begins a tenancy; false if the IOKernel has withdrawn it: then the kthread is parked again.
///
/// A kthread that is descheduled between reading its grant and writing `Running` may resume in a
/// tenancy that was taken back, or even followed by another. If it ran on, it would ignore every
/// later word, since that is of another generation.
fn begin(kthread: ThisKthread<'_>, core: u16, generation: Generation) -> bool {
    kthread.private().generation.set(generation);
    kthread.set_core(core);
    kthread.shared.state.0.set_running(generation);
    // Store-load: `Running` before the second look. The IOKernel writes the grant, pauses, and then
    // looks at the state. So either it sees `Running` and waits for this tenancy to end, or the new
    // grant is seen here.
    fence(SeqCst);
    if kthread.shared.grant.0.load() == (Grant::Run { core }, generation) {
        kthread.private().works_since.set(clock::now());
        return true;
    }
    kthread.set_core(NO_CORE);
    pinned::release(&kthread);
    kthread.shared.state.0.set_parked(generation);
    false
}

/// Gives the core up as the grant requests: parks, lets the successor run on this core, sleeps
/// until granted again.
pub fn cede(kthread: ThisKthread<'_>, runtime: &Runtime) {
    let mine = kthread.private().generation.get();
    let (Grant::Cede { successor }, generation) = kthread.shared.grant.0.load() else { return };
    if generation != mine {
        return;
    }
    // Relaxed: for the account of cores; `Parked` publishes it.
    kthread.shared.status.ceded.store(clock::now(), Relaxed);
    host::release(kthread, runtime);
    count(&kthread.counters.cedes, 1);
    kthread.set_core(NO_CORE);
    pinned::release(&kthread);
    let board = runtime.iokernel.and_then(IoKernel::board);
    let successor = match successor.place().zip(board) {
        Some((place, board)) => {
            kthread.shared.state.0.set_passed(mine);
            // The grant was read with Acquire, so the successor is announced before this wake.
            board.wake(place);
            successor
        }
        None => {
            kthread.shared.state.0.set_parked(mine);
            successor.unpromised()
        }
    };
    wait_for_core(kthread, runtime, successor);
}

/// Polls until there is work, the core is taken, or the kthread parks: after `idle_timeout`, or
/// sooner if its last idle times were so long that polling does not pay, or if other programs
/// compete for the core. Returns the thread that was handed over, if one was.
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
    let deadline = now.saturating_add(time_to_spin(kthread, runtime, now));
    let found = handover::poll(kthread, runtime, deadline, || {
        kthread.head().cede_requested() || !runtime.is_attached()
    });
    let resumed = state.try_resume(generation);
    if resumed && matches!(found, Found::Thread(_) | Found::Work) {
        let end = clock::now();
        kthread.private().works_since.set(end);
        record_idle(kthread, end.saturating_sub(now));
    }
    match found {
        Found::Thread(runnable) if resumed && !kthread.head().cede_requested() => return Some(runnable),
        Found::Thread(runnable) => pass_on(kthread, runtime, runnable),
        // An ordinary kthread looks for other work before it parks.
        Found::Nothing if resumed && kthread.hosts() => host::release(kthread, runtime),
        Found::Nothing if resumed => {
            park(kthread, runtime);
            // Until there was work again. The wake is no idle time: [`AdaptiveSpin`] has a price
            // for it, and with both a threshold that is short stays so.
            let end = first_arrival(kthread).unwrap_or_else(clock::now);
            record_idle(kthread, end.saturating_sub(now));
        }
        _ => {}
    }
    if !resumed {
        cede_when_requested(kthread, runtime);
    }
    None
}

/// Returns when the oldest frame that waits for this kthread arrived; `None` if none waits.
fn first_arrival(kthread: ThisKthread<'_>) -> Option<Cycles> {
    let first = |consumer: &mut Consumer| Some(consumer.peek().ok()??.stamp());
    kthread.ingress.as_ref()?.try_with(&NoPreempt::new(), first)?
}

/// Queues a thread that was handed to a kthread whose core is taken.
pub fn pass_on(kthread: ThisKthread<'_>, runtime: &Runtime, runnable: Runnable) {
    if runnable.thread().is_exclusive() {
        return ready::inject_first(runtime, runnable);
    }
    if let Err(runnable) = pinned::send_home(kthread, runtime, runnable) {
        // The IOKernel sees it in the queue, and other kthreads steal it.
        kthread.private().runq.push(runnable).expect("the queue of a kthread that polls is empty");
    }
}

/// Returns how long the kthread, which has worked until `now`, polls without work: at most
/// `idle_timeout`.
fn time_to_spin(kthread: ThisKthread<'_>, runtime: &Runtime, now: Cycles) -> Cycles {
    if runtime.idle_timeout == Cycles::MAX {
        return Cycles::MAX;
    }
    let shortest = runtime.clock.from_ns(SHORTEST_IDLE_NS);
    let work = average_work(kthread, shortest, now);
    if work >= shortest && runtime.iokernel.is_some_and(|iokernel| iokernel.region.wakes_preempt()) {
        // Others could use the core. A wake on a core that does not sleep takes about as long as
        // this, or as the work that waits for it.
        return shortest.min(runtime.idle_timeout);
    }
    let mut spin = kthread.private().spin.borrow_mut();
    spin.get_or_insert_with(|| AdaptiveSpin::new(shortest, runtime.idle_timeout)).threshold()
}

/// Records the work that has ended at `now`; returns the kthread's average time per frame. A long
/// time is cut, because Linux may have run another thread meanwhile. The average is per frame, so
/// that many frames from others do not make the work seem long.
fn average_work(kthread: ThisKthread<'_>, shortest: Cycles, now: Cycles) -> Cycles {
    let private = kthread.private();
    let all = kthread.counters.frames.load(Relaxed);
    let frames = all.saturating_sub(private.frames_before.replace(all)).max(1);
    let worked = now.saturating_sub(private.works_since.get()) / frames;
    let average = private.work.get();
    private.work.set(average - average / 16 + worked.min(4 * shortest) / 16);
    private.work.get()
}

/// Records an idle time that ended with work.
fn record_idle(kthread: ThisKthread<'_>, idle: Cycles) {
    if let Some(spin) = kthread.private().spin.borrow_mut().as_mut() {
        spin.record(idle);
    }
}

/// Runs `body` on a core that the IOKernel may take as if the kthread idled; gives it up afterwards
/// if it was taken.
pub fn as_idle(kthread: ThisKthread<'_>, runtime: &Runtime, body: impl FnOnce()) {
    let generation = kthread.private().generation.get();
    let state = &kthread.shared.state.0;
    state.set_idle(generation);
    body();
    if !state.try_resume(generation) {
        cede_when_requested(kthread, runtime);
    }
}

/// Wakes the IOKernel if it sleeps beside a free core, which a kthread of this best-effort runtime
/// could use: threads wait in a run queue. While the IOKernel polls, it sees them by itself.
#[inline]
pub fn report_surplus(runtime: &Runtime) {
    let Some(iokernel) = runtime.iokernel.filter(|iokernel| iokernel.class == ProgramClass::BestEffort)
    else {
        return;
    };
    if iokernel.sleeps_beside_free_cores() && runtime.kthreads.iter().any(|k| k.core.load(Relaxed) == NO_CORE)
    {
        iokernel.ring_doorbell();
    }
}

/// Cedes the core, which the IOKernel has taken, once the grant is `Cede`: that store follows the
/// one that took it.
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
    kthread.set_core(NO_CORE);
    pinned::release(&kthread);
    let mine = kthread.private().generation.get();
    kthread.shared.state.0.set_parked(mine);
    // Store-load: `Parked` before the look at the grant. The IOKernel may have requested the core
    // without seeing this kthread park, and then a successor is about to run here.
    fence(SeqCst);
    let successor = match kthread.shared.grant.0.load() {
        (Grant::Cede { successor }, generation) if generation == mine => successor.unpromised(),
        _ => NextOwner::None,
    };
    if let Some(iokernel) = runtime.iokernel {
        iokernel.ring_doorbell_from_core();
    }
    wait_for_core(kthread, runtime, successor);
}
