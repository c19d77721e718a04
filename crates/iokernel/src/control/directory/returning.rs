//! Programs of the IOKernel that ran before.
//!
//! Owns what is kept for them, by two ways of knowing them. After a takeover their entries are
//! *expected*: each is replaced when its program registers, and comes back if the program loses its
//! new place before it was sent `Ready`. After a crash their names and addresses are *owed*, by the
//! list that the earlier IOKernel has left ([`Owed`]). Also says what an IOKernel that takes over
//! from this one is told.

use std::net::Ipv4Addr;

use tailwater_sched::RuntimeId;
use tailwater_shm::control::{Estate, HandoverProgram, Register};

use super::{Directory, Entry, Refusal};
use crate::authority::{Denial, User};
use crate::control::owed::Owed;

/// Number of groups of a user up to which all of them are handed over in a takeover.
pub(super) const MAX_GROUPS: usize = 1024;

impl Directory {
    /// Sets whether programs get the address that a previous IOKernel chose for them, when it is
    /// free.
    pub(crate) fn take_back(&mut self, takes_back: bool) {
        self.takes_back = takes_back;
    }

    /// Gives what these programs have to them alone.
    pub(crate) fn owe(&mut self, programs: Vec<Owed>) {
        (self.owed, self.knows_owed) = (programs, true);
    }

    /// Returns the programs that have not come back.
    pub(crate) fn owed(&self) -> &[Owed] {
        &self.owed
    }

    /// Owes nothing any more to programs that do not live.
    pub(crate) fn forgive(&mut self, lives: impl Fn(&Owed) -> bool) {
        self.owed.retain(lives);
    }

    /// Checks that a name and an address do not belong to another program that may come back.
    pub(super) fn check_owed(&self, user: &User, name: &str, ip: Option<Ipv4Addr>) -> Result<(), Refusal> {
        for owed in self.owed.iter().filter(|owed| !owed.is_of(user.uid, name)) {
            if owed.name == name {
                return Err(Refusal::NameOwed { name: name.to_owned(), uid: owed.uid });
            }
            if ip == Some(owed.ip) {
                let owner =
                    format!("program {:?} of user {}, which has not come back yet", owed.name, owed.uid);
                return Err(Refusal::AddressTaken { ip: owed.ip, owner });
            }
        }
        Ok(())
    }

    /// Returns a registration as it is ruled on: not on an address of the pool that an IOKernel
    /// before has chosen. Whether that is so is not known, so what a grant lists is no such
    /// address.
    pub(super) fn as_returning(&self, user: &User, request: &Register) -> Register {
        let in_pool =
            |ip: Ipv4Addr| ip >= self.config.first_pool_address() && self.authority.keeps(ip).is_none();
        let is_its = |owed: &Owed| owed.is_of(user.uid, &request.name) && Some(owed.ip) == request.ip;
        // Where the list is known, however late; otherwise there is only the program's word.
        let had = if self.knows_owed { self.owed.iter().any(is_its) } else { self.takes_back };
        let returns = request.returns && had && request.ip.is_some_and(in_pool);
        let ip = request.ip.filter(|_| !returns);
        Register { ip, returns: false, ..request.clone() }
    }

    /// Keeps nothing any more for a program that was sent `Ready`.
    pub(crate) fn settle(&mut self, id: RuntimeId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.ready = true;
        self.forget_kept(id);
    }

    /// Owes nothing any more to a program that was sent `Ready`. The other instance of it, which
    /// has the same name and address, may be still to come.
    pub(crate) fn repay(&mut self, program: &Owed) {
        self.owed.retain(|owed| !owed.is_same(program));
    }

    fn forget_kept(&mut self, id: RuntimeId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(kept) = entry.kept.take() else { return };
        if kept.place.ip != entry.place.ip {
            self.free_addresses(&kept.place);
        }
    }

    /// Enters the programs of the IOKernel that this one takes over from, as if they registered:
    /// until they do, or [`forget_expected`](Self::forget_expected) is called, all that they have
    /// is kept for them. `user` returns the user with this number and these groups.
    ///
    /// # Errors
    /// Which of them would be refused, and why.
    pub(crate) fn expect(
        &mut self,
        programs: &[HandoverProgram],
        user: impl Fn(u32, Vec<u32>) -> User,
    ) -> Result<(), String> {
        for HandoverProgram { register, ip, grant, uid, groups } in programs {
            let mut groups = groups.clone();
            groups.sort_unstable();
            let user = user(*uid, groups);
            let rule = |this: &Self, bytes| this.rule_as_before(&user, register, bytes, *grant);
            let place = self.enter(&user, register, Some(*ip), true, rule).map_err(|refusal| {
                let name = register.name.escape_default();
                format!(
                    "its program \"{name}\" of user {uid} could not attach to this one: {refusal}. Change that, or stop \
                     the program"
                )
            })?;
            let entry = self.entries.get_mut(&place.id).expect("entered above");
            // The program still sleeps at the board of the previous IOKernel; it gets places here
            // when it registers.
            (entry.expected, entry.place.first_place) = (true, None);
        }
        Ok(())
    }

    /// Keeps nothing any more for programs that are expected and have not registered; returns their
    /// names.
    pub(crate) fn forget_expected(&mut self) -> Vec<String> {
        let late = self.entries.iter().filter(|(_, entry)| entry.expected).map(|(&id, _)| id);
        let late: Vec<RuntimeId> = late.collect();
        let ids: Vec<RuntimeId> = self.entries.keys().copied().collect();
        ids.into_iter().for_each(|id| self.forget_kept(id));
        let late: Vec<Entry> = late.into_iter().filter_map(|id| self.take_out(id)).collect();
        self.owed.retain(|owed| !late.iter().any(|entry| owed.is_of(entry.user.uid, &entry.request.name)));
        late.into_iter().map(|entry| entry.request.name).collect()
    }

    /// Returns whether programs are expected.
    pub(crate) fn expects(&self) -> bool {
        self.entries.values().any(Entry::is_expected)
    }

    /// Returns how many programs are expected: those that count for this user, and all.
    pub(crate) fn expected(&self, user: u32) -> (usize, usize) {
        let expected = self.entries.values().filter(|entry| entry.is_expected());
        let is_its = |entry: &Entry| self.authority.counts_for(&entry.user) == user;
        expected.fold((0, 0), |(own, all), entry| (own + usize::from(is_its(entry)), all + 1))
    }

    /// Returns the registered programs, for an IOKernel that takes over: those that have announced
    /// their threads, and those that are still expected.
    pub(crate) fn registered(&self) -> Estate {
        let mut entries: Vec<&Entry> = self.entries.values().collect();
        entries.sort_unstable_by_key(|entry| entry.place.id.0);
        let entries = entries.into_iter().filter_map(|entry| match &entry.kept {
            _ if entry.expected || !entry.tids.is_empty() => Some(entry),
            kept => kept.as_deref(),
        });
        let program = |entry: &Entry| HandoverProgram {
            register: entry.request.clone(),
            ip: entry.place.ip,
            grant: entry.grant,
            uid: entry.user.uid,
            groups: self.groups_to_hand_over(&entry.user.groups),
        };
        Estate { programs: entries.map(program).collect() }
    }

    /// Returns the groups of a user that an IOKernel which takes over is told: of a long list only
    /// those that grants name, for a list of them all would be of gigabytes.
    fn groups_to_hand_over(&self, groups: &[u32]) -> Vec<u32> {
        let is_named = |group: &u32| groups.len() <= MAX_GROUPS || self.authority.names_group(*group);
        groups.iter().copied().filter(is_named).collect()
    }

    /// As [`rule_on`](Self::rule_on), for a program that a previous IOKernel has registered by the
    /// grant `before`. As in a [`reload`](Self::reload), limits of grants are no reason to end it:
    /// the order in which programs are entered is not that in which they have registered.
    fn rule_as_before(
        &self,
        user: &User,
        request: &Register,
        bytes: u64,
        before: Option<usize>,
    ) -> Result<Option<usize>, Denial> {
        let counted = self.beyond_other(user, request);
        let permits =
            |&grant: &usize| self.authority.permits(grant, user, &counted, bytes, self.usage(grant));
        if let Some(grant) = before.filter(permits) {
            return Ok((!user.privileged).then_some(grant));
        }
        let ruling = self.rule_on(user, request, bytes);
        ruling.or_else(|denial| self.authority.grant_of(user, request).map(Some).ok_or(denial))
    }
}
