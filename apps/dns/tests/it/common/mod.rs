//! Queries and answers as text.

// Each test file uses what it needs.
#![allow(dead_code)]

pub mod generate;
pub mod reference;

use domain::base::iana::{Class, Opcode, Rtype};
use domain::base::name::Name;
use domain::base::{Message, MessageBuilder};
use domain::rdata::AllRecordData;
use std::str::FromStr;
use std::sync::Arc;
use tailwater_dns::answer::{Transport, Verdict, respond};
use tailwater_dns::catalog::Catalog;
use tailwater_dns::name::{StoredName, store};
use tailwater_dns::zone::read::parse_zone;

/// Returns a name to keep.
pub fn name(text: &str) -> StoredName {
    store(&Name::vec_from_str(text).unwrap())
}

/// Returns a catalog of zones by name and text.
///
/// # Panics
/// If something is wrong with one.
pub fn catalog(zones: &[(&str, &str)]) -> Catalog {
    Catalog::new(zones.iter().map(|(origin, text)| match parse_zone(&name(origin), text) {
        Ok(zone) => Arc::new(zone),
        Err(problems) => panic!("{origin}: {problems:#?}"),
    }))
}

/// Returns a query without EDNS.
pub fn query(question: &str, rtype: &str) -> Vec<u8> {
    let mut builder = MessageBuilder::new_vec();
    builder.header_mut().set_id(0x1234);
    builder.header_mut().set_opcode(Opcode::QUERY);
    let mut builder = builder.question();
    builder.push((name(question), Rtype::from_str(rtype).unwrap(), Class::IN)).unwrap();
    builder.finish()
}

/// Returns a query with an OPT record.
pub fn edns_query(question: &str, rtype: &str, payload: u16) -> Vec<u8> {
    let mut message = query(question, rtype);
    message[11] = 1;
    let [high, low] = payload.to_be_bytes();
    message.extend([0, 0, 41, high, low, 0, 0, 0, 0, 0, 0]);
    message
}

/// Returns a query that asks for records of DNSSEC.
pub fn secure_query(question: &str, rtype: &str) -> Vec<u8> {
    let mut message = edns_query(question, rtype, 4096);
    let flags = message.len() - 4;
    message[flags] = 0x80;
    message
}

/// Returns the answer to a message; `None` if there is none.
pub fn reply(zones: &Catalog, message: &[u8], transport: Transport) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    matches!(respond(zones, message, transport, &mut out), Verdict::Reply(_)).then_some(out)
}

/// Returns the answer to a question over TCP, as [`show`] shows it, but [`without_servers`].
pub fn ask(zones: &Catalog, question: &str, rtype: &str) -> Vec<String> {
    without_servers(show(&reply(zones, &query(question, rtype), Transport::Tcp).expect("an answer")))
}

/// Removes the zone's servers and their addresses from a complete answer, and their signatures.
pub fn without_servers(mut lines: Vec<String>) -> Vec<String> {
    let answers: Vec<_> = lines.iter().filter(|line| line.starts_with("an ")).cloned().collect();
    let is = |line: &String, rtype| line.contains(rtype);
    let aliased = answers.iter().any(|line| is(line, " CNAME "));
    let complete = answers.iter().any(|line| !(is(line, " CNAME ") || aliased && is(line, " DNAME ")));
    if complete {
        let target = |line: &String| line.rsplit(' ').next().unwrap().trim_end_matches('.').to_lowercase();
        let servers: Vec<_> = lines.iter().filter(|line| is_server(line)).map(target).collect();
        let asked: Vec<_> = answers.iter().map(target).collect();
        lines.retain(|line| {
            let owner = line.split(' ').nth(1).unwrap_or_default().trim_end_matches('.').to_lowercase();
            let address = line.starts_with("ar ") && servers.contains(&owner) && !asked.contains(&owner);
            !is_server(line) && !address
        });
    }
    lines
}

fn is_server(line: &str) -> bool {
    let mut words = line.split(' ').skip(3);
    let rtype = words.next();
    line.starts_with("ns ") && (rtype == Some("NS") || rtype == Some("RRSIG") && words.next() == Some("NS"))
}

/// Returns a message: code and flags, then a line for each record, with its section's first letter.
/// Addresses and names are separated by single spaces; names end with dots.
///
/// # Panics
/// If the message is malformed.
pub fn show(message: &[u8]) -> Vec<String> {
    let message = Message::from_slice(message).expect("a message");
    let header = message.header();
    let mut first = message.opt_rcode().to_string();
    for (flag, set) in [(" aa", header.aa()), (" tc", header.tc()), (" ra", header.ra())] {
        first += if set { flag } else { "" };
    }
    let mut lines = vec![first];
    let (_, answer, authority, additional) = message.sections().expect("well-formed");
    for (letter, section) in [("an", answer), ("ns", authority), ("ar", additional)] {
        for record in section {
            let record = record.expect("well-formed");
            let data = record.to_any_record::<AllRecordData<_, _>>().expect("well-formed");
            let (owner, ttl, rtype) = (record.owner(), record.ttl().as_secs(), record.rtype());
            if rtype == Rtype::OPT {
                lines.push(format!("{letter} OPT {}", record.class().to_int()));
            } else {
                use domain::base::name::ToName;
                let shown = data.data().to_string();
                lines.push(format!("{letter} {} {ttl} {rtype} {shown}", owner.to_vec().fmt_with_dot()));
            }
        }
    }
    lines
}
