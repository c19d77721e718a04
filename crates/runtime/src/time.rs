//! Time for threads: sleeping, intervals, deadlines. Resolution is 1 us while the kthread runs.
//!
//! [`Duration`] and [`Instant`] are those of `std`. Everything works on ordinary OS threads too,
//! where Linux waits.
//!
//! # Time-outs
//! Every call that waits has a form with a limit: `wait_timeout`, `park_timeout`,
//! `set_read_timeout` and so on. There is no `timeout(duration, closure)`: a thread cannot be
//! stopped from outside without leaving its locks held and its destructors not run. To bound
//! several waits by one limit, make a [`Deadline`] and pass what [remains](Deadline::remaining) to
//! each.

use crate::records::kthread::current_uthread;
use crate::records::runtime::about;
use crate::verbs::{switch, wait};
pub use std::time::{Duration, Instant};
use tailwater_shm::Cycles;

/// Sleeps for at least `duration`. Other user threads run meanwhile; on an ordinary thread this is
/// `std::thread::sleep`.
///
/// # Examples
/// ```standalone_crate
/// use std::time::{Duration, Instant};
///
/// #[tailwater::main]
/// fn main() {
///     let start = Instant::now();
///     tailwater::thread::sleep(Duration::from_micros(100));
///     assert!(start.elapsed() >= Duration::from_micros(100));
/// }
/// ```
pub fn sleep(duration: Duration) {
    match Instant::now().checked_add(duration) {
        Some(deadline) => sleep_until(deadline),
        None if current_uthread().is_some() => loop {
            wait::sleep_until(Cycles::MAX);
        },
        None => std::thread::sleep(duration),
    }
}

/// Sleeps until `deadline`; if it has passed, yields to other threads and returns. Other user
/// threads run meanwhile.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::time::{Duration, Instant, sleep_until};
///
/// #[tailwater::main]
/// fn main() {
///     let noon = Instant::now() + Duration::from_millis(1);
///     sleep_until(noon);
///     assert!(Instant::now() >= noon);
/// }
/// ```
pub fn sleep_until(deadline: Instant) {
    let user_thread = current_uthread().is_some();
    if user_thread && deadline <= Instant::now() {
        // A loop of sleeps must let other threads run, even if none of them waits.
        return switch::yield_now();
    }
    // Sleeps again for the rest: the cycle clock was calibrated in a few milliseconds and may be
    // slightly fast.
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return;
        }
        if user_thread {
            wait::sleep_until(about(rest));
        } else {
            std::thread::sleep(rest);
        }
    }
}

/// What an [`Interval`] does after its thread was late by a period or more.
///
/// # Examples
/// ```
/// use tailwater::time::{Duration, MissedTicks, interval};
///
/// let statistics = interval(Duration::from_secs(1)).missed_ticks(MissedTicks::Skip);
/// assert_eq!(statistics.period(), Duration::from_secs(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissedTicks {
    /// Missed ticks follow at once, one after the other, until the interval has caught up: as many
    /// ticks as periods.
    #[default]
    Burst,
    /// The next tick is a period after the late one: the schedule moves.
    Delay,
    /// Missed ticks are skipped: the schedule stays.
    Skip,
}

/// Ticks at a fixed period; see [`interval`].
///
/// # Examples
/// ```
/// use tailwater::time::{Duration, interval};
///
/// let mut ticks = interval(Duration::from_millis(1));
/// assert_eq!(ticks.period(), Duration::from_millis(1));
/// let first = ticks.tick();
/// assert_eq!(ticks.tick() - first, Duration::from_millis(1));
/// ```
#[derive(Debug, Clone)]
pub struct Interval {
    next: Instant,
    period: Duration,
    missed: MissedTicks,
}

/// Returns an interval whose first tick is due at once and each other `period` after the one
/// before.
///
/// A thread whose work takes longer than a period misses ticks; [`MissedTicks`] has the ways to
/// handle them, and unless [chosen](Interval::missed_ticks) otherwise they are made up for.
///
/// # Panics
/// If `period` is zero.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::time::{Duration, Instant, interval};
///
/// #[tailwater::main]
/// fn main() {
///     let start = Instant::now();
///     let mut ticks = interval(Duration::from_micros(200));
///     for _ in 0..6 {
///         ticks.tick();
///     }
///     assert!(start.elapsed() >= Duration::from_micros(1000));
/// }
/// ```
pub fn interval(period: Duration) -> Interval {
    interval_at(Instant::now(), period)
}

/// As [`interval`], with the first tick at `start`.
///
/// # Panics
/// If `period` is zero.
///
/// # Examples
/// ```
/// use tailwater::time::{Duration, Instant, interval_at};
///
/// let start = Instant::now() + Duration::from_millis(1);
/// assert_eq!(interval_at(start, Duration::from_millis(1)).tick(), start);
/// ```
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval's period cannot be zero");
    Interval { next: start, period, missed: MissedTicks::default() }
}

impl Interval {
    /// Chooses what happens to missed ticks.
    ///
    /// # Examples
    /// ```
    /// use tailwater::time::{Duration, MissedTicks, interval};
    ///
    /// let mut ticks = interval(Duration::from_millis(1)).missed_ticks(MissedTicks::Skip);
    /// let first = ticks.tick();
    /// std::thread::sleep(Duration::from_millis(3));
    /// assert!(ticks.tick() - first >= Duration::from_millis(1));
    /// ```
    #[must_use]
    pub fn missed_ticks(mut self, missed: MissedTicks) -> Self {
        self.missed = missed;
        self
    }

    /// Waits for the next tick. Returns when it was due, which may be a while ago.
    pub fn tick(&mut self) -> Instant {
        sleep_until(self.due());
        self.advance()
    }

    /// Returns when the next tick is due.
    pub(crate) fn due(&self) -> Instant {
        self.next
    }

    /// Takes the tick that is due; returns when it was.
    pub(crate) fn advance(&mut self) -> Instant {
        let due = self.next;
        self.next = next_tick(due, Instant::now(), self.period, self.missed);
        due
    }

    /// Returns the time between ticks.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Makes the next tick due a period from now.
    ///
    /// # Examples
    /// ```
    /// use tailwater::time::{Duration, Instant, interval};
    ///
    /// let mut ticks = interval(Duration::from_millis(1));
    /// let now = Instant::now();
    /// ticks.reset();
    /// assert!(ticks.tick() >= now + Duration::from_millis(1));
    /// ```
    pub fn reset(&mut self) {
        self.next = Instant::now() + self.period;
    }
}

/// Returns when the tick after the one due at `due` is due, if the thread received that one at
/// `now`.
fn next_tick(due: Instant, now: Instant, period: Duration, missed: MissedTicks) -> Instant {
    let late = now.saturating_duration_since(due);
    if late < period {
        return due + period;
    }
    match missed {
        MissedTicks::Burst => due + period,
        MissedTicks::Delay => now + period,
        MissedTicks::Skip => {
            let since_last = late.as_nanos() % period.as_nanos();
            // Less than a period, and a period that passes in a process's life fits 64 bits.
            now - Duration::from_nanos(since_last as u64) + period
        }
    }
}

/// A moment by which something must be done; bounds several waits by one limit.
///
/// # Examples
/// ```
/// use tailwater::sync::{Condvar, Mutex};
/// use tailwater::time::{Deadline, Duration};
///
/// let (lock, changed) = (Mutex::new(0), Condvar::new());
/// let deadline = Deadline::after(Duration::from_millis(2));
/// let mut count = lock.lock().unwrap();
/// while *count < 3 && !deadline.has_passed() {
///     count = changed.wait_timeout(count, deadline.remaining()).unwrap().0;
/// }
/// assert!(deadline.has_passed());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No limit.
    pub const NEVER: Self = Self(None);

    /// Returns the moment `duration` from now; [`NEVER`](Self::NEVER) if that is beyond the clock's
    /// range.
    ///
    /// # Examples
    /// ```
    /// use tailwater::time::{Deadline, Duration};
    ///
    /// assert!(Deadline::after(Duration::ZERO).has_passed());
    /// assert_eq!(Deadline::after(Duration::MAX), Deadline::NEVER);
    /// ```
    pub fn after(duration: Duration) -> Self {
        Self(Instant::now().checked_add(duration))
    }

    /// Returns the deadline at `instant`.
    pub fn at(instant: Instant) -> Self {
        Self(Some(instant))
    }

    /// Returns the time left; zero if it has passed, [`Duration::MAX`] if there is no limit.
    ///
    /// # Examples
    /// ```
    /// use tailwater::time::{Deadline, Duration};
    ///
    /// assert!(Deadline::after(Duration::from_secs(1)).remaining() <= Duration::from_secs(1));
    /// assert_eq!(Deadline::after(Duration::ZERO).remaining(), Duration::ZERO);
    /// ```
    pub fn remaining(&self) -> Duration {
        self.0.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns whether the moment has passed.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns the moment, if there is a limit.
    pub fn instant(&self) -> Option<Instant> {
        self.0
    }

    /// Returns the earlier of two deadlines.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (a, b) => Self(a.or(b)),
        }
    }
}

impl From<Instant> for Deadline {
    fn from(instant: Instant) -> Self {
        Self::at(instant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_tick_in_time_keeps_the_schedule() {
        let due = Instant::now();
        for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
            assert_eq!(next_tick(due, due, 10 * MS, missed), due + 10 * MS);
            assert_eq!(next_tick(due, due + 9 * MS, 10 * MS, missed), due + 10 * MS);
        }
    }

    #[test]
    fn missed_ticks_are_made_up_for_or_moved_or_left_out() {
        let due = Instant::now();
        let next = |missed| next_tick(due, due + 34 * MS, 10 * MS, missed) - due;
        assert_eq!(next(MissedTicks::Burst), 10 * MS);
        assert_eq!(next(MissedTicks::Delay), 44 * MS);
        assert_eq!(next(MissedTicks::Skip), 40 * MS);
        let on_time = next_tick(due, due + 30 * MS, 10 * MS, MissedTicks::Skip) - due;
        assert_eq!(on_time, 40 * MS, "the tick due now is the one that was received");
    }

    #[test]
    fn the_earlier_deadline_wins_and_none_is_later_than_any() {
        let now = Instant::now();
        assert_eq!(Deadline::NEVER.min(now.into()), Deadline::at(now));
        assert_eq!(Deadline::at(now + MS).min(now.into()), Deadline::at(now));
        assert_eq!(Deadline::NEVER.remaining(), Duration::MAX);
        assert!(Deadline::at(now).has_passed());
    }
}
