//! The timers of a poller, by moment and by token.

use crate::token::Token;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// At most one timer per token. Trees, because they are changed under a spin lock, where the growth
/// of a hash table would take long.
#[derive(Debug, Default)]
pub struct Timers {
    by_moment: BTreeSet<(Instant, Token)>,
    by_token: BTreeMap<Token, Instant>,
}

impl Timers {
    /// Sets the timer of a token, which replaces an earlier one.
    pub fn set(&mut self, token: Token, at: Instant) {
        if let Some(before) = self.by_token.insert(token, at) {
            self.by_moment.remove(&(before, token));
        }
        self.by_moment.insert((at, token));
    }

    /// Removes the timer of a token; false if there was none.
    pub fn clear(&mut self, token: Token) -> bool {
        let at = self.by_token.remove(&token);
        at.is_some_and(|at| self.by_moment.remove(&(at, token)))
    }

    /// Returns when the first is due.
    pub fn next(&self) -> Option<Instant> {
        self.by_moment.first().map(|(at, _)| *at)
    }

    /// Takes the first timer if it is due at `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<Token> {
        let (at, token) = *self.by_moment.first()?;
        if at > now {
            return None;
        }
        self.by_moment.pop_first();
        self.by_token.remove(&token);
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_timer_is_due_once_at_its_last_moment() {
        let (start, ms) = (Instant::now(), Duration::from_millis(1));
        let mut timers = Timers::default();
        timers.set(Token(1), start);
        timers.set(Token(1), start + 2 * ms);
        timers.set(Token(2), start + ms);
        timers.set(Token(3), start);
        assert!(timers.clear(Token(3)) && !timers.clear(Token(3)));
        assert_eq!(timers.pop_due(start), None);
        assert_eq!(timers.next(), Some(start + ms));
        assert_eq!(timers.pop_due(start + 3 * ms), Some(Token(2)));
        assert_eq!(timers.pop_due(start + 3 * ms), Some(Token(1)));
        assert_eq!((timers.pop_due(start + 3 * ms), timers.next()), (None, None));
    }
}
