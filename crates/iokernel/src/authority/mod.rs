//! Rights to register programs, by user.
//!
//! Owns the settings ([`Grant`], the `[[grant]]` tables of the configuration), their compiled form
//! ([`Authority`]) and the ruling on a registration ([`Denial`]). Pure except for the look-up of
//! accounts: the resources that programs have already are an argument.
//!
//! Root, the IOKernel's own user and the one who started it by sudo may register anything. Another
//! user gets only what a grant gives, and without one nothing: even a best-effort program sends
//! packets into a network that takes them for those of the IOKernel's user, and holds memory, a
//! name and an address. Of the grants that cover a user, in their order, the first decides that
//! permits the registration. What a grant lists by name or address is kept for those it covers.
//!
//! One user whom a grant does not name gets three quarters of each of its limits at most, with all
//! [subordinate ids](subordinate), so that one of many cannot use it up.

mod denial;
pub(crate) mod grant;
mod subordinate;

pub use denial::{Denial, Limit, Reason};
pub(crate) use grant::MAX_CONNECTIONS;
pub use grant::{Account, Grant, Pattern};
pub(crate) use subordinate::Subordinates;

use rustix::io::Errno;
use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use tailwater_shm::control::Register;

use crate::config::{Config, ConfigError};
use crate::sys::accounts;
use denial::class_name;

/// The user of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    /// The user whose subordinate id it is ([`Subordinates::owner`]); itself otherwise.
    pub(crate) owner: u32,
    /// All groups, the first one too.
    pub(crate) groups: Vec<u32>,
    /// Root, the IOKernel's own user, or the one who started it by sudo.
    pub(crate) privileged: bool,
}

/// What programs of one grant have together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) programs: u64,
    pub(crate) kthreads: u64,
    pub(crate) guaranteed: u64,
    pub(crate) region_bytes: u64,
}

impl Held {
    /// Returns what one program has that registered like this.
    pub(crate) fn by(request: &Register, region_bytes: u64) -> Self {
        Self {
            programs: 1,
            kthreads: request.kthreads.into(),
            guaranteed: request.guaranteed.into(),
            region_bytes,
        }
    }

    /// Returns the larger number of each.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            programs: self.programs.max(other.programs),
            kthreads: self.kthreads.max(other.kthreads),
            guaranteed: self.guaranteed.max(other.guaranteed),
            region_bytes: self.region_bytes.max(other.region_bytes),
        }
    }

    /// Adds what another program has.
    pub(crate) fn add(&mut self, other: Self) {
        self.programs += other.programs;
        self.kthreads += other.kthreads;
        self.guaranteed += other.guaranteed;
        self.region_bytes += other.region_bytes;
    }
}

/// What programs of one grant have, by the user that they [count for](Authority::counts_for).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usage(BTreeMap<u32, Held>);

impl Usage {
    /// Adds what a program has that counts for this user.
    pub(crate) fn add(&mut self, user: u32, held: Held) {
        self.0.entry(user).or_default().add(held);
    }

    fn all(&self) -> Held {
        self.0.values().fold(Held::default(), |mut all, held| {
            all.add(*held);
            all
        })
    }

    fn of(&self, user: u32) -> Held {
        self.0.get(&user).copied().unwrap_or_default()
    }

    /// Returns the user who has most of this, and how much.
    fn largest(&self, limit: Limit) -> Option<(u32, u64)> {
        self.0.iter().map(|(&user, held)| (user, limit.of(held))).max_by_key(|&(_, held)| held)
    }
}

/// A grant with the accounts that it covers, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    grant: Grant,
    everyone: bool,
    users: HashSet<u32>,
    groups: HashSet<u32>,
}

impl Rule {
    fn resolve(
        grant: &Grant,
        user: &impl Fn(&str) -> Result<Option<u32>, Errno>,
        group: &impl Fn(&str) -> Result<Option<u32>, Errno>,
    ) -> Result<Self, ConfigError> {
        let number = |key, account: &Account, find: &dyn Fn(&str) -> Result<Option<u32>, Errno>| {
            let wrong = |expected: String| ConfigError::Value { key, value: account.to_string(), expected };
            match account {
                Account::Everyone => Ok(None),
                Account::Number(number) => Ok(Some(*number)),
                Account::Name(name) => match find(name) {
                    Ok(Some(number)) => Ok(Some(number)),
                    Ok(None) => Err(wrong("this machine knows no such account; correct the name".to_owned())),
                    Err(error) => {
                        Err(wrong(format!("cannot look up the account ({error}); write its number")))
                    }
                },
            }
        };
        let users: Result<Vec<_>, _> = grant.users.iter().map(|a| number("grant.users", a, user)).collect();
        let groups: Result<Vec<_>, _> =
            grant.groups.iter().map(|a| number("grant.groups", a, group)).collect();
        let users = users?;
        Ok(Self {
            grant: grant.clone(),
            everyone: users.contains(&None),
            users: users.into_iter().flatten().collect(),
            groups: groups?.into_iter().flatten().collect(),
        })
    }

    fn covers(&self, user: &User) -> bool {
        self.everyone
            || self.users.contains(&user.uid)
            || self.groups.iter().any(|group| user.groups.binary_search(group).is_ok())
    }

    fn lists_name(&self, name: &str) -> bool {
        self.grant.names.iter().any(|pattern| pattern.covers(name))
    }

    fn lists_address(&self, ip: Ipv4Addr) -> bool {
        self.grant.addresses.iter().any(|prefix| prefix.contains(IpAddr::V4(ip)))
    }

    /// Returns whether it covers this user by name.
    fn names(&self, uid: u32) -> bool {
        self.users.contains(&uid)
    }

    /// Returns the limit that its programs would exceed with one more that has `asked`: that of all
    /// of them, or that of those which count for `owner`.
    fn exceeded(&self, user: &User, owner: u32, usage: &Usage, asked: Held) -> Option<Reason> {
        let Grant { guaranteed, kthreads, programs, region_bytes, .. } = self.grant;
        let limits = [
            (Limit::Programs, programs.into()),
            (Limit::Guaranteed, guaranteed.into()),
            (Limit::Kthreads, kthreads.into()),
            (Limit::RegionBytes, region_bytes.unwrap_or(u64::MAX)),
        ];
        let (all, own) = (usage.all(), usage.of(owner));
        limits.into_iter().find_map(|(limit, most)| {
            let (asked, held, of_owner) = (limit.of(&asked), limit.of(&all), limit.of(&own));
            let is_over = |held: u64, most| asked > 0 && held.saturating_add(asked) > most;
            if is_over(held, most) {
                let largest = usage.largest(limit).filter(|&(_, held)| held > 0);
                return Some(Reason::Limit { limit, asked, held, most, largest });
            }
            let share = share(most);
            let is_over = !self.names(user.uid) && is_over(of_owner, share);
            is_over.then_some(Reason::Share { limit, asked, owner, held: of_owner, most: share })
        })
    }
}

/// See the module documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Authority {
    rules: Vec<Rule>,
    /// The configuration file, for messages.
    file: Option<PathBuf>,
}

impl Authority {
    /// Compiles the grants of a configuration that has been checked.
    ///
    /// # Errors
    /// If the machine does not know an account.
    pub(crate) fn resolve(config: &Config) -> Result<Self, ConfigError> {
        Self::resolve_with(config, accounts::user, accounts::group)
    }

    /// As [`resolve`](Self::resolve), with the look-up of users and groups as arguments.
    fn resolve_with(
        config: &Config,
        user: impl Fn(&str) -> Result<Option<u32>, Errno>,
        group: impl Fn(&str) -> Result<Option<u32>, Errno>,
    ) -> Result<Self, ConfigError> {
        let rules = config.grant.iter().map(|grant| Rule::resolve(grant, &user, &group));
        Ok(Self { rules: rules.collect::<Result<_, _>>()?, file: config.file.clone() })
    }

    /// Returns whether a grant covers this user by name, not as one of a group or of all.
    pub(crate) fn names_user(&self, grant: usize, uid: u32) -> bool {
        self.rules.get(grant).is_some_and(|rule| rule.names(uid))
    }

    /// Returns whether a grant covers users of this group.
    pub(crate) fn names_group(&self, group: u32) -> bool {
        self.rules.iter().any(|rule| rule.groups.contains(&group))
    }

    /// Returns the first grant that covers this user, unless one names the user.
    pub(crate) fn unnamed_by(&self, user: &User) -> Option<usize> {
        self.covering(user).map(|(number, _)| number).find(|_| !self.names(user.uid))
    }

    /// Returns the user whose limits a program of this user counts to: the owner of a subordinate
    /// id, unless a grant names the id itself.
    pub(crate) fn counts_for(&self, user: &User) -> u32 {
        if self.names(user.uid) { user.uid } else { user.owner }
    }

    fn names(&self, uid: u32) -> bool {
        self.rules.iter().any(|rule| rule.names(uid))
    }

    /// Returns whether a grant may cover users whom it does not name.
    pub(crate) fn covers_unnamed(&self) -> bool {
        self.rules.iter().any(|rule| rule.everyone || !rule.groups.is_empty())
    }

    fn covering<'a>(&'a self, user: &'a User) -> impl Iterator<Item = (usize, &'a Rule)> {
        self.rules.iter().enumerate().filter(|(_, rule)| rule.covers(user))
    }

    /// Returns the grant by which a user may register a program, `None` if the user needs none.
    /// `usage` returns what programs of a grant have already.
    pub(crate) fn rule_on(
        &self,
        user: &User,
        request: &Register,
        region_bytes: u64,
        usage: impl Fn(usize) -> Usage,
    ) -> Result<Option<usize>, Denial> {
        if user.privileged {
            return Ok(None);
        }
        let mut denied = None;
        for (number, rule) in self.covering(user) {
            let reason = self.against(user, number, rule, request, || usage(number), region_bytes);
            let Some(reason) = reason else { return Ok(Some(number)) };
            // These say more than a rule that is not about this program.
            if denied.is_none() || matches!(reason, Reason::Limit { .. } | Reason::Share { .. }) {
                denied = Some((number + 1, reason));
            }
        }
        let (grant, reason) = denied.map_or((None, Reason::NoGrant), |(number, why)| (Some(number), why));
        Err(Denial { user: user.uid, grant, reason, file: self.file.clone() })
    }

    /// Returns whether a user may register a program by this grant, whatever the others say.
    pub(crate) fn permits(
        &self,
        grant: usize,
        user: &User,
        request: &Register,
        region_bytes: u64,
        usage: Usage,
    ) -> bool {
        self.rules.get(grant).is_some_and(|rule| {
            rule.covers(user) && self.against(user, grant, rule, request, || usage, region_bytes).is_none()
        })
    }

    /// Returns what a grant has against a registration: its rules, or else its limits.
    fn against(
        &self,
        user: &User,
        number: usize,
        rule: &Rule,
        request: &Register,
        usage: impl FnOnce() -> Usage,
        region_bytes: u64,
    ) -> Option<Reason> {
        let asked = Held::by(request, region_bytes);
        let limit = || rule.exceeded(user, self.counts_for(user), &usage(), asked);
        self.objection(user, number, rule, request).or_else(limit)
    }

    /// Returns what the rules of a grant have against a registration, whatever its limits are.
    fn objection(&self, user: &User, number: usize, rule: &Rule, request: &Register) -> Option<Reason> {
        let Register { name, class, ip, .. } = request;
        if !rule.lists_name(name) {
            if !rule.grant.names.is_empty() {
                return Some(Reason::Name { name: name.clone(), allowed: listed(&rule.grant.names) });
            }
            let mut others = self.rules.iter().enumerate();
            if let Some((other, _)) =
                others.find(|(n, r)| *n != number && r.lists_name(name) && !r.covers(user))
            {
                return Some(Reason::NameKept { name: name.clone(), by: other + 1 });
            }
        }
        if !rule.grant.classes.contains(class) {
            return Some(Reason::Class(*class));
        }
        let chosen = ip.filter(|ip| !rule.lists_address(*ip));
        chosen.map(|ip| Reason::Address { ip, allowed: listed(&rule.grant.addresses) })
    }

    /// Returns the grant to which a program counts that is registered already: the first whose
    /// rules, without its limits, permit it.
    pub(crate) fn grant_of(&self, user: &User, request: &Register) -> Option<usize> {
        let mut covering = self.covering(user).filter(|_| !user.privileged);
        covering.find(|(number, rule)| self.objection(user, *number, rule, request).is_none()).map(|(n, _)| n)
    }

    /// Returns whether a grant limits the shared memory of its programs by itself.
    pub(crate) fn limits_memory(&self, grant: usize) -> bool {
        self.rules[grant].grant.region_bytes.is_some()
    }

    /// Returns the last address of the prefix that keeps `ip` out of the pool, if one does.
    pub(crate) fn keeps(&self, ip: Ipv4Addr) -> Option<Ipv4Addr> {
        let mut prefixes = self.rules.iter().flat_map(|rule| &rule.grant.addresses);
        prefixes.find(|prefix| prefix.contains(IpAddr::V4(ip))).map(|prefix| prefix.last4())
    }

    /// Returns the number of prefixes that keep addresses out of the pool.
    pub(crate) fn prefixes(&self) -> usize {
        self.rules.iter().map(|rule| rule.grant.addresses.len()).sum()
    }

    /// Returns whether a grant says how many connections a user may have.
    pub(crate) fn limits_connections(&self) -> bool {
        self.rules.iter().any(|rule| rule.grant.connections.is_some())
    }

    /// Returns how many connections a user may have by the grants, if one of them says so.
    pub(crate) fn connections(&self, user: &User) -> Option<usize> {
        self.covering(user).filter_map(|(_, rule)| rule.grant.connections).max().map(|n| n as usize)
    }

    /// Says in words what a user may register.
    pub(crate) fn describe(&self, user: &User, usage: impl Fn(usize) -> Usage) -> String {
        if user.privileged {
            return "register any program, capture frames and trace requests".to_owned();
        }
        let words: Vec<String> =
            self.covering(user).map(|(number, rule)| rule.describe(user, number, &usage(number))).collect();
        if words.is_empty() {
            let file = self.file.clone();
            return Denial { user: user.uid, grant: None, reason: Reason::NoGrant, file }.to_string();
        }
        words.join("; ")
    }
}

impl Rule {
    fn describe(&self, user: &User, number: usize, usage: &Usage) -> String {
        let held = usage.all();
        let Grant { names, addresses, classes, guaranteed, kthreads, programs, .. } = &self.grant;
        let any = |list: String, none: &str| if list.is_empty() { none.to_owned() } else { list };
        let memory = self.grant.region_bytes.map(|most| format!(", bytes {} of {most}", held.region_bytes));
        format!(
            "by [[grant]] {} register programs of class {}, with name {}, at {}; in use: programs {} of \
             {programs}, kthreads {} of {kthreads}, guaranteed cores {} of {guaranteed}{}{}",
            number + 1,
            listed(&classes.iter().map(|&class| class_name(class)).collect::<Vec<_>>()),
            any(listed(names), "of their choice"),
            any(listed(addresses), "an address that the IOKernel chooses"),
            held.programs,
            held.kthreads,
            held.guaranteed,
            memory.unwrap_or_default(),
            if self.names(user.uid) { "" } else { ", at most three quarters of each by one user" },
        )
    }
}

/// Returns how much of a limit one user may have: three quarters. A limit under four is not
/// divided, for what would be left is nothing, or more than a program needs.
fn share(most: u64) -> u64 {
    most - most / 4
}

fn listed(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests;
