//! Rate limit for lines of the log that the clients of a user cause.
//!
//! Pure: time is an argument. A user other than root and the IOKernel's own causes lines at the
//! [`RATE`]. Lines beyond are counted, and the count is logged when the user may cause a line
//! again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::pace::{Pace, Rate};

/// Lines of one user.
const RATE: Rate = Rate { burst: 20, interval: Duration::from_secs(1) };
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
    pace: Pace,
    left_out: u64,
}

impl Account {
    fn new(now: Instant) -> Self {
        Self { pace: Pace::new(now), left_out: 0 }
    }
}

impl Lines {
    /// Returns whether user `uid` may cause a line; if not, counts it.
    pub(super) fn take(&mut self, uid: u32, now: Instant) -> bool {
        if self.users.len() >= MAX_USERS {
            self.users.retain(|_, account| !account.pace.is_over(now) || account.left_out > 0);
        }
        if self.users.len() >= MAX_USERS && !self.users.contains_key(&uid) {
            self.others.get_or_insert(Account::new(now)).left_out += 1;
            return false;
        }
        let account = self.users.entry(uid).or_insert(Account::new(now));
        let has_room = account.pace.take(RATE, now);
        account.left_out += u64::from(!has_room);
        has_room
    }

    /// Takes the numbers of lines left out that are due: of users, and `None` for all others.
    pub(super) fn take_left_out(&mut self, now: Instant) -> Vec<(Option<u32>, u64)> {
        let users = self.users.iter_mut().map(|(&uid, account)| (Some(uid), account));
        let all = users.chain(self.others.iter_mut().map(|account| (None, account)));
        let due = all.filter_map(|(uid, account)| {
            (account.left_out > 0 && account.pace.take(RATE, now)).then_some((uid, account))
        });
        due.map(|(uid, account)| (uid, core::mem::take(&mut account.left_out))).collect()
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
        assert_eq!(lines.take_left_out(start), []);
        // The count is the line that is due.
        assert_eq!(lines.take_left_out(start + RATE.interval), [(Some(1), 80)]);
        assert!(!lines.take(1, start + RATE.interval));
        assert!(lines.take(1, start + RATE.interval * 2));
    }

    #[test]
    fn users_beyond_the_table_are_counted_together_and_the_table_empties() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let logged = (0..1000).filter(|&uid| lines.take(uid, start)).count();
        assert_eq!(logged, MAX_USERS);
        assert_eq!(lines.take_left_out(start), [(None, 744)]);
        assert!(lines.take(2000, start + RATE.interval * 2));
        assert!(lines.users.len() < MAX_USERS);
    }
}
