//! The costs of a machine's mechanisms: named profiles, read from TOML.
//!
//! Owns the list of costs that the simulators know, the three built-in profiles (`ideal`,
//! `paper-2019`, `vm-2vcpu`; their files name the source of each number) and the reading of a
//! user's own file. The simulators decide when a cost is paid.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// Costs in nanoseconds. An absent entry is free.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Name shown in tables and plots.
    #[serde(default)]
    pub name: String,
    /// Worker time per request for its packets and its protocol, in and out; paid once.
    #[serde(default)]
    pub packet_ns: u64,
    /// Dispatcher time to take a request in (central policies only). The dispatcher handles one
    /// request at a time.
    #[serde(default)]
    pub intake_ns: u64,
    /// Dispatcher time to hand a request to a worker (central policies only).
    #[serde(default)]
    pub assign_ns: u64,
    /// Delay until an idle, polling worker notices its request.
    #[serde(default)]
    pub wake_ns: u64,
    /// Worker time to switch to a request or back to it.
    #[serde(default)]
    pub context_switch_ns: u64,
    /// Worker time to find and take a request from another worker's queue.
    #[serde(default)]
    pub steal_ns: u64,
    /// Worker time lost when it is preempted.
    #[serde(default)]
    pub preempt_ns: u64,
    /// Dispatcher time to preempt a worker.
    #[serde(default)]
    pub preempt_send_ns: u64,
    /// Time from the allocator's decision until the new owner's thread runs, if a busy core changes
    /// owner.
    #[serde(default)]
    pub handoff_ns: u64,
    /// Time as `handoff_ns`, if the core's owner has parked and the core returns to work.
    #[serde(default)]
    pub handback_ns: u64,
    /// Time as `handoff_ns`, if the core was free and its next owner sleeps.
    #[serde(default)]
    pub wake_parked_ns: u64,
    /// Time for which a kthread without work looks for some before it offers its core.
    #[serde(default)]
    pub idle_spin_ns: u64,
}

/// The built-in profiles: name and file.
const BUILT_IN: [(&str, &str); 3] = [
    ("ideal", include_str!("../profiles/ideal.toml")),
    ("paper-2019", include_str!("../profiles/paper-2019.toml")),
    ("vm-2vcpu", include_str!("../profiles/vm-2vcpu.toml")),
];

impl Costs {
    /// Returns a machine on which everything but the requests' own work is free.
    #[must_use]
    pub fn ideal() -> Self {
        Self { name: "ideal".to_owned(), ..Self::default() }
    }

    /// Returns a built-in profile by name, or a profile file by path.
    ///
    /// # Errors
    ///
    /// If it is neither, or the file does not parse; the message lists the built-in names.
    pub fn load(name_or_path: &str) -> anyhow::Result<Self> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
            return Self::parse(name, text);
        }
        let path = Path::new(name_or_path);
        let text = std::fs::read_to_string(path).with_context(|| {
            format!(
                "cost profile `{name_or_path}` is neither built in ({}) nor a readable file",
                Self::names().join(", ")
            )
        })?;
        let stem = path.file_stem().map_or_else(|| name_or_path.into(), |s| s.to_string_lossy());
        Self::parse(&stem, &text)
    }

    /// Returns the names of the built-in profiles.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        BUILT_IN.iter().map(|(name, _)| *name).collect()
    }

    fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let mut costs: Self = toml::from_str(text).with_context(|| format!("cost profile `{name}`"))?;
        if costs.name.is_empty() {
            name.clone_into(&mut costs.name);
        }
        Ok(costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_parses_and_ideal_is_free() {
        for name in Costs::names() {
            assert_eq!(Costs::load(name).unwrap().name, name);
        }
        assert_eq!(Costs::load("ideal").unwrap(), Costs::ideal());
    }

    #[test]
    fn an_unknown_profile_or_entry_is_explained() {
        let unknown = Costs::load("cray-1").unwrap_err().to_string();
        assert!(unknown.contains("ideal, paper-2019, vm-2vcpu"), "{unknown}");
        let typo = format!("{:#}", Costs::parse("x", "stea_ns = 3").unwrap_err());
        assert!(typo.contains("stea_ns"), "{typo}");
    }
}
