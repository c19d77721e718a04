//! Writing and reading of service-time distributions, in the notation of the
//! [parent module's](super) table.
//!
//! Invariant: a written value reads back as an equal one; unknown remainders are refused.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use super::{Law, ServiceTime, ServiceTimeError};
use crate::units::{format_duration_ns, parse_duration_ns};

impl fmt::Display for ServiceTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = format_duration_ns;
        match &self.0 {
            Law::Constant { ns } => write!(f, "const:{}", d(*ns)),
            Law::Exponential { mean_ns } => write!(f, "exp:{}", d(*mean_ns)),
            Law::Modes(modes) => {
                f.write_str(if modes.len() == 2 { "bimodal:" } else { "modes:" })?;
                for (i, mode) in modes.iter().enumerate() {
                    let plus = if i == 0 { "" } else { "+" };
                    write!(f, "{plus}{}*{}", mode.probability, d(mode.ns))?;
                }
                Ok(())
            }
            Law::LogNormal { mean_ns, sigma } => write!(f, "lognormal:{},sigma={sigma}", d(*mean_ns)),
            Law::Pareto { mean_ns, alpha, .. } => write!(f, "pareto:{},alpha={alpha}", d(*mean_ns)),
            Law::BoundedPareto { mean_ns, alpha, max_ns, .. } => {
                write!(f, "pareto:{},alpha={alpha},max={}", d(*mean_ns), d(*max_ns))
            }
        }
    }
}

/// The parameters after the first comma, taken out one by one so that remaining ones can be
/// refused.
struct Parameters<'a> {
    spec: &'a str,
    rest: Vec<&'a str>,
}

impl<'a> Parameters<'a> {
    fn take(&mut self, name: &str) -> Option<&'a str> {
        let found =
            self.rest.iter().position(|p| p.split_once('=').is_some_and(|(key, _)| key.trim() == name))?;
        self.rest.swap_remove(found).split_once('=').map(|(_, value)| value.trim())
    }

    fn take_number(&mut self, name: &'static str) -> Result<f64, ServiceTimeError> {
        let text =
            self.take(name).ok_or_else(|| ServiceTimeError::Missing { spec: self.spec.to_owned(), name })?;
        text.parse().map_err(|_| ServiceTimeError::Parameter {
            spec: self.spec.to_owned(),
            parameter: format!("{name}={text}"),
        })
    }

    fn finish(self) -> Result<(), ServiceTimeError> {
        match self.rest.first() {
            None => Ok(()),
            Some(left) => {
                Err(ServiceTimeError::Parameter { spec: self.spec.to_owned(), parameter: (*left).to_owned() })
            }
        }
    }
}

fn duration(spec: &str, text: &str) -> Result<u64, ServiceTimeError> {
    parse_duration_ns(text).map_err(|source| ServiceTimeError::Duration { spec: spec.to_owned(), source })
}

fn parse_modes(spec: &str, body: &str) -> Result<Vec<(f64, u64)>, ServiceTimeError> {
    let bad = |mode: &str| ServiceTimeError::Mode { mode: mode.to_owned() };
    body.split('+')
        .map(|mode| {
            let (probability, time) = mode.split_once('*').ok_or_else(|| bad(mode))?;
            Ok((probability.trim().parse().map_err(|_| bad(mode))?, duration(spec, time)?))
        })
        .collect()
}

impl FromStr for ServiceTime {
    type Err = ServiceTimeError;

    fn from_str(spec: &str) -> Result<Self, ServiceTimeError> {
        let (kind, body) = spec.trim().split_once(':').unwrap_or((spec.trim(), ""));
        if let "bimodal" | "modes" = kind {
            let modes = parse_modes(spec, body)?;
            if kind == "bimodal" && modes.len() != 2 {
                return Err(ServiceTimeError::NotBimodal { count: modes.len() });
            }
            return Self::modes(&modes);
        }
        if !matches!(kind, "const" | "exp" | "lognormal" | "pareto") {
            return Err(ServiceTimeError::Kind { kind: kind.to_owned() });
        }
        let mut parts = body.split(',');
        let first_ns = duration(spec, parts.next().unwrap_or(""))?;
        let mut parameters = Parameters { spec, rest: parts.collect() };
        let parsed = match kind {
            "const" => Self::constant(first_ns),
            "exp" => Self::exponential(first_ns),
            "lognormal" => Self::log_normal(first_ns, parameters.take_number("sigma")?)?,
            _ => {
                let alpha = parameters.take_number("alpha")?;
                match parameters.take("max") {
                    None => Self::pareto(first_ns, alpha)?,
                    Some(max) => Self::bounded_pareto(first_ns, alpha, duration(spec, max)?)?,
                }
            }
        };
        parameters.finish()?;
        Ok(parsed)
    }
}

impl TryFrom<String> for ServiceTime {
    type Error = ServiceTimeError;
    fn try_from(spec: String) -> Result<Self, ServiceTimeError> {
        spec.parse()
    }
}

impl From<ServiceTime> for String {
    fn from(service: ServiceTime) -> String {
        service.to_string()
    }
}
