//! Pauses between rounds of accepting connections, during a flood of them.
//!
//! Owns [`Rests`]. A connection that the [`gate`](super::gate) closes without a message is charged
//! to no account, so its rate is bounded instead: after a round of which most are not served, none
//! is accepted for [`REST`], and for twice as long after each further round of which most are
//! closed, up to [`LONGEST`]. Other connections wait as long, so a round with one that is served
//! ends that. Pure.

use std::time::Duration;

/// The first pause.
pub(super) const REST: Duration = Duration::from_millis(1);
/// The longest: a round of 64 closed connections, some 3 us each, takes a twentieth of the time,
/// and a connection behind a full backlog of them waits for a third of a second.
const LONGEST: Duration = Duration::from_millis(4);

/// Number of connections of a round, by what was done with them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Round {
    pub(super) served: u32,
    /// Refused with a message.
    pub(super) refused: u32,
    /// Closed without one.
    pub(super) closed: u32,
}

/// See the module documentation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rests {
    next: Duration,
}

impl Default for Rests {
    fn default() -> Self {
        Self { next: REST }
    }
}

impl Rests {
    /// Returns for how long no connection is accepted after this round.
    pub(super) fn after(&mut self, round: Round) -> Option<Duration> {
        let Round { served, refused, closed } = round;
        if served > 0 {
            self.next = REST;
        }
        let rest = self.next;
        if closed > served + refused {
            self.next = (rest * 2).min(LONGEST);
        }
        (refused + closed > served).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSED: Round = Round { served: 0, refused: 1, closed: 63 };

    #[test]
    fn rests_grow_while_most_connections_are_closed_until_one_is_served() {
        let mut rests = Rests::default();
        let ms = |rests: &mut Rests, round| rests.after(round).map(|rest| rest.as_millis());
        for expected in [1, 2, 4, 4] {
            assert_eq!(ms(&mut rests, CLOSED), Some(expected));
        }
        // Refusals are charged.
        let refused = Round { refused: 64, ..Round::default() };
        assert_eq!([ms(&mut rests, refused), ms(&mut rests, refused)], [Some(4); 2]);
        assert_eq!(ms(&mut rests, Round { served: 1, ..CLOSED }), Some(1));
        assert_eq!(ms(&mut rests, CLOSED), Some(2));
    }

    #[test]
    fn there_is_no_rest_if_most_are_served_or_none_came() {
        let mut rests = Rests::default();
        let served = Round { served: 2, refused: 1, closed: 1 };
        assert_eq!([rests.after(served), rests.after(Round::default())], [None; 2]);
        assert_eq!(rests.after(CLOSED), Some(REST));
    }
}
