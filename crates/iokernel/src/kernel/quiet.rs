//! Decides what the polling thread does in a quiet time, while nothing happens: polling, giving
//! ordinary threads their share of its core, or sleeping.
//!
//! Owns [`IdlePolicy`], a pure decision: times are arguments. The thread sleeps when it has polled
//! for as long as [`AdaptiveSpin`] says. Two rules hold whatever a program does with its timers:
//!
//! * **A known event ends a quiet time only when it is due.** Timers of runtimes and events of
//!   ports are known before. A quiet time that one of them ends is
//!   [foreseen](AdaptiveSpin::record_foreseen): polling for it was useless. An event that passed
//!   long before is not its end. A runtime without a core may keep a timer that is overdue; if that
//!   counted, the thread would learn to sleep after the shortest time, whatever the other programs
//!   do.
//! * **An event that is too near to sleep gives others their share.** A sleep ends a
//!   [`WakeLatency`] before the next known event, so there is none if that is nearer than two
//!   margins. A program may keep an event so near at all times.

use tailwater_shm::Cycles;
use tailwater_shm::adaptive_spin::AdaptiveSpin;

use crate::allocator::PollUrgency;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct IdlePolicy {
    /// When to sleep; `None`: never.
    spin: Option<AdaptiveSpin>,
    margin: WakeLatency,
    max_wake_delay: Cycles,
    /// Time of the last activity.
    busy_at: Cycles,
    /// When the present quiet time is known to end at the latest; `None` before it has lasted for
    /// so long that this matters.
    foreseen: Option<Cycles>,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Poll on. A slice that ordinary threads were to have before is given now.
    Poll,
    /// Poll on, and let ordinary threads have their share.
    GiveShare,
    /// Sleep until the next event.
    Sleep,
}

impl IdlePolicy {
    /// Begins one at `now`. A sleep that only looks now and then lasts for `max_wake_delay`.
    pub(super) fn new(
        spin: Option<AdaptiveSpin>,
        margin: WakeLatency,
        max_wake_delay: Cycles,
        now: Cycles,
    ) -> Self {
        Self { spin, margin, max_wake_delay, busy_at: now, foreseen: None }
    }

    /// Returns what to do at the end of an iteration that was `busy` or found nothing to do.
    /// `next_event` returns when the next event is due that is known at `now`.
    #[inline]
    pub(super) fn step(
        &mut self,
        busy: bool,
        attention: PollUrgency,
        now: Cycles,
        next_event: impl Fn() -> Cycles,
    ) -> Step {
        // Without sleep others have no other moment.
        let Some(spin) = &mut self.spin else { return Step::GiveShare };
        let (quiet, shortest) = (now.saturating_sub(self.busy_at), spin.shortest());
        if busy {
            self.busy_at = now;
            if self.foreseen.take().is_some_and(|at| at <= now && now - at <= shortest) {
                spin.record_foreseen(quiet);
            } else {
                spin.record(quiet);
            }
            return Step::GiveShare;
        }
        if quiet <= shortest {
            return Step::Poll;
        }
        // An event that has passed did not end the quiet time: a later one may.
        if self.foreseen.is_none_or(|at| at.saturating_add(shortest) < now) {
            self.foreseen = Some(next_event());
        }
        if quiet <= spin.threshold() {
            return Step::Poll;
        }
        if self.time_left(next_event(), attention, now).is_some() { Step::Sleep } else { Step::GiveShare }
    }

    /// Starts a new quiet time at `now`, after the thread did something else. The time until then
    /// is not counted as quiet.
    pub(super) fn restart(&mut self, now: Cycles) {
        self.busy_at = now;
    }

    /// Returns how long a sleep may last; `None` if the next event is too near.
    pub(super) fn time_left(
        &self,
        next_event: Cycles,
        attention: PollUrgency,
        now: Cycles,
    ) -> Option<Cycles> {
        let margin = self.margin.get();
        let look = match attention {
            PollUrgency::None => Cycles::MAX,
            _ => now + margin + self.max_wake_delay,
        };
        let left = next_event.min(look).saturating_sub(now).checked_sub(margin)?;
        // A shorter sleep is not worth its system call and the halt.
        (left > margin).then_some(left)
    }

    /// Records a sleep that ended `late` after its due time.
    pub(super) fn woke_late(&mut self, late: Cycles) {
        self.margin.record(late);
    }
}

/// Part of the distance to the last wake by which an early one shortens the margin: after some 30
/// of them a single late one is forgotten.
const DECAY: Cycles = 16;

/// How long before a known event a sleep ends: an estimate of how late this machine wakes the
/// thread, from how late it has woken it. A margin that is too long is polled away before each
/// event; one that is too short delays the event. So one late wake lengthens it at once, and many
/// early ones shorten it.
#[derive(Debug, Clone, Copy)]
pub(super) struct WakeLatency {
    least: Cycles,
    most: Cycles,
    now: Cycles,
}

impl WakeLatency {
    /// Returns a margin between `least` and `most`; the most until a wake has been seen.
    pub(super) fn new([least, most]: [Cycles; 2]) -> Self {
        Self { least: least.min(most), most, now: most }
    }

    /// Returns the margin.
    #[inline]
    pub(super) fn get(&self) -> Cycles {
        self.now
    }

    /// Records a sleep that ended `late` after its due time.
    pub(super) fn record(&mut self, late: Cycles) {
        // A quarter more than what was seen, for what was not.
        let enough = late.saturating_add(late / 4).clamp(self.least, self.most);
        if enough >= self.now {
            self.now = enough;
        } else {
            self.now -= (self.now - enough).div_ceil(DECAY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: Cycles = 20;
    const LONGEST: Cycles = 1_000;
    const MARGIN: Cycles = 60;
    const NEVER: Cycles = Cycles::MAX;

    fn quiet(now: Cycles) -> IdlePolicy {
        let spin = AdaptiveSpin::new(SHORTEST, LONGEST);
        IdlePolicy::new(Some(spin), WakeLatency::new([MARGIN, MARGIN]), 5_000, now)
    }

    /// Polls at each time after `from` up to `to`, where something happens. `next_event` returns
    /// when the next event is due, of a time.
    fn poll(quiet: &mut IdlePolicy, from: Cycles, to: Cycles, next_event: impl Fn(Cycles) -> Cycles) {
        for now in from + 1..to {
            quiet.step(false, PollUrgency::None, now, || next_event(now));
        }
        quiet.step(true, PollUrgency::None, to, || next_event(to));
    }

    /// Returns after which quiet time the thread sleeps, when it has seen 20 of a length. Of each,
    /// `next_event` returns when the next event is due, of the time since it began.
    fn learned(length: Cycles, next_event: impl Fn(Cycles) -> Cycles) -> Cycles {
        let mut quiet = quiet(0);
        for round in 0..20 {
            let from = round * length;
            poll(&mut quiet, from, from + length, |now| from.saturating_add(next_event(now - from)));
        }
        let from = 20 * length;
        (from + 1..).find(|&now| quiet.step(false, PollUrgency::None, now, || NEVER) == Step::Sleep).unwrap()
            - from
    }

    #[test]
    fn events_that_are_not_known_before_are_waited_for() {
        assert_eq!(learned(300, |_| NEVER), 321);
    }

    #[test]
    fn an_event_that_is_known_before_and_ends_the_quiet_time_is_not() {
        assert_eq!(learned(300, |_| 300), SHORTEST + 1);
        assert_eq!(learned(300, |_| 300 - SHORTEST), SHORTEST + 1, "a little later");
    }

    #[test]
    fn an_event_that_passed_long_before_did_not_end_the_quiet_time() {
        // An overdue timer of a runtime that has no core.
        assert_eq!(learned(300, |_| 0), 321);
        assert_eq!(learned(300, |_| 100), 321);
        assert_eq!(learned(300, |_| 299 - SHORTEST), 321);
    }

    #[test]
    fn an_event_that_passed_does_not_hide_the_one_that_ends_the_quiet_time() {
        let next_event = |now: Cycles| if now <= 100 { 100 } else { 300 };
        assert_eq!(learned(300, next_event), SHORTEST + 1);
    }

    #[test]
    fn an_event_that_is_always_near_gives_others_their_share() {
        let mut quiet = quiet(0);
        let mut step = |now: Cycles, event: Cycles| quiet.step(false, PollUrgency::None, now, || event);
        assert_eq!(step(LONGEST, LONGEST + MARGIN), Step::Poll);
        for now in LONGEST + 1..3 * LONGEST {
            for distance in [0, MARGIN, 2 * MARGIN] {
                assert_eq!(step(now, now + distance), Step::GiveShare, "{distance} before the event");
            }
            assert_eq!(step(now, 0), Step::GiveShare, "an overdue one");
        }
        assert_eq!(step(3 * LONGEST, 3 * LONGEST + 2 * MARGIN + 1), Step::Sleep);
    }

    #[test]
    fn a_thread_that_looks_now_and_then_sleeps_until_the_next_look() {
        let quiet = quiet(0);
        assert_eq!(quiet.time_left(NEVER, PollUrgency::None, 7), Some(NEVER - 7 - MARGIN));
        assert_eq!(quiet.time_left(NEVER, PollUrgency::Occasional, 7), Some(5_000));
        assert_eq!(quiet.time_left(1_007, PollUrgency::Occasional, 7), Some(1_000 - MARGIN));
    }

    #[test]
    fn a_thread_that_is_busy_or_never_sleeps_gives_others_their_share() {
        let mut never = IdlePolicy::new(None, WakeLatency::new([MARGIN, MARGIN]), 0, 0);
        let mut quiet = quiet(0);
        for now in 1..3 * LONGEST {
            assert_eq!(never.step(now % 2 == 0, PollUrgency::None, now, || NEVER), Step::GiveShare);
            assert_eq!(quiet.step(true, PollUrgency::Constant, now, || NEVER), Step::GiveShare);
        }
    }

    #[test]
    fn what_takes_time_is_no_quiet_time() {
        let mut quiet = quiet(0);
        quiet.restart(5_000);
        assert_eq!(quiet.step(false, PollUrgency::None, 5_000 + LONGEST, || NEVER), Step::Poll);
        assert_eq!(quiet.step(false, PollUrgency::None, 5_001 + LONGEST, || NEVER), Step::Sleep);
    }

    /// Returns the margin after sleeps that ended so late.
    fn after(late: impl IntoIterator<Item = Cycles>) -> Cycles {
        let mut margin = WakeLatency::new([10, 60]);
        late.into_iter().for_each(|late| margin.record(late));
        margin.get()
    }

    #[test]
    fn the_margin_is_the_longest_until_wakes_show_less() {
        assert_eq!(after([]), 60);
        assert!((30..40).contains(&after([24; 40])), "{}", after([24; 40]));
        assert_eq!(after([0; 200]), 10);
    }

    #[test]
    fn one_late_wake_lengthens_the_margin_at_once_and_a_stall_no_further_than_the_longest() {
        assert_eq!(after([8; 200].into_iter().chain([40])), 50);
        assert_eq!(after([8; 200].into_iter().chain([1_000_000])), 60);
        assert_eq!(after([8; 200].into_iter().chain([Cycles::MAX])), 60);
        assert!(after([8; 200].into_iter().chain([1_000_000]).chain([8; 40])) < 25);
    }
}
