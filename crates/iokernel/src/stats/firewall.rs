//! Counters of the firewall.
//!
//! Owns one counter per rule, in the order of the configuration, and what no rule decided. Written by the polling thread only.

use serde_json::{Map, Value, json};

use super::Counter;
use crate::firewall::{Action, Direction, FirewallConfig};

counters! {
    /// Packets that no rule decided.
    FirewallCounters {
        /// Denied because no rule matched and the default of their direction is to deny.
        denied_by_default,
        /// Denied because they could not be read: no IP, malformed, or fragments that hide their upper-layer header.
        opaque,
    }
}

/// Account of one rule.
#[derive(Debug)]
pub struct RuleStats {
    /// Its name, or its number from 1.
    pub name: String,
    /// The runtime it is about; `None`: every one.
    pub runtime: Option<String>,
    /// Which packets it is about.
    pub direction: Direction,
    /// What becomes of them.
    pub action: Action,
    /// Packets it decided.
    pub matched: Counter,
}

/// What the firewall did.
#[derive(Debug, Default)]
pub struct FirewallStats {
    /// What no rule decided.
    pub counters: FirewallCounters,
    /// The rules, in the order of the configuration.
    pub rules: Vec<RuleStats>,
}

impl FirewallStats {
    pub(crate) fn new(config: &FirewallConfig) -> Self {
        let rule = |(rule, number): (&crate::firewall::Rule, usize)| RuleStats {
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

    pub(super) fn to_json(&self) -> Value {
        let rules: Vec<Value> = self
            .rules
            .iter()
            .map(|rule| {
                json!({ "name": rule.name, "runtime": rule.runtime, "direction": rule.direction,
                        "action": rule.action, "matched": rule.matched.get() })
            })
            .collect();
        let mut document = self.counters.to_json();
        document["rules"] = rules.into();
        document
    }
}
