//! Adaptive polling: sleep while nothing needs polling, without losing a wake-up.
//!
//! Owns the handshake with runtimes and ports. The polling thread sleeps when for a while
//! ([`AdaptiveSpin`](tailwater_shm::adaptive_spin::AdaptiveSpin)) no frame moved, no service had or
//! wanted a core, and no request for cores waited to be served. Best-effort runtimes may hold cores
//! meanwhile. A sleep ends when a request that has to wait for its time is due. Two sides write one
//! word and read the other's:
//!
//! | polling thread | a thread of a runtime that has work for it |
//! |---|---|
//! | `asleep`, in every region: [`ASLEEP`], or [`ASLEEP_BESIDE_FREE_CORES`] | queue the work |
//! | `fence(SeqCst)` | `fence(SeqCst)` |
//! | look at all queues and requests; sleep only if none waits | look at `asleep`; ring the doorbell if it is set |
//!
//! At least one side sees the other's write. A request for cores counts as work. A runtime rings
//! for it; for work that an ordinary thread made runnable; for frames that a best-effort kthread
//! sends (while a service's kthread has a core, the polling thread does not sleep); for a kthread
//! that parks, because of its core and its timers; and, beside free cores, for threads that a
//! best-effort runtime could run on one more core. What no doorbell reports is found at a look
//! every `max-wake-delay-us`: a best-effort runtime that waits for its turn on a core. A runtime
//! whose kthreads have not started on their cores, because it is stopped, does not keep the polling
//! thread awake: the sleep ends with the pause of a kthread. Ports wake the polling thread through
//! their descriptors and their next event, the control thread through its bell, dying runtimes
//! through their sockets.
//!
//! # Doorbells
//! A doorbell is an eventfd(2) that the runtime shares, flags and counter included: `O_NONBLOCK`
//! belongs to the open file and can be cleared by either side, and a reader can empty the counter
//! first. So the polling thread never reads or writes one. An edge-triggered epoll(7) reports each
//! write since the last look, without a read. A hostile doorbell costs only the processor time of a
//! core that no service uses; and a ring for which its runtime has nothing to show is charged to it
//! ([`crate::tenant`]). The doorbell of a runtime that waits is *muted*: taken out of what is
//! waited for until a sleep after the pause.

use core::sync::atomic::{AtomicBool, Ordering, fence};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tailwater_ports::Port;
use tailwater_sched::RuntimeId;
use tailwater_shm::layout::{ASLEEP, ASLEEP_BESIDE_FREE_CORES, AWAKE};
use tailwater_shm::{Cycles, clock};

use super::polling::Polling;
use crate::allocator::Allocator;
use crate::control::watch::Stage;
use crate::runtime::Runtime;
use crate::switch::Switch;
use crate::tenant::Work;

/// How doorbells are watched: each write is an edge.
pub(super) const RING: EventFlags = EventFlags::IN.union(EventFlags::ET);
/// Maximum sleep, so that the stop flag is noticed; ten wakes a second cost under 0.1 % of a core.
const MAX_SLEEP_NS: u64 = 100_000_000;

impl Polling {
    /// Sleeps until an event, unless one has just happened.
    #[cold]
    pub(super) fn sleep(&mut self, stop: &AtomicBool, now: Cycles) {
        self.unmute(now);
        // Those of runtimes whose work was found while the polling thread was about to sleep.
        self.take_rings(&mut Vec::new());
        let free_core = self.allocator.has_free_core();
        // Before `asleep`, because a runtime that reads it may ring for a word that the looks below
        // already see.
        self.allocator.note_words(&mut self.world);
        self.set_asleep(if free_core { ASLEEP_BESIDE_FREE_CORES } else { ASLEEP });
        // SeqCst: pairs with the fence between a runtime's queueing and its look at `asleep` (see
        // the table above).
        fence(Ordering::SeqCst);
        self.allocator.progress(&mut self.world, now);
        self.allocator.look_at_all(&mut self.world, now);
        self.attention = self.allocator.attention(&self.world, now);
        let announced = self.allocator.has_free_core() == free_core;
        let quiet = announced
            && self.may_sleep()
            && !self.switch.has_egress(&self.world, now)
            && !stop.load(Ordering::Relaxed);
        if quiet && let Some(timeout) = self.time_left(clock::now()) {
            // What is asleep finds no request that has ended.
            self.tell_reserved(now, true);
            // The wake must not wait behind ordinary threads.
            self.end_rest(now);
            self.lower_best_effort();
            self.world.stats.polling.sleeps.add(1);
            let awake_until = clock::now();
            self.enter(Stage::Asleep);
            let rung = self.wait(timeout);
            let slept = clock::now().saturating_sub(awake_until);
            // A sleep that an event ended is shorter, and shows nothing.
            if let Some(late) = slept.checked_sub(self.clock.from_ns(timeout)) {
                self.quiet.woke_late(late);
            }
            // Before the stage: it is progress, also to one who looks between the two.
            self.world.stats.polling.iterations.add(1);
            self.enter(Stage::Decisions);
            let woken = clock::now();
            self.world.stats.polling.slept_ns.add(self.clock.to_ns(woken.saturating_sub(now)));
            self.judge_rings(&rung, awake_until.saturating_sub(now), woken);
            self.look_at_neighbours(false, woken);
        }
        self.set_asleep(AWAKE);
        // A look finds the reason for the wake.
        self.next_tick = 0;
        self.next_death_check = 0;
    }

    fn set_asleep(&self, value: u32) {
        for runtime in self.world.runtimes.iter() {
            // Relaxed: ordered by the fence in `sleep`; clearing it late costs a needless ring.
            runtime.region.asleep().store(value, Ordering::Relaxed);
        }
    }

    /// Returns the nanoseconds to sleep; `None` if the next event is too near.
    fn time_left(&self, now: Cycles) -> Option<u64> {
        let event = next_event(&self.switch, &self.allocator, now);
        let left = self.quiet.time_left(event, self.attention, now)?;
        Some(self.clock.to_ns(left).min(MAX_SLEEP_NS))
    }

    /// Waits for an event; returns the runtimes whose doorbells rang.
    fn wait(&mut self, timeout_ns: u64) -> Vec<RuntimeId> {
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.commands.fd(), PollFlags::IN),
            PollFd::new(&self.doorbells, PollFlags::IN),
            PollFd::new(&self.deaths, PollFlags::IN),
        ];
        // Polled directly: poll(2) is what asks a driver of an XDP socket to look at its rings.
        let ports = self.switch.ports().filter_map(Port::pollable);
        fds.extend(ports.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        // Interrupted by a signal: continue, as after any other wake.
        let _ = poll(&mut fds, Some(&timeout));
        if fds[0].revents().contains(PollFlags::IN) {
            self.commands.silence();
        }
        let mut rung = Vec::new();
        if fds[1].revents().contains(PollFlags::IN) {
            self.world.stats.polling.rung.add(1);
            self.take_rings(&mut rung);
        }
        rung
    }

    /// Takes the edges of doorbells that have rung, so that they do not end the next sleep, and
    /// adds whose they are. What they announce shows at a look at all queues.
    fn take_rings(&self, rung: &mut Vec<RuntimeId>) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        // More than fit end the next sleep at once, and are taken then.
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.doorbells, &mut events, Some(&at_once)).unwrap_or(0);
        rung.extend(events[..count].iter().map(|event| RuntimeId(event.data.u64() as u32)));
    }

    /// Charges the runtimes that rang for nothing, and mutes the doorbells of those that have to
    /// wait for it. `before` is what the preparation of the sleep took, which is divided among all
    /// that rang; each pays for the look at its own words.
    fn judge_rings(&mut self, rung: &[RuntimeId], before: Cycles, woken: Cycles) {
        let part = before / rung.len().max(1) as Cycles;
        let mut at = woken;
        for &id in rung {
            let Some(runtime) = self.world.runtimes.get(id) else { continue };
            // While it gets no core its words are not read.
            let in_vain = !runtime.is_left_alone(woken)
                && !self.switch.has_egress_of(id)
                && !self.allocator.has_news(&mut self.world, id, woken);
            if in_vain && let Some(runtime) = self.world.runtimes.get(id) {
                runtime.stats.counters.vain_rings.add(1);
                let look = clock::now().saturating_sub(at);
                self.world.charge(id, Work::Refused, part.saturating_add(look), woken);
            }
            at = clock::now();
            self.mute_if_left_alone(id, woken);
        }
    }

    fn mute_if_left_alone(&mut self, id: RuntimeId, now: Cycles) {
        let is_muted = |runtime: &&Runtime| runtime.is_left_alone(now);
        if let Some(runtime) = self.world.runtimes.get(id).filter(is_muted)
            && epoll::delete(&self.doorbells, &runtime.doorbell).is_ok()
        {
            self.muted.push(id);
        }
    }

    /// Hears the doorbells of runtimes again that are no longer left alone.
    fn unmute(&mut self, now: Cycles) {
        let (world, doorbells) = (&self.world, &self.doorbells);
        self.muted.retain(|&id| {
            let Some(runtime) = world.runtimes.get(id) else { return false };
            if runtime.is_left_alone(now) {
                return true;
            }
            // If this fails, its work is found at looks.
            let _ = epoll::add(doorbells, &runtime.doorbell, EventData::new_u64(id.0.into()), RING);
            false
        });
    }
}

/// Returns when the next event is due that is known at `now`; `Cycles::MAX` if none is.
pub(super) fn next_event(switch: &Switch, allocator: &Allocator, now: Cycles) -> Cycles {
    let event = switch.ports().filter_map(Port::next_event).min().unwrap_or(Cycles::MAX);
    let readmission = allocator.next_readmission(now).unwrap_or(Cycles::MAX);
    let pending = allocator.next_pending(now).unwrap_or(Cycles::MAX);
    event.min(allocator.earliest_timer()).min(readmission).min(pending)
}
