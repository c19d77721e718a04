//! Rate limit for connections of unprivileged users: accept, refuse with a message, or close
//! silently.
//!
//! Owns the rate of connections and the rate of refusals. A refusal with a message costs the
//! control thread as much as a connection that it serves, tens of microseconds. If each connection
//! beyond [`CONNECTS`] got one, that rate would bound nothing. So a user gets messages at the rate
//! [`REFUSALS`], and all further connections are closed silently. After a round of connections that
//! were all beyond the rate, no connection is accepted for [`REST`].
//!
//! Pure: time is an argument.

use std::time::{Duration, Instant};

use super::pace::Rate;
use super::turns::{CONNECTS, Turns};

/// Refusals of one user with a message.
const REFUSALS: Rate = Rate { burst: 1, interval: CONNECTS.interval };
/// Pause of accepting after a round of connections beyond the rate. Other connections wait as long.
pub(super) const REST: Duration = Duration::from_millis(1);

/// The decision on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ruling {
    Serve,
    /// The message says after what time one more connection is permitted.
    Refuse(Duration),
    Close,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Entrance {
    connects: Turns,
    refusals: Turns,
}

impl Entrance {
    pub(super) fn new(now: Instant) -> Self {
        Self { connects: Turns::new(CONNECTS, now), refusals: Turns::new(REFUSALS, now) }
    }

    /// As [`new`](Self::new), at the start of an IOKernel to which `programs` programs may return.
    pub(super) fn first(programs: u32, now: Instant) -> Self {
        Self { connects: Turns::first(CONNECTS, programs, now), ..Self::new(now) }
    }

    /// Counts one more connection of user `uid`.
    pub(super) fn judge(&mut self, uid: u32, now: Instant) -> Ruling {
        match self.connects.take(uid, now) {
            Ok(()) => Ruling::Serve,
            Err(wait) if self.refusals.take(uid, now).is_ok() => Ruling::Refuse(wait),
            Err(_) => Ruling::Close,
        }
    }
}

/// The connections that were accepted one after the other.
#[derive(Debug, Default)]
pub(super) struct Round {
    beyond_rate: usize,
    others: usize,
}

impl Round {
    pub(super) fn note(&mut self, ruling: Ruling) {
        match ruling {
            Ruling::Serve => self.others += 1,
            Ruling::Refuse(_) | Ruling::Close => self.beyond_rate += 1,
        }
    }

    /// Returns whether no connection is to be accepted for [`REST`].
    pub(super) fn is_flood(&self) -> bool {
        self.beyond_rate > 0 && self.others == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of a thousand connections of a user are served, refused in words and closed
    /// without.
    fn outcomes(entrance: &mut Entrance, uid: u32, now: Instant) -> [usize; 3] {
        let mut outcomes = [0; 3];
        for _ in 0..1000 {
            outcomes[match entrance.judge(uid, now) {
                Ruling::Serve => 0,
                Ruling::Refuse(_) => 1,
                Ruling::Close => 2,
            }] += 1;
        }
        outcomes
    }

    #[test]
    fn a_user_beyond_the_rate_is_refused_in_words_once_every_interval() {
        let start = Instant::now();
        let mut entrance = Entrance::new(start);
        assert_eq!(outcomes(&mut entrance, 1, start), [100, 1, 899]);
        for n in 1..4 {
            assert_eq!(outcomes(&mut entrance, 1, start + CONNECTS.interval * n), [1, 1, 998]);
        }
        assert_eq!(outcomes(&mut entrance, 2, start), [100, 1, 899], "another user");
    }

    #[test]
    fn users_whose_programs_come_back_are_counted_too() {
        let start = Instant::now();
        assert_eq!(outcomes(&mut Entrance::first(50, start), 1, start), [150, 1, 849]);
    }

    #[test]
    fn a_round_of_none_but_connections_beyond_the_rate_is_followed_by_a_rest() {
        let rests = |rulings: &[Ruling]| {
            let mut round = Round::default();
            rulings.iter().for_each(|&ruling| round.note(ruling));
            round.is_flood()
        };
        assert!(!rests(&[]), "none waits");
        assert!(rests(&[Ruling::Refuse(REST), Ruling::Close]));
        assert!(!rests(&[Ruling::Close, Ruling::Serve, Ruling::Close]));
    }
}
