//! Kthreads without a core that are not to be lent one: bypassed, late to start on it, or moved off
//! it by force.
//!
//! Owns the list of withdrawn kthreads and their way back, and the count of evictions. Too many
//! within a short time end a registration: the count grows with each eviction and falls by one
//! every [`FORGET_EVICTION_US`], and with every [`CEDES_PER_EVICTION`] cores that the program gave
//! up in time. A thread that is late now and then costs its program nothing; one that keeps its
//! core over and over costs others about a tenth of a second.
//!
//! Withdrawn kthreads cost the polling thread time for as long as they do not cede. So a core from
//! which several of a program were withdrawn is not lent to it
//! ([`Account::is_withheld`](tailwater_sched::ledger::Account::is_withheld)), and all of them
//! together are watched for an eighth of the time at most. The account of one that sleeps is read
//! more and more seldom, down to [`ASKED_PER_DEADLINE`] of all in a deadline, so that
//! sleepers delay the reading of no kthread that runs.
//!
//! Such a sleeper may wake and run beside the owner of the core until its account is read. So the
//! programs of one user by one grant ([tenant](crate::tenant)) together leave
//! [`PROGRAMS_PER_PARTY`] times as many kthreads on a core as one program may. Any further one is
//! moved to unmanaged cores when it does not answer the signal. That is no eviction, for it may be
//! late without having run, and the user's other programs are lent the core as before.
//!
//! | how | left alone until |
//! |---|---|
//! | `Bypassed`: signalled, it did not cede, and its successor was woken beside it | it parks; `Watched` once the successor has started, or after `cede_deadline_us` |
//! | `Watched` | it parks; `ByForce` when Linux has run it for `cede_deadline_us` since |
//! | `Unaccounted`: the same where Linux does not say for how long it has run a thread | it parks; `ByForce` after `cede_deadline_us` |
//! | `ByForce`: it was moved to unmanaged cores, which counts as an eviction unless it was beyond its party's number | it parks |
//! | `BeforeStart`: it was not seen running in the tenancy that was taken back (stopped, or starved by another program) | a pause has passed; no offence |
//! | `Late`: it began that tenancy after all | it parks; signalled after `cede_grace_us`, and then as `Bypassed` |
//!
//! So a thread that Linux does not run commits no offence, however late it is and however late the
//! polling thread looks. Linux enters the processor time of a thread when it takes the processor
//! from it, and at ticks (4 ms at 250 Hz). What a bypassed kthread had before its successor
//! displaced it may therefore be entered later than the bypass, so its account begins when the
//! successor has started. If that has not started within `cede_deadline_us`, the kthread was either
//! displaced meanwhile, and its time has been entered, or it ran on, which is an offence.

use core::sync::atomic::{Ordering, fence};
use tailwater_sched::alloc::Activity;
use tailwater_sched::ledger::{Class, Parked};
use tailwater_sched::{CoreId, KthreadId};
use tailwater_shm::priority::Rank;
use tailwater_shm::trace::CoreStep;
use tailwater_shm::{Clock, Cycles, KthreadState, clock};

use super::Allocator;
use super::board::Promise;
use super::phase::{How, NO_START_DOUBLINGS, Reading, Timing, Withdrawn};
use super::vain::Slow;
use crate::runtime::EndReason;
use crate::stats::HandoffKind;
use crate::tenant::Work;
use crate::world::World;

/// Time after which one eviction is forgotten, in microseconds, of a program with one core.
pub(super) const FORGET_EVICTION_US: u64 = 50_000;

/// Cores given up in time for which one eviction is forgotten. A program in which long system calls
/// or C code without poll points are a small part of all that is interrupted keeps its
/// registration.
pub(super) const CEDES_PER_EVICTION: u32 = 16;

/// Pause after a look at withdrawn kthreads, as a multiple of the time that it took.
const WATCH_PAUSE: Cycles = 8;

/// Maximum time of a look that counts for the pause, in microseconds: a longer look was
/// interrupted. Reading one account takes 5 us.
const LONGEST_WATCH_US: u64 = 50;

/// A kthread that has run for less than 1 / `IDLE_PART` of the time since its account was last read
/// sleeps, or waits behind other programs.
const IDLE_PART: Cycles = 16;

/// Number of sleeping kthreads whose accounts are read in each `cede_deadline_us`, of all programs.
const ASKED_PER_DEADLINE: usize = 4;

/// Maximum number of bypassed kthreads of a party on a core, as a multiple of that of one program.
const PROGRAMS_PER_PARTY: usize = 2;

/// Recent evictions of a runtime: moves of its threads off their cores.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Evictions {
    count: u32,
    /// Cores that the program counted for can hold; 0 before the first count.
    share: u32,
    /// Cores given up in time since that last made an eviction forgotten.
    ceded: u32,
    /// Time up to which evictions have been forgotten.
    at: Cycles,
}

impl Evictions {
    /// Counts one more of a program that can hold `share` cores, after those that are forgotten by
    /// now: one every `forget` for each core. Returns how many there are. Those of a former program
    /// count by core: they are as far from this one's limit as from that one's.
    pub(crate) fn count(&mut self, now: Cycles, forget: Cycles, share: u32) -> u32 {
        let former = core::mem::replace(&mut self.share, share);
        if former != 0 && former != share {
            let scaled = (u64::from(self.count) * u64::from(share)).div_ceil(former.into());
            self.count = u32::try_from(scaled).unwrap_or(u32::MAX);
        }
        let forget = forget / Cycles::from(share.max(1));
        let forgotten = now.saturating_sub(self.at) / forget.max(1);
        self.count = self.count.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX));
        self.at = if self.count == 0 { now } else { self.at + forgotten * forget.max(1) };
        self.count = self.count.saturating_add(1);
        self.count
    }

    /// Returns the time until all are forgotten.
    pub(crate) fn time_left(&self, now: Cycles, clock: &Clock) -> Cycles {
        let forget = clock.from_ns(FORGET_EVICTION_US * 1_000) / Cycles::from(self.share.max(1));
        let needed = forget.saturating_mul(self.count.into());
        needed.saturating_sub(now.saturating_sub(self.at))
    }

    /// Counts a core that was given up in time.
    pub(super) fn note_cede(&mut self) {
        self.ceded += 1;
        if self.ceded == CEDES_PER_EVICTION {
            self.ceded = 0;
            self.count = self.count.saturating_sub(1);
        }
    }
}

impl Allocator {
    /// Takes the core from its owner, which did not cede in time and has been signalled, and wakes
    /// the successor beside it, if there is one: Linux may have descheduled the owner, and then it
    /// sees neither request nor signal. The owner cedes when Linux resumes it. The successor's rank
    /// is at least the owner's.
    pub(super) fn bypass(
        &mut self,
        world: &mut World,
        at: usize,
        from: KthreadId,
        decided: Cycles,
        now: Cycles,
    ) {
        let (core, kind) = (self.cores[at].id, HandoffKind::Bypass);
        world.runtimes.ask_to_cede(from);
        world.trace.core(clock::now(), core, CoreStep::Ceded, kind, (from, None));
        self.account_core_time(world, at, from, now);
        self.set_activity(from, Activity::Parked);
        world.stats.handoff(kind).ceded.record(self.clock.to_ns(now.saturating_sub(decided)));
        let became = self.ledger.evict(from, self.nanos(now));
        let is_left = self.may_be_left(world, from);
        let how = if is_left { How::Bypassed { since: now, unread: false } } else { How::ByForce };
        self.withdrawn.push(Withdrawn { kthread: from, how, not_before: now });
        if let Some(runtime) = world.runtimes.get_mut(from.runtime) {
            runtime.groups.lose(from.index);
        }
        self.follow(world, at, became, kind, decided, now);
        self.look_beside(world, from, now);
        match became {
            Ok(Parked::HandedOn { to, .. }) => {
                self.count_slow_claim(world, (from, Slow::Bypassed), to.runtime, now);
            }
            Ok(Parked::Freed(_)) => self.core_fell_free(world, core, now),
            Err(_) => {}
        }
        if !is_left {
            // After its successor was woken, which has waited for long enough.
            self.move_at_own_cost(world, from, now);
        }
    }

    /// Returns whether a kthread that is withdrawn may be left on the core that it lost, because
    /// there are few bypassed ones of its party.
    fn may_be_left(&self, world: &World, kthread: KthreadId) -> bool {
        let Some(account) = self.ledger.account(kthread.runtime) else { return true };
        let most = usize::from(account.most_evicted()) * PROGRAMS_PER_PARTY;
        let party = |id: KthreadId| world.runtimes.get(id.runtime).map(|runtime| runtime.tenant);
        let (own, core) = (party(kthread), self.ledger.last_core(kthread));
        let fellows = self.withdrawn.iter().filter(|withdrawn| {
            withdrawn.how.is_on_its_core()
                && self.ledger.last_core(withdrawn.kthread) == core
                && party(withdrawn.kthread) == own
        });
        fellows.count() < most
    }

    /// Starts to count the processor time of kthreads that were bypassed on a core whose next owner
    /// has been seen running.
    pub(super) fn watch_bypassed(&mut self, world: &World, core: CoreId, now: Cycles) {
        for i in 0..self.withdrawn.len() {
            let Withdrawn { kthread, how: How::Bypassed { since, unread: false }, .. } = self.withdrawn[i]
            else {
                continue;
            };
            let is_here = world.runtimes.kthread(kthread).1.bound == Some(core);
            // It may have ceded at last.
            if is_here && self.state_of(world, kthread) != Some(KthreadState::Parked) {
                self.withdrawn[i].how = self.watched(world, kthread, since, now);
            }
        }
    }

    /// Returns how a kthread is withdrawn whose processor time counts from `now`, or all time from
    /// `since` where Linux keeps no account.
    fn watched(&self, world: &World, kthread: KthreadId, since: Cycles, now: Cycles) -> How {
        let (runtime, line) = world.runtimes.kthread(kthread);
        match self.threads.processor_time(runtime.pid, line.tid) {
            Some(ns) => {
                let pause = self.timing.deadline;
                How::Watched(Reading { had_ns: ns, last_ns: ns, checked: now, pause })
            }
            // Without descriptors, say: the next reading may succeed.
            None if self.keeps_accounts => How::Bypassed { since: now, unread: true },
            None => How::Unaccounted { since },
        }
    }

    /// Moves a thread to unmanaged cores.
    fn move_off(&mut self, world: &mut World, id: KthreadId) {
        let (runtime, kthread) = world.runtimes.kthread(id);
        // Fails if the thread is dead, and then it is off the core as well.
        let _ = self.threads.bind(runtime.pid, kthread.tid, &self.unmanaged);
        // Other cores have no account of real time.
        self.rank(world, id, Rank::Ordinary);
        world.runtimes.kthread_mut(id).bound = None;
    }

    /// As [`move_off`](Self::move_off), for no offence: the program is charged what it takes.
    fn move_at_own_cost(&mut self, world: &mut World, id: KthreadId, now: Cycles) {
        let began = clock::now();
        self.move_off(world, id);
        world.charge(id.runtime, Work::Refused, clock::now().saturating_sub(began), now);
    }

    /// Moves a thread to unmanaged cores for an offence, and ends the registration of a runtime
    /// after too many.
    fn force_off(&mut self, world: &mut World, id: KthreadId, now: Cycles) {
        self.move_off(world, id);
        world.stats.cores.evictions.add(1);
        let (limit, forget) = (self.max_evictions, self.timing.forget_eviction);
        let Some(runtime) = world.runtimes.get_mut(id.runtime) else { return };
        runtime.stats.counters.evictions.add(1);
        let share = self.most_cores(runtime.kthreads.len());
        let limit = limit.saturating_mul(share);
        if runtime.evictions.count(now, forget, share) >= limit {
            world.doom(id.runtime, EndReason::NeverYields(limit));
        }
    }

    /// Returns the time until which a kthread that has not started on its core is lent no other. On
    /// a shared machine a best-effort one waits behind ordinary programs, so its pause does not
    /// grow.
    pub(super) fn end_of_pause(&self, world: &mut World, id: KthreadId, now: Cycles) -> Cycles {
        let kthread = world.runtimes.kthread_mut(id);
        let doublings = match self.class_of(id.runtime) {
            Class::LatencyCritical => kthread.no_starts.min(NO_START_DOUBLINGS),
            Class::BestEffort => 0,
        };
        kthread.no_starts += 1;
        now.saturating_add(self.timing.no_start_pause << doublings)
    }

    /// Takes the core back from a kthread that has not started on it, and lends the kthread nothing
    /// until `not_before`.
    pub(super) fn take_back(
        &mut self,
        world: &mut World,
        at: usize,
        kthread: KthreadId,
        not_before: Cycles,
        now: Cycles,
    ) {
        world.runtimes.ask_to_cede(kthread);
        // Store-load: the grant before the look at the state in `watch_withdrawn`. Pairs with the
        // fence of a kthread that begins the tenancy (the runtime's `lease::begin`): it sees that
        // the grant is withdrawn, or is seen running.
        fence(Ordering::SeqCst);
        world.stats.cores.no_starts.add(1);
        // Before a kthread would be woken again it is not late.
        match now.saturating_sub(self.cores[at].since) > self.timing.rewake {
            true => self.judge_promise(world, at, kthread, false, now),
            false => self.cores[at].promise = Promise::None,
        }
        let core = self.cores[at].id;
        world.trace.core(clock::now(), core, CoreStep::Ceded, HandoffKind::Evict, (kthread, None));
        let became = self.ledger.evict(kthread, self.nanos(now));
        // Beyond the last look, or its end would not be announced; see `next_readmission`.
        let not_before = not_before.max(self.watched_at.saturating_add(1));
        self.withdrawn.push(Withdrawn { kthread, how: How::BeforeStart, not_before });
        self.look_beside(world, kthread, now);
        if let Some(runtime) = world.runtimes.get_mut(kthread.runtime) {
            runtime.groups.lose(kthread.index);
        }
        self.follow(world, at, became, HandoffKind::Evict, now, now);
    }

    /// Readmits withdrawn kthreads that have parked and whose pause has passed; takes the next step
    /// against those that run. Watching the kthreads of all programs takes up to an eighth of the
    /// time ([`WATCH_PAUSE`]), because programs decide how many there are.
    pub(super) fn watch_withdrawn(&mut self, world: &mut World, now: Cycles) {
        if now < self.next_watch {
            return;
        }
        self.watched_at = now;
        let watch_began = (self.stopwatch)();
        let (mut i, mut has_asked) = (0, false);
        while i < self.withdrawn.len() {
            let Withdrawn { kthread, how, not_before } = self.withdrawn[i];
            let (runtime, line) = world.runtimes.kthread(kthread);
            let (state, generation) = runtime.shared(kthread.index).state.0.load();
            let parked = state == KthreadState::Parked;
            let began = generation == line.generation;
            let back = parked && (began || how == How::BeforeStart);
            if back && now >= not_before {
                self.withdrawn.remove(i);
                self.leave(world, kthread);
                if let Err(error) = self.ledger.readmit(kthread, self.nanos(now)) {
                    self.refused(world, &error, ());
                }
                continue;
            }
            // What has begun and writes another generation is not parked, whatever the word says.
            let runs = if how == How::BeforeStart { began && !parked } else { !(began && parked) };
            if runs && self.is_step_due(how, now) {
                let asks = matches!(how, How::Bypassed { .. } | How::Watched(_));
                if !asks || !has_asked {
                    self.withdrawn[i].how = self.escalate(world, kthread, how, now);
                }
                if asks && !has_asked {
                    // One in a pass, because that takes 5 us; then it is the turn of the others.
                    has_asked = true;
                    let asked = self.withdrawn.remove(i);
                    self.withdrawn.push(asked);
                    continue;
                }
            }
            i += 1;
        }
        let cost = (self.stopwatch)().saturating_sub(watch_began);
        let cost = cost.min(self.clock.from_ns(LONGEST_WATCH_US * 1_000));
        self.next_watch = now.saturating_add(cost.saturating_mul(WATCH_PAUSE));
    }

    /// Returns whether it is time for the next step against a withdrawn kthread that runs. Those
    /// against a bypassed and a watched one read its processor time: a system call.
    fn is_step_due(&self, how: How, now: Cycles) -> bool {
        let is_over = |since: Cycles, time: Cycles| now.saturating_sub(since) > time;
        let Timing { grace, deadline, .. } = self.timing;
        match how {
            How::BeforeStart => true,
            How::Late { since } => is_over(since, grace),
            How::Bypassed { since, .. } | How::Unaccounted { since } => is_over(since, deadline),
            How::Watched(reading) => is_over(reading.checked, reading.pause),
            How::ByForce => false,
        }
    }

    /// Updates the reading of a kthread that has had `ns` of processor time by now; returns `None`
    /// if it has run for longer than its deadline.
    fn read_account(&self, reading: Reading, ns: u64, now: Cycles) -> Option<Reading> {
        let ran = |since_ns: u64| self.clock.from_ns(ns.saturating_sub(since_ns));
        let deadline = self.timing.deadline;
        if ran(reading.had_ns) > deadline {
            return None;
        }
        let elapsed = now.saturating_sub(reading.checked);
        let pause = if ran(reading.last_ns).saturating_mul(IDLE_PART) < elapsed {
            let asked = self.withdrawn.iter().filter(|withdrawn| withdrawn.how.is_on_its_core()).count();
            let longest = deadline * (asked / ASKED_PER_DEADLINE).max(1) as Cycles;
            reading.pause.saturating_mul(2).min(longest)
        } else {
            deadline
        };
        Some(Reading { last_ns: ns, checked: now, pause, ..reading })
    }

    /// Takes the [due](Self::is_step_due) step against a withdrawn kthread that runs in a tenancy
    /// that was taken back, when its grant became `Cede`.
    fn escalate(&mut self, world: &mut World, kthread: KthreadId, how: How, now: Cycles) -> How {
        match how {
            How::BeforeStart => How::Late { since: now },
            How::Late { .. } => {
                self.signal(world, kthread);
                if self.may_be_left(world, kthread) {
                    return How::Bypassed { since: now, unread: false };
                }
                self.move_at_own_cost(world, kthread, now);
                How::ByForce
            }
            How::Bypassed { since, .. } => self.watched(world, kthread, since, now),
            How::Watched(reading) => {
                let (runtime, line) = world.runtimes.kthread(kthread);
                let ns = self.threads.processor_time(runtime.pid, line.tid).unwrap_or(reading.last_ns);
                let Some(reading) = self.read_account(reading, ns, now) else {
                    self.force_off(world, kthread, now);
                    return How::ByForce;
                };
                How::Watched(reading)
            }
            How::Unaccounted { .. } => {
                self.force_off(world, kthread, now);
                How::ByForce
            }
            How::ByForce => how,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evictions_are_forgotten_one_by_one() {
        let mut evictions = Evictions::default();
        assert_eq!([5, 5, 104].map(|now| evictions.count(now, 100, 1)), [1, 2, 3]);
        assert_eq!(evictions.count(305, 100, 1), 1, "three are forgotten");
        assert_eq!([306, 405, 406, 605].map(|now| evictions.count(now, 100, 1)), [2, 2, 3, 2]);
        assert_eq!(evictions.count(10_000, 100, 1), 1);
    }

    #[test]
    fn evictions_that_a_program_of_more_cores_has_left_count_by_core() {
        let clock = Clock::from_hz(1_000_000_000);
        let forget = clock.from_ns(FORGET_EVICTION_US * 1_000);
        let mut left = Evictions::default();
        (0..200).for_each(|_| assert!(left.count(0, forget, 8) <= 200));
        assert_eq!(left.time_left(0, &clock), 25 * forget, "eight cores forget eight times as fast");
        let mut next = left;
        assert_eq!(next.count(0, forget, 1), 26);
        assert_eq!(next.count(0, forget, 8), 209, "26 for each of eight cores");
        assert_eq!(left.count(0, forget, 8), 201, "a program of as many goes on");
        assert_eq!(left.count(100 * forget, forget, 1), 1);
    }

    #[test]
    fn cores_given_up_in_time_make_evictions_forgotten() {
        let mut evictions = Evictions::default();
        assert_eq!([0, 0, 0].map(|now| evictions.count(now, 100, 1)), [1, 2, 3]);
        (1..CEDES_PER_EVICTION).for_each(|_| evictions.note_cede());
        assert_eq!(evictions.count(0, 100, 1), 4, "not yet");
        evictions.note_cede();
        assert_eq!(evictions.count(0, 100, 1), 4, "one is forgotten");
        (0..100 * CEDES_PER_EVICTION).for_each(|_| evictions.note_cede());
        assert_eq!(evictions.count(0, 100, 1), 1, "nothing is put by for later");
    }
}
