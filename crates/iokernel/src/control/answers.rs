//! Statistics for clients of users without rights: how often, and how fresh.
//!
//! Pure: time is an argument. The counters take a millisecond to collect and write down, on a
//! machine of two cores next to the polling thread. Such users share one document for [`FRESH`],
//! and each gets [`BURST`] at once and one more every [`INTERVAL`].

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a document is sent again.
const FRESH: Duration = Duration::from_millis(10);
/// Maximum number of answers at once to one user.
const BURST: u32 = 20;
/// Time after which there may be one more.
const INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of users that are served at a time: all their answers together have a bound.
const MAX_USERS: usize = 256;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Answers {
    document: Option<(Instant, Vec<u8>)>,
    /// When the answers of each user would have been sent, at one every [`INTERVAL`].
    paid_until: HashMap<u32, Instant>,
}

impl Answers {
    /// Returns whether user `uid` gets one more answer, and counts it.
    pub(super) fn take(&mut self, uid: u32, now: Instant) -> bool {
        if self.paid_until.len() >= MAX_USERS {
            self.paid_until.retain(|_, paid_until| *paid_until > now);
        }
        if self.paid_until.len() >= MAX_USERS && !self.paid_until.contains_key(&uid) {
            return false;
        }
        let paid_until = self.paid_until.entry(uid).or_insert(now);
        let has_room = *paid_until < now + INTERVAL * BURST;
        if has_room {
            *paid_until = (*paid_until).max(now) + INTERVAL;
        }
        has_room
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
        assert!(answers.take(1, start + INTERVAL));
        assert!(!answers.take(1, start + INTERVAL));
    }

    #[test]
    fn users_beyond_the_table_wait_until_it_has_room() {
        let (mut answers, start) = (Answers::default(), Instant::now());
        assert_eq!((0..1000).filter(|&uid| answers.take(uid, start)).count(), MAX_USERS);
        assert!(answers.take(2000, start + INTERVAL));
    }

    #[test]
    fn a_document_is_sent_again_while_it_is_fresh() {
        let (mut answers, start) = (Answers::default(), Instant::now());
        assert_eq!(answers.document(start, || vec![1]), [1]);
        assert_eq!(answers.document(start + FRESH / 2, || vec![2]), [1]);
        assert_eq!(answers.document(start + FRESH, || vec![3]), [3]);
    }
}
