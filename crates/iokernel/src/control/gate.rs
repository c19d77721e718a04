//! Limits what clients of users without rights may take of the control thread's time, and of its
//! connections.
//!
//! Owns [`Gate`], with [`Account`]s for each user, and one more for all users whom a grant covers
//! without naming them: such users may have tens of thousands of ids (subuid(5)). Their clients are
//! charged to both accounts, and wait for both. What the control thread does for a client is timed
//! by its own processor time, which on a machine of two cores is that of the polling thread's core,
//! and charged. A user may take one part in [`PARTS`] of the time, and [`DEPTH`] at once: some
//! hundred registrations. One who owes more waits: connections, registrations and questions are
//! refused.
//!
//! A refusal with a message takes as long as a service. It has an account of its own, with the same
//! part of the time and [`MESSAGES`] at once, and beyond that connections are closed without a
//! message. So a client that asks without a pause is served as soon as the services that it had are
//! paid. A connection that is closed is charged to no account; a pause after a [`Round`] of many
//! bounds their rate.
//!
//! Where there are more than [`MAX_USERS`] who owe, the one who owes least is forgiven: no user who
//! did nothing waits for others.
//!
//! Lines of the log are bounded besides, for they take space: [`LINES`] at once, then one a second.
//!
//! Programs that register again after a takeover or a restart count too. At the start of an
//! IOKernel each user may owe [`RETURN`] more for each program that may return.
//!
//! Connections of clients that are not registered are limited for each user, and for all users
//! without rights together ([`have_room`]). Subordinate ids (subuid(5)) count for their owner.
//!
//! Pure: times are arguments.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use tailwater_shm::account::Account;

use crate::authority::MAX_CONNECTIONS;
use crate::tenant::Key;

/// Part of the control thread's time that one user may take.
const PARTS: u64 = 50;
/// Processor time that a user may owe,
const DEPTH: Duration = Duration::from_millis(250);
/// and more for each program that may return to a new IOKernel.
const RETURN: Duration = Duration::from_millis(5);
/// Processor time of refusals that a user may owe.
const MESSAGES: Duration = Duration::from_millis(5);
/// Lines of the log at once.
const LINES: u64 = 20;
/// Time after which a user may cause one more.
const LINE: Duration = Duration::from_secs(1);
/// Maximum number of users who owe.
const MAX_USERS: usize = 4096;
/// Pause after a round of which most connections are not served.
pub(super) const PAUSE: Duration = Duration::from_millis(1);
/// Pause after one of which most are closed: a round of 64 of these, some 3 us each, takes a
/// twentieth of the time, and a connection behind a full backlog of them waits for a third of a
/// second.
const LONG_PAUSE: Duration = Duration::from_millis(4);

/// Maximum number of such connections of one user that is neither root nor the IOKernel's own,
/// unless a grant says otherwise.
pub(super) const PER_USER: usize = 32;
/// Number of such connections that only root and the IOKernel's own user get.
const RESERVED: usize = 64;
/// Maximum number of connections that are not registered runtimes, captures or traces.
const MAX_STRANGERS: usize = MAX_CONNECTIONS as usize + RESERVED;

/// Why a client is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    /// Time after which it is.
    pub(super) time: Duration,
    /// Its refusals have taken too much time as well: it is sent no message.
    pub(super) in_silence: bool,
}

/// What the control thread did for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Service,
    Refusal,
}

/// Number of connections accepted in a row, by what was done with them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Round {
    pub(super) served: u32,
    /// Refused with a message.
    pub(super) refused: u32,
    /// Closed without one.
    pub(super) closed: u32,
}

impl Round {
    pub(super) fn count(&mut self, ruling: Result<(), Wait>) {
        *match ruling {
            Ok(()) => &mut self.served,
            Err(Wait { in_silence: false, .. }) => &mut self.refused,
            Err(_) => &mut self.closed,
        } += 1;
    }

    /// Returns for how long no connection is accepted after this round.
    pub(super) fn pause(self) -> Option<Duration> {
        let Self { served, refused, closed } = self;
        let pause = if closed > served + refused { LONG_PAUSE } else { PAUSE };
        (refused + closed > served).then_some(pause)
    }
}

/// What clients of a user have taken, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    time: Account,
    refusals: Account,
    lines: Account,
}

impl Taken {
    /// Returns how much of all accounts is unpaid.
    fn owes(&self, at: u64) -> u64 {
        [self.time, self.refusals, self.lines]
            .iter()
            .map(|account| account.pays_at(0).saturating_sub(at))
            .sum()
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Gate {
    began: Instant,
    depth: Duration,
    taken: HashMap<Key, Taken>,
    lines_left_out: u64,
    /// Counts of lines left out.
    counts: Account,
}

impl Gate {
    /// Returns the gate of an IOKernel that begins, to which `programs` programs may return.
    pub(super) fn new(programs: u32, now: Instant) -> Self {
        Self {
            began: now,
            depth: DEPTH + RETURN * programs,
            taken: HashMap::new(),
            lines_left_out: 0,
            counts: Account::default(),
        }
    }

    /// Ends the time in which programs return: what users have taken of its allowance is forgiven.
    pub(super) fn end_return(&mut self, now: Instant) {
        self.depth = DEPTH;
        let (most, at) = (nanos(DEPTH) * PARTS, self.at(now));
        for taken in self.taken.values_mut() {
            taken.time.limit(most, at);
        }
    }

    /// Charges processor time that the control thread has spent for clients of these users.
    pub(super) fn charge(&mut self, who: Key, work: Work, took: Duration, now: Instant) {
        let at = self.at(now);
        let taken = self.taken(who, at);
        let account = if work == Work::Service { &mut taken.time } else { &mut taken.refusals };
        account.charge(nanos(took), PARTS, at);
    }

    /// Returns whether clients of these users are served.
    ///
    /// # Errors
    /// If they are not for now.
    pub(super) fn check(&self, who: Key, now: Instant) -> Result<(), Wait> {
        let Some(Taken { time, refusals, .. }) = self.taken.get(&who) else { return Ok(()) };
        let at = self.at(now);
        let wait = time.pays_at(nanos(self.depth) * PARTS).saturating_sub(at);
        let in_silence = refusals.is_over(nanos(MESSAGES) * PARTS, at);
        if wait == 0 { Ok(()) } else { Err(Wait { time: Duration::from_nanos(wait), in_silence }) }
    }

    /// Returns whether a user may cause a line of the log; if not, counts it.
    pub(super) fn take_line(&mut self, who: Key, now: Instant) -> bool {
        let at = self.at(now);
        let may = self.taken(who, at).lines.take(nanos(LINE), nanos(LINE) * LINES, at);
        self.lines_left_out += u64::from(!may);
        may
    }

    /// Takes the number of lines that were left out of the log, if there are any: once a [`LINE`].
    pub(super) fn take_left_out(&mut self, now: Instant) -> Option<u64> {
        let at = self.at(now);
        let may = self.lines_left_out > 0 && self.counts.take(nanos(LINE), nanos(LINE), at);
        may.then(|| core::mem::take(&mut self.lines_left_out))
    }

    /// Forgets what is charged to grants: they may have other numbers.
    pub(super) fn forget_grants(&mut self) {
        self.taken.retain(|key, _| key.user.is_some());
    }

    fn at(&self, now: Instant) -> u64 {
        nanos(now.saturating_duration_since(self.began))
    }

    fn taken(&mut self, who: Key, at: u64) -> &mut Taken {
        if self.taken.len() >= MAX_USERS && !self.taken.contains_key(&who) {
            self.taken.retain(|_, taken| taken.owes(at) > 0);
            let least = self.taken.iter().min_by_key(|(_, taken)| taken.owes(at)).map(|(&key, _)| key);
            if let Some(least) = least.filter(|_| self.taken.len() >= MAX_USERS) {
                self.taken.remove(&least);
            }
        }
        self.taken.entry(who).or_default()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A client that connects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    /// `None` for root and the IOKernel's own.
    pub(super) user: Option<u32>,
    /// Maximum number of connections of its user.
    pub(super) most: usize,
    /// Programs that register again in a takeover, of its user and in all: they connect at once.
    pub(super) expected: (usize, usize),
}

/// Returns whether a client gets a connection; `connected` are the users of the present ones. Some
/// more sockets, of users without rights, are still being closed: `closing` is their number.
pub(super) fn have_room(
    Client { user, most, expected }: Client,
    connected: impl Iterator<Item = Option<u32>>,
    closing: usize,
) -> bool {
    let (most, strangers) = (most + expected.0, MAX_STRANGERS + expected.1);
    let (mut all, mut others, mut own) = (closing, closing, 0);
    for other in connected {
        all += 1;
        others += usize::from(other.is_some());
        own += usize::from(other == user);
    }
    all < strangers && (user.is_none() || (own < most && others < strangers - RESERVED))
}

/// Returns the account of a user's clients.
pub(super) fn user(uid: u32) -> Key {
    Key { user: Some(uid), grant: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns how many connections of a user, of a millisecond each, are served.
    fn served(gate: &mut Gate, uid: u32, now: Instant) -> usize {
        let mut served = 0;
        while gate.check(user(uid), now).is_ok() {
            gate.charge(user(uid), Work::Service, MS, now);
            served += 1;
        }
        served
    }

    #[test]
    fn a_user_takes_some_time_at_once_then_a_part_of_it_and_the_others_are_served() {
        let start = Instant::now();
        let mut gate = Gate::new(0, start);
        assert_eq!(served(&mut gate, 1, start), 251);
        let Wait { time: wait, in_silence } = gate.check(user(1), start).unwrap_err();
        assert_eq!((wait, in_silence), (50 * MS, false), "the time that one took, 50 times");
        assert_eq!(gate.check(user(1), start + wait), Ok(()));
        assert_eq!(served(&mut gate, 1, start + 100 * wait), 100);
        assert_eq!(served(&mut gate, 2, start), 251, "another user");
    }

    #[test]
    fn refusals_delay_no_service_and_beyond_some_connections_are_closed() {
        let start = Instant::now();
        let mut gate = Gate::new(0, start);
        served(&mut gate, 1, start);
        gate.charge(user(1), Work::Service, 9 * MS, start);
        let mut refused = 0;
        while let Err(Wait { in_silence: false, .. }) = gate.check(user(1), start) {
            gate.charge(user(1), Work::Refusal, MS, start);
            refused += 1;
        }
        assert_eq!(refused, 6);
        assert!(gate.check(user(1), start).unwrap_err().in_silence);
        assert!(!gate.check(user(1), start + 100 * MS).unwrap_err().in_silence, "later again");
        assert_eq!(gate.check(user(1), start + 500 * MS), Ok(()), "ten of 1 ms times 50");
    }

    #[test]
    fn one_who_asks_without_a_pause_is_served_one_part_of_the_time() {
        let start = Instant::now();
        let mut gate = Gate::new(0, start);
        let (mut served, mut refused) = (0, 0);
        for ms in 0..60_000 {
            let now = start + ms * MS;
            match gate.check(user(1), now) {
                Ok(()) => {
                    gate.charge(user(1), Work::Service, MS, now);
                    served += 1;
                }
                Err(Wait { in_silence: false, .. }) => {
                    gate.charge(user(1), Work::Refusal, MS, now);
                    refused += 1;
                }
                Err(_) => {}
            }
        }
        assert!((1_400..=1_460).contains(&served), "{served}");
        assert!((1_100..=1_210).contains(&refused), "{refused}");
    }

    #[test]
    fn programs_that_return_have_time_besides() {
        let start = Instant::now();
        let mut gate = Gate::new(10, start);
        assert_eq!(served(&mut gate, 1, start), 301);
        gate.end_return(start);
        // The allowance is forgiven, and what every user may owe is still owed.
        assert_eq!(served(&mut gate, 1, start), 1);
        assert!(gate.check(user(1), start).is_err());
    }

    #[test]
    fn users_whom_a_grant_does_not_name_have_one_account_until_grants_change() {
        let start = Instant::now();
        let mut gate = Gate::new(0, start);
        let unnamed = Key { user: None, grant: Some(0) };
        gate.charge(unnamed, Work::Service, Duration::from_secs(1), start);
        assert!(gate.check(unnamed, start).is_err() && gate.check(user(1), start).is_ok());
        gate.forget_grants();
        assert_eq!(gate.check(unnamed, start), Ok(()));
    }

    #[test]
    fn lines_of_a_user_are_bounded_and_those_left_out_are_counted() {
        let start = Instant::now();
        let mut gate = Gate::new(0, start);
        assert_eq!((0..100).filter(|_| gate.take_line(user(1), start)).count(), 20);
        assert!(gate.take_line(user(2), start), "another user");
        assert_eq!(gate.take_left_out(start), Some(80));
        assert!(gate.take_line(user(1), start + LINE) && !gate.take_line(user(1), start + LINE));
        assert_eq!(gate.take_left_out(start + LINE / 2), None, "one line a second");
        assert_eq!(gate.take_left_out(start + LINE), Some(1));
    }

    #[test]
    fn a_full_table_has_room_for_users_who_did_nothing_and_empties() {
        let start = Instant::now();
        let mut gate = Gate::new(0, start);
        gate.charge(user(0), Work::Service, 300 * MS, start);
        (1..2 * MAX_USERS as u32).for_each(|uid| gate.charge(user(uid), Work::Service, MS, start));
        assert_eq!(gate.taken.len(), MAX_USERS);
        assert!(gate.check(user(0), start).is_err(), "who owes most is kept");
        assert_eq!(gate.check(user(u32::MAX), start), Ok(()));
        gate.charge(user(u32::MAX), Work::Service, MS, start + 15_000 * MS);
        assert_eq!(gate.taken.len(), 1);
    }

    #[test]
    fn a_round_is_followed_by_a_pause_unless_most_connections_are_served() {
        let pause = |served, refused, closed| Round { served, refused, closed }.pause();
        assert_eq!([pause(2, 1, 1), pause(0, 0, 0)], [None; 2]);
        assert_eq!([pause(0, 64, 0), pause(1, 32, 31)], [Some(PAUSE); 2], "refusals are charged");
        assert_eq!([pause(0, 1, 63), pause(1, 0, 2)], [Some(LONG_PAUSE); 2]);
    }

    const OURS: u32 = 100;

    /// Number of connections that one more client after the other of these users gets.
    fn admitted(users: impl Iterator<Item = u32>, connected: &mut Vec<Option<u32>>, closing: usize) -> usize {
        admitted_of((0, 0), users, connected, closing)
    }

    fn admitted_of(
        expected: (usize, usize),
        users: impl Iterator<Item = u32>,
        connected: &mut Vec<Option<u32>>,
        closing: usize,
    ) -> usize {
        let before = connected.len();
        for uid in users {
            let user = (uid != 0 && uid != OURS).then_some(uid);
            let client = Client { user, most: PER_USER, expected };
            if have_room(client, connected.iter().copied(), closing) {
                connected.push(user);
            }
        }
        connected.len() - before
    }

    #[test]
    fn one_user_leaves_room_for_others_and_all_users_for_root_and_the_iokernels_own() {
        let mut connected = Vec::new();
        assert_eq!(admitted((0..300).map(|_| 1), &mut connected, 0), PER_USER);
        assert_eq!(admitted((2..1000).filter(|&uid| uid != OURS), &mut connected, 0), 192 - PER_USER);
        assert_eq!(admitted((0..300).map(|n| (n % 2) * OURS), &mut connected, 0), RESERVED);
        assert_eq!(connected.len(), MAX_STRANGERS);
    }

    #[test]
    fn programs_that_come_back_have_room_besides() {
        let mut connected = Vec::new();
        assert_eq!(admitted_of((70, 300), (0..500).map(|_| 1), &mut connected, 0), PER_USER + 70);
        assert_eq!(admitted_of((0, 300), (2..1000).filter(|&uid| uid != OURS), &mut connected, 0), 390);
    }

    #[test]
    fn sockets_that_are_long_in_closing_count_for_users_without_rights() {
        let mut connected = Vec::new();
        assert_eq!(admitted((0..300).map(|_| 1), &mut connected, 190), 2);
        assert_eq!(admitted((0..300).map(|_| OURS), &mut connected, 190), 64);
    }
}
