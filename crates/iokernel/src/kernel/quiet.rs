//! Decides what the polling thread does in a quiet time, while nothing happens: polling, giving
//! ordinary threads their share of its core, or sleeping.
//!
//! Owns [`Quiet`], a pure decision: times are arguments. The thread sleeps when it has polled for
//! as long as [`Patience`] says. Two rules hold whatever a program does with its timers:
//!
//! * **A known event ends a quiet time only when it is due.** Timers of runtimes and events of
//!   ports are known before. A quiet time that one of them ends is
//!   [foreseen](Patience::record_foreseen): polling for it was useless. An event that passed long
//!   before is not its end. A runtime without a core may keep a timer that is overdue; if that
//!   counted, the thread would learn to sleep after the shortest time, whatever the other programs
//!   do.
//! * **An event that is too near to sleep gives others their share.** A sleep ends a [`Margin`]
//!   before the next known event, so there is none if that is nearer than two margins. A program
//!   may keep an event so near at all times.

use tailwater_shm::Cycles;
use tailwater_shm::patience::Patience;

use super::margin::Margin;
use crate::allocator::Attention;

/// Least time without events after which the polling thread sleeps, in microseconds: the sleep and
/// the wake take as long.
pub(super) const SHORTEST_US: u64 = 20;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Quiet {
    /// When to sleep; `None`: never.
    patience: Option<Patience>,
    margin: Margin,
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

impl Quiet {
    /// Begins one at `now`. A sleep that only looks now and then lasts for `max_wake_delay`.
    pub(super) fn new(
        patience: Option<Patience>,
        margin: Margin,
        max_wake_delay: Cycles,
        now: Cycles,
    ) -> Self {
        Self { patience, margin, max_wake_delay, busy_at: now, foreseen: None }
    }

    /// Returns what to do at the end of an iteration that was `busy` or found nothing to do.
    /// `next_event` returns when the next event is due that is known at `now`.
    #[inline]
    pub(super) fn step(
        &mut self,
        busy: bool,
        attention: Attention,
        now: Cycles,
        next_event: impl Fn() -> Cycles,
    ) -> Step {
        // Without sleep others have no other moment.
        let Some(patience) = &mut self.patience else { return Step::GiveShare };
        let (quiet, shortest) = (now.saturating_sub(self.busy_at), patience.shortest());
        if busy {
            self.busy_at = now;
            if self.foreseen.take().is_some_and(|at| at <= now && now - at <= shortest) {
                patience.record_foreseen(quiet);
            } else {
                patience.record(quiet);
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
        if quiet <= patience.threshold() {
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
    pub(super) fn time_left(&self, next_event: Cycles, attention: Attention, now: Cycles) -> Option<Cycles> {
        let margin = self.margin.get();
        let look = match attention {
            Attention::None => Cycles::MAX,
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

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: Cycles = 20;
    const LONGEST: Cycles = 1_000;
    const MARGIN: Cycles = 60;
    const NEVER: Cycles = Cycles::MAX;

    fn quiet(now: Cycles) -> Quiet {
        let patience = Patience::new(SHORTEST, LONGEST);
        Quiet::new(Some(patience), Margin::new([MARGIN, MARGIN]), 5_000, now)
    }

    /// Polls at each time after `from` up to `to`, where something happens. `next_event` returns
    /// when the next event is due, of a time.
    fn poll(quiet: &mut Quiet, from: Cycles, to: Cycles, next_event: impl Fn(Cycles) -> Cycles) {
        for now in from + 1..to {
            quiet.step(false, Attention::None, now, || next_event(now));
        }
        quiet.step(true, Attention::None, to, || next_event(to));
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
        (from + 1..).find(|&now| quiet.step(false, Attention::None, now, || NEVER) == Step::Sleep).unwrap()
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
        let mut step = |now: Cycles, event: Cycles| quiet.step(false, Attention::None, now, || event);
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
        assert_eq!(quiet.time_left(NEVER, Attention::None, 7), Some(NEVER - 7 - MARGIN));
        assert_eq!(quiet.time_left(NEVER, Attention::Occasional, 7), Some(5_000));
        assert_eq!(quiet.time_left(1_007, Attention::Occasional, 7), Some(1_000 - MARGIN));
    }

    #[test]
    fn a_thread_that_is_busy_or_never_sleeps_gives_others_their_share() {
        let mut never = Quiet::new(None, Margin::new([MARGIN, MARGIN]), 0, 0);
        let mut quiet = quiet(0);
        for now in 1..3 * LONGEST {
            assert_eq!(never.step(now % 2 == 0, Attention::None, now, || NEVER), Step::GiveShare);
            assert_eq!(quiet.step(true, Attention::Constant, now, || NEVER), Step::GiveShare);
        }
    }

    #[test]
    fn what_takes_time_is_no_quiet_time() {
        let mut quiet = quiet(0);
        quiet.restart(5_000);
        assert_eq!(quiet.step(false, Attention::None, 5_000 + LONGEST, || NEVER), Step::Poll);
        assert_eq!(quiet.step(false, Attention::None, 5_001 + LONGEST, || NEVER), Step::Sleep);
    }
}
