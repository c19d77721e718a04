//! Counters of the firewall.
//!
//! Owns one counter per rule, in the order of the configuration, and counters of packets that no
//! rule decided. Written by the polling thread only.

use serde::Serialize;
use serde_json::{Value, json};
use tailwater_stats::{Counter, FirewallCounters};

use super::config::{Action, Direction, FirewallConfig, Rule};

/// Counter of one rule.
#[derive(Debug, Serialize)]
pub struct RuleStats {
    /// Its name, or its number from 1.
    pub name: String,
    /// The runtime it applies to; `None`: all.
    pub runtime: Option<String>,
    /// Which packets it applies to.
    pub direction: Direction,
    /// What happens to them.
    pub action: Action,
    /// Packets it decided.
    pub matched: Counter,
}

/// Counters of the firewall.
#[derive(Debug, Default)]
pub struct FirewallStats {
    /// Packets that no rule decided.
    pub counters: FirewallCounters,
    /// The rules, in the order of the configuration.
    pub rules: Vec<RuleStats>,
}

impl FirewallStats {
    /// Returns zeroed counters for the rules of `config`.
    pub fn new(config: &FirewallConfig) -> Self {
        let rule = |(rule, number): (&Rule, usize)| RuleStats {
            name: rule.shown_name(number),
            runtime: rule.runtime.clone(),
            direction: rule.direction,
            action: rule.action,
            matched: Counter::default(),
        };
        Self {
            counters: FirewallCounters::default(),
            rules: config.rules.iter().zip(1..).map(rule).collect(),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut document = json!(self.counters);
        document["rules"] = json!(self.rules);
        document
    }
}
