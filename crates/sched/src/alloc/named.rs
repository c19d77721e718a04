//! Policies by name, for configuration files and command lines.
//!
//! Owns the names and the default settings behind them, nothing else.

use super::arachne::{Arachne, ArachneConfig};
use super::congestion::{Config, CongestionDetection};
use super::delay::{DelayConfig, DelayThreshold};
use super::fixed::Static;
use super::ix::{IxConfig, IxControl, Sequence};
use super::policy::Policy;
use crate::ids::Nanos;
use core::fmt;
use core::str::FromStr;
use heap::borrow::ToOwned;
use heap::boxed::Box;
use heap::string::String;
use thiserror::Error;

/// A core-allocation policy by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyName {
    /// `congestion-detection`: [`CongestionDetection`].
    Congestion,
    /// `delay-threshold`: [`DelayThreshold`].
    Delay,
    /// `arachne`: [`Arachne`].
    Arachne,
    /// `ix-consolidation`: [`IxControl`], which consolidates.
    Ix,
    /// `ix-energy`: [`IxControl`], which saves energy.
    IxEnergy,
    /// `static`: [`Static`].
    Static,
    /// `arbiter`: [`CongestionDetection::with_requests`].
    Arbiter,
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{name}` is not a core-allocation policy; use one of {}", PolicyName::list())]
pub struct UnknownPolicy {
    /// The name.
    pub name: String,
}

/// Why a policy does not accept a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PolicyTimeError {
    /// The policy has no time to set.
    #[error(
        "policy `{policy}` takes no parameter; only congestion-detection, arbiter and delay-threshold do"
    )]
    NoTime {
        /// The policy.
        policy: PolicyName,
    },
    /// The time is 0.
    #[error("policy `{policy}`: a time of 0 is not an interval; use 5us or more")]
    ZeroTime {
        /// The policy.
        policy: PolicyName,
    },
}

impl PolicyName {
    /// All policies.
    pub const ALL: [Self; 7] =
        [Self::Congestion, Self::Arbiter, Self::Delay, Self::Arachne, Self::Ix, Self::IxEnergy, Self::Static];

    /// Returns the name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Congestion => "congestion-detection",
            Self::Arbiter => "arbiter",
            Self::Delay => "delay-threshold",
            Self::Arachne => "arachne",
            Self::Ix => "ix-consolidation",
            Self::IxEnergy => "ix-energy",
            Self::Static => "static",
        }
    }

    /// Returns whether an IOKernel offers the policy: those that are tested on machines. The
    /// simulator has all.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Congestion | Self::Arbiter | Self::Static | Self::Ix | Self::IxEnergy)
    }

    fn list() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }

    /// Returns the policy with its paper's settings. `time` replaces the interval between looks of
    /// `congestion-detection` and `arbiter` (default 5 us), or the threshold of `delay-threshold`
    /// (default 10 us). `seed` orders choices among equals.
    ///
    /// # Errors
    /// [`PolicyTimeError`] if the policy takes no time, or the time is 0.
    pub fn build(self, time: Option<Nanos>, seed: u64) -> Result<Box<dyn Policy>, PolicyTimeError> {
        let ix = |sequence| Box::new(IxControl::new(IxConfig { sequence, ..IxConfig::default() }));
        match (self, time) {
            (Self::Congestion | Self::Arbiter | Self::Delay, Some(Nanos::ZERO)) => {
                return Err(PolicyTimeError::ZeroTime { policy: self });
            }
            (Self::Congestion | Self::Arbiter | Self::Delay, _) | (_, None) => {}
            (_, Some(_)) => return Err(PolicyTimeError::NoTime { policy: self }),
        }
        Ok(match self {
            Self::Congestion | Self::Arbiter => {
                let config = Config { seed, ..Config::default() };
                let config = Config { interval: time.unwrap_or(config.interval), ..config };
                Box::new(match self {
                    Self::Arbiter => CongestionDetection::with_requests(config),
                    _ => CongestionDetection::new(config),
                })
            }
            Self::Delay => {
                let config = DelayConfig::default();
                let threshold = time.unwrap_or(config.threshold);
                Box::new(DelayThreshold::new(DelayConfig { threshold, ..config }))
            }
            Self::Arachne => Box::new(Arachne::new(ArachneConfig::default())),
            Self::Ix => ix(Sequence::Consolidation),
            Self::IxEnergy => ix(Sequence::Energy),
            Self::Static => Box::new(Static::new(Nanos::from_micros(5))),
        })
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.as_str() == name);
        found.ok_or_else(|| UnknownPolicy { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heap::string::ToString;

    #[test]
    fn every_name_is_a_policy_and_other_names_are_refused_with_the_list() {
        for policy in PolicyName::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            let built = policy.build(None, 1).unwrap();
            assert_eq!(built.name(), policy.as_str(), "a policy has one name");
        }
        let unknown = "borg".parse::<PolicyName>().unwrap_err().to_string();
        assert!(unknown.contains("`borg`") && unknown.contains("ix-energy, static"), "{unknown}");
    }

    #[test]
    fn only_policies_with_a_time_accept_one_and_none_accepts_zero() {
        let millisecond = Nanos::from_millis(1);
        let looks = PolicyName::Congestion.build(Some(millisecond), 1).unwrap();
        assert_eq!(looks.interval(), millisecond);
        for policy in PolicyName::ALL {
            let refused = |time| policy.build(Some(time), 1).err();
            if matches!(policy, PolicyName::Congestion | PolicyName::Arbiter | PolicyName::Delay) {
                assert_eq!(refused(millisecond), None);
                assert_eq!(refused(Nanos::ZERO), Some(PolicyTimeError::ZeroTime { policy }));
            } else {
                assert_eq!(refused(millisecond), Some(PolicyTimeError::NoTime { policy }));
                assert_eq!(refused(Nanos::ZERO), Some(PolicyTimeError::NoTime { policy }));
            }
        }
    }
}
