//! The sections of an answer.
//!
//! Owns their contents and their order of importance when room is short: the answer, or the reason
//! why there is none or the delegation, what proves it, and the glue it needs must all be included,
//! or the answer is empty and marked as truncated (RFC 2181, section 9; RFC 9471, section 3). The
//! zone's own servers and other addresses are added as whole sets as long as there is room.

use domain::base::header::Header;
use domain::base::iana::{OptRcode, Rcode, Rtype};
use domain::base::message_builder::{AdditionalBuilder, AuthorityBuilder};
use domain::base::name::Name;
use domain::base::record::ComposeRecord;
use domain::base::wire::Composer;

use super::follow::{End, Walk};
use super::limits::{MAX_HOSTS, MAX_UDP, MIN_UDP, Transport};
use super::request::Request;
use super::write::{self, Full, OPT_LEN, Out, Owner, QUESTION, RECORD_LEN, Set, begin, finish};
use crate::name::FlatName;
use crate::zone::denial::Proofs;
use crate::zone::{Found, Node, RrSet, Server, Zone};

/// Answers a question that belongs to `zone`; returns the code of the answer.
pub fn answer(
    zone: &Zone,
    header: Header,
    request: &Request<'_>,
    transport: Transport,
    out: &mut Vec<u8>,
) -> OptRcode {
    let limit = limit(request, transport);
    let mut question = write::question(begin(header, out), request);
    // The builder's limit is the first length that is too long.
    question.set_push_limit(limit + 1);
    let mut answer = question.answer();
    let mut rcode = Rcode::NOERROR;
    let mut walk = Walk::new(zone, request.name, request.rtype, request.secure());
    let (mut additional, full) = match walk.follow(&mut answer) {
        Ok(end) => {
            // The answer for a delegated name is not authoritative, unless one of our aliases led
            // there (RFC 1034, section 4.3.1).
            let direct = answer.counts().ancount() == 0;
            answer.header_mut().set_aa(!(matches!(end, End::Referral(_)) && direct));
            rcode = code(&end);
            let mut rest = Rest { zone, request, end, limit, direct, servers: [None; MAX_HOSTS] };
            let mut authority = answer.authority();
            let written = rest.write_authority(walk.proofs.as_ref(), &mut authority);
            let mut additional = authority.additional();
            let written = written.and_then(|()| rest.write_additional(&mut additional));
            (additional, written.is_err())
        }
        Err(Full) => {
            answer.header_mut().set_aa(true);
            (answer.additional(), true)
        }
    };
    if full {
        let mut empty = write::question(additional.builder(), request);
        empty.header_mut().set_tc(true);
        additional = empty.additional();
    }
    finish(additional, request.edns, rcode.into());
    rcode.into()
}

fn code(end: &End<'_>) -> Rcode {
    match end {
        End::NxDomain => Rcode::NXDOMAIN,
        End::TooLong => Rcode::YXDOMAIN,
        _ => Rcode::NOERROR,
    }
}

/// Returns the maximum number of octets for everything except the OPT record.
fn limit(request: &Request<'_>, transport: Transport) -> usize {
    let max = match transport {
        Transport::Udp => request.edns.map_or(MIN_UDP, |edns| edns.payload.clamp(MIN_UDP, MAX_UDP)),
        Transport::Tcp => u16::MAX,
    };
    usize::from(max) - if request.edns.is_some() { OPT_LEN } else { 0 }
}

/// What follows the answer section.
struct Rest<'a, 'q> {
    zone: &'a Zone,
    request: &'q Request<'q>,
    end: End<'a>,
    limit: usize,
    /// The answer section is empty.
    direct: bool,
    /// The zone's servers in the authority section: where their names are, and their addresses.
    servers: [Option<(usize, &'a Node)>; MAX_HOSTS],
}

impl<'a> Rest<'a, '_> {
    fn write_authority(
        &mut self,
        proofs: Option<&Proofs<'a>>,
        authority: &mut AuthorityBuilder<Out<'_>>,
    ) -> Result<(), Full> {
        let secure = self.request.secure();
        match &self.end {
            End::NoData | End::NxDomain => {
                // A checked zone has a SOA record.
                let (Some((_, ttl)), Some(rrset)) = (self.zone.soa(), self.zone.apex().rrset(Rtype::SOA))
                else {
                    return Ok(());
                };
                let owner = self.owner_of(self.zone.apex().name().for_slice());
                Set { owner, rrset }.push_for(ttl, secure, authority)?;
            }
            End::Referral(node) => {
                let owner = match self.direct {
                    true => self.owner_of(node.name().for_slice()),
                    false => Owner::Name(node.name().for_slice()),
                };
                if let Some(rrset) = node.rrset(Rtype::NS) {
                    Set { owner, rrset }.push(authority)?;
                }
                // In a zone that is not signed, DS records prove nothing.
                let proves = |rrset: &&RrSet| secure && !rrset.signatures.is_empty();
                if let Some(rrset) = node.rrset(Rtype::DS).filter(proves) {
                    Set { owner, rrset }.push_for(rrset.ttl, true, authority)?;
                }
            }
            End::Records(rrset) if self.names_servers(rrset) => self.write_servers(authority),
            End::Signatures => self.write_servers(authority),
            End::Records(_) | End::Elsewhere | End::TooLong => {}
        }
        for proof in proofs.into_iter().flat_map(Proofs::iter) {
            let set = Set { owner: Owner::Name(proof.name.for_slice()), rrset: proof.rrset };
            set.push_for(proof.rrset.ttl, true, authority)?;
        }
        Ok(())
    }

    /// Returns a name that the question's name ends with as an owner: a pointer into the question,
    /// except to the root, which is shorter itself.
    fn owner_of<'b>(&self, name: &'b Name<[u8]>) -> Owner<'b> {
        match name.len() {
            1 => Owner::Name(name),
            len => Owner::At(QUESTION + self.request.name.name().len() - len),
        }
    }

    /// Returns whether the zone's servers are added to an answer with these records. They are not
    /// with the servers themselves, nor with keys, which are long enough, nor with what delegates
    /// to other servers.
    fn names_servers(&self, rrset: &RrSet) -> bool {
        let apex = self.zone.apex().rrset(Rtype::NS).is_some_and(|servers| core::ptr::eq(servers, rrset));
        !apex && !matches!(rrset.rtype, Rtype::DNSKEY | Rtype::DS)
    }

    /// Writes the NS records of the zone, if there is room for them.
    fn write_servers(&mut self, authority: &mut AuthorityBuilder<Out<'_>>) {
        let Some(rrset) = self.zone.apex().rrset(Rtype::NS) else { return };
        let owner = self.owner_of(self.zone.apex().name().for_slice());
        let room = self.limit.saturating_sub(authority.as_slice().len());
        if (Set { owner, rrset }).max_len(self.request.secure()) > room {
            return;
        }
        let pointer;
        let apex: &[u8] = match owner {
            Owner::At(position) => {
                pointer = write::pointer(position);
                &pointer
            }
            _ => self.zone.apex().name().as_slice(),
        };
        for (index, (server, node)) in self.zone.servers().enumerate() {
            // The name is behind the owner, type, class, time and length.
            let name = authority.as_slice().len() + apex.len() + RECORD_LEN;
            // There is room.
            let _ = authority.push(ServerRecord { apex, ttl: rrset.ttl, server });
            if let (Some(slot), Some(node)) = (self.servers.get_mut(index), node) {
                // A pointer leads to the first 2^14 octets only.
                *slot = (name < 1 << 14).then_some((name, node));
            }
        }
        if self.request.secure() {
            let _ = Set { owner, rrset }.push_signatures(authority);
        }
    }

    /// Writes the addresses of the hosts that the answer, the delegation or the authority section
    /// names.
    fn write_additional(&self, additional: &mut AdditionalBuilder<Out<'_>>) -> Result<(), Full> {
        match &self.end {
            End::Referral(cut) => self.write_glue(cut, additional),
            End::Records(rrset) if self.request.rtype == rrset.rtype => {
                self.write_hosts(rrset, additional)?;
                self.write_server_addresses(Some(*rrset), additional)
            }
            _ => self.write_server_addresses(None, additional),
        }
    }

    fn write_glue(&self, cut: &Node, additional: &mut AdditionalBuilder<Out<'_>>) -> Result<(), Full> {
        let Some(servers) = cut.rrset(Rtype::NS) else { return Ok(()) };
        let below = FlatName::new(cut.name());
        // First the addresses that must be included.
        for needed in [true, false] {
            for host in servers.data.iter().filter_map(|data| data.host(Rtype::NS)).map(FlatName::new) {
                if host.is_within(&below) == needed
                    && let Some(node) = self.zone.glue(&host)
                {
                    self.write_addresses(Owner::Name(node.name().for_slice()), node, needed, additional)?;
                }
            }
        }
        Ok(())
    }

    fn write_hosts(&self, rrset: &RrSet, additional: &mut AdditionalBuilder<Out<'_>>) -> Result<(), Full> {
        let host = |index: usize| rrset.data[index].host(rrset.rtype);
        for index in 0..rrset.data.len().min(MAX_HOSTS) {
            if let Some(name) = host(index)
                && !(0..index).any(|earlier| host(earlier) == Some(name))
                && let name = FlatName::new(name)
                && name.is_within(self.zone.origin())
                && let Found::Exact(node) = self.zone.find(&name)
            {
                self.write_addresses(Owner::Name(node.name().for_slice()), node, false, additional)?;
            }
        }
        Ok(())
    }

    /// Writes the addresses of the zone's servers, except those that `answered` has or names.
    fn write_server_addresses(
        &self,
        answered: Option<&RrSet>,
        additional: &mut AdditionalBuilder<Out<'_>>,
    ) -> Result<(), Full> {
        for (position, node) in self.servers.iter().flatten() {
            let hosts = answered.into_iter().flat_map(|rrset| &rrset.data).take(MAX_HOSTS);
            let mut hosts = hosts.filter_map(|data| data.host(answered?.rtype));
            if !hosts.any(|host| host == node.name()) {
                self.write_addresses(Owner::At(*position), node, false, additional)?;
            }
        }
        Ok(())
    }

    /// Writes the addresses of a host: whole sets, or, if they are not needed, none. Those in the
    /// answer section are not repeated.
    fn write_addresses(
        &self,
        owner: Owner<'_>,
        node: &Node,
        needed: bool,
        additional: &mut AdditionalBuilder<Out<'_>>,
    ) -> Result<(), Full> {
        let secure = self.request.secure();
        for rrset in [Rtype::A, Rtype::AAAA].into_iter().filter_map(|rtype| node.rrset(rtype)) {
            if matches!(self.end, End::Records(answered) if core::ptr::eq(answered, rrset)) {
                continue;
            }
            let set = Set { owner, rrset };
            let room = self.limit.saturating_sub(additional.as_slice().len());
            if needed || set.max_len(secure) <= room {
                set.push_for(rrset.ttl, secure, additional)?;
            }
        }
        Ok(())
    }
}

/// A NS record of the zone.
struct ServerRecord<'a> {
    /// A pointer to the zone's name, or the root.
    apex: &'a [u8],
    ttl: u32,
    server: &'a Server,
}

impl ComposeRecord for ServerRecord<'_> {
    fn compose_record<Target: Composer + ?Sized>(
        &self,
        target: &mut Target,
    ) -> Result<(), Target::AppendError> {
        target.append_slice(self.apex)?;
        target.append_slice(&write::fixed(Rtype::NS, self.ttl))?;
        let tail = if self.server.inside { self.apex } else { &[] };
        // A name has at most 255 octets.
        let len = (self.server.front.len() + tail.len()) as u16;
        target.append_slice(&len.to_be_bytes())?;
        target.append_slice(&self.server.front)?;
        target.append_slice(tail)
    }
}
