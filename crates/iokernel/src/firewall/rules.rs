//! Compiled rules of one runtime in one direction.
//!
//! Owns the translation of rules into tests, one for each combination of the prefixes and port
//! ranges a rule lists, and the search. A test is a handful of masks and comparisons without memory
//! of its own, and there are [`MAX_TESTS`](super::MAX_TESTS) at most, so that a rule set cannot
//! hold up the polling thread; `tailwater-lab bench switch` prints the cost of 1, 10 and 100 rules.

use super::config::{Action, Direction, FirewallConfig, Rule};
use super::facts::{ESTABLISHED, Facts, PORTS, Packet5};
use super::stats::FirewallStats;
use super::text::{PortRange, Prefix};

/// Bits of [`Test::families`].
const V4: u8 = 1;
const V6: u8 = 2;

/// A range of ports: the first, and how many follow it.
#[derive(Debug, Clone, Copy)]
struct Ports {
    least: u16,
    span: u16,
}

impl Ports {
    fn new(range: Option<PortRange>) -> Self {
        range.map_or(Self { least: 0, span: u16::MAX }, |r| Self { least: r.first, span: r.last - r.first })
    }

    #[inline(always)]
    fn hold(self, port: u16) -> bool {
        port.wrapping_sub(self.least) <= self.span
    }
}

/// An address under a mask.
#[derive(Debug, Clone, Copy)]
struct Net {
    value: u128,
    mask: u128,
}

impl Net {
    fn new(prefix: Option<Prefix>) -> Self {
        prefix
            .map_or(Self { value: 0, mask: 0 }, |prefix| Self { value: prefix.value(), mask: prefix.mask() })
    }

    #[inline(always)]
    fn differs(self, address: u128) -> u128 {
        (address ^ self.value) & self.mask
    }
}

/// One combination of the conditions that a rule lists.
#[derive(Debug, Clone, Copy)]
struct Test {
    families: u8,
    /// Bits required in [`Packet5::traits`].
    traits: u8,
    /// A protocol number under a mask: 0 matches any.
    protocol: u8,
    protocol_mask: u8,
    local_port: Ports,
    remote_port: Ports,
    allow: bool,
    /// Index of the rule in the configuration.
    rule: u16,
    local: Net,
    remote: Net,
}

impl Test {
    #[inline(always)]
    fn matches(&self, family: u8, packet: &Packet5) -> bool {
        self.families & family != 0
            && (packet.protocol ^ self.protocol) & self.protocol_mask == 0
            && packet.traits & self.traits == self.traits
            && self.local_port.hold(packet.local_port)
            && self.remote_port.hold(packet.remote_port)
            && self.remote.differs(packet.remote) | self.local.differs(packet.local) == 0
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Rules {
    tests: Box<[Test]>,
    /// The action if no test matches is to allow.
    allow: bool,
}

/// Returns the items of a list; one `None` for an empty list, which means any.
fn any_of<T: Copy>(list: &[T]) -> impl Iterator<Item = Option<T>> + Clone {
    let any = list.is_empty().then_some(None);
    any.into_iter().chain(list.iter().copied().map(Some))
}

impl Rules {
    /// Compiles the rules of `config` that apply to the runtime of this name, in their order;
    /// `None` if they allow everything.
    pub(super) fn compile(config: &FirewallConfig, runtime: &str, direction: Direction) -> Option<Self> {
        let mut tests = Vec::new();
        for (rule, number) in config.rules.iter().zip(0u16..) {
            if rule.direction.includes(direction)
                && rule.runtime.as_deref().is_none_or(|name| name == runtime)
            {
                expand(rule, number, &mut tests);
            }
        }
        let allow = config.default_of(direction) == Action::Allow;
        // Rules that allow are kept even if the default allows too: they are counted.
        (!tests.is_empty() || !allow).then(|| Self { tests: tests.into_boxed_slice(), allow })
    }

    /// Returns whether a packet passes; counts the rule that decided.
    #[inline]
    pub(super) fn admit(&self, facts: Facts, stats: &FirewallStats) -> bool {
        match facts {
            Facts::Housekeeping => true,
            Facts::Opaque => {
                stats.counters.opaque.add(1);
                false
            }
            Facts::Packet(packet) => {
                let family = if packet.v6 { V6 } else { V4 };
                match self.tests.iter().find(|test| test.matches(family, &packet)) {
                    Some(test) => {
                        stats.rules[usize::from(test.rule)].matched.add(1);
                        test.allow
                    }
                    None if self.allow => true,
                    None => {
                        stats.counters.denied_by_default.add(1);
                        false
                    }
                }
            }
        }
    }
}

/// Appends the tests of a rule; addresses of different families never meet.
fn expand(rule: &Rule, number: u16, tests: &mut Vec<Test>) {
    let (protocol, protocol_mask) = rule.protocol.map_or((0, 0), |protocol| (protocol.0, u8::MAX));
    let ports = !rule.local_port.is_empty() || !rule.remote_port.is_empty();
    let traits = if ports { PORTS } else { 0 } | if rule.established { ESTABLISHED } else { 0 };
    let families = |prefix: Option<Prefix>| match prefix {
        None => V4 | V6,
        Some(prefix) => {
            if prefix.is_ipv6() {
                V6
            } else {
                V4
            }
        }
    };
    for remote in any_of(&rule.remote) {
        for local in any_of(&rule.local) {
            let families = families(remote) & families(local);
            for remote_port in any_of(&rule.remote_port).filter(|_| families != 0) {
                for local_port in any_of(&rule.local_port) {
                    tests.push(Test {
                        families,
                        traits,
                        protocol,
                        protocol_mask,
                        local_port: Ports::new(local_port),
                        remote_port: Ports::new(remote_port),
                        allow: rule.action == Action::Allow,
                        rule: number,
                        local: Net::new(local),
                        remote: Net::new(remote),
                    });
                }
            }
        }
    }
}
