//! The name of a policy in the configuration.
//!
//! Owns its reading, its writing, and the check that an IOKernel offers the policy.

use serde::{Deserialize, Deserializer, Serializer};
use tailwater_sched::alloc::PolicyName;

/// Writes the policy's name.
pub(super) fn serialize<S: Serializer>(policy: &PolicyName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(policy.as_str())
}

/// Reads the name of any policy; [`check`] refuses those that are not live.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PolicyName, D::Error> {
    let name = String::deserialize(deserializer)?;
    name.parse().map_err(serde::de::Error::custom)
}

/// Checks that an IOKernel offers the policy; returns what is offered if not.
pub(super) fn check(policy: PolicyName) -> Result<(), String> {
    let offered = || PolicyName::ALL.into_iter().filter(|policy| policy.is_live());
    let names = || offered().map(PolicyName::as_str).collect::<Vec<_>>().join(", ");
    match policy.is_live() {
        true => Ok(()),
        false => {
            Err(format!("runs in the simulator only (tailwater-lab sim allocators); use one of {}", names()))
        }
    }
}
