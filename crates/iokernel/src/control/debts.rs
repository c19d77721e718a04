//! Accounts of programs that have ended, kept for the next programs of their users.
//!
//! Owns accounts of offences ([`Budget`]), evictions and wakes whose programs are gone. A program
//! could otherwise offend until just before it is expelled, hang up, and begin anew with empty
//! accounts, for ever. So a registration takes over the fullest account that its user has left by
//! the same grant. Accounts are neither copied nor merged: a user has no more of them than programs
//! at once, as if none had ended. One that has leaked is dropped.
//!
//! Programs of root and of the IOKernel's own user leave nothing. Pure: time is an argument.

use std::collections::HashMap;
use tailwater_shm::Cycles;

use super::exile::Key;
use crate::allocator::evict::Evictions;
use crate::allocator::wakes::SlowWakes;
use crate::budget::{Budget, Terms};
use crate::runtime::Runtime;

/// Maximum number of accounts that are kept; the first to leak make room.
const MAX_DEBTS: usize = 4096;

/// The accounts of one program.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Debt {
    pub(super) budget: Budget,
    pub(super) evictions: Evictions,
    pub(super) wakes: SlowWakes,
}

impl Debt {
    /// Returns the accounts of this program.
    pub(super) fn of(runtime: &Runtime) -> Self {
        Self { budget: runtime.budget, evictions: runtime.evictions, wakes: runtime.slow_wakes }
    }

    /// Makes these the accounts of a program.
    pub(super) fn burden(self, runtime: &mut Runtime) {
        (runtime.budget, runtime.evictions) = (self.budget, self.evictions);
        runtime.slow_wakes = self.wakes;
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Debts {
    terms: Terms,
    debts: HashMap<Key, Vec<Debt>>,
}

impl Debts {
    pub(super) fn new(terms: Terms) -> Self {
        Self { terms, debts: HashMap::new() }
    }

    /// Keeps the accounts of a program that has ended.
    pub(super) fn leave(&mut self, key: Key, debt: Debt, now: Cycles) {
        self.drop_leaked(now);
        if self.time_left(&debt, now) == 0 {
            return;
        }
        while self.debts.values().map(Vec::len).sum::<usize>() >= MAX_DEBTS {
            let least = |debts: &Vec<Debt>| debts.iter().map(|debt| self.time_left(debt, now)).min();
            let first = self.debts.iter().min_by_key(|(_, debts)| least(debts)).map(|(&key, _)| key);
            let Some(key) = first else { break };
            // The user's fuller accounts stay, which an almost empty one would take along.
            let mut debts = self.debts.remove(&key).unwrap_or_default();
            debts.sort_unstable_by_key(|debt| core::cmp::Reverse(self.time_left(debt, now)));
            debts.pop();
            if !debts.is_empty() {
                self.debts.insert(key, debts);
            }
        }
        self.debts.entry(key).or_default().push(debt);
    }

    /// Returns the accounts with which a program begins: those that take longest to leak.
    pub(super) fn take(&mut self, key: Key, now: Cycles) -> Debt {
        self.drop_leaked(now);
        let Some(mut debts) = self.debts.remove(&key) else { return Debt::default() };
        debts.sort_unstable_by_key(|debt| self.time_left(debt, now));
        let fullest = debts.pop().unwrap_or_default();
        if !debts.is_empty() {
            self.debts.insert(key, debts);
        }
        fullest
    }

    /// Forgets all accounts.
    pub(super) fn forgive(&mut self) {
        self.debts.clear();
    }

    fn drop_leaked(&mut self, now: Cycles) {
        let terms = self.terms;
        self.debts.retain(|_, debts| {
            debts.retain(|debt| time_left(debt, now, &terms) > 0);
            !debts.is_empty()
        });
    }

    fn time_left(&self, debt: &Debt, now: Cycles) -> Cycles {
        time_left(debt, now, &self.terms)
    }
}

/// Returns the time until the accounts are empty.
fn time_left(debt: &Debt, now: Cycles, terms: &Terms) -> Cycles {
    let evictions = debt.evictions.time_left(now, &terms.clock);
    debt.budget.time_left(now, terms).max(evictions).max(debt.wakes.time_left(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Sentence;
    use crate::config::Config;
    use crate::fixture::admit;
    use tailwater_sched::RuntimeId;
    use tailwater_shm::Clock;

    const MS: Cycles = 1_000_000;

    fn terms() -> Terms {
        Terms::new(Clock::from_hz(1_000_000_000), 1)
    }

    fn key(uid: u32) -> Key {
        Key { uid, grant: Some(0) }
    }

    /// Returns the accounts of a program with these offences, in tenths of a millisecond.
    fn offended(mut debt: Debt, tenths: u32, now: Cycles) -> (Debt, Sentence) {
        let mut last = Sentence::None;
        for _ in 0..tenths {
            last = debt.budget.charge(MS / 10, now, &terms());
        }
        (debt, last)
    }

    #[test]
    fn one_that_hangs_up_before_it_is_throttled_goes_on_where_it_has_stopped() {
        let mut debts = Debts::new(terms());
        let (debt, sentence) = offended(debts.take(key(7), MS), 19, MS);
        assert_eq!(sentence, Sentence::None);
        debts.leave(key(7), debt, MS);
        // Another user, and another grant, begin with empty accounts.
        let others = [key(8), Key { grant: Some(1), ..key(7) }].map(|other| debts.take(other, MS));
        for other in others {
            assert_eq!(offended(other, 19, MS).1, Sentence::None);
        }
        assert_eq!(offended(debts.take(key(7), MS), 2, MS).1, Sentence::Throttle);
        assert_eq!(offended(debts.take(key(7), MS), 2, MS).1, Sentence::None, "it was taken");
    }

    #[test]
    fn each_program_takes_one_account_the_fullest_first_until_they_have_leaked() {
        let mut debts = Debts::new(terms());
        for tenths in [5, 15, 10] {
            debts.leave(key(7), offended(Debt::default(), tenths, MS).0, MS);
        }
        // 1 % of the time: 0.7 ms have leaked.
        let later = 71 * MS;
        let left: Vec<Cycles> =
            (0..4).map(|_| debts.take(key(7), later).budget.time_left(later, &terms()) / MS).collect();
        assert_eq!(left, [80, 30, 0, 0]);
        debts.leave(key(7), offended(Debt::default(), 5, MS).0, MS);
        debts.leave(key(8), offended(Debt::default(), 5, 60 * MS).0, 60 * MS);
        assert_eq!(debts.debts.len(), 1, "the first has leaked");
        debts.forgive();
        assert!(debts.debts.is_empty());
    }

    #[test]
    fn an_almost_empty_account_beside_a_full_one_makes_room_by_itself() {
        let mut debts = Debts::new(terms());
        for tenths in [1, 19] {
            debts.leave(key(0), offended(Debt::default(), tenths, MS).0, MS);
        }
        for uid in 1..MAX_DEBTS as u32 {
            debts.leave(key(uid), offended(Debt::default(), 10, MS).0, MS);
        }
        assert_eq!(offended(debts.take(key(0), MS), 2, MS).1, Sentence::Throttle, "the full one is there");
    }

    #[test]
    fn wakes_are_left_too() {
        let mut debts = Debts::new(terms());
        let (mut runtime, _file) =
            admit(&Config::default(), RuntimeId(0), 1, 0, tailwater_shm::control::Class::BestEffort);
        // 100 ms each; 200 ms are free.
        for _ in 0..2 {
            runtime.slow_wakes.enter(MS, terms().clock, MS);
        }
        debts.leave(key(7), Debt::of(&runtime), MS);
        debts.take(key(7), 2 * MS).burden(&mut runtime);
        assert!(!runtime.is_left_alone(2 * MS));
        runtime.slow_wakes.enter(MS, terms().clock, 2 * MS);
        assert!(runtime.is_left_alone(2 * MS));
        debts.leave(key(7), Debt::of(&runtime), 2 * MS);
        debts.take(key(7), 302 * MS).burden(&mut runtime);
        assert_eq!(runtime.slow_wakes.time_left(302 * MS), 0, "all has leaked");
    }

    #[test]
    fn evictions_are_left_too_and_what_is_kept_is_bounded() {
        let mut debts = Debts::new(terms());
        let mut evicted = Debt::default();
        evicted.evictions.count(MS, 50 * MS, 1);
        for uid in 0..MAX_DEBTS as u32 + 10 {
            debts.leave(key(uid), evicted, MS);
        }
        assert_eq!(debts.debts.len(), MAX_DEBTS);
        debts.leave(key(1), evicted, 100 * MS);
        assert_eq!(debts.debts.len(), 0);
    }
}
