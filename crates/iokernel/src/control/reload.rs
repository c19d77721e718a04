//! A new configuration for a running IOKernel.
//!
//! Owns which settings change without a restart, and what [`Reloader::reload`] reports. Firewall
//! rules then hold for all programs, from the moment at which the polling thread has taken them,
//! or, for a program that is just registering, before it gets its first core; the others concern
//! registrations from now on, and what is registered keeps what it has. A reload also enters
//! registered programs by the grants that now permit them: the polling thread moves them to the
//! tenants of these grants ([`tenant`](crate::tenant)).

use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use tailwater_sched::RuntimeId;

use super::session::State;
use super::user::is_trusted;
use super::{Command, Control, NewRules, Notice, Outbox};
use crate::authority::Authority;
use crate::config::{Config, ConfigError};
use crate::firewall::Guard;
use crate::stats::FirewallStats;

/// Keys of the settings that change without a restart.
const RELOADED: [&str; 8] = [
    "firewall",
    "grant",
    "macs",
    "max-kthreads",
    "max-region-bytes",
    "max-ring-bytes",
    "max-runtimes",
    "pool-start",
];

/// What a new configuration changed: keys, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// In effect: firewall rules for all programs, other settings for registrations from now on.
    pub applied: Vec<String>,
    /// Different in the new configuration, and in effect only after a restart.
    pub need_restart: Vec<String>,
}

/// Why a new configuration is not in effect; the old one stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// It is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The IOKernel has ended.
    #[error("the IOKernel has ended")]
    Ended,
}

/// Where the control thread sends its answer.
pub(crate) type Answer = SyncSender<Result<Changes, ConfigError>>;

/// Passes new configurations to a running IOKernel, from any thread.
#[derive(Debug, Clone)]
pub struct Reloader {
    notices: Outbox<Notice>,
}

impl Reloader {
    pub(crate) fn new(notices: Outbox<Notice>) -> Self {
        Self { notices }
    }

    /// Puts `config` into effect, and returns what it changed. Waits until the IOKernel
    /// [runs](crate::IoKernel::run).
    ///
    /// # Errors
    /// [`ReloadError`]; nothing has changed then.
    pub fn reload(&self, config: Config) -> Result<Changes, ReloadError> {
        config.check()?;
        // Here, because looking accounts up may take long, and the control thread shows signs of
        // life and answers programs.
        let authority = Authority::resolve(&config)?;
        let (answer, answered) = sync_channel(1);
        let notice = Notice::Reload(Box::new(config), authority, answer);
        if !self.notices.offer(notice) {
            return Err(ReloadError::Ended);
        }
        Ok(answered.recv().map_err(|_| ReloadError::Ended)??)
    }
}

impl Control {
    /// Puts what can change into effect, or nothing if the new configuration, whose grants are
    /// those of `authority`, is wrong together with what stays.
    pub(super) fn reload(&mut self, new: &Config, authority: Authority) -> Result<Changes, ConfigError> {
        let config = merge(&self.parts.config, new);
        // With the old network, for instance, a new address may be outside.
        config.check()?;
        let changes = compare(&self.parts.config, new);
        // They are of grants by their old numbers.
        self.gate.forget_grants();
        self.parts.directory.reload(&config, authority);
        self.grants_changed = true;
        self.replace_callers();
        self.replace_keys(|_| true);
        for runtime in self.parts.stats.runtimes() {
            runtime.grant.set(self.grant_number(runtime.id));
        }
        let same_rules = config.firewall == self.parts.config.firewall;
        self.parts.config = config;
        if !same_rules {
            self.rules_changed = true;
            self.parts.stats.set_firewall(Arc::new(FirewallStats::new(&self.parts.config.firewall)));
            self.replace_rules(|_| true);
        }
        Ok(changes)
    }

    /// Enters the present grants of all clients.
    fn replace_callers(&mut self) {
        let sessions = self.sessions.iter();
        let callers = sessions.map(|(&token, each)| (token, self.caller(each.caller.uid, &each.socket)));
        for (token, caller) in callers.collect::<Vec<_>>() {
            if let Some(session) = self.sessions.get_mut(&token) {
                session.caller = caller;
            }
        }
    }

    /// Sends the polling thread the firewall rules of those registered programs that `which`
    /// chooses.
    pub(super) fn replace_rules(&self, which: impl Fn(RuntimeId) -> bool) {
        let (firewall, hz) = (&self.parts.config.firewall, self.parts.host.clock.hz());
        let runtimes = self.parts.stats.runtimes();
        let chosen = runtimes.iter().filter(|runtime| which(runtime.id));
        let guards =
            chosen.map(|runtime| (runtime.id, Guard::compile(firewall, &runtime.name, hz))).collect();
        let (ethertypes, multicast) = (firewall.ethertypes.clone(), firewall.multicast);
        let rules = NewRules { guards, stats: self.parts.stats.firewall(), ethertypes, multicast };
        self.tell(Command::Rules(Box::new(rules)));
    }

    /// Sends the polling thread the present grants of those registered programs that `which`
    /// chooses.
    pub(super) fn replace_keys(&self, which: impl Fn(RuntimeId) -> bool) {
        let registered = self.sessions.values().filter_map(|session| match session.state {
            State::Registered(id) if !is_trusted(session.caller.uid) && which(id) => {
                Some((id, session.caller.uid))
            }
            _ => None,
        });
        let keys: Vec<_> = registered.map(|(id, uid)| (id, self.key_of(uid, id))).collect();
        if !keys.is_empty() {
            self.tell(Command::Rekey(keys));
        }
    }
}

/// Returns the old configuration with those settings of the new one that change without a restart.
fn merge(old: &Config, new: &Config) -> Config {
    Config {
        firewall: new.firewall.clone(),
        grant: new.grant.clone(),
        macs: new.macs.clone(),
        max_kthreads: new.max_kthreads,
        max_region_bytes: new.max_region_bytes,
        max_ring_bytes: new.max_ring_bytes,
        max_runtimes: new.max_runtimes,
        pool_start: new.pool_start,
        file: new.file.clone(),
        ..old.clone()
    }
}

/// Returns the keys whose values differ.
fn compare(old: &Config, new: &Config) -> Changes {
    let keys = |config: &Config| match serde_json::to_value(config) {
        Ok(Value::Object(keys)) => keys,
        other => unreachable!("a configuration is an object: {other:?}"),
    };
    let (old, new) = (keys(old), keys(new));
    let all: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differing = all.into_iter().filter(|&key| old.get(key) != new.get(key)).cloned();
    let (applied, need_restart) = differing.partition(|key| RELOADED.contains(&key.as_str()));
    Changes { applied, need_restart }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_those_of_values_and_each_is_applied_or_needs_a_restart() {
        let old = Config::from_toml("mtu = 1400\n[macs]\n\"10.77.0.9\" = \"52:54:00:00:00:09\"").unwrap();
        let text = "neighbour-share = 5\nmtu = 1400\nmax-region-bytes = 9000000\n[[grant]]\nusers = 5";
        let new = Config::from_toml(text).unwrap();
        let changes = compare(&old, &new);
        assert_eq!(changes.applied, ["grant", "macs", "max-region-bytes"]);
        assert_eq!(changes.need_restart, ["neighbour-share"]);
        assert_eq!(compare(&new, &new), Changes::default());
    }

    #[test]
    fn every_key_that_is_said_to_be_applied_is() {
        let defaults = Config::default();
        let text = "max-kthreads = 7\nmax-region-bytes = 9000000\nmax-ring-bytes = 65536\nmax-runtimes = 3\n\
                    pool-start = \"10.77.9.9\"\nmtu = 1400\n[[grant]]\nusers = 5\n[firewall]\n\
                    ingress = \"deny\"\n[macs]\n\"10.77.0.9\" = \"52:54:00:00:00:09\"";
        let new = Config::from_toml(text).unwrap();
        assert_eq!(compare(&defaults, &new).applied, RELOADED);
        let merged = merge(&defaults, &new);
        assert_eq!(
            compare(&merged, &new),
            Changes { need_restart: vec!["mtu".to_owned()], ..Changes::default() }
        );
    }
}
