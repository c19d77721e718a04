//! Policies by name, for configuration files; the IOKernel and the simulator use the same names.
//!
//! Owns the names and the default settings behind them, nothing else.

use super::{
    Arachne, ArachneConfig, Config, CongestionDetection, DelayConfig, DelayThreshold, IxConfig, IxControl,
    Policy, Sequence, Static,
};
use crate::ids::Nanos;
use heap::borrow::ToOwned;
use heap::boxed::Box;
use heap::string::String;

/// The names that [`by_name`] accepts.
pub const NAMES: [&str; 6] = ["congestion", "delay", "arachne", "ix", "ix-energy", "static"];

/// Why a name, or a name with a time, selects no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameError {
    /// No policy has this name.
    Unknown(String),
    /// The policy has no time to set.
    NoTime(String),
    /// The time is 0.
    ZeroTime(String),
}

impl core::fmt::Display for NameError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unknown(name) => {
                write!(f, "`{name}` is not a core-allocation policy; use one of {}", NAMES.join(", "))
            }
            Self::NoTime(name) => {
                write!(f, "policy `{name}` takes no parameter; only congestion and delay do")
            }
            Self::ZeroTime(name) => {
                write!(f, "policy `{name}`: a time of 0 is not an interval; use 5us or more")
            }
        }
    }
}

impl core::error::Error for NameError {}

/// Returns the policy called `name` with its paper's settings. `time` replaces the interval between
/// looks of `congestion` (default 5 us), or the threshold of `delay` (default 10 us). `seed` orders
/// choices among equals.
///
/// # Errors
/// [`NameError`] if the name is unknown, the policy takes no time, or the time is 0.
pub fn by_name(name: &str, time: Option<Nanos>, seed: u64) -> Result<Box<dyn Policy>, NameError> {
    if time == Some(Nanos::ZERO) {
        return Err(NameError::ZeroTime(name.to_owned()));
    }
    let ix = |sequence| Box::new(IxControl::new(IxConfig { sequence, ..IxConfig::default() }));
    Ok(match (name, time) {
        ("congestion", time) => {
            let config = Config { seed, ..Config::default() };
            let interval = time.unwrap_or(config.interval);
            Box::new(CongestionDetection::new(Config { interval, ..config }))
        }
        ("delay", time) => {
            let config = DelayConfig::default();
            Box::new(DelayThreshold::new(DelayConfig {
                threshold: time.unwrap_or(config.threshold),
                ..config
            }))
        }
        ("arachne", None) => Box::new(Arachne::new(ArachneConfig::default())),
        ("ix", None) => ix(Sequence::Consolidation),
        ("ix-energy", None) => ix(Sequence::Energy),
        ("static", None) => Box::new(Static::new(Nanos::from_micros(5))),
        (known, Some(_)) if NAMES.contains(&known) => return Err(NameError::NoTime(known.to_owned())),
        (unknown, _) => return Err(NameError::Unknown(unknown.to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use heap::string::ToString;

    #[test]
    fn every_name_is_a_policy_and_other_names_are_refused_with_the_list() {
        for name in NAMES {
            assert!(by_name(name, None, 1).is_ok(), "{name}");
        }
        let looks = by_name("congestion", Some(Nanos::from_millis(1)), 1).unwrap();
        assert_eq!(looks.interval(), Nanos::from_millis(1));
        let refused = |name, time: Option<u64>| by_name(name, time.map(Nanos), 1).err().unwrap().to_string();
        assert!(refused("borg", None).contains("ix-energy, static"));
        assert!(refused("static", Some(5)).contains("no parameter"));
        assert!(refused("delay", Some(0)).contains("0 is not an interval"));
    }
}
