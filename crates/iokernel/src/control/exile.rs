//! Users whose programs were expelled, and how long they register none.
//!
//! An expelled program could register again at once and attack for another tenth of a second, for
//! ever. So its user waits: [`FIRST`], then twice as long for each expulsion that follows, up to
//! [`LONGEST`]. Who has caused none for that long starts anew. Root and the IOKernel's own user are
//! never entered. Pure: time is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a user waits after a first expulsion.
const FIRST: Duration = Duration::from_secs(10);
/// How long a user waits at most, and after how much longer the expulsions are forgotten.
const LONGEST: Duration = Duration::from_secs(600);
/// Maximum number of users that are remembered; a user may have tens of thousands of ids.
const MAX_USERS: usize = 4096;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Exiles(HashMap<u32, Exile>);

#[derive(Debug, Clone, Copy)]
struct Exile {
    until: Instant,
    pause: Duration,
}

impl Exiles {
    /// Enters a user of whom a program was expelled.
    pub(super) fn enter(&mut self, uid: u32, now: Instant) {
        self.0.retain(|_, exile| now < exile.until + LONGEST);
        if self.0.len() >= MAX_USERS && !self.0.contains_key(&uid) {
            let first = self.0.iter().min_by_key(|(_, exile)| exile.until).map(|(&uid, _)| uid);
            first.and_then(|uid| self.0.remove(&uid));
        }
        let pause = self.0.get(&uid).map_or(FIRST, |exile| (exile.pause * 2).min(LONGEST));
        self.0.insert(uid, Exile { until: now + pause, pause });
    }

    /// Returns how long this user still registers no program.
    pub(super) fn time_left(&self, uid: u32, now: Instant) -> Option<Duration> {
        let left = self.0.get(&uid)?.until.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_waits_longer_each_time_and_starts_anew_after_a_long_peace() {
        let (mut exiles, start) = (Exiles::default(), Instant::now());
        assert_eq!(exiles.time_left(7, start), None);
        let (mut now, mut waits) = (start, Vec::new());
        for _ in 0..8 {
            exiles.enter(7, now);
            let left = exiles.time_left(7, now).unwrap();
            waits.push(left.as_secs());
            assert_eq!(exiles.time_left(8, now), None, "another user");
            now += left;
            assert_eq!(exiles.time_left(7, now), None);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600]);
        now += LONGEST;
        exiles.enter(7, now);
        assert_eq!(exiles.time_left(7, now), Some(FIRST));
    }

    #[test]
    fn users_that_are_remembered_are_bounded() {
        let (mut exiles, now) = (Exiles::default(), Instant::now());
        for uid in 0..2 * MAX_USERS as u32 {
            exiles.enter(uid, now + Duration::from_micros(uid.into()));
        }
        assert_eq!(exiles.0.len(), MAX_USERS);
        assert_eq!(exiles.time_left(0, now), None, "the first was left out");
        assert!(exiles.time_left(2 * MAX_USERS as u32 - 1, now).is_some());
    }
}
