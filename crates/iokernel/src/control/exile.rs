//! Users whose programs were expelled, and how long they register none.
//!
//! An expelled program could register again at once and attack for another tenth of a second, for
//! ever. So its user waits: [`FIRST`], then twice as long for each expulsion that follows, up to
//! [`LONGEST`]. Several programs that are expelled during one wait count once. A user who has
//! caused no expulsion for [`LONGEST`] after a wait starts anew. The wait is for programs of the
//! grant by which the expelled one was registered: those that other grants admit first are left
//! alone.
//!
//! A user may have tens of thousands of ids (subuid(5)), all of them in one group. Where a grant
//! covers a user by a group, or all users, a wait also takes the place of one program of the grant:
//! users with ever new ids cannot be expelled more often than the grant has places.
//!
//! Root and the IOKernel's own user are never entered. Pure: time is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a user waits after a first expulsion.
const FIRST: Duration = Duration::from_secs(10);
/// How long a user waits at most, and after how much longer the expulsions are forgotten.
const LONGEST: Duration = Duration::from_secs(600);
/// Maximum number of users that are remembered.
const MAX_USERS: usize = 4096;

/// A user, and the grant by which a program of the user was registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) uid: u32,
    pub(crate) grant: Option<usize>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Exiles(HashMap<Key, Exile>);

#[derive(Debug, Clone, Copy)]
struct Exile {
    until: Instant,
    pause: Duration,
    takes_place: bool,
}

impl Exiles {
    /// Enters a user of whom a program was expelled. `takes_place` says that the grant does not
    /// name the user.
    pub(super) fn enter(&mut self, key: Key, takes_place: bool, now: Instant) {
        self.0.retain(|_, exile| now < exile.until + LONGEST);
        if self.0.len() >= MAX_USERS && !self.0.contains_key(&key) {
            let first = self.0.iter().min_by_key(|(_, exile)| exile.until).map(|(&key, _)| key);
            first.and_then(|key| self.0.remove(&key));
        }
        let pause = match self.0.get(&key) {
            None => FIRST,
            Some(exile) if now < exile.until => return,
            Some(exile) => (exile.pause * 2).min(LONGEST),
        };
        self.0.insert(key, Exile { until: now + pause, pause, takes_place });
    }

    /// Returns how long programs of this user and grant are still refused.
    pub(super) fn time_left(&self, key: Key, now: Instant) -> Option<Duration> {
        let left = self.0.get(&key)?.until.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Returns how many places of each grant are taken by waits.
    pub(super) fn places(&self, now: Instant) -> HashMap<usize, u64> {
        let mut places = HashMap::new();
        for (key, exile) in &self.0 {
            if let Some(grant) = key.grant.filter(|_| exile.takes_place && now < exile.until) {
                *places.entry(grant).or_default() += 1;
            }
        }
        places
    }

    /// Returns all waits, with their ends.
    pub(super) fn list(&self, now: Instant) -> Vec<(Key, Instant)> {
        let running = self.0.iter().filter(|(_, exile)| now < exile.until);
        running.map(|(&key, exile)| (key, exile.until)).collect()
    }

    /// Ends all waits and forgets all expulsions.
    pub(super) fn lift(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Key {
        Key { uid, grant: Some(0) }
    }

    #[test]
    fn a_user_waits_longer_each_time_and_starts_anew_after_a_long_peace() {
        let (mut exiles, start) = (Exiles::default(), Instant::now());
        assert_eq!(exiles.time_left(user(7), start), None);
        let (mut now, mut waits) = (start, Vec::new());
        for _ in 0..8 {
            exiles.enter(user(7), false, now);
            // Others of its programs, in the same moment.
            exiles.enter(user(7), false, now);
            let left = exiles.time_left(user(7), now).unwrap();
            waits.push(left.as_secs());
            assert_eq!(exiles.time_left(user(8), now), None, "another user");
            assert_eq!(exiles.time_left(Key { grant: Some(1), ..user(7) }, now), None, "another grant");
            now += left;
            assert_eq!(exiles.time_left(user(7), now), None);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600]);
        now += LONGEST;
        exiles.enter(user(7), false, now);
        assert_eq!(exiles.time_left(user(7), now), Some(FIRST));
    }

    #[test]
    fn users_whom_a_grant_does_not_name_take_its_places_while_they_wait() {
        let (mut exiles, now) = (Exiles::default(), Instant::now());
        for uid in 0..3 {
            exiles.enter(user(uid), uid > 0, now);
        }
        assert_eq!(exiles.places(now), HashMap::from([(0, 2)]));
        assert_eq!(exiles.list(now).len(), 3);
        assert!(exiles.places(now + FIRST).is_empty() && exiles.list(now + FIRST).is_empty());
        exiles.lift();
        assert_eq!(exiles.time_left(user(0), now), None);
    }

    #[test]
    fn users_that_are_remembered_are_bounded() {
        let (mut exiles, now) = (Exiles::default(), Instant::now());
        for uid in 0..2 * MAX_USERS as u32 {
            exiles.enter(user(uid), false, now + Duration::from_micros(uid.into()));
        }
        assert_eq!(exiles.0.len(), MAX_USERS);
        assert_eq!(exiles.time_left(user(0), now), None, "the first was left out");
        assert!(exiles.time_left(user(2 * MAX_USERS as u32 - 1), now).is_some());
    }
}
