//! How many lines of the log the clients of each user cause.
//!
//! Pure: time is an argument. A user other than root and the IOKernel's own has [`BURST`] lines at
//! once and one more every [`INTERVAL`]. Lines beyond are counted, and the count is logged when the
//! user may cause a line again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Maximum number of lines at once.
const BURST: u32 = 20;
/// Time after which there may be one more.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of users that are counted singly; a user may have tens of thousands of ids.
const MAX_USERS: usize = 256;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Lines {
    users: HashMap<u32, Account>,
    /// Of all users that are not counted singly; they may cause no line but the count.
    others: Option<Account>,
}

#[derive(Debug)]
struct Account {
    /// When the lines that were logged would have been, at one every [`INTERVAL`].
    paid_until: Instant,
    left_out: u64,
}

impl Account {
    fn new(now: Instant) -> Self {
        Self { paid_until: now, left_out: 0 }
    }

    fn has_room(&self, now: Instant) -> bool {
        self.paid_until < now + INTERVAL * BURST
    }
}

impl Lines {
    /// Returns whether user `uid` may cause a line; if not, counts it.
    pub(super) fn take(&mut self, uid: u32, now: Instant) -> bool {
        if self.users.len() >= MAX_USERS {
            self.users.retain(|_, account| account.paid_until > now || account.left_out > 0);
        }
        if self.users.len() >= MAX_USERS && !self.users.contains_key(&uid) {
            self.others.get_or_insert(Account::new(now)).left_out += 1;
            return false;
        }
        let account = self.users.entry(uid).or_insert(Account::new(now));
        let has_room = account.has_room(now);
        if has_room {
            account.paid_until = account.paid_until.max(now) + INTERVAL;
        } else {
            account.left_out += 1;
        }
        has_room
    }

    /// Returns whether lines were left out and the number is not logged yet.
    pub(super) fn has_left_out(&self) -> bool {
        self.users.values().chain(&self.others).any(|account| account.left_out > 0)
    }

    /// Takes the numbers of lines left out that are due: of users, and `None` for all others.
    pub(super) fn take_left_out(&mut self, now: Instant) -> Vec<(Option<u32>, u64)> {
        let users = self.users.iter_mut().map(|(&uid, account)| (Some(uid), account));
        let all = users.chain(self.others.iter_mut().map(|account| (None, account)));
        let due = all.filter(|(_, account)| account.left_out > 0 && account.has_room(now));
        due.map(|(uid, account)| {
            account.paid_until = account.paid_until.max(now) + INTERVAL;
            (uid, core::mem::take(&mut account.left_out))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_burst_then_a_line_every_interval_and_the_rest_is_counted() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let logged = (0..100).filter(|_| lines.take(1, start)).count();
        assert_eq!(logged, 20);
        assert!(lines.take(2, start), "another user");
        assert!(lines.has_left_out());
        assert_eq!(lines.take_left_out(start), []);
        // The count is the line that is due.
        assert_eq!(lines.take_left_out(start + INTERVAL), [(Some(1), 80)]);
        assert!(!lines.has_left_out());
        assert!(!lines.take(1, start + INTERVAL));
        assert!(lines.take(1, start + INTERVAL * 2));
    }

    #[test]
    fn users_beyond_the_table_are_counted_together_and_the_table_empties() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let logged = (0..1000).filter(|&uid| lines.take(uid, start)).count();
        assert_eq!(logged, MAX_USERS);
        assert_eq!(lines.take_left_out(start), [(None, 744)]);
        assert!(lines.take(2000, start + INTERVAL * 2));
        assert!(lines.users.len() < MAX_USERS);
    }
}
