//! Ways out by an interface: which route a packet of a program takes, by Linux's routing rules
//! (ip-rule(8)) and tables.
//!
//! Owns [`Way`] and their order. Pure: [`linux`](super::linux) reads rules and routes. Linux tries
//! rules in the order of their priorities, and the first one whose table has a route decides. So in
//! a list with the routes of each rule's table, rule after rule and in each the longest prefix
//! first, the first way that fits a packet is the one that it takes.
//!
//! A packet of a program is looked up as one that this machine sends: without a mark, and as if it
//! came from the loopback interface. Only routes through the interface count, since packets of
//! programs leave by no other one. A rule that something else decides (a user, a port) is not
//! followed, and is named.

use core::cmp::Reverse;
use core::fmt;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum number of ways by default routes of a family, and by its other routes; those of later
/// rules and shorter prefixes are left out.
const MOST_WAYS: usize = 16_384;

/// The addresses of one family that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefix {
    /// IPv4 addresses are as in IPv6 (RFC 4291 section 2.5.5.2).
    network: u128,
    mask: u128,
    pub(super) is_ipv4: bool,
}

/// Returns an address as a number of 128 bits.
fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

impl Prefix {
    /// Returns the addresses that have the first `len` bits of `ip`.
    pub(super) fn new(ip: IpAddr, len: u8) -> Self {
        let len = u32::from(len) + if ip.is_ipv4() { 96 } else { 0 };
        let mask = u128::MAX.checked_shl(128 - len.min(128)).unwrap_or(0);
        Self { network: number(ip) & mask, mask, is_ipv4: ip.is_ipv4() }
    }

    /// Returns all addresses of a family.
    pub(super) fn all(is_ipv4: bool) -> Self {
        match is_ipv4 {
            true => Self::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            false => Self::new(Ipv6Addr::UNSPECIFIED.into(), 0),
        }
    }

    /// Returns the address alone.
    pub(super) fn one(ip: IpAddr) -> Self {
        Self::new(ip, if ip.is_ipv4() { 32 } else { 128 })
    }

    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.is_ipv4 == ip.is_ipv4() && number(ip) & self.mask == self.network
    }

    /// Returns the number of bits that the addresses share.
    pub(super) fn len(&self) -> u32 {
        self.mask.count_ones() - if self.is_ipv4 { 96 } else { 0 }
    }

    /// Returns the addresses that are in both; `None` if there is none.
    fn and(self, other: Self) -> Option<Self> {
        let (wide, narrow) = if self.mask <= other.mask { (self, other) } else { (other, self) };
        let is_in = wide.is_ipv4 == narrow.is_ipv4 && narrow.network & wide.mask == wide.network;
        is_in.then_some(narrow)
    }
}

/// A route through the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) table: u32,
    pub(super) to: Prefix,
    pub(super) priority: u32,
    /// The router; without one the destinations are neighbours.
    pub(super) via: Option<IpAddr>,
}

/// A rule that is followed: packets from and to these addresses take a route of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) priority: u32,
    pub(super) from: Prefix,
    pub(super) to: Prefix,
    pub(super) table: u32,
    /// Routes with prefixes of this length, or shorter ones, do not count.
    pub(super) suppressed: Option<u32>,
}

/// A rule that is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unfollowed {
    pub(super) priority: u32,
    /// Of no other packets.
    pub(super) from: Prefix,
    /// In words.
    pub(super) why: &'static str,
}

/// How packets from and to these addresses leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way<V = Option<IpAddr>> {
    pub(super) from: Prefix,
    pub(super) to: Prefix,
    /// The router, or its station.
    pub(super) via: V,
}

impl<V> Way<V> {
    pub(super) fn fits(&self, from: IpAddr, to: IpAddr) -> bool {
        self.to.has(to) && self.from.has(from)
    }
}

/// Routes that have room of their own among the ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    is_ipv4: bool,
    is_default: bool,
}

impl Kind {
    fn of(to: Prefix) -> Self {
        Self { is_ipv4: to.is_ipv4, is_default: to.len() == 0 }
    }
}

/// All ways out by an interface.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ways {
    /// Of those that fit a packet, the first one counts.
    pub(super) ways: Vec<Way>,
    /// Of all routes, whosever packets take them: hosts of the wire have these addresses.
    pub(super) routers: HashSet<IpAddr>,
    /// Those of IPv4 first, in ascending order of their priorities.
    pub(super) unfollowed: Vec<Unfollowed>,
    /// Some were left out.
    pub(super) is_cut: bool,
}

impl Ways {
    /// Returns the ways of packets from these senders by these rules and routes.
    pub(super) fn new(
        senders: &[Prefix],
        (mut rules, mut unfollowed): (Vec<Rule>, Vec<Unfollowed>),
        mut routes: Vec<Route>,
    ) -> Self {
        let routers = routes.iter().filter_map(|route| route.via).collect();
        // Rules for other machines' packets take no room, and nobody needs to know of them.
        let concerns = |from: Prefix| senders.iter().any(|sender| from.and(*sender).is_some());
        rules.retain(|rule| concerns(rule.from));
        unfollowed.retain(|rule| concerns(rule.from));
        // Stable: of equals, Linux tries the one first that it lists first.
        rules.sort_by_key(|rule| rule.priority);
        routes.sort_by_key(|route| (Reverse(route.to.len()), route.priority));
        unfollowed.sort_by_key(|rule| (!rule.from.is_ipv4, rule.priority));
        let mut tables: HashMap<(u32, Kind), Vec<Route>> = HashMap::new();
        for route in routes {
            tables.entry((route.table, Kind::of(route.to))).or_default().push(route);
        }
        let (mut ways, mut rooms, mut is_cut) = (Vec::new(), HashMap::new(), false);
        for Rule { from, to, table, suppressed, .. } in rules {
            for is_default in [false, true] {
                let kind = Kind { is_ipv4: to.is_ipv4, is_default };
                let room = rooms.entry(kind).or_insert(MOST_WAYS);
                let of_table = tables.get(&(table, kind)).into_iter().flatten();
                let mut found = of_table
                    .filter(|route| suppressed.is_none_or(|longest| route.to.len() > longest))
                    .filter_map(|route| Some(Way { from, to: to.and(route.to)?, via: route.via }));
                let before = ways.len();
                ways.extend(found.by_ref().take(*room));
                *room -= ways.len() - before;
                is_cut |= found.next().is_some();
            }
        }
        Self { ways, routers, unfollowed, is_cut }
    }

    /// Returns the router of the IPv4 packets for which nothing else is said.
    pub(super) fn default_router(&self) -> Option<IpAddr> {
        let all = Prefix::all(true);
        self.ways.iter().find(|way| (way.from, way.to) == (all, all))?.via
    }

    /// Logs which rules and routes are not followed, unless that was `said` before.
    pub(super) fn note(&self, port: &str, said: &mut Option<String>) {
        let words = self.explain();
        if *said == words {
            return;
        }
        if let Some(words) = &words {
            tracing::warn!(port, "{words}");
        }
        *said = words;
    }

    /// Returns in words which rules and routes are not followed; `None` if all are.
    pub(super) fn explain(&self) -> Option<String> {
        let rules = self.unfollowed.first().map(|first| {
            let more = match self.unfollowed.len() {
                1 => String::new(),
                many => format!("; and {} more", many - 1),
            };
            format!("frames of programs do not follow Linux's routing rule {first}{more}")
        });
        let routes = self.is_cut.then(|| {
            format!("frames of programs follow the first {MOST_WAYS} of Linux's routes: others are left out")
        });
        match (rules, routes) {
            (Some(rules), Some(routes)) => Some(format!("{rules}; {routes}")),
            (rules, routes) => rules.or(routes),
        }
    }
}

impl fmt::Display for Unfollowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { priority, from, why } = *self;
        let list = if from.is_ipv4 { "ip rule" } else { "ip -6 rule" };
        write!(f, "with priority {priority} (`{list}`): it {why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (ip, len) = text.split_once('/').unwrap();
        Prefix::new(ip.parse().unwrap(), len.parse().unwrap())
    }

    fn all() -> [Prefix; 2] {
        [true, false].map(Prefix::all)
    }

    fn rule(priority: u32, from: &str, to: &str, table: u32) -> Rule {
        Rule { priority, from: prefix(from), to: prefix(to), table, suppressed: None }
    }

    fn route(table: u32, to: &str, priority: u32, via: &str) -> Route {
        Route { table, to: prefix(to), priority, via: via.parse().ok() }
    }

    /// Returns the router for a packet; `None` without a way.
    fn router(ways: &Ways, from: &str, to: &str) -> Option<Option<IpAddr>> {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        ways.ways.iter().find(|way| way.fits(from, to)).map(|way| way.via)
    }

    #[test]
    fn a_packet_takes_the_longest_prefix_of_the_first_rule_that_has_one() {
        let routes = vec![
            route(254, "0.0.0.0/0", 100, "192.0.2.2"),
            route(254, "0.0.0.0/0", 0, "192.0.2.1"),
            route(254, "198.51.100.0/24", 0, "192.0.2.3"),
            route(254, "192.0.2.0/24", 0, ""),
            route(77, "0.0.0.0/0", 0, "192.0.2.77"),
            route(88, "198.51.100.128/25", 0, "192.0.2.88"),
            route(254, "::/0", 0, "2001:db8::1"),
        ];
        let mut rules = vec![
            rule(32_766, "0.0.0.0/0", "0.0.0.0/0", 254),
            rule(32_766, "::/0", "::/0", 254),
            rule(500, "10.77.0.2/32", "0.0.0.0/0", 77),
            rule(400, "0.0.0.0/0", "198.51.0.0/16", 88),
        ];
        let ways = Ways::new(&all(), (rules.clone(), Vec::new()), routes.clone());
        let via = |from, to| router(&ways, from, to).flatten().map(|ip| ip.to_string());
        let of = |ip: &str| Some(ip.to_owned());
        assert_eq!(via("10.77.0.3", "203.0.113.7"), of("192.0.2.1"), "the better of two routes");
        assert_eq!(via("10.77.0.3", "198.51.100.7"), of("192.0.2.3"), "the longer prefix");
        assert_eq!(via("10.77.0.3", "198.51.100.200"), of("192.0.2.88"), "the earlier rule");
        assert_eq!(via("10.77.0.2", "203.0.113.7"), of("192.0.2.77"), "by its source");
        assert_eq!(via("10.77.0.2", "198.51.100.7"), of("192.0.2.77"), "the first rule has no route");
        assert_eq!(router(&ways, "10.77.0.3", "192.0.2.9"), Some(None), "a neighbour");
        assert_eq!(via("fd00::2", "2001:db8:1::1"), of("2001:db8::1"));
        assert_eq!(router(&ways, "fd00::2", "203.0.113.7"), None, "no family stands in for another");
        // As for a VPN: all but the default route of the main table, before another table.
        rules.push(Rule { suppressed: Some(0), ..rule(100, "0.0.0.0/0", "0.0.0.0/0", 254) });
        rules.push(rule(200, "0.0.0.0/0", "0.0.0.0/0", 77));
        let ways = Ways::new(&all(), (rules, Vec::new()), routes);
        let via = |from, to| router(&ways, from, to).flatten().map(|ip| ip.to_string());
        assert_eq!(via("10.77.0.3", "198.51.100.200"), of("192.0.2.3"));
        assert_eq!(via("10.77.0.3", "203.0.113.7"), of("192.0.2.77"));
    }

    #[test]
    fn many_routes_of_a_family_leave_room_for_default_routes_and_for_the_other_family() {
        let long = |i: u32| Route {
            table: 254,
            to: Prefix::one(Ipv4Addr::from_bits(0x0a00_0000 + i).into()),
            priority: 0,
            via: None,
        };
        let mut rules = vec![rule(100, "0.0.0.0/0", "0.0.0.0/0", 254), rule(200, "::/0", "::/0", 254)];
        // For other packets than those of programs.
        rules.push(rule(50, "203.0.113.0/24", "0.0.0.0/0", 254));
        let senders = [prefix("10.77.0.0/16"), prefix("fd00:7477::/64")];
        let mut routes: Vec<Route> = (0..MOST_WAYS as u32).map(long).collect();
        routes.push(route(254, "0.0.0.0/0", 0, "192.0.2.1"));
        routes.push(route(254, "2001:db8:1::/48", 0, "2001:db8::1"));
        let ways = Ways::new(&senders, (rules.clone(), Vec::new()), routes.clone());
        assert_eq!((ways.is_cut, ways.explain()), (false, None));
        routes.push(long(MOST_WAYS as u32));
        let ways = Ways::new(&senders, (rules, Vec::new()), routes);
        assert!(ways.explain().unwrap().contains("left out"));
        assert_eq!(router(&ways, "10.77.0.2", "203.0.113.7"), Some("192.0.2.1".parse().ok()));
        assert_eq!(router(&ways, "fd00:7477::2", "2001:db8:1::7"), Some("2001:db8::1".parse().ok()));
    }

    #[test]
    fn rules_that_are_not_followed_are_named_by_the_first_one() {
        assert_eq!(Ways::default().explain(), None);
        let of = |from, priority, why| Unfollowed { priority, from: prefix(from), why };
        let unfollowed = vec![
            of("::/0", 5, "is for a user"),
            of("0.0.0.0/0", 800, "is for a port"),
            of("10.0.0.0/8", 700, "is for a user"),
            of("172.17.0.0/16", 600, "is for a protocol"),
        ];
        let words = |senders: &[Prefix]| {
            Ways::new(senders, (Vec::new(), unfollowed.clone()), Vec::new()).explain().unwrap()
        };
        let of_all = words(&all());
        for part in ["priority 600", "`ip rule`", "it is for a protocol", "3 more"] {
            assert!(of_all.contains(part), "{part:?} is not in: {of_all}");
        }
        let of_programs = words(&[prefix("10.77.0.0/16")]);
        for part in ["priority 700", "1 more"] {
            assert!(of_programs.contains(part), "{part:?} is not in: {of_programs}");
        }
    }
}
