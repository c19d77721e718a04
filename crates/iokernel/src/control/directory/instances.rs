//! Two instances of one program: one that runs, and a later one that takes its place.
//!
//! Owns who may stand beside whom. A program that registers as [`Instance::Latest`] agrees that
//! another instance may take its place, and takes that of one that runs. Both have one name and one
//! address until the earlier one has ended; the switch gives frames to the later one, whose stack
//! passes on those that are not for it ([`FLAG_PASSED_ON`](tailwater_shm::ring::FLAG_PASSED_ON)).
//!
//! ```text
//! earlier                     IOKernel                      later
//!                                <- register, latest --------
//!                                -- welcome, same address -->   frames go to the later one
//!   <- replaced -----------------                               it opens its sockets: each port
//!                                                               moves when its socket is open
//!                                <- end-earlier -------------
//!   <- end ----------------------                               the earlier one accepts no more,
//!   finishes its connections                                    and ends
//!                                -- latest ----------------->   it passes on nothing any more
//! ```
//!
//! | condition | otherwise |
//! |---|---|
//! | one user, one grant, one name | the name is taken |
//! | the running one has registered as `Latest`, too | refused: it has not agreed |
//! | the running one is not being replaced already | refused |
//! | the same address, or none asked for | refused |
//!
//! Guaranteed cores pass to the later instance, so that a pair has the larger of the two numbers.
//! Kthreads, memory and the number of programs count twice: both are there.
//!
//! # Crash and lie
//!
//! | step | what happens |
//! |---|---|
//! | the later one dies at any step | frames go to the earlier one again, which is sent `latest` |
//! | the earlier one dies | the later one is sent `latest`, and answers for its connections with resets |
//! | the IOKernel dies | each says what it was when it registers again, in either order; one whose counterpart has not come back within the time for that is sent `latest` |
//! | the later one passes on garbage, or frames without end | they reach the earlier instance alone, of the same tenant, in the later one's turns |
//! | the IOKernel dies before it has passed on `end-earlier` | the program sends it again when it is sent `replaces` |
//! | `end-earlier` without an earlier instance, or again and again | no effect; charged as a request for statistics, and refused like one |

use std::collections::BTreeSet;

use tailwater_sched::RuntimeId;
use tailwater_shm::control::{Instance, Register};

use super::{Directory, Entry, Refusal};
use crate::authority::User;

/// Why a registration may not stand beside the program that has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotBeside {
    /// The running one has not agreed.
    #[error(
        "the one that runs was not started with --replace, and gives its place to none; end it first, or start both so"
    )]
    Disagrees,
    /// Two instances are there.
    #[error("it is being replaced already; wait until its earlier instance has ended, or end that one")]
    Replaced,
    /// By another grant.
    #[error("it counts to another grant; both have to be permitted by the same [[grant]]")]
    Grant,
    /// At another address.
    #[error("it has another address; ask for the same one, or for none")]
    Address,
}

impl Directory {
    /// Returns the program beside which this registration would stand.
    ///
    /// # Errors
    /// If the name is another's, or that program does not agree.
    pub(super) fn beside(&self, user: &User, request: &Register) -> Result<Option<&Entry>, Refusal> {
        let mut owners = self.entries.values().filter(|entry| entry.request.name == request.name);
        let (Some(owner), second) = (owners.next(), owners.next()) else { return Ok(None) };
        let name = || request.name.clone();
        if owner.user.uid != user.uid || request.instance.is_only() {
            let refusal = if owner.expected { Refusal::NameKept } else { Refusal::NameTaken };
            return Err(refusal(name()));
        }
        let replaced = owner.request.instance == Instance::Replaced;
        let why = if owner.request.instance.is_only() {
            NotBeside::Disagrees
        } else if second.is_some() || (replaced && request.instance == Instance::Replaced) {
            NotBeside::Replaced
        } else if request.ip.is_some_and(|ip| ip != owner.place.ip) {
            NotBeside::Address
        } else {
            return Ok(Some(owner));
        };
        Err(Refusal::NotBeside { name: name(), why })
    }

    /// Returns a registration as it counts beside the other instance: without the guaranteed cores
    /// that pass from one to the other.
    pub(super) fn beyond_other(&self, user: &User, request: &Register) -> Register {
        let other =
            self.beside(user, request).ok().flatten().map_or(0, |other| other.held().guaranteed as u16);
        Register { guaranteed: request.guaranteed.saturating_sub(other), ..request.clone() }
    }

    /// Returns the guaranteed cores of an entry beyond those of the instance that replaces it.
    pub(super) fn guaranteed_beyond(&self, entry: &Entry) -> u64 {
        let held = entry.held().guaranteed;
        // Most are none: no search through all entries for each of them.
        if entry.request.instance != Instance::Replaced {
            return held;
        }
        let is_later = |other: &&Entry| {
            other.request.instance == Instance::Replaces && other.request.name == entry.request.name
        };
        let later = self.entries.values().find(is_later).map_or(0, |later| later.held().guaranteed);
        held.saturating_sub(later)
    }

    /// Notes which of two instances is the later one: that with this number, unless it says that
    /// it has been replaced.
    pub(super) fn pair(&mut self, id: RuntimeId, other: RuntimeId) {
        let is_earlier =
            self.entries.get(&id).is_some_and(|entry| entry.request.instance == Instance::Replaced);
        let (earlier, later) = if is_earlier { (id, other) } else { (other, id) };
        for (id, instance) in [(earlier, Instance::Replaced), (later, Instance::Replaces)] {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.request.instance = instance;
            }
        }
    }

    /// Returns the registered instances of this name, and how each stands to the other. One whose
    /// counterpart is not ready is left out: the polling thread may not have that yet, and one that
    /// comes back knows what it was.
    pub(in crate::control) fn instances(&self, name: &str) -> Vec<(RuntimeId, Instance)> {
        let there = self.entries.iter().filter(|(_, entry)| {
            entry.ready && !entry.expected && entry.request.name == name && !entry.request.instance.is_only()
        });
        let there: Vec<_> = there.map(|(&id, entry)| (id, entry.request.instance)).collect();
        let is_told = |&(_, instance): &(_, Instance)| instance == Instance::Latest || there.len() > 1;
        there.iter().copied().filter(is_told).collect()
    }

    /// Returns the program that this one replaces.
    pub(in crate::control) fn earlier(&self, id: RuntimeId) -> Option<RuntimeId> {
        let name = &self.entries.get(&id)?.request.name;
        let earlier =
            |entry: &Entry| entry.request.name == *name && entry.request.instance == Instance::Replaced;
        self.entries.iter().find(|(other, entry)| **other != id && earlier(entry)).map(|(&id, _)| id)
    }

    /// Returns the name of a program.
    pub(in crate::control) fn name_of(&self, id: RuntimeId) -> Option<&str> {
        self.entries.get(&id).map(|entry| entry.request.name.as_str())
    }

    /// Notes that a program of this name has no counterpart, if that is so.
    pub(in crate::control) fn note_alone(&mut self, name: &str) {
        let mut own = self.entries.values_mut().filter(|entry| entry.request.name == name);
        if let (Some(entry), None) = (own.next(), own.next())
            && !entry.request.instance.is_only()
        {
            entry.request.instance = Instance::Latest;
        }
    }

    /// Returns the names of the programs that may have another instance.
    pub(in crate::control) fn replaceable(&self) -> BTreeSet<String> {
        let entries = self.entries.values().filter(|entry| !entry.request.instance.is_only());
        entries.map(|entry| entry.request.name.clone()).collect()
    }
}
