//! The firewall beside a naive evaluator, driven by a list of operations that bytes describe.
//!
//! Owns the operations, the packets they build and the evaluator, which judges the packet's
//! description, not its bytes, against the uncompiled rules. Addresses and ports are drawn from a
//! few values, so that rules and packets often match.
//!
//! | control byte | arguments | operation |
//! |---|---|---|
//! | 0-63 | ten bytes | a rule is added and everything compiled again |
//! | 64-71 | one byte | the defaults are set |
//! | 72-239 | nine bytes | a packet in either direction |
//! | 240-255 | length (u8), bytes | bytes as a frame: the firewall stands, whatever it thinks of them |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tailwater_iokernel::Config;
use tailwater_iokernel::firewall::{Action, Direction, Guard, PortRange, Prefix, Protocol, Rule, Ruling};
use tailwater_iokernel::stats::FirewallStats;

/// Maximum number of operations in one run.
const MAX_OPERATIONS: usize = 256;
/// Maximum number of rules in one run; a rule expands to at most eight tests.
const MAX_RULES: usize = 24;
/// Names of the runtimes.
const NAMES: [&str; 2] = ["kv", "batch"];
const V4: [Ipv4Addr; 4] = [
    Ipv4Addr::new(10, 77, 0, 2),
    Ipv4Addr::new(10, 77, 0, 3),
    Ipv4Addr::new(10, 78, 1, 2),
    Ipv4Addr::new(192, 0, 2, 200),
];
const V6: [Ipv6Addr; 4] = [
    Ipv6Addr::new(0xfd00, 0x7477, 0, 0, 0, 0, 0, 2),
    Ipv6Addr::new(0xfd00, 0x7477, 0, 0, 0, 0, 0, 3),
    Ipv6Addr::new(0xfd00, 0x7478, 0, 0, 0, 0, 1, 2),
    // The host number of 10.77.0.2, in IPv6.
    Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0x0a4d, 2),
];
const PROTOCOLS: [u8; 6] = [6, 17, 1, 58, 6, 132];

/// Bytes read front to back; a missing byte ends the run.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(head)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let [n] = *self.take()?;
        let (head, tail) = self.0.split_at_checked(n.into())?;
        self.0 = tail;
        Some(head)
    }
}

/// A packet as its builder describes it.
#[derive(Debug, Clone, Copy)]
struct Description {
    direction: Direction,
    local: IpAddr,
    remote: IpAddr,
    protocol: u8,
    local_port: u16,
    remote_port: u16,
    /// The flags of TCP.
    flags: u8,
    /// Not the first fragment of its datagram.
    later: bool,
    /// A header between the IP header and the upper layer's.
    options: bool,
}

fn address(number: u8, v6: bool) -> IpAddr {
    let at = usize::from(number % 4);
    if v6 { V6[at].into() } else { V4[at].into() }
}

fn prefix(choice: u8) -> Prefix {
    let ip = address(choice, choice & 4 != 0);
    let lens: [u8; 4] = if ip.is_ipv6() { [128, 64, 31, 0] } else { [32, 24, 15, 0] };
    let len = lens[usize::from(choice >> 3) % 4];
    let kept = |bits: u32| u128::MAX.checked_shl(bits - u32::from(len)).unwrap_or(0);
    let network: IpAddr = match ip {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & kept(32) as u32).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & kept(128)).into(),
    };
    Prefix::new(network, len).expect("bits after the prefix were cleared")
}

fn ports(choice: u8) -> PortRange {
    let first = u16::from(choice % 8);
    PortRange { first, last: if choice & 8 == 0 { first } else { first + u16::from(choice >> 4) } }
}

/// None, one or two of them.
fn list<T>(count: u8, choices: [u8; 2], item: impl Fn(u8) -> T) -> Vec<T> {
    choices.into_iter().take(usize::from(count % 3)).map(item).collect()
}

fn rule(bytes: [u8; 10]) -> Rule {
    let [kind, counts, who, protocol, a, b, c, d, e, f] = bytes;
    let tcp = protocol % 6 == 0;
    let has_ports = matches!(protocol % 6, 0..=2);
    let ports = |count, choices| if has_ports { list(count, choices, ports) } else { Vec::new() };
    Rule {
        name: None,
        runtime: NAMES.get(usize::from(who % 4)).map(|name| (*name).to_owned()),
        direction: [Direction::Egress, Direction::Ingress, Direction::Both][usize::from(kind >> 1) % 3],
        action: if kind & 1 == 0 { Action::Allow } else { Action::Deny },
        protocol: [Some(6), Some(17), None, None, Some(1), Some(58)][usize::from(protocol % 6)].map(Protocol),
        remote: list(counts, [a, b], prefix),
        local: list(counts >> 2, [c, a], prefix),
        remote_port: ports(counts >> 4, [d, e]),
        local_port: ports(counts >> 6, [f, d]),
        established: tcp && who & 0x80 != 0,
    }
}

fn description(bytes: [u8; 9]) -> Description {
    let [kind, local, remote, protocol, local_port, remote_port, flags, _, _] = bytes;
    let v6 = kind & 2 != 0;
    Description {
        direction: if kind & 1 == 0 { Direction::Egress } else { Direction::Ingress },
        local: address(local, v6),
        remote: address(remote, v6),
        protocol: PROTOCOLS[usize::from(protocol) % PROTOCOLS.len()],
        local_port: (local_port % 24).into(),
        remote_port: (remote_port % 24).into(),
        flags,
        later: kind & 0x30 == 0x30,
        options: kind & 4 != 0,
    }
}

impl Description {
    fn has_ports(&self) -> bool {
        matches!(self.protocol, 6 | 17) && !self.later
    }

    /// Returns the frame, without addresses of Ethernet: rules do not look at them.
    fn frame(&self) -> Vec<u8> {
        let out = self.direction == Direction::Egress;
        let swap = |local, remote| if out { (local, remote) } else { (remote, local) };
        let (from, to) = swap(self.local_port, self.remote_port);
        let mut upper = [from.to_be_bytes(), to.to_be_bytes()].concat();
        upper.resize(24, 0);
        if !matches!(self.protocol, 6 | 17) {
            // An echo request of either ICMP.
            upper[..2].copy_from_slice(&[if self.protocol == 58 { 128 } else { 8 }, 0]);
        }
        upper[13] = self.flags;
        let (source, destination) = if out { (self.local, self.remote) } else { (self.remote, self.local) };
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => self.frame_v4(source, destination, &upper),
            (IpAddr::V6(source), IpAddr::V6(destination)) => self.frame_v6(source, destination, &upper),
            _ => unreachable!("both addresses were made of one family"),
        }
    }

    fn frame_v4(&self, source: Ipv4Addr, destination: Ipv4Addr, upper: &[u8]) -> Vec<u8> {
        let options: &[u8] = if self.options { &[1, 1, 1, 0] } else { &[] };
        let total = (20 + options.len() + upper.len()) as u16;
        let mut frame =
            [&[0; 12][..], &[8, 0, 0x45 + u8::from(self.options), 0], &total.to_be_bytes()].concat();
        frame.extend([0, 0, 0, if self.later { 100 } else { 0 }, 64, self.protocol, 0, 0]);
        frame.extend(source.octets());
        frame.extend(destination.octets());
        [&frame, options, upper].concat()
    }

    fn frame_v6(&self, source: Ipv6Addr, destination: Ipv6Addr, upper: &[u8]) -> Vec<u8> {
        let mut chain = Vec::new();
        let mut first = self.protocol;
        if self.later {
            chain = [&[first, 0, 3, 0x20, 0, 0, 0, 1], &chain[..]].concat();
            first = 44;
        }
        if self.options {
            chain = [&[first, 0, 1, 4, 0, 0, 0, 0], &chain[..]].concat();
            first = 60;
        }
        let length = (chain.len() + upper.len()) as u16;
        let mut frame =
            [&[0; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0], &length.to_be_bytes(), &[first, 64]].concat();
        frame.extend(source.octets());
        frame.extend(destination.octets());
        [frame, chain, upper.to_vec()].concat()
    }

    /// Returns whether a rule about `runtime` matches this packet.
    fn meets(&self, rule: &Rule, runtime: &str) -> bool {
        let about = rule.runtime.as_deref().is_none_or(|name| name == runtime)
            && (rule.direction == Direction::Both || rule.direction == self.direction);
        let among = |list: &[Prefix], ip| list.is_empty() || list.iter().any(|prefix| prefix.contains(ip));
        let in_range = |list: &[PortRange], port| {
            list.is_empty() || (self.has_ports() && list.iter().any(|r| (r.first..=r.last).contains(&port)))
        };
        about
            && rule.protocol.is_none_or(|protocol| protocol.0 == self.protocol)
            && among(&rule.remote, self.remote)
            && among(&rule.local, self.local)
            && in_range(&rule.remote_port, self.remote_port)
            && in_range(&rule.local_port, self.local_port)
            && (!rule.established || (self.protocol == 6 && !self.later && self.flags & 0x14 != 0))
    }
}

/// Compiled rules beside written ones.
struct Model {
    config: Config,
    stats: FirewallStats,
    guards: [Option<Box<Guard>>; 2],
    /// The expected counters.
    matched: Vec<u64>,
    by_default: u64,
}

impl Model {
    fn compile(&mut self) {
        let firewall = &self.config.firewall;
        self.guards = NAMES.map(|name| Guard::compile(firewall, name, 1_000_000_000));
        self.stats = FirewallStats::new(firewall);
        self.matched = vec![0; firewall.rules.len()];
        self.by_default = 0;
    }

    /// Returns whether a packet of the `who`-th runtime passes, by the uncompiled rules.
    fn expect(&mut self, packet: &Description, who: usize) -> bool {
        let firewall = &self.config.firewall;
        let decides = firewall.rules.iter().position(|rule| packet.meets(rule, NAMES[who]));
        if let Some(number) = decides {
            self.matched[number] += 1;
            return firewall.rules[number].action == Action::Allow;
        }
        let out = packet.direction == Direction::Egress;
        let allow = if out { firewall.egress } else { firewall.ingress } == Action::Allow;
        self.by_default += u64::from(!allow);
        allow
    }

    fn judge(&mut self, frame: &[u8], direction: Direction, who: usize) -> bool {
        let Some(guard) = &mut self.guards[who] else { return true };
        guard.judge(direction, frame, frame.len(), 0, &self.stats) == Ruling::Pass
    }

    fn step(&mut self, control: u8, input: &mut Input<'_>) -> Option<()> {
        match control {
            0..=63 => {
                let rule = rule(*input.take()?);
                if self.config.firewall.rules.len() < MAX_RULES {
                    self.config.firewall.rules.push(rule);
                    if self.config.check().is_ok() {
                        self.compile();
                    } else {
                        self.config.firewall.rules.pop();
                    }
                }
            }
            64..=71 => {
                let [bits] = *input.take()?;
                let action = |bit| if bits & bit == 0 { Action::Allow } else { Action::Deny };
                let firewall = &mut self.config.firewall;
                (firewall.egress, firewall.ingress) = (action(1), action(2));
                self.compile();
            }
            72..=239 => {
                let packet = description(*input.take()?);
                let who = usize::from(control % 2);
                let expected = self.expect(&packet, who);
                let passed = self.judge(&packet.frame(), packet.direction, who);
                assert_eq!(
                    passed, expected,
                    "{packet:?} of {} under {:#?}",
                    NAMES[who], self.config.firewall
                );
                self.check_counters();
            }
            240..=255 => {
                let mut frame = vec![0; 14];
                frame[12..14].copy_from_slice(if control & 1 == 0 { &[8, 0] } else { &[0x86, 0xdd] });
                frame.extend(input.bytes()?);
                // Nothing is known of it but that it is judged the same twice.
                let first = self.judge(&frame, Direction::Ingress, 0);
                assert_eq!(self.judge(&frame, Direction::Ingress, 0), first);
                self.compile();
            }
        }
        Some(())
    }

    fn check_counters(&self) {
        let counted: Vec<u64> = self.stats.rules.iter().map(|rule| rule.matched.get()).collect();
        assert_eq!(counted, self.matched, "matches by rule");
        assert_eq!(self.stats.counters.denied_by_default.get(), self.by_default);
        assert_eq!(self.stats.counters.opaque.get(), 0, "an honest packet could not be read");
    }
}

/// Runs the operations in `data`.
///
/// # Panics
/// If the compiled rules and the naive evaluator disagree about a packet or a counter.
pub fn firewall(data: &[u8]) {
    let config = Config::default();
    let stats = FirewallStats::new(&config.firewall);
    let mut model = Model { config, stats, guards: [None, None], matched: Vec::new(), by_default: 0 };
    let mut input = Input(data);
    for _ in 0..MAX_OPERATIONS {
        let Some([control]) = input.take() else { break };
        if model.step(*control, &mut input).is_none() {
            break;
        }
    }
}
