//! The notation of policies, on command lines and in scenario files.
//!
//! | policy | notation |
//! |---|---|
//! | d-FCFS, c-FCFS | `d-fcfs`, `c-fcfs` |
//! | work stealing, up to n requests at once | `steal`, `steal:4` |
//! | processor sharing with a quantum | `ps:100ns` |
//! | Shinjuku's single queue | `sq:5us`, `sq:5us,head` |
//! | Shinjuku's queue per class | `mq:5us`, `mq:5us,tail` |
//! | bounded queues of k requests at the workers, also with a quantum | `jbsq:2`, `jbsq:2,5us` |
//! | shortest remaining time, reserved cores | `srpt`, `reserved` |

use core::str::FromStr;
use heap::borrow::ToOwned;
use heap::string::String;

use super::bounded::DEPTH_MAX;
use super::protocol::Requeue;
use super::spec::PolicySpec;
use super::stealing::STEAL_MAX;
use crate::ids::Nanos;

/// Why a text is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotationError {
    /// There is no such policy.
    #[error(
        "`{name}` is not a dispatch policy; use d-fcfs, c-fcfs, steal[:N], ps:QUANTUM, sq:QUANTUM[,head|tail], mq:QUANTUM[,head|tail], jbsq:K[,QUANTUM], srpt or reserved"
    )]
    Name {
        /// The name given.
        name: String,
    },
    /// The quantum is missing.
    #[error("policy `{text}` needs its quantum, as in `{name}:5us`")]
    Quantum {
        /// The text given.
        text: String,
        /// The policy's name.
        name: String,
    },
    /// The quantum is no duration.
    #[error(
        "policy `{text}`: `{time}` is no quantum; write whole nanoseconds in ns, us, ms or s, as in `{name}:5us`"
    )]
    Time {
        /// The text given.
        text: String,
        /// The policy's name.
        name: String,
        /// What stands for the quantum.
        time: String,
    },
    /// The quantum is 0.
    #[error("policy `{text}`: a quantum of 0 never lets a request run; use 100ns or more")]
    Zero {
        /// The text given.
        text: String,
    },
    /// A preempted request goes elsewhere than to the head or the tail.
    #[error("policy `{text}`: a preempted request goes to `head` or `tail`, not `{place}`")]
    Requeue {
        /// The text given.
        text: String,
        /// The place given.
        place: String,
    },
    /// The number of requests to steal at once is out of range.
    #[error("policy `{text}`: steal at once 1 to {STEAL_MAX}, as in `steal:4`")]
    Batch {
        /// The text given.
        text: String,
    },
    /// The bound of the workers' queues is missing or out of range.
    #[error("policy `{text}`: a worker has 1 to {DEPTH_MAX} requests, as in `jbsq:2`")]
    Depth {
        /// The text given.
        text: String,
    },
    /// What stands behind the bound of the workers' queues is no duration.
    #[error("policy `{text}`: behind the number of requests stands a quantum, as in `jbsq:2,5us`")]
    BoundedQuantum {
        /// The text given.
        text: String,
    },
    /// The policy has no parameters.
    #[error("policy `{name}` takes no parameters, `{parameters}` was given")]
    Parameters {
        /// The policy's name.
        name: String,
        /// The parameters given.
        parameters: String,
    },
}

impl FromStr for PolicySpec {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let text = text.trim();
        let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
        let plain = |spec| match parameters {
            "" => Ok(spec),
            _ => Err(NotationError::Parameters { name: name.to_owned(), parameters: parameters.to_owned() }),
        };
        match name {
            "d-fcfs" => plain(Self::DFcfs),
            "c-fcfs" => plain(Self::CFcfs),
            "srpt" => plain(Self::ShortestRemaining),
            "reserved" => plain(Self::Reserved),
            "steal" => {
                let batch = if parameters.is_empty() { Some(1) } else { parameters.parse().ok() };
                let batch = batch.filter(|batch| (1..=STEAL_MAX).contains(batch));
                batch
                    .map(|batch| Self::Stealing { batch })
                    .ok_or(NotationError::Batch { text: text.to_owned() })
            }
            "jbsq" => bounded(text, parameters),
            "ps" => {
                let (quantum_ns, _) = quantum(text, name, parameters, Requeue::Tail)?;
                Ok(Self::ProcessorSharing { quantum_ns })
            }
            "sq" => {
                let (quantum_ns, requeue) = quantum(text, name, parameters, Requeue::Tail)?;
                Ok(Self::SingleQueue { quantum_ns, requeue })
            }
            "mq" => {
                let (quantum_ns, requeue) = quantum(text, name, parameters, Requeue::Head)?;
                Ok(Self::MultiQueue { quantum_ns, requeue })
            }
            _ => Err(NotationError::Name { name: text.to_owned() }),
        }
    }
}

/// Reads `K[,QUANTUM]`.
fn bounded(text: &str, parameters: &str) -> Result<PolicySpec, NotationError> {
    let (depth, time) = parameters.split_once(',').unwrap_or((parameters, ""));
    let depth = depth.trim().parse().ok().filter(|depth| (1..=DEPTH_MAX).contains(depth));
    let depth = depth.ok_or_else(|| NotationError::Depth { text: text.to_owned() })?;
    let quantum_ns = match time.trim() {
        "" => None,
        time => match duration(time) {
            Some(Nanos::ZERO) => return Err(NotationError::Zero { text: text.to_owned() }),
            Some(quantum_ns) => Some(quantum_ns),
            None => {
                return Err(NotationError::BoundedQuantum { text: text.to_owned() });
            }
        },
    };
    Ok(PolicySpec::BoundedQueues { depth, quantum_ns })
}

/// Reads `QUANTUM[,head|tail]`.
fn quantum(
    text: &str,
    name: &str,
    parameters: &str,
    default: Requeue,
) -> Result<(Nanos, Requeue), NotationError> {
    let (time, place) = parameters.split_once(',').unwrap_or((parameters, ""));
    let time = match time.trim() {
        "" => return Err(NotationError::Quantum { text: text.to_owned(), name: name.to_owned() }),
        given => duration(given).ok_or_else(|| NotationError::Time {
            text: text.to_owned(),
            name: name.to_owned(),
            time: given.to_owned(),
        })?,
    };
    if time == Nanos::ZERO {
        return Err(NotationError::Zero { text: text.to_owned() });
    }
    match place.trim() {
        "" => Ok((time, default)),
        "head" => Ok((time, Requeue::Head)),
        "tail" => Ok((time, Requeue::Tail)),
        other => Err(NotationError::Requeue { text: text.to_owned(), place: other.to_owned() }),
    }
}

/// Reads a duration such as `5us` or `0.5us`, of whole nanoseconds.
fn duration(text: &str) -> Option<Nanos> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.')?);
    let unit_ns: u64 = match unit.trim() {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().ok()?;
    // Ten digits and more are no whole nanoseconds of any of the units.
    if fraction.len() > 9 {
        return None;
    }
    let scale = 10u64.pow(fraction.len() as u32);
    let part = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()?.checked_mul(unit_ns)? };
    if !part.is_multiple_of(scale) {
        return None;
    }
    whole.checked_mul(unit_ns)?.checked_add(part / scale).map(Nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use heap::string::ToString;

    #[test]
    fn policies_are_read_with_their_parameters() {
        let us = Nanos::from_micros;
        for (text, spec) in [
            ("c-fcfs", PolicySpec::CFcfs),
            (" sq:5us,head", PolicySpec::SingleQueue { quantum_ns: us(5), requeue: Requeue::Head }),
            ("sq:0.5us", PolicySpec::SingleQueue { quantum_ns: Nanos(500), requeue: Requeue::Tail }),
            ("mq:10us", PolicySpec::MultiQueue { quantum_ns: us(10), requeue: Requeue::Head }),
            ("mq:1ms,tail", PolicySpec::MultiQueue { quantum_ns: us(1_000), requeue: Requeue::Tail }),
            ("ps:100ns", PolicySpec::ProcessorSharing { quantum_ns: Nanos(100) }),
            ("steal", PolicySpec::Stealing { batch: 1 }),
            ("steal:4", PolicySpec::Stealing { batch: 4 }),
            ("jbsq:2", PolicySpec::BoundedQueues { depth: 2, quantum_ns: None }),
            ("jbsq:8,5us", PolicySpec::BoundedQueues { depth: 8, quantum_ns: Some(us(5)) }),
        ] {
            assert_eq!(text.parse(), Ok(spec), "{text}");
        }
    }

    #[test]
    fn bad_policies_are_refused_with_advice() {
        for (text, fragment) in [
            ("fifo", "use d-fcfs"),
            ("", "use d-fcfs"),
            ("ps", "needs its quantum, as in `ps:5us`"),
            ("mq:,tail", "needs its quantum, as in `mq:5us`"),
            ("mq:1h", "`1h` is no quantum; write whole nanoseconds in ns, us, ms or s"),
            ("sq:5", "as in `sq:5us`"),
            ("sq:.5us", "as in `sq:5us`"),
            ("sq:0.5ns", "as in `sq:5us`"),
            ("sq:99999999999s", "as in `sq:5us`"),
            ("sq:0ns", "quantum of 0"),
            ("sq:5us,middle", "`head` or `tail`"),
            ("steal:99", "1 to 16"),
            ("jbsq", "as in `jbsq:2`"),
            ("jbsq:9", "1 to 8"),
            ("jbsq:2,5", "as in `jbsq:2,5us`"),
            ("jbsq:2,5us,head", "as in `jbsq:2,5us`"),
            ("jbsq:2,0us", "quantum of 0"),
            ("c-fcfs:3", "no parameters"),
        ] {
            let message = text.parse::<PolicySpec>().unwrap_err().to_string();
            assert!(message.contains(fragment), "{text}: {message}");
        }
    }
}
