//! Rate limits for connections and registrations of each unprivileged user.
//!
//! A connection costs the control thread tens of microseconds, a registration some hundreds: memory
//! files, mappings, threads, reads of `/proc`. On a machine of two cores that is time of the
//! polling thread's core. So what one user causes has a bound: [`CONNECTS`] and [`REGISTRATIONS`].
//! Programs that register again after a takeover or a restart count, too: at the start of an
//! IOKernel each user may do both `max-runtimes` times more at once, and no program is expected for
//! longer.
//!
//! The polling thread itself attaches each registered program and ends its registration, some
//! microseconds each, which no account of offences has: it is the pace that bounds them.
//!
//! Registrations by one grant of users whom it does not name have a pace in common besides
//! ([`super::common`]).
//!
//! Pure: time is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::pace::{Pace, Rate};

/// Connections of one user. `tailwater stats` makes one, a program that waits for an IOKernel two a
/// second.
pub(super) const CONNECTS: Rate = Rate { burst: 100, interval: Duration::from_millis(20) };
/// Registrations that one user asks for.
pub(super) const REGISTRATIONS: Rate = Rate { burst: 20, interval: Duration::from_millis(500) };
/// Maximum number of users that are counted singly; all others share one pace.
const MAX_USERS: usize = 4096;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Turns {
    rate: Rate,
    users: HashMap<u32, Pace>,
    others: Pace,
}

impl Turns {
    pub(super) fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, users: HashMap::new(), others: Pace::new(now) }
    }

    /// As [`new`](Self::new), at the start of an IOKernel to which `programs` programs may return.
    pub(super) fn first(rate: Rate, programs: u32, now: Instant) -> Self {
        Self::new(Rate { burst: rate.burst + programs, ..rate }, now)
    }

    /// Counts one more of user `uid`.
    ///
    /// # Errors
    /// The time after which one more is permitted.
    pub(super) fn take(&mut self, uid: u32, now: Instant) -> Result<(), Duration> {
        self.take_of(uid, 0, now)
    }

    /// As [`take`](Self::take), for a user who may do so `burst` times at once if that is more than
    /// by the rate.
    pub(super) fn take_of(&mut self, uid: u32, burst: u32, now: Instant) -> Result<(), Duration> {
        let rate = Rate { burst: self.rate.burst.max(burst), ..self.rate };
        if self.users.len() >= MAX_USERS {
            self.users.retain(|_, pace| !pace.is_over(now));
        }
        let pace = if self.users.len() >= MAX_USERS && !self.users.contains_key(&uid) {
            &mut self.others
        } else {
            self.users.entry(uid).or_insert(Pace::new(now))
        };
        if pace.take(rate, now) { Ok(()) } else { Err(pace.wait(rate, now)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_told_after_what_time_one_more_is_permitted() {
        let start = Instant::now();
        let mut turns = Turns::new(REGISTRATIONS, start);
        for _ in 0..20 {
            assert_eq!(turns.take(1, start), Ok(()));
        }
        let wait = turns.take(1, start).unwrap_err();
        assert_eq!(turns.take(2, start), Ok(()), "another user");
        assert!(wait <= REGISTRATIONS.interval, "{wait:?}");
        assert_eq!(turns.take(1, start + wait), Ok(()));
        assert!(turns.take(1, start + wait).is_err());
        let mut turns = Turns::first(REGISTRATIONS, 100, start);
        assert_eq!((0..1000).filter(|_| turns.take(1, start).is_ok()).count(), 120);
        let mut turns = Turns::new(REGISTRATIONS, start);
        let taken = |turns: &mut Turns, uid, burst| {
            (0..1000).filter(|_| turns.take_of(uid, burst, start).is_ok()).count()
        };
        assert_eq!(taken(&mut turns, 1, 64), 64, "as many programs as a grant permits");
        assert_eq!(taken(&mut turns, 2, 4), 20);
    }

    #[test]
    fn users_beyond_the_table_share_a_pace_and_the_table_empties() {
        let start = Instant::now();
        let mut turns = Turns::new(REGISTRATIONS, start);
        let granted = (0..2 * MAX_USERS as u32).filter(|&uid| turns.take(uid, start).is_ok()).count();
        assert_eq!(granted, MAX_USERS + REGISTRATIONS.burst as usize);
        assert_eq!(turns.take(u32::MAX, start + REGISTRATIONS.interval), Ok(()));
        assert_eq!(turns.users.len(), 1);
    }
}
