//! Checks of a zone before it is served.
//!
//! Owns the checks over whole names and the zone; those of single records are the
//! [reader's](super::read). A zone that passes has exactly one SOA record, at its apex.

use domain::base::iana::Rtype;

use super::problem::Fault;
use super::{Found, Node, Zone};
use crate::name::{FlatName, StoredName, store};

/// Maximum length of the records of one name and type in octets: a message over TCP with room for
/// the question and EDNS.
pub const MAX_RRSET: usize = 65_000;

/// Returns all faults of a zone, each with the name and type of the faulty record, if there is one.
pub fn check(zone: &Zone) -> Vec<(Option<(StoredName, Rtype)>, Fault)> {
    let mut faults = Vec::new();
    let origin = zone.apex().name();
    let mut blame = |node: &Node, rtype, fault| faults.push((Some((node.name().clone(), rtype)), fault));
    for node in zone.nodes() {
        check_types(zone, node, &mut blame);
        if let Some(servers) = node.rrset(Rtype::NS) {
            for server in servers.data.iter().filter_map(|data| data.target()) {
                if let Some(fault) = check_server(zone, node, server) {
                    blame(node, Rtype::NS, fault);
                }
            }
        }
    }
    if zone.apex().rrset(Rtype::SOA).is_none() {
        faults.push((None, Fault::NoSoa(origin.clone())));
    }
    if zone.apex().rrset(Rtype::NS).is_none() {
        faults.push((None, Fault::NoNs(origin.clone())));
    }
    faults
}

/// Checks the records of one name against each other.
fn check_types(zone: &Zone, node: &Node, blame: &mut impl FnMut(&Node, Rtype, Fault)) {
    let name = || node.name().clone();
    for rrset in node.rrsets() {
        let rtype = rrset.rtype;
        let octets: usize = rrset.data.iter().chain(&rrset.signatures).map(|data| data.max_len() + 12).sum();
        if octets > MAX_RRSET {
            blame(node, rtype, Fault::TooLarge { owner: name(), rtype, limit: MAX_RRSET });
        }
        match rtype {
            Rtype::SOA if !core::ptr::eq(node, zone.apex()) => {
                blame(node, rtype, Fault::MisplacedSoa(name()));
            }
            Rtype::SOA if rrset.data.len() > 1 => blame(node, rtype, Fault::SecondSoa),
            Rtype::NS if *node.label == *b"*" => blame(node, rtype, Fault::WildcardNs(name())),
            Rtype::CNAME => {
                if rrset.data.len() > 1 {
                    blame(node, rtype, Fault::SeveralCnames(name()));
                }
                if let Some(other) = node.rrsets().iter().find(|other| !goes_with_alias(other.rtype)) {
                    blame(node, rtype, Fault::CnameBesideOthers { owner: name(), other: other.rtype });
                }
            }
            Rtype::DNAME if rrset.data.len() > 1 => blame(node, rtype, Fault::SeveralDnames(name())),
            Rtype::DNAME if node.delegates => blame(node, rtype, Fault::DnameBesideNs(name())),
            _ => {}
        }
    }
}

/// Returns whether records of a type may stand beside a CNAME record: those of DNSSEC (RFC 4035,
/// section 2.5).
fn goes_with_alias(rtype: Rtype) -> bool {
    matches!(rtype, Rtype::CNAME | Rtype::NSEC | Rtype::KEY)
}

/// Checks that a name server of `node` has an address, if this zone is authoritative for its name.
fn check_server(zone: &Zone, node: &Node, server: &StoredName) -> Option<Fault> {
    let flat = FlatName::new(server);
    let has_address = |node: &Node| node.rrset(Rtype::A).is_some() || node.rrset(Rtype::AAAA).is_some();
    let owner = node.name().clone();
    let fault = Fault::NoAddress { owner: owner.clone(), server: store(server) };
    if !flat.is_within(zone.origin()) {
        return None;
    }
    match zone.find(&flat) {
        Found::Redirected { .. } => Some(Fault::AliasServer { owner, server: store(server) }),
        Found::Exact(node) | Found::Wildcard { node, .. } if node.rrset(Rtype::CNAME).is_some() => {
            Some(Fault::AliasServer { owner, server: store(server) })
        }
        Found::Exact(node) | Found::Wildcard { node, .. } => (!has_address(node)).then_some(fault),
        // The server of another zone, whose addresses are needed here only if the delegation leads
        // to it.
        Found::Cut { node: cut, .. } if !core::ptr::eq(cut, node) => None,
        Found::Cut { .. } => (!zone.glue(&flat).is_some_and(has_address)).then_some(fault),
        Found::Missing { .. } => Some(fault),
    }
}
