//! From the octets of a query to the octets of its answer.
//!
//! Owns the rules of an authoritative server: RFC 1034, section 4.3.2, with RFC 2308 (negative
//! answers), RFC 4592 (wildcards), RFC 6604 (the code at the end of a chain of aliases), RFC 6891
//! (EDNS), RFC 6672 (DNAME), RFC 4035 and RFC 5155 (answers from signed zones), RFC 8482 (ANY), RFC
//! 9471 (glue) and RFC 9619 (one question). A function of zones and octets: no sockets, no clock,
//! and no allocation once the buffer for the answer is large enough.
//!
//! | query | answer |
//! |---|---|
//! | shorter than a header, or itself an answer | none, so that two servers never talk to each other |
//! | another operation than QUERY | NOTIMP |
//! | not exactly one question, not parsable, more than one OPT record or one in another section | FORMERR |
//! | signed with a TSIG key: there are none here | NOTAUTH and BADKEY (RFC 8945, section 5.2.1) |
//! | EDNS version above 0 | BADVERS |
//! | class other than IN, a zone transfer, a name outside all zones | REFUSED |
//! | any other type of questions or messages (RFC 6895, section 3.1) | NOTIMP |
//!
//! Bounds: [`MAX_CHAIN`](crate::zone::MAX_CHAIN) aliases, [`MAX_HOSTS`] hosts whose addresses are
//! included, answers of [`MAX_UDP`] and 65,535 octets.

mod follow;
mod limits;
mod request;
mod sections;
mod write;

pub use limits::{MAX_HOSTS, MAX_UDP, MIN_UDP, Transport};
pub use request::{Edns, Reject, Request};

use domain::base::Message;
use domain::base::header::Header;
use domain::base::iana::{Class, Opcode, OptRcode, Rtype, TsigRcode};
use domain::rdata::Tsig;

use crate::catalog::Catalog;
use crate::name::FlatName;
use crate::zone::{Found, Node, Zone};
use write::{begin, finish};

/// Result of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The answer is in the buffer.
    Reply(Answered),
    /// Nothing must be sent.
    Ignore,
}

/// What an answer is counted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// The type in the question, if it was understood.
    pub rtype: Option<Rtype>,
    /// The code of the answer.
    pub rcode: OptRcode,
}

/// Answers `query` from `zones` into `out`, whose contents are replaced.
pub fn respond(zones: &Catalog, query: &[u8], transport: Transport, out: &mut Vec<u8>) -> Verdict {
    out.clear();
    let Ok(message) = Message::from_slice(query) else { return Verdict::Ignore };
    let header = message.header();
    if header.qr() {
        return Verdict::Ignore;
    }
    if header.opcode() != Opcode::QUERY {
        return fail_without_question(header, Edns::find(message), OptRcode::NOTIMP, out);
    }
    let mut name = FlatName::root();
    let request = match Request::parse(message, &mut name) {
        Ok(request) => request,
        Err(reject) => return fail_without_question(header, Edns::find(message), reject.rcode(), out),
    };
    if let Some(rcode) = refuse(&request) {
        return fail(header, &request, rcode, out);
    }
    match zone_of(zones, &request) {
        Some(zone) => {
            let rcode = sections::answer(zone, header, &request, transport, out);
            Verdict::Reply(Answered { rtype: Some(request.rtype), rcode })
        }
        None => fail(header, &request, OptRcode::REFUSED, out),
    }
}

/// Returns the zone that answers a question.
fn zone_of<'a>(zones: &'a Catalog, request: &Request<'_>) -> Option<&'a Zone> {
    let name = request.name;
    // The parent zone is authoritative for the DS records of a zone, if it is served here (RFC
    // 4035, section 3.1.4.1).
    let parent = (request.rtype == Rtype::DS && name.labels() > 0)
        .then(|| zones.find(name, name.labels() - 1))
        .flatten();
    parent.or_else(|| zones.find(name, name.labels()))
}

/// Returns whether the answer to `query` takes iterated hashes of names, and so many times as long
/// as others: a client that asks for DNSSEC records gets NSEC3 records for what the zone does not
/// hold. Aliases are not followed; names below a DNAME record, of which a client can make up any
/// number, count as if their targets did not exist.
pub fn takes_hashes(zones: &Catalog, query: &[u8]) -> bool {
    let Ok(message) = Message::from_slice(query) else { return false };
    let mut name = FlatName::root();
    let Ok(request) = Request::parse(message, &mut name) else { return false };
    request.secure()
        && refuse(&request).is_none()
        && zone_of(zones, &request).is_some_and(|zone| {
            zone.iterates_hashes()
                && match zone.find(request.name) {
                    Found::Exact(node) => has_no_data(node, request.rtype),
                    Found::Cut { node, .. } => node.rrset(Rtype::DS).is_none(),
                    Found::Redirected { .. } | Found::Wildcard { .. } | Found::Missing { .. } => true,
                }
        })
}

/// Returns whether the answer to a question about a name is that there are no such records.
fn has_no_data(node: &Node, rtype: Rtype) -> bool {
    match rtype {
        Rtype::ANY => node.rrsets().is_empty(),
        Rtype::RRSIG => node.rrsets().iter().all(|rrset| rrset.signatures.is_empty()),
        _ => node.rrset(rtype).is_none() && node.rrset(Rtype::CNAME).is_none(),
    }
}

/// Returns the error code of a question that is not looked up.
fn refuse(request: &Request<'_>) -> Option<OptRcode> {
    if request.key.is_some() {
        return Some(OptRcode::NOTAUTH);
    }
    if request.edns.is_some_and(|edns| edns.version > 0) {
        return Some(OptRcode::BADVERS);
    }
    match request.rtype {
        _ if request.class != Class::IN => Some(OptRcode::REFUSED),
        Rtype::AXFR | Rtype::IXFR => Some(OptRcode::REFUSED),
        Rtype::ANY => None,
        rtype if matches!(rtype.to_int(), 0 | 41 | 128..=255) => Some(OptRcode::NOTIMP),
        _ => None,
    }
}

/// Writes an answer that holds only the question and an error code.
fn fail(header: Header, request: &Request<'_>, rcode: OptRcode, out: &mut Vec<u8>) -> Verdict {
    let question = write::question(begin(header, out), request);
    let mut additional = finish(question.additional(), request.edns, rcode);
    if let Some((key, tsig)) = &request.key {
        // Not signed, and with the client's time: there is no key, and no clock here.
        let answer = Tsig::new(
            tsig.algorithm(),
            tsig.time_signed(),
            tsig.fudge(),
            [0u8; 0],
            tsig.original_id(),
            TsigRcode::BADKEY,
            [0u8; 0],
        );
        // Names so long that this does not fit are no client's.
        additional.set_push_limit(usize::from(MIN_UDP) + 1);
        let _ = answer.map(|answer| additional.push((key, Class::ANY, 0, answer)));
    }
    Verdict::Reply(Answered { rtype: Some(request.rtype), rcode })
}

/// Writes an answer to a message whose question is not known.
fn fail_without_question(header: Header, edns: Option<Edns>, rcode: OptRcode, out: &mut Vec<u8>) -> Verdict {
    finish(begin(header, out).additional(), edns, rcode);
    Verdict::Reply(Answered { rtype: None, rcode })
}
