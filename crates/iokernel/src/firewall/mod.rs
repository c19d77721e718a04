//! The firewall: which packets pass between a runtime and the rest, and at which rate.
//!
//! Owns the settings ([`FirewallConfig`], [`Rule`], [`Limit`]), their compiled form (`Guard`: rules
//! and token buckets of one runtime) and the ruling. Stateless: every packet is judged
//! independently, in a linear search of at most [`MAX_TESTS`] tests, of which the first that
//! matches decides. Pure: the packet and the time are arguments. The switch calls it after the
//! anti-spoofing checks, which no rule turns off; a runtime without rules and limits has no guard
//! and costs one branch.
//!
//! ARP, neighbour discovery and listener reports are not subject to rules, because without them no
//! other packet could be sent; the anti-spoofing checks limit what they may contain. They count
//! towards limits.
//!
//! | what | where |
//! |---|---|
//! | settings, and what is wrong with them | `config`, `text` |
//! | what a rule may look at | `facts` |
//! | compiled rules | `rules` |
//! | rate limits | `bucket` |
//! | counters | `stats` |

mod bucket;
mod config;
mod facts;
mod rules;
pub(crate) mod stats;
pub(crate) mod text;

pub use config::{Action, Direction, FirewallConfig, Limit, MAX_TESTS, Multicast, Rule};
pub use text::{PortRange, Prefix, Protocol};
pub(crate) use text::{as_text, one_or_many};

use tailwater_shm::Cycles;

use bucket::Limiter;
use facts::Facts;
use rules::Rules;
use stats::FirewallStats;

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ruling {
    /// It passes.
    Pass,
    /// Dropped by a rule or the default.
    Denied,
    /// Dropped by a rate limit.
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
pub struct Guard {
    egress: Side,
    ingress: Side,
}

impl Guard {
    /// Compiles the rules and limits of `config` for the runtime of this name, on a clock of `hz`
    /// cycles per second; `None` if there are none. Takes a few microseconds per hundred rules.
    pub fn compile(config: &FirewallConfig, runtime: &str, hz: u64) -> Option<Box<Self>> {
        let side = |direction| Side {
            rules: Rules::compile(config, runtime, direction),
            limiter: Limiter::new(config.limit(runtime, direction), hz),
        };
        let guard = Self { egress: side(Direction::Egress), ingress: side(Direction::Ingress) };
        let idle =
            [&guard.egress, &guard.ingress].iter().all(|s| s.rules.is_none() && s.limiter.is_unlimited());
        (!idle).then(|| Box::new(guard))
    }

    /// Returns the ruling on a frame of `len` bytes that begins with `shown` and goes in this
    /// direction. A frame that the rules deny takes nothing from the limits.
    #[inline]
    pub fn judge(
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
