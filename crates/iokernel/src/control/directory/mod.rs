//! The registered runtimes with their names and addresses.
//!
//! Owns the table of names, IPv4 and MAC addresses, runtime ids, threads and guaranteed cores.
//! Pure: no file descriptors, no clock. Every check that can refuse a registration because of
//! *other* runtimes is here, so the polling thread need not refuse any. An entry stays in the table
//! until the polling thread has detached the runtime.
//!
//! | module | owns |
//! |---|---|
//! | `mod` | the entries: who is admitted, within which limits, and who leaves |
//! | `addresses` | which IPv4 and MAC address each has |
//! | [`instances`] | two instances of one program, with one name and one address |
//! | `returning` | what is kept for programs of the IOKernel that ran before |
//! | `refusal` | why a registration is refused |

mod addresses;
pub(super) mod instances;
mod refusal;
mod returning;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tailwater_wire::MacAddr;

use tailwater_sched::RuntimeId;
use tailwater_shm::control::{Instance, MAX_NAME, Register, is_name};
use tailwater_shm::layout::RegionSpec;
use tailwater_shm::{Version, board};

use super::owed::Owed;
use crate::authority::{Authority, Denial, Held, Usage, User};
use crate::config::Config;
pub use instances::NotBeside;
pub use refusal::{Holders, Refusal};

/// Maximum number of kthreads of all runtimes together.
const MACHINE_KTHREADS: usize = board::PLACES as usize;

/// Number of programs that a refusal for want of memory names.
const MAX_HOLDERS: usize = 3;

/// What a registered runtime is assigned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) id: RuntimeId,
    pub(crate) ip: Ipv4Addr,
    /// Unique because `ip`, from which it is derived, is unique.
    pub(crate) ip6: Option<Ipv6Addr>,
    pub(crate) mac: MacAddr,
    pub(crate) region: RegionSpec,
    /// Place of its first kthread at the board; the others follow.
    pub(crate) first_place: Option<u16>,
}

#[derive(Debug)]
struct Entry {
    request: Register,
    place: Assignment,
    tids: Vec<i32>,
    user: User,
    /// The grant to whose limits it counts.
    grant: Option<usize>,
    /// It stands for a program of the IOKernel that ran before.
    expected: bool,
    /// The expected entry that it replaces, until the program was sent `Ready`.
    kept: Option<Box<Entry>>,
    /// The program was sent `Ready`: the polling thread has it.
    ready: bool,
}

impl Entry {
    /// Returns what it has of its grant, or what is kept for it, whichever is more.
    fn held(&self) -> Held {
        let own = Held::by(&self.request, self.place.region.region_len() as u64);
        self.kept.as_ref().map_or(own, |kept| own.max(kept.held()))
    }

    /// Returns whether a place for its program is expected, or would be if it lost the one it has.
    fn is_expected(&self) -> bool {
        self.expected || self.kept.is_some()
    }

    /// Returns whether a registration has nothing that the program of this entry did not have.
    fn covers(&self, request: &Register) -> bool {
        let had = &self.request;
        request.class == had.class
            && request.kthreads <= had.kthreads
            && request.guaranteed <= had.guaranteed
            && request.ring_bytes <= had.ring_bytes
            && request.ip == had.ip
    }
}

/// A registered program, for a client that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) id: RuntimeId,
    /// Its user.
    pub(crate) uid: u32,
    pub(crate) kthreads: u16,
    /// Its guaranteed cores.
    pub(crate) guaranteed: u16,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Directory {
    config: Config,
    authority: Authority,
    managed: u32,
    memory_bytes: u64,
    entries: HashMap<RuntimeId, Entry>,
    ips: HashMap<Ipv4Addr, String>,
    macs: HashMap<MacAddr, String>,
    /// Addresses on the wire that are no program's: of Linux and its next hops.
    taken: HashSet<IpAddr>,
    /// Addresses of programs have changed.
    changed: bool,
    tids: HashSet<i32>,
    /// Names and addresses of programs that have not come back from an IOKernel that is gone.
    owed: Vec<Owed>,
    /// What they are is known: a program that says what it had must be among them.
    knows_owed: bool,
    /// True if programs get the address that a previous IOKernel chose for them.
    takes_back: bool,
    next_ip: Ipv4Addr,
}

impl Directory {
    /// Returns an empty one, for a machine with `managed` managed cores and this much memory.
    pub(crate) fn new(config: &Config, authority: Authority, managed: u32, memory_bytes: u64) -> Self {
        Self {
            config: config.clone(),
            authority,
            managed,
            memory_bytes,
            entries: HashMap::new(),
            ips: HashMap::new(),
            macs: HashMap::new(),
            taken: HashSet::new(),
            changed: false,
            tids: HashSet::new(),
            owed: Vec::new(),
            knows_owed: false,
            takes_back: false,
            next_ip: config.first_pool_address(),
        }
    }

    /// Replaces the settings and the grants, for registrations from now on: what is registered
    /// stays, and counts to the first grant that permits it beside those before it, or else whose
    /// rules do.
    pub(crate) fn reload(&mut self, config: &Config, authority: Authority) {
        if self.config.first_pool_address() != config.first_pool_address() {
            self.next_ip = config.first_pool_address();
        }
        let mut usage: HashMap<usize, Usage> = HashMap::new();
        let mut entries: Vec<(&RuntimeId, &mut Entry)> = self.entries.iter_mut().collect();
        entries.sort_unstable_by_key(|(id, _)| id.0);
        for (_, entry) in entries {
            let (request, bytes) = (&entry.request, entry.held().region_bytes);
            let so_far = |grant| usage.get(&grant).cloned().unwrap_or_default();
            let ruling = authority.rule_on(&entry.user, request, bytes, so_far);
            entry.grant = ruling.unwrap_or_else(|_| authority.grant_of(&entry.user, request));
            if let Some(grant) = entry.grant {
                usage.entry(grant).or_default().add(authority.counts_for(&entry.user), entry.held());
            }
        }
        (self.config, self.authority) = (config.clone(), authority);
    }

    /// Returns the grants.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns what the programs of a grant have.
    fn usage(&self, grant: usize) -> Usage {
        let mut usage = Usage::default();
        let theirs = self.entries.values().filter(|entry| entry.grant == Some(grant));
        theirs.for_each(|entry| {
            let held = Held { guaranteed: self.guaranteed_beyond(entry), ..entry.held() };
            usage.add(self.authority.counts_for(&entry.user), held);
        });
        usage
    }

    /// Returns the program of this name that the polling thread has.
    pub(crate) fn named(&self, name: &str) -> Option<Named> {
        let is_there = |(_, entry): &(&RuntimeId, &Entry)| {
            let latest = entry.request.instance != Instance::Replaced;
            !entry.expected && entry.ready && latest && entry.request.name == name
        };
        let (&id, entry) = self.entries.iter().find(is_there)?;
        let Register { kthreads, guaranteed, .. } = entry.request;
        Some(Named { id, uid: entry.user.uid, kthreads, guaranteed })
    }

    /// Returns whether a program of this user is registered or expected.
    pub(crate) fn has_programs_of(&self, uid: u32) -> bool {
        self.entries.values().any(|entry| entry.user.uid == uid)
    }

    /// Returns the grant to whose limits a runtime counts.
    pub(crate) fn grant(&self, id: RuntimeId) -> Option<usize> {
        self.entries.get(&id)?.grant
    }

    /// Says in words what a user may register.
    pub(crate) fn rights(&self, user: &User) -> String {
        self.authority.describe(user, |grant| self.usage(grant))
    }

    /// Enters a runtime and returns its place, or a refusal, after which nothing has changed. A
    /// program that is expected gets what is kept for it without another ruling: it asks for its
    /// address, which the previous IOKernel may have chosen.
    pub(crate) fn admit(&mut self, user: &User, request: &Register) -> Result<Assignment, Refusal> {
        let is_kept = |entry: &Entry| {
            entry.expected && entry.request.name == request.name && entry.user.uid == user.uid
        };
        let kept = self.entries.iter().filter(|(_, entry)| is_kept(entry));
        // Of two instances, one that was not told that it is replaced is the earlier one.
        let instance = |entry: &Entry| {
            (entry.request.instance == request.instance, entry.request.instance == Instance::Replaced)
        };
        let kept = kept.max_by_key(|(_, entry)| instance(entry)).map(|(&id, _)| id);
        let Some(kept) = kept.and_then(|id| self.take_out(id)) else {
            let ruled = self.as_returning(user, request);
            let rule = |this: &Self, bytes| this.rule_on(user, &ruled, bytes);
            return self.enter(user, &ruled, request.ip, false, rule);
        };
        let instance = match kept.request.instance {
            Instance::Replaced => Instance::Replaced,
            _ => request.instance,
        };
        let mut ruled = Register { returns: false, instance, ..request.clone() };
        let ip = request.ip.unwrap_or(kept.place.ip);
        if ip == kept.place.ip {
            ruled.ip = kept.request.ip;
        }
        let settled = kept.covers(&ruled) && (user.privileged || kept.grant.is_some());
        let place = self.enter(user, &ruled, Some(ip), settled, |this, bytes| match settled {
            true => Ok(kept.grant),
            false => this.rule_on(user, &ruled, bytes),
        });
        match &place {
            Ok(Assignment { id, .. }) => {
                // Its addresses, too, if the program asked for others.
                self.take_addresses(&kept);
                let entry = self.entries.get_mut(id).expect("entered above");
                entry.kept = Some(Box::new(kept));
            }
            Err(_) => self.put_in(kept),
        }
        place
    }

    /// Returns the grant by which a user may register a program now.
    fn rule_on(&self, user: &User, request: &Register, bytes: u64) -> Result<Option<usize>, Denial> {
        let request = self.beyond_other(user, request);
        self.authority.rule_on(user, &request, bytes, |grant| self.usage(grant))
    }

    /// Enters a runtime with this address, or with one of the pool, by the grant that `rule`
    /// returns for the size of its region. `as_before`: it was registered, and its user's limit of
    /// memory is no reason to end it, as those of grants are not.
    fn enter(
        &mut self,
        user: &User,
        request: &Register,
        ip: Option<Ipv4Addr>,
        as_before: bool,
        rule: impl FnOnce(&Self, u64) -> Result<Option<usize>, Denial>,
    ) -> Result<Assignment, Refusal> {
        let region = self.check_request(user, request)?;
        let region_len = region.region_len() as u64;
        let grant = rule(self, region_len)?;
        let other = self.beside(user, request)?.map(|other| (other.place.clone(), other.grant));
        if other.as_ref().is_some_and(|(_, theirs)| *theirs != grant) {
            return Err(Refusal::NotBeside { name: request.name.clone(), why: NotBeside::Grant });
        }
        self.check_owed(user, &request.name, ip)?;
        self.check_memory(user, (grant, as_before), region_len)?;
        let id = self.vacant_id()?;
        let own = |owed: &&Owed| owed.is_of(user.uid, &request.name);
        let ip = ip.or_else(|| self.owed.iter().find(own).map(|owed| owed.ip));
        let (ip, mac) = match &other {
            Some((place, _)) => (place.ip, place.mac),
            None => self.addresses(ip)?,
        };
        let asked = request.kthreads;
        let taken: u64 = self.entries.values().map(|entry| entry.held().kthreads).sum();
        let left = MACHINE_KTHREADS - taken as usize;
        if usize::from(asked) > left {
            return Err(Refusal::NoKthreads { asked, left });
        }
        let first_place = self.vacant_places(asked);
        let place = Assignment { id, ip, ip6: self.config.ip6_of(ip), mac, region, first_place };
        self.put_in(Entry {
            request: request.clone(),
            place: place.clone(),
            tids: Vec::new(),
            user: user.clone(),
            grant,
            expected: false,
            kept: None,
            ready: false,
        });
        if let Some((other, _)) = other {
            self.pair(id, other.id);
        }
        Ok(place)
    }

    /// Returns the first of `count` places in a row at the board that no program has.
    fn vacant_places(&self, count: u16) -> Option<u16> {
        let places = |entry: &Entry| Some((entry.place.first_place?, entry.request.kthreads));
        let mut taken: Vec<(u16, u16)> = self.entries.values().filter_map(places).collect();
        taken.sort_unstable();
        let mut first = 0;
        for (from, kthreads) in taken {
            if from - first >= count {
                break;
            }
            first = from + kthreads;
        }
        (first.checked_add(count)? <= board::PLACES).then_some(first)
    }

    fn put_in(&mut self, entry: Entry) {
        self.take_addresses(&entry);
        self.entries.insert(entry.place.id, entry);
    }

    fn take_out(&mut self, id: RuntimeId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.free_addresses(&entry.place);
        for tid in &entry.tids {
            self.tids.remove(tid);
        }
        Some(entry)
    }

    fn check_request(&self, user: &User, request: &Register) -> Result<RegionSpec, Refusal> {
        let Register { version, name, kthreads, guaranteed, ring_bytes, .. } = request;
        if !Version::OWN.serves(Version(*version)) {
            return Err(Refusal::Version { theirs: *version });
        }
        if !is_name(name) {
            return Err(Refusal::NameInvalid(name.chars().take(MAX_NAME).collect()));
        }
        self.beside(user, request)?;
        let most = self.config.max_kthreads;
        if !(1..=most).contains(kthreads) {
            return Err(Refusal::Kthreads { asked: *kthreads, most });
        }
        if guaranteed > kthreads {
            return Err(Refusal::GuaranteeOverKthreads { guaranteed: *guaranteed, kthreads: *kthreads });
        }
        let (asked, managed) = (self.beyond_other(user, request).guaranteed, self.managed);
        let taken = self.entries.values().map(|entry| self.guaranteed_beyond(entry) as u32).sum();
        if taken + u32::from(asked) > managed {
            return Err(Refusal::GuaranteeOversubscribed { asked, taken, managed });
        }
        let region = RegionSpec::new(*kthreads, *ring_bytes)?;
        if *ring_bytes > self.config.max_ring_bytes {
            return Err(Refusal::RingBytes { asked: *ring_bytes, most: self.config.max_ring_bytes });
        }
        Ok(region)
    }

    /// Checks that a region of `asked` bytes is within the limits of all, and of its user.
    fn check_memory(
        &self,
        user: &User,
        (grant, as_before): (Option<usize>, bool),
        asked: u64,
    ) -> Result<(), Refusal> {
        let all = self.config.max_region_bytes.unwrap_or(self.memory_bytes / 4);
        let owner = self.authority.counts_for(user);
        let limits = [(Holders::User(owner), all / 4), (Holders::Others, all - all / 4), (Holders::All, all)];
        // The user's own limit comes first: the user can do something about that one. It does not
        // apply where the grant has one.
        let skipped = match grant {
            _ if user.privileged => 2,
            _ if as_before => 1,
            Some(grant) if self.authority.limits_memory(grant) => 1,
            _ => 0,
        };
        for (whose, most) in limits.into_iter().skip(skipped) {
            let mut theirs: Vec<(u64, &str)> = self
                .entries
                .values()
                .filter(|entry| match whose {
                    Holders::All => true,
                    Holders::Others => !entry.user.privileged,
                    Holders::User(user) => self.authority.counts_for(&entry.user) == user,
                })
                .map(|entry| (entry.held().region_bytes, entry.request.name.as_str()))
                .collect();
            let held: u64 = theirs.iter().map(|(bytes, _)| bytes).sum();
            if held.saturating_add(asked) > most {
                theirs.sort_unstable_by_key(|&(bytes, name)| (core::cmp::Reverse(bytes), name));
                let largest = theirs.iter().take(MAX_HOLDERS);
                let words: Vec<String> = largest.map(|(bytes, name)| format!("{name:?} {bytes}")).collect();
                let holders = if words.is_empty() {
                    String::new()
                } else {
                    format!(", the most of it {}", words.join(", "))
                };
                return Err(Refusal::RegionBytes { asked, whose, held, most, holders });
            }
        }
        Ok(())
    }

    fn vacant_id(&self) -> Result<RuntimeId, Refusal> {
        (0..self.config.max_runtimes)
            .map(RuntimeId)
            .find(|id| !self.entries.contains_key(id))
            .ok_or(Refusal::TooManyRuntimes(self.config.max_runtimes))
    }

    /// Records a runtime's threads, which its process calls `tids`, and returns their numbers here,
    /// by `find`.
    pub(crate) fn accept_kthreads(
        &mut self,
        id: RuntimeId,
        tids: &[i32],
        find: impl FnOnce(&[i32]) -> Result<Vec<i32>, Refusal>,
    ) -> Result<Vec<i32>, Refusal> {
        let Some(entry) = self.entries.get_mut(&id) else {
            return Err(Refusal::NotRegistered(id));
        };
        let expected = entry.place.region.kthreads();
        if tids.len() != usize::from(expected) {
            return Err(Refusal::ThreadCount { found: tids.len(), expected });
        }
        let found = find(tids)?;
        let mut seen = HashSet::new();
        let is_taken =
            |(&tid, own): (&i32, &i32)| (self.tids.contains(&tid) || !seen.insert(tid)).then_some(*own);
        if let Some(own) = found.iter().zip(tids).find_map(is_taken) {
            return Err(Refusal::ThreadTaken(own));
        }
        entry.tids.clone_from(&found);
        self.tids.extend(&found);
        Ok(found)
    }

    /// Removes a runtime; all it had can be assigned to others, or is kept for its program again.
    /// Returns its name.
    pub(crate) fn release(&mut self, id: RuntimeId) -> Option<String> {
        let Entry { request, kept, grant, .. } = self.take_out(id)?;
        if let Some(mut kept) = kept {
            // Its former number may be another one's, and grants may have other numbers.
            (kept.place.id, kept.grant) = (id, grant);
            self.put_in(*kept);
        }
        self.note_alone(&request.name);
        Some(request.name)
    }
}

#[cfg(test)]
mod tests;
