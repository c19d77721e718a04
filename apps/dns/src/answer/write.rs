//! The sections of an answer.
//!
//! Owns their contents and their order of importance when room is short: the answer, or the reason
//! why there is none or the delegation, and the glue it needs must all be included, or the answer
//! is empty and marked as truncated (RFC 2181, section 9; RFC 9471, section 3); other addresses are
//! added as whole sets as long as there is room.

use domain::base::MessageBuilder;
use domain::base::header::Header;
use domain::base::iana::{Class, OptRcode, Rcode, Rtype};
use domain::base::message_builder::{
    AdditionalBuilder, AnswerBuilder, AuthorityBuilder, QuestionBuilder, StaticCompressor,
};
use domain::base::rdata::ComposeRecordData;
use domain::base::record::ComposeRecord;
use domain::base::wire::Composer;

use super::{MAX_CHAIN, MAX_HOSTS, MAX_UDP, MIN_UDP, Request, Transport};
use crate::name::FlatName;
use crate::rdata::Typed;
use crate::zone::{Found, Node, RrSet, Zone};

/// Length of our OPT record, which has no options, in octets.
const OPT_LEN: usize = 11;

/// Length of a record's type, class, time and length, in octets.
const RECORD_LEN: usize = 10;

/// The buffer of an answer, with compressed names.
type Out<'a> = StaticCompressor<&'a mut Vec<u8>>;

/// The question's name as a record's name: a pointer to the octets behind the header of every
/// answer (RFC 1035, sections 4.1.1 and 4.1.4).
const QUESTION_NAME: [u8; 2] = [0xc0, 12];

/// A record of the name in the question: most records of answers are, and this is cheaper than
/// searching the message for the name.
struct OfQuestion<'a>(u32, Typed<'a>);

impl ComposeRecord for OfQuestion<'_> {
    fn compose_record<Target: Composer + ?Sized>(
        &self,
        target: &mut Target,
    ) -> Result<(), Target::AppendError> {
        let Self(ttl, data) = self;
        let mut front = [0; QUESTION_NAME.len() + RECORD_LEN - 2];
        front[..2].copy_from_slice(&QUESTION_NAME);
        front[2..4].copy_from_slice(&data.0.to_int().to_be_bytes());
        front[4..6].copy_from_slice(&Class::IN.to_int().to_be_bytes());
        front[6..].copy_from_slice(&ttl.to_be_bytes());
        target.append_slice(&front)?;
        data.compose_len_rdata(target)
    }
}

/// There is no room for something that the answer must contain.
struct Full;

/// The end of following a question through a zone.
enum End<'a> {
    /// These records, which are in the answer.
    Records(&'a RrSet),
    /// An alias for a name of another zone, or one that leads back.
    Elsewhere,
    /// A name without records of the type.
    NoData,
    /// A name that does not exist.
    NxDomain,
    /// A delegation.
    Referral(&'a Node),
}

/// Returns an answer without anything in it.
pub fn begin(query: Header, out: &mut Vec<u8>) -> MessageBuilder<Out<'_>> {
    let Ok(mut builder) = MessageBuilder::from_target(StaticCompressor::new(out));
    let header = builder.header_mut();
    header.set_id(query.id());
    header.set_qr(true);
    header.set_opcode(query.opcode());
    header.set_rd(query.rd());
    builder
}

/// Writes the question.
pub fn question<'a>(builder: MessageBuilder<Out<'a>>, request: &Request<'_>) -> QuestionBuilder<Out<'a>> {
    let mut question = builder.question();
    // One question of at most 259 octets fits into every answer.
    let _ = question.push((request.name.name(), request.rtype, request.class));
    question
}

/// Sets the code and adds an OPT record if the query had one (RFC 6891, section 6.1.1).
pub fn finish(mut additional: AdditionalBuilder<Out<'_>>, request: &Request<'_>, rcode: OptRcode) {
    additional.header_mut().set_rcode(rcode.rcode());
    let Some(edns) = request.edns else { return };
    additional.clear_push_limit();
    // Room was reserved for it.
    let _ = additional.opt(|opt| {
        opt.set_udp_payload_size(MAX_UDP);
        opt.set_dnssec_ok(edns.dnssec_ok);
        opt.set_rcode(rcode);
        Ok(())
    });
}

/// Answers a question that belongs to `zone`.
pub fn answer(zone: &Zone, header: Header, request: &Request<'_>, transport: Transport, out: &mut Vec<u8>) {
    let limit = limit(request, transport);
    let mut question = question(begin(header, out), request);
    // The builder's limit is the first length that is too long.
    question.set_push_limit(limit + 1);
    let mut answer = question.answer();
    let mut rcode = Rcode::NOERROR;
    let (mut additional, full) = match follow(zone, request, &mut answer) {
        Ok(end) => {
            // The answer for a delegated name is not authoritative, unless one of our aliases led
            // there (RFC 1034, section 4.3.1).
            let delegated = matches!(end, End::Referral(_)) && answer.counts().ancount() == 0;
            answer.header_mut().set_aa(!delegated);
            if matches!(end, End::NxDomain) {
                rcode = Rcode::NXDOMAIN;
            }
            let mut authority = answer.authority();
            let written = write_authority(zone, &end, &mut authority);
            let mut additional = authority.additional();
            let written =
                written.and_then(|()| write_additional(zone, request, &end, limit, &mut additional));
            (additional, written.is_err())
        }
        Err(Full) => {
            answer.header_mut().set_aa(true);
            (answer.additional(), true)
        }
    };
    if full {
        let mut empty = self::question(additional.builder(), request);
        empty.header_mut().set_tc(true);
        additional = empty.additional();
    }
    finish(additional, request, rcode.into());
}

/// Returns the maximum number of octets for everything except the OPT record.
fn limit(request: &Request<'_>, transport: Transport) -> usize {
    let max = match transport {
        Transport::Udp => request.edns.map_or(MIN_UDP, |edns| edns.payload.clamp(MIN_UDP, MAX_UDP)),
        Transport::Tcp => u16::MAX,
    };
    usize::from(max) - if request.edns.is_some() { OPT_LEN } else { 0 }
}

/// Follows the question through the zone and writes the records found on the way.
fn follow<'a>(
    zone: &'a Zone,
    request: &Request<'_>,
    answer: &mut AnswerBuilder<Out<'_>>,
) -> Result<End<'a>, Full> {
    // The target of an alias.
    let mut target: Option<FlatName> = None;
    let mut passed: [Option<&Node>; MAX_CHAIN] = [None; MAX_CHAIN];
    for step in 0..MAX_CHAIN {
        let name = target.as_ref().unwrap_or(request.name);
        // The root is shorter than a pointer to it.
        let asked = target.is_none() && name.labels() > 0;
        let node = match zone.find(name) {
            Found::Exact(node) | Found::Wildcard(node) => node,
            // The parent side of a delegation is authoritative for its DS records (RFC 4035,
            // section 3.1.4.1).
            Found::Cut { node, exact: true } if request.rtype == Rtype::DS => node,
            Found::Cut { node, .. } => return Ok(End::Referral(node)),
            Found::Missing => return Ok(End::NxDomain),
        };
        let wanted = match request.rtype {
            // One set is enough (RFC 8482, section 4.1).
            Rtype::ANY => node.rrsets().first(),
            rtype => node.rrset(rtype),
        };
        if let Some(rrset) = wanted {
            write_answer(name, asked, rrset, answer)?;
            return Ok(End::Records(rrset));
        }
        let Some(alias) = node.rrset(Rtype::CNAME) else { return Ok(End::NoData) };
        if passed.iter().flatten().any(|passed| core::ptr::eq(*passed, node)) {
            return Ok(End::Elsewhere);
        }
        passed[step] = Some(node);
        write_answer(name, asked, alias, answer)?;
        let Some(next) = alias.data.first().and_then(|data| data.target()) else { return Ok(End::NoData) };
        let next = target.insert(FlatName::new(next));
        if !next.is_within(zone.origin()) {
            return Ok(End::Elsewhere);
        }
    }
    Ok(End::Elsewhere)
}

/// Writes records of `owner`, which is the name in the question (`asked`) or another.
fn write_answer(
    owner: &FlatName,
    asked: bool,
    rrset: &RrSet,
    answer: &mut AnswerBuilder<Out<'_>>,
) -> Result<(), Full> {
    for data in &rrset.data {
        let data = Typed(rrset.rtype, data);
        let pushed = match asked {
            true => answer.push(OfQuestion(rrset.ttl, data)),
            false => answer.push((owner.name(), Class::IN, rrset.ttl, data)),
        };
        pushed.map_err(|_| Full)?;
    }
    Ok(())
}

fn write_authority(
    zone: &Zone,
    end: &End<'_>,
    authority: &mut AuthorityBuilder<Out<'_>>,
) -> Result<(), Full> {
    match end {
        End::NoData | End::NxDomain => {
            // A checked zone has a SOA record.
            let Some((soa, ttl)) = zone.soa() else { return Ok(()) };
            let record = (zone.apex().name(), Class::IN, ttl, Typed(Rtype::SOA, soa));
            authority.push(record).map_err(|_| Full)
        }
        End::Referral(node) => {
            let Some(servers) = node.rrset(Rtype::NS) else { return Ok(()) };
            for server in &servers.data {
                let record = (node.name(), Class::IN, servers.ttl, Typed(Rtype::NS, server));
                authority.push(record).map_err(|_| Full)?;
            }
            Ok(())
        }
        End::Records(_) | End::Elsewhere => Ok(()),
    }
}

/// Writes the addresses of the hosts that the answer or the delegation names.
fn write_additional(
    zone: &Zone,
    request: &Request<'_>,
    end: &End<'_>,
    limit: usize,
    additional: &mut AdditionalBuilder<Out<'_>>,
) -> Result<(), Full> {
    match end {
        End::Referral(cut) => {
            let Some(servers) = cut.rrset(Rtype::NS) else { return Ok(()) };
            let below = FlatName::new(cut.name());
            // First the addresses that must be included.
            for needed in [true, false] {
                for host in servers.data.iter().filter_map(|data| data.host(Rtype::NS)).map(FlatName::new) {
                    if host.is_within(&below) == needed
                        && let Some(node) = zone.glue(&host)
                    {
                        write_addresses(node, needed, limit, additional)?;
                    }
                }
            }
            Ok(())
        }
        End::Records(rrset) if request.rtype == rrset.rtype => {
            let host = |index: usize| rrset.data[index].host(rrset.rtype);
            for index in 0..rrset.data.len().min(MAX_HOSTS) {
                if let Some(name) = host(index)
                    && !(0..index).any(|earlier| host(earlier) == Some(name))
                    && let name = FlatName::new(name)
                    && name.is_within(zone.origin())
                    && let Found::Exact(node) = zone.find(&name)
                {
                    write_addresses(node, false, limit, additional)?;
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Writes the addresses of a host: whole sets, or, if they are not needed, none.
fn write_addresses(
    node: &Node,
    needed: bool,
    limit: usize,
    additional: &mut AdditionalBuilder<Out<'_>>,
) -> Result<(), Full> {
    for rtype in [Rtype::A, Rtype::AAAA] {
        let Some(rrset) = node.rrset(rtype) else { continue };
        let octets = |data: &crate::rdata::Rdata| node.name().len() + RECORD_LEN + data.max_len();
        let room = limit - additional.as_slice().len();
        if !needed && rrset.data.iter().map(octets).sum::<usize>() > room {
            continue;
        }
        for data in &rrset.data {
            let record = (node.name(), Class::IN, rrset.ttl, Typed(rtype, data));
            additional.push(record).map_err(|_| Full)?;
        }
    }
    Ok(())
}
