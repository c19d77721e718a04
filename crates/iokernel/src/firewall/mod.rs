//! The firewall: which packets pass between a runtime and the rest, and how many.
//!
//! Owns the settings ([`FirewallConfig`], [`Rule`], [`Limit`]), their compiled form (`Guard`: rules and token buckets of one
//! runtime) and the judgement. Stateless: every packet is judged by itself, in a linear search of at most [`MAX_TESTS`] tests,
//! the first of which that matches decides. Pure: the packet and the time are arguments. The switch asks it after the
//! anti-spoofing checks, which no rule turns off; a runtime without rules and limits has no guard and costs one branch.
//!
//! ARP, neighbour discovery and listener reports are not subject to rules, for without them no rule about packets could ever be
//! used; who may say what in them is decided by the anti-spoofing checks. They count towards limits.
//!
//! | what | where |
//! |---|---|
//! | settings, and what is wrong with them | `config`, `text` |
//! | what a rule may look at | `facts` |
//! | compiled rules | `rules` |
//! | rate limits | `bucket` |

mod bucket;
mod config;
mod facts;
pub(crate) mod model;
mod rules;
mod text;

pub use config::{Action, Direction, FirewallConfig, Limit, Multicast, Rule};
pub use rules::MAX_TESTS;
pub use text::{PortRange, Prefix, Protocol};

use tailwater_shm::Cycles;

use crate::stats::FirewallStats;
use bucket::Limiter;
use facts::Facts;
use rules::Rules;

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ruling {
    Pass,
    /// By a rule or the default.
    Denied,
    /// By a rate limit.
    Limited,
}

/// Rules and limits of one runtime in one direction.
#[derive(Debug)]
struct Side {
    /// `None`: everything passes.
    rules: Option<Rules>,
    limiter: Limiter,
}

/// Rules and limits of one runtime.
#[derive(Debug)]
pub(crate) struct Guard {
    egress: Side,
    ingress: Side,
}

impl Guard {
    /// What `config` says about the runtime of this name, on a clock of `hz` cycles a second; `None` if that is nothing.
    /// Takes a few microseconds per hundred rules.
    pub(crate) fn compile(config: &FirewallConfig, runtime: &str, hz: u64) -> Option<Box<Self>> {
        let side = |direction| Side {
            rules: Rules::compile(config, runtime, direction),
            limiter: Limiter::new(config.limit(runtime, direction), hz),
        };
        let guard = Self { egress: side(Direction::Egress), ingress: side(Direction::Ingress) };
        let idle =
            [&guard.egress, &guard.ingress].iter().all(|s| s.rules.is_none() && s.limiter.is_unlimited());
        (!idle).then(|| Box::new(guard))
    }

    /// Judges a frame of `len` bytes that begins with `shown` and goes in this direction. A frame that the rules deny takes
    /// nothing from the limits.
    #[inline]
    pub(crate) fn judge(
        &mut self,
        direction: Direction,
        shown: &[u8],
        len: usize,
        now: Cycles,
        stats: &FirewallStats,
    ) -> Ruling {
        let side = if direction == Direction::Egress { &mut self.egress } else { &mut self.ingress };
        if let Some(rules) = &side.rules
            && !rules.admit(Facts::read(shown, len, direction), stats)
        {
            return Ruling::Denied;
        }
        if side.limiter.take(len, now) { Ruling::Pass } else { Ruling::Limited }
    }
}

#[cfg(test)]
mod tests;
