//! A tenant: the unit by which polling time, ring space and late starts are limited.
//!
//! Owns [`Party`]: the programs that one user has registered by one grant. A bound for each program
//! would give a user one share for each program, 16 by default. So a party has one share of a ring
//! and of a port's queue, which its programs divide, two batches of an iteration
//! ([`crate::switch`]), and one count of cores that services had to wait for
//! ([`crate::allocator::vain`]). A program of root or of the IOKernel's own user is a party by
//! itself.
//!
//! A reload of the configuration may give grants other numbers, and programs other grants. All
//! programs concerned then pass to other parties at once ([`Runtimes::rekey`]); what the parties
//! that they leave have spent and claimed stays with the programs that remain there.
//!
//! [`Runtimes::rekey`]: crate::runtime::Runtimes::rekey

use tailwater_sched::RuntimeId;
use tailwater_shm::allowance::Allowance;

use crate::control::exile::Key;

/// Number of a [`Party`]; the number of a party that has ended is used again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PartyId(pub(crate) u32);

/// A program as one of its party.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) program: RuntimeId,
    pub(crate) party: PartyId,
    /// Number of programs of the party.
    pub(crate) programs: u32,
}

/// The charge for frames of a program or party in one iteration of the polling loop.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    /// Number of the iteration.
    round: usize,
    units: usize,
}

impl Spent {
    /// Returns what was spent in iteration `round`.
    #[inline(always)]
    pub(crate) fn in_round(&self, round: usize) -> usize {
        if self.round == round { self.units } else { 0 }
    }

    /// Adds what was spent in iteration `round`.
    #[inline(always)]
    pub(crate) fn add(&mut self, round: usize, units: usize) {
        *self = Self { round, units: self.in_round(round) + units };
    }
}

/// See the module documentation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Party {
    key: Option<Key>,
    pub(crate) programs: u32,
    /// Of all its programs.
    pub(crate) kthreads: u32,
    pub(crate) spent: Spent,
    /// Its cores that services claimed and had to wait for.
    pub(crate) claims: Allowance,
}

/// The parties of all registered programs.
#[derive(Debug, Default)]
pub(crate) struct Parties(Vec<Party>);

impl Parties {
    /// Enters a program with this number of kthreads into the party of this key, or into a party of
    /// its own if there is no key.
    pub(crate) fn enter(&mut self, key: Option<Key>, kthreads: u16) -> PartyId {
        let shared = |party: &Party| key.is_some() && party.key == key && party.programs > 0;
        let found = self.0.iter().position(shared);
        let at = found.or_else(|| self.0.iter().position(|party| party.programs == 0));
        let at = at.unwrap_or_else(|| {
            self.0.push(Party::new(key));
            self.0.len() - 1
        });
        if found.is_none() {
            self.0[at] = Party::new(key);
        }
        self.0[at].programs += 1;
        self.0[at].kthreads += u32::from(kthreads);
        PartyId(at as u32)
    }

    /// Removes a program that was entered with this number of kthreads.
    pub(crate) fn leave(&mut self, id: PartyId, kthreads: u16) {
        let party = &mut self.0[id.0 as usize];
        party.programs -= 1;
        party.kthreads -= u32::from(kthreads);
    }

    /// Returns a program as one of its party.
    #[inline(always)]
    pub(crate) fn member(&self, program: RuntimeId, party: PartyId) -> Member {
        Member { program, party, programs: self.get(party).programs }
    }

    #[inline(always)]
    pub(crate) fn get(&self, id: PartyId) -> &Party {
        &self.0[id.0 as usize]
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: PartyId) -> &mut Party {
        &mut self.0[id.0 as usize]
    }
}

impl Party {
    fn new(key: Option<Key>) -> Self {
        let (spent, claims) = (Spent::default(), Allowance::default());
        Self { key, programs: 0, kthreads: 0, spent, claims }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::fixture::admit;
    use crate::runtime::Runtimes;
    use tailwater_shm::control::Class;

    #[test]
    fn programs_of_one_user_by_one_grant_are_a_party_and_others_are_not() {
        let mut parties = Parties::default();
        let key = |uid, grant| Some(Key { uid, grant: Some(grant) });
        let ids = [key(7, 0), key(7, 0), key(7, 1), key(8, 0), None, None].map(|key| parties.enter(key, 2));
        assert_eq!(ids.map(|PartyId(id)| id), [0, 0, 1, 2, 3, 4]);
        parties.get_mut(ids[0]).spent.add(1, 5);
        parties.leave(ids[0], 2);
        assert_eq!((parties.get(ids[1]).spent.in_round(1), parties.get(ids[1]).kthreads), (5, 2));
        parties.leave(ids[1], 2);
        // Its number is free, and what is kept under it forgotten.
        assert_eq!(parties.enter(key(9, 0), 1), ids[0]);
        assert_eq!((parties.get(ids[0]).spent.in_round(1), parties.get(ids[0]).kthreads), (0, 1));
        assert_eq!(parties.enter(key(7, 0), 1), PartyId(5));
    }

    #[test]
    fn after_a_reload_programs_are_of_the_parties_of_their_present_grants() {
        let (config, mut runtimes) = (Config::default(), Runtimes::default());
        let key = |uid, grant| Key { uid, grant: Some(grant) };
        let mut files = Vec::new();
        let mut register = |runtimes: &mut Runtimes, id, key| {
            let (mut runtime, file) = admit(&config, RuntimeId(id), 2, 0, Class::BestEffort);
            runtime.key = Some(key);
            files.push(file);
            runtimes.insert(runtime);
        };
        for (id, key) in (0..).zip([key(7, 0), key(7, 0), key(7, 1), key(7, 2), key(8, 0)]) {
            register(&mut runtimes, id, key);
        }
        let of = |runtimes: &Runtimes, id| runtimes.get(RuntimeId(id)).unwrap().party;
        let spent = |runtimes: &Runtimes, id| runtimes.parties.get(of(runtimes, id)).spent.in_round(1);
        for id in [0, 2, 4] {
            let party = of(&runtimes, id);
            runtimes.parties.get_mut(party).spent.add(1, 5);
        }
        // Two grants change places, a third one is gone, and a program has ended meanwhile.
        let keys = [(0, key(7, 1)), (1, key(7, 1)), (2, key(7, 0)), (3, key(7, 0)), (4, key(8, 0))];
        let keys = keys.into_iter().chain([(9, key(7, 0))]);
        runtimes.rekey(keys.map(|(id, key)| (RuntimeId(id), key)).collect());
        register(&mut runtimes, 5, key(7, 0));
        register(&mut runtimes, 6, key(7, 1));
        for fellows in [[0, 1, 6], [2, 3, 5]] {
            let [first, ..] = fellows.map(|id| of(&runtimes, id));
            assert_eq!(fellows.map(|id| of(&runtimes, id)), [first; 3]);
            let Party { programs, kthreads, .. } = *runtimes.parties.get(first);
            assert_eq!((programs, kthreads), (3, 6));
        }
        assert_ne!(of(&runtimes, 0), of(&runtimes, 2));
        assert_eq!([0, 2, 4].map(|id| spent(&runtimes, id)), [0, 0, 5], "that of an unchanged key is kept");
        // All leave: nothing is counted twice.
        (0..7).for_each(|id| drop(runtimes.remove(RuntimeId(id))));
        assert!(runtimes.parties.0.iter().all(|party| (party.programs, party.kthreads) == (0, 0)));
    }
}
