//! Linux's routing rules, as far as a frame of a program decides them (ip-rule(8)).

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;

use super::{Linux, RT_TABLE_LOCAL, is_absent, main_table};
use crate::xdp::ways::{Prefix, Rule, Unfollowed};

/// What the kernel writes for a rule that suppresses no prefix length (net/core/fib_rules.c).
const NONE_SUPPRESSED: u32 = u32::MAX;

/// What a rule is to packets of programs.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    Followed(Rule),
    Unfollowed(Unfollowed),
    /// It is to none of them.
    Other,
}

impl Linux {
    /// Returns the rules that packets of programs follow, and those that they do not.
    ///
    /// # Errors
    /// Linux's.
    pub(super) fn rules(&mut self) -> io::Result<(Vec<Rule>, Vec<Unfollowed>)> {
        let (mut rules, mut unfollowed) = (Vec::new(), Vec::new());
        for (family, is_ipv4) in [(AddressFamily::Inet, true), (AddressFamily::Inet6, false)] {
            let mut question = RuleMessage::default();
            question.header.family = family;
            let answer = match self.ask(RouteNetlinkMessage::GetRule(question), NLM_F_DUMP) {
                Ok(answer) => answer,
                // A kernel without rules has the main table alone.
                Err(error) if is_absent(&error) => {
                    rules.push(everything(is_ipv4));
                    continue;
                }
                Err(error) => return Err(error),
            };
            for message in answer {
                match read(message, is_ipv4) {
                    Read::Followed(rule) => rules.push(rule),
                    Read::Unfollowed(rule) => unfollowed.push(rule),
                    Read::Other => {}
                }
            }
        }
        Ok((rules, unfollowed))
    }
}

/// Returns the rule for all packets of a family, to the main table.
fn everything(is_ipv4: bool) -> Rule {
    let all = Prefix::all(is_ipv4);
    Rule { priority: 0, from: all, to: all, table: main_table(), suppressed: None }
}

/// Reads the rule in a message. What a frame shows decides it, or that it has no mark and comes
/// from no interface.
fn read(message: RouteNetlinkMessage, is_ipv4: bool) -> Read {
    let RouteNetlinkMessage::NewRule(RuleMessage { header, attributes, .. }) = message else {
        return Read::Other;
    };
    let mut rule = Rule { table: u32::from(header.table), ..everything(is_ipv4) };
    let (mut mark, mut mask, mut comes_from, mut is_of_vrf, mut why) = (0, u32::MAX, None, false, None);
    for attribute in attributes {
        match attribute {
            RuleAttribute::Priority(number) => rule.priority = number,
            RuleAttribute::Table(number) => rule.table = number,
            RuleAttribute::Source(ip) => rule.from = Prefix::new(ip, header.src_len),
            RuleAttribute::Destination(ip) => rule.to = Prefix::new(ip, header.dst_len),
            RuleAttribute::FwMark(number) => mark = number,
            RuleAttribute::FwMask(number) => mask = number,
            RuleAttribute::Iifname(name) => comes_from = Some(name),
            // For packets of an interface that is enslaved to a VRF.
            RuleAttribute::L3MDev(on) => is_of_vrf = on,
            RuleAttribute::SuppressPrefixLen(NONE_SUPPRESSED) => {}
            RuleAttribute::SuppressPrefixLen(longest) => rule.suppressed = Some(longest),
            // Who has made it; a class for accounts.
            RuleAttribute::Protocol(_) | RuleAttribute::Realm(_) => {}
            RuleAttribute::UidRange(_) => why = Some("is for packets of a user"),
            RuleAttribute::Oifname(_) => why = Some("is for sockets that are bound to an interface"),
            RuleAttribute::IpProtocol(_) => why = Some("is for a protocol"),
            RuleAttribute::SourcePortRange(_) | RuleAttribute::DestinationPortRange(_) => {
                why = Some("is for a port");
            }
            RuleAttribute::SuppressIfGroup(_) => why = Some("leaves out routes by a group of interfaces"),
            // Also the part of one that an older kernel does not write: that says more.
            _ => why = why.or(Some("has a condition that is unknown here")),
        }
    }
    if header.tos != 0 {
        why = Some("is for a class of service");
    }
    let is_inverted = header.flags.contains(RuleFlags::Invert);
    if is_inverted {
        why = Some("is for all packets but those that it names (`not`)");
    }
    // One for all packets but some may be for any.
    let from = if is_inverted { Prefix::all(is_ipv4) } else { rule.from };
    let unfollowed = |why| Read::Unfollowed(Unfollowed { priority: rule.priority, from, why });
    let is_to_none =
        !is_inverted && (mark & mask != 0 || is_of_vrf || comes_from.is_some_and(|name| name != "lo"));
    match (why, header.action) {
        _ if is_to_none => Read::Other,
        (Some(why), _) => unfollowed(why),
        // Addresses of this machine.
        (None, RuleAction::ToTable) if rule.table == u32::from(RT_TABLE_LOCAL) => Read::Other,
        (None, RuleAction::ToTable) => Read::Followed(rule),
        (None, _) => unfollowed("has an action other than a table"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_testkit::namespace::Namespace;

    #[test]
    fn rules_are_followed_by_addresses_and_named_if_something_else_decides_them() {
        let Some([here, _there]) = Namespace::pair(["here0", "there0"], 1) else { return };
        let mut linux = here.inside(|| Linux::new().expect("a socket"));
        let has_ipv6 = here.inside(|| std::path::Path::new("/proc/thread-self/net/if_inet6").exists());
        let (usual, unfollowed) = linux.rules().unwrap();
        assert!(usual.contains(&Rule { priority: 32_766, ..everything(true) }), "{usual:?}");
        assert_eq!(unfollowed, []);
        let prefix = |ip: &str, len| Prefix::new(ip.parse().unwrap(), len);
        let own = Rule { priority: 500, from: prefix("192.0.2.9", 32), table: 77, ..everything(true) };
        here.ip(&["rule", "add", "from", "192.0.2.9", "table", "77", "priority", "500"]);
        let to = Rule { priority: 510, to: prefix("198.51.100.0", 24), table: 1_000, ..everything(true) };
        here.ip(&["rule", "add", "to", "198.51.100.0/24", "table", "1000", "priority", "510"]);
        let shorter = Rule { priority: 520, suppressed: Some(0), ..everything(true) };
        here.ip(&["rule", "add", "table", "main", "suppress_prefixlength", "0", "priority", "520"]);
        // To none of programs' packets.
        here.ip(&["rule", "add", "fwmark", "7", "blackhole", "priority", "530"]);
        here.ip(&["rule", "add", "iif", "here0", "table", "78", "priority", "540"]);
        here.ip(&["rule", "add", "fwmark", "7", "uidrange", "0-9", "table", "78", "priority", "550"]);
        here.ip(&["rule", "add", "iif", "here0", "tos", "0x10", "table", "78", "priority", "560"]);
        let mut wanted = vec![own, to, shorter];
        if has_ipv6 {
            here.ip(&["-6", "rule", "add", "from", "2001:db8::9", "table", "77", "priority", "600"]);
            let from = prefix("2001:db8::9", 128);
            wanted.push(Rule { priority: 600, from, table: 77, ..everything(false) });
        }
        let (rules, unfollowed) = linux.rules().unwrap();
        for rule in &wanted {
            assert!(rules.contains(rule), "{rule:?} is not in {rules:?}");
        }
        assert_eq!((rules.len(), unfollowed), (usual.len() + wanted.len(), Vec::new()));
        let all = Prefix::all(true);
        for (words, why, from) in [
            (&["uidrange", "0-9", "table", "77"][..], "user", all),
            (&["oif", "here0", "table", "77"], "bound", all),
            (&["ipproto", "tcp", "table", "77"], "protocol", all),
            (&["from", "192.0.2.9", "dport", "25", "table", "77"], "port", own.from),
            (&["tos", "0x10", "table", "77"], "service", all),
            (&["not", "from", "192.0.2.9", "table", "77"], "not", all),
            (&["to", "203.0.113.0/24", "blackhole"], "action", all),
        ] {
            here.ip(&[&["rule", "add", "priority", "700"], words].concat());
            let (_, unfollowed) = linux.rules().unwrap();
            let [one] = unfollowed[..] else { panic!("{words:?}: {unfollowed:?}") };
            let named = one.priority == 700 && one.why.contains(why) && one.from == from;
            assert!(named, "{words:?}: {unfollowed:?}");
            here.ip(&["rule", "del", "priority", "700"]);
        }
    }
}
