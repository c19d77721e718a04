//! The core-allocation policy that an IOKernel runs, by its name in the configuration.
//!
//! Owns the choice among the policies of `tailwater-sched` and the settings passed to them. The
//! names are those of the simulator; of its policies an IOKernel accepts the ones that are tested
//! on machines ([`PolicyName::is_live`]). The others keep cores for which a program has no work:
//! their kthreads park and are woken for nothing, or starve the programs beside them.

use serde::{Deserialize, Deserializer, Serializer};
use tailwater_sched::Nanos;
use tailwater_sched::alloc::{self, CongestionDetection, Policy, PolicyName, Static};

use crate::config::Config;

/// Writes the policy's name.
pub(crate) fn serialize<S: Serializer>(policy: &PolicyName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(policy.as_str())
}

/// Reads the name of any policy; [`check`] refuses those that are not live.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PolicyName, D::Error> {
    let name = String::deserialize(deserializer)?;
    name.parse().map_err(serde::de::Error::custom)
}

/// Checks that an IOKernel offers the policy; returns what is offered if not.
pub(crate) fn check(policy: PolicyName) -> Result<(), String> {
    let offered = || PolicyName::ALL.into_iter().filter(|policy| policy.is_live());
    let names = || offered().map(PolicyName::as_str).collect::<Vec<_>>().join(", ");
    match policy.is_live() {
        true => Ok(()),
        false => {
            Err(format!("runs in the simulator only (tailwater-lab sim allocators); use one of {}", names()))
        }
    }
}

/// Makes the configured policy.
///
/// # Panics
/// If the configuration was not checked and its policy is not live.
pub(crate) fn build(config: &Config) -> Box<dyn Policy + Send> {
    let interval = Nanos::from_micros(config.allocation_interval_us);
    let congestion = alloc::Config {
        interval,
        burst_quantum: Nanos::from_micros(config.burst_quantum_us),
        service_quantum: Nanos::from_micros(config.service_quantum_us),
        ..Default::default()
    };
    match config.policy {
        PolicyName::Congestion => Box::new(CongestionDetection::new(congestion)),
        PolicyName::Arbiter => Box::new(CongestionDetection::with_requests(congestion)),
        PolicyName::Static => Box::new(Static::new(interval)),
        other => unreachable!("policy {other} was refused with the configuration"),
    }
}
