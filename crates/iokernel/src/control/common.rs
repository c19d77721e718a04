//! Rate limit for registrations by a grant that does not name its users: they share one rate
//! fairly.
//!
//! Someone may have tens of thousands of user ids (subuid(5)), all of them in one group. So the
//! registrations by one grant of users that it covers by a group, or as all users, have a pace in
//! common, [`GRANT_REGISTRATIONS`], whose burst is twice the number of programs that the grant
//! permits if that is more. Programs that register again after a takeover do not count.
//!
//! First come, first served would let a few users who ask all the time take each registration the
//! moment it is permitted. So each registration is a *debt* of its user of one interval:
//!
//! - Debts of all users together are paid off at the common rate, to all debtors in equal parts.
//! - A user may register if the debts of all leave more of the burst than the user owes.
//!
//! So a user without debts is refused only when nothing is left. One debtor may owe half of the
//! burst, two may owe a third each, `n` the part `1 / (n + 1)`, and as much is left for one more:
//! the dynamic thresholds of Choudhury and Hahne (IEEE/ACM Transactions on Networking 6(2), 1998),
//! with a factor of one. If `n` users ask all the time, each registers at `1 / n` of the rate. All
//! programs that a grant permits at one time may register at once, whatever users they are of: they
//! are no more than half of the burst.
//!
//! More users than there are registrations in the burst can still use all of it up, so one with as
//! many ids can, too. Users whom a grant names are not concerned.
//!
//! Pure: time is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::pace::Rate;

/// Registrations by one grant of all users that it does not name: those of five users.
pub(super) const GRANT_REGISTRATIONS: Rate = Rate { burst: 100, interval: Duration::from_millis(100) };
/// Maximum number of debtors of one grant that are told apart; all others are one.
const MAX_USERS: usize = 1024;

/// The common paces of all grants, by number. See the module documentation.
#[derive(Debug)]
pub(super) struct CommonPaces {
    rate: Rate,
    grants: HashMap<usize, CommonPace>,
}

impl CommonPaces {
    pub(super) fn new() -> Self {
        Self::first(0)
    }

    /// As [`new`](Self::new), at the start of an IOKernel to which `programs` programs may return.
    pub(super) fn first(programs: u32) -> Self {
        let burst = GRANT_REGISTRATIONS.burst + programs;
        Self { rate: Rate { burst, ..GRANT_REGISTRATIONS }, grants: HashMap::new() }
    }

    /// Counts one more registration of user `uid` by a grant that permits this number of programs.
    ///
    /// # Errors
    /// A time after which one more is permitted, if no other user registers meanwhile.
    pub(super) fn take(
        &mut self,
        (grant, programs): (usize, u32),
        uid: u32,
        now: Instant,
    ) -> Result<(), Duration> {
        let rate = Rate { burst: self.rate.burst.max(programs.saturating_mul(2)), ..self.rate };
        self.grants.entry(grant).or_insert_with(|| CommonPace::new(now)).take(uid, rate, now)
    }
}

/// What the users of one grant owe.
#[derive(Debug)]
struct CommonPace {
    /// Debts above zero: of users, and of all others together.
    debts: HashMap<Option<u32>, Duration>,
    /// Up to when debts have been paid off.
    paid_at: Instant,
}

impl CommonPace {
    fn new(now: Instant) -> Self {
        Self { debts: HashMap::new(), paid_at: now }
    }

    fn take(&mut self, uid: u32, rate: Rate, now: Instant) -> Result<(), Duration> {
        self.pay_off(now);
        let is_apart = self.debts.len() < MAX_USERS || self.debts.contains_key(&Some(uid));
        let debtor = is_apart.then_some(uid);
        let own = self.debts.get(&debtor).copied().unwrap_or_default();
        let total: Duration = self.debts.values().sum();
        let (owed, most) = (total + own, rate.interval * rate.burst);
        if owed < most {
            self.debts.insert(debtor, own + rate.interval);
            return Ok(());
        }
        let excess = owed - most + Duration::from_nanos(1);
        // While the total falls by `n`, the debt of one of `n` debtors falls by one.
        let n = self.debts.len() as u32;
        Err(if own.is_zero() { excess } else { excess * n / (n + 1) })
    }

    /// Pays debts off for the time since the last call, in equal parts until one is zero.
    fn pay_off(&mut self, now: Instant) {
        let mut left = now.saturating_duration_since(self.paid_at);
        let mut debts: Vec<Duration> = self.debts.values().copied().collect();
        debts.sort_unstable();
        let mut part = Duration::ZERO;
        for (index, &debt) in debts.iter().enumerate() {
            let debtors = (debts.len() - index) as u32;
            let more = (debt - part).min(left / debtors);
            part += more;
            left -= more * debtors;
            if part < debt {
                break;
            }
        }
        self.debts.retain(|_, debt| {
            *debt = debt.saturating_sub(part);
            !debt.is_zero()
        });
        // The rest of the division is paid off next time.
        let paid = if self.debts.is_empty() { now } else { now - left };
        self.paid_at = self.paid_at.max(paid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANT: (usize, u32) = (0, 16);
    const BURST: usize = GRANT_REGISTRATIONS.burst as usize;

    /// Returns the number of registrations at once that are permitted.
    fn taken(paces: &mut CommonPaces, grant: (usize, u32), uid: u32, now: Instant) -> usize {
        (0..10_000).filter(|_| paces.take(grant, uid, now).is_ok()).count()
    }

    /// As [`taken`], by users who register one program each.
    fn taken_by_many(paces: &mut CommonPaces, grant: (usize, u32), now: Instant) -> usize {
        (0..10_000).filter(|&uid| paces.take(grant, uid, now).is_ok()).count()
    }

    #[test]
    fn all_users_together_register_at_the_common_rate() {
        let start = Instant::now();
        let mut paces = CommonPaces::new();
        assert_eq!(taken_by_many(&mut paces, GRANT, start), BURST);
        assert_eq!(taken_by_many(&mut paces, GRANT, start + Duration::from_secs(1)), 10);
        assert_eq!(taken_by_many(&mut paces, (1, 16), start), BURST, "another grant");
        assert_eq!(taken_by_many(&mut paces, (2, 200), start), 400, "one that permits more");
        assert_eq!(taken_by_many(&mut CommonPaces::first(50), GRANT, start), BURST + 50);
    }

    #[test]
    fn each_user_leaves_as_much_of_the_burst_as_it_takes() {
        let start = Instant::now();
        let mut paces = CommonPaces::new();
        for (uid, part) in [(1, 50), (2, 25), (3, 13), (4, 6)] {
            assert_eq!(taken(&mut paces, GRANT, uid, start), part, "user {uid}");
        }
        // As if all had asked at the same time.
        let mut paces = CommonPaces::new();
        let mut shares = [0; 4];
        for _ in 0..BURST {
            for (share, uid) in shares.iter_mut().zip(1..) {
                *share += usize::from(paces.take(GRANT, uid, start).is_ok());
            }
        }
        assert_eq!(shares, [20; 4]);
        assert_eq!(paces.take(GRANT, 5, start), Ok(()), "what is left is a newcomer's");
    }

    #[test]
    fn all_programs_that_a_grant_permits_may_register_at_once_whatever_users_they_are_of() {
        let start = Instant::now();
        for of_first in 0..=300 {
            let mut paces = CommonPaces::new();
            for program in 0..300 {
                let uid = if program < of_first { 1 } else { 2 };
                assert_eq!(paces.take((0, 300), uid, start), Ok(()), "program {program} of {of_first}");
            }
        }
    }

    #[test]
    fn users_who_ask_all_the_time_neither_keep_another_out_nor_get_more_than_others() {
        let mut paces = CommonPaces::new();
        let start = Instant::now();
        let mut counts = [0; 6];
        for ms in (0..120_000).step_by(5) {
            let now = start + Duration::from_millis(ms);
            // The sixth comes late, and asks after all the others have.
            for uid in 0..if ms < 60_000 { 5 } else { 6 } {
                let permitted = paces.take(GRANT, uid, now).is_ok();
                assert!(permitted || ms != 60_000 || uid != 5, "the newcomer waits");
                counts[uid as usize] += usize::from(permitted && ms >= 100_000);
            }
        }
        // 200 in 20 s.
        assert!(counts.iter().all(|count| (32..=35).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_user_is_told_after_what_time_one_more_is_permitted() {
        let start = Instant::now();
        for uid in 1..=4 {
            let mut paces = CommonPaces::new();
            for debtor in 1..=4 {
                taken(&mut paces, GRANT, debtor, start);
            }
            let wait = paces.take(GRANT, uid, start).unwrap_err();
            assert!(wait <= GRANT_REGISTRATIONS.interval * 50, "{wait:?}");
            assert_eq!(paces.take(GRANT, uid, start + wait + Duration::from_millis(1)), Ok(()), "user {uid}");
        }
    }

    #[test]
    fn debtors_are_bounded_and_forgotten_when_they_have_paid() {
        let start = Instant::now();
        let mut paces = CommonPaces::new();
        let many = (0, 2 * MAX_USERS as u32);
        let users = 2 * MAX_USERS as u32;
        assert_eq!((0..users).filter(|&uid| paces.take(many, uid, start).is_ok()).count(), 2 * MAX_USERS);
        assert_eq!(paces.grants[&0].debts.len(), MAX_USERS + 1, "all others are one debtor");
        let end = start + GRANT_REGISTRATIONS.interval * users;
        assert_eq!(paces.take(many, 0, end), Ok(()));
        assert_eq!(paces.grants[&0].debts.len(), 1);
    }
}
