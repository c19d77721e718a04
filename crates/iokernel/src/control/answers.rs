//! Statistics for clients of users without rights: how often, and how fresh.
//!
//! Pure: time is an argument. Collecting the counters and writing them down takes a millisecond of
//! processor time, on a machine of two cores that of the polling thread's core. Such users share
//! one document for [`FRESH`], and each gets answers at the [`RATE`].

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::pace::{Pace, Rate};

/// How long a document is sent again.
const FRESH: Duration = Duration::from_millis(10);
/// Answers to one user.
const RATE: Rate = Rate { burst: 20, interval: Duration::from_millis(100) };
/// Maximum number of users that are served at a time: all their answers together have a bound.
const MAX_USERS: usize = 256;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Answers {
    document: Option<(Instant, Vec<u8>)>,
    users: HashMap<u32, Pace>,
}

impl Answers {
    /// Returns whether user `uid` gets one more answer, and counts it.
    pub(super) fn take(&mut self, uid: u32, now: Instant) -> bool {
        if self.users.len() >= MAX_USERS {
            self.users.retain(|_, pace| !pace.is_over(now));
        }
        if self.users.len() >= MAX_USERS && !self.users.contains_key(&uid) {
            return false;
        }
        self.users.entry(uid).or_insert(Pace::new(now)).take(RATE, now)
    }

    /// Returns the document of the last [`FRESH`], or what `make` returns now.
    pub(super) fn document(&mut self, now: Instant, make: impl FnOnce() -> Vec<u8>) -> &[u8] {
        let document = self.document.take().filter(|(made, _)| now < *made + FRESH);
        &self.document.insert(document.unwrap_or_else(|| (now, make()))).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_burst_of_answers_then_one_every_interval() {
        let (mut answers, start) = (Answers::default(), Instant::now());
        assert_eq!((0..100).filter(|_| answers.take(1, start)).count(), 20);
        assert!(answers.take(2, start), "another user");
        assert!(answers.take(1, start + RATE.interval));
        assert!(!answers.take(1, start + RATE.interval));
    }

    #[test]
    fn users_beyond_the_table_wait_until_it_has_room() {
        let (mut answers, start) = (Answers::default(), Instant::now());
        assert_eq!((0..1000).filter(|&uid| answers.take(uid, start)).count(), MAX_USERS);
        assert!(answers.take(2000, start + RATE.interval));
    }

    #[test]
    fn a_document_is_sent_again_while_it_is_fresh() {
        let (mut answers, start) = (Answers::default(), Instant::now());
        assert_eq!(answers.document(start, || vec![1]), [1]);
        assert_eq!(answers.document(start + FRESH / 2, || vec![2]), [1]);
        assert_eq!(answers.document(start + FRESH, || vec![3]), [3]);
    }
}
