//! Records as they are written into an answer.
//!
//! Owns the message builder and the forms of an owner: names that are in the question already are
//! written as a pointer into it, which is cheaper than searching the message for the name.

use domain::base::MessageBuilder;
use domain::base::header::Header;
use domain::base::iana::{Class, OptRcode, Rtype};
use domain::base::message_builder::{
    AdditionalBuilder, QuestionBuilder, RecordSectionBuilder, StaticCompressor,
};
use domain::base::name::Name;
use domain::base::rdata::ComposeRecordData;
use domain::base::record::ComposeRecord;
use domain::base::wire::Composer;

use super::limits::MAX_UDP;
use super::request::{Edns, Request};
use crate::rdata::Typed;
use crate::zone::RrSet;

/// Length of our OPT record, which has no options, in octets.
pub const OPT_LEN: usize = 11;

/// Length of a record's type, class, time and length, in octets.
pub const RECORD_LEN: usize = 10;

/// Position of the question's name: behind the header (RFC 1035, section 4.1.1).
pub const QUESTION: usize = 12;

/// The buffer of an answer, with compressed names.
pub type Out<'a> = StaticCompressor<&'a mut Vec<u8>>;

/// There is no room for something that the answer must contain.
#[derive(Debug)]
pub struct Full;

/// The owner of records.
#[derive(Debug, Clone, Copy)]
pub enum Owner<'a> {
    /// The name in the question, which is not the root.
    Question,
    /// A name that begins at this position of the message.
    At(usize),
    /// Any name.
    Name(&'a Name<[u8]>),
}

impl Owner<'_> {
    /// Writes a CNAME record, made from a DNAME record (RFC 6672, section 3.1).
    pub fn push_alias<'b>(
        &self,
        ttl: u32,
        target: &Name<[u8]>,
        answer: &mut impl RecordSectionBuilder<Out<'b>>,
    ) -> Result<(), Full> {
        // The target is compressed as that of any CNAME record.
        let data = Alias(target);
        match self.pointer() {
            Some(pointer) => answer.push(Pointed { pointer, ttl, rtype: Rtype::CNAME, data }),
            None => answer.push((self.name(), Class::IN, ttl, data)),
        }
        .map_err(|_| Full)
    }

    /// Returns a pointer to the name in the message (RFC 1035, section 4.1.4).
    fn pointer(&self) -> Option<[u8; 2]> {
        match self {
            Self::Question => Some(pointer(QUESTION)),
            Self::At(position) => Some(pointer(*position)),
            Self::Name(_) => None,
        }
    }

    /// Returns the name of an owner without a pointer.
    fn name(&self) -> &Name<[u8]> {
        match self {
            Self::Name(name) => name,
            _ => Name::root_slice(),
        }
    }
}

/// Returns the octets of a pointer to a position, which is below 2^14.
pub fn pointer(position: usize) -> [u8; 2] {
    debug_assert!(position < 1 << 14, "pointers have 14 bits");
    (0xc000 | position as u16).to_be_bytes()
}

/// Records of one owner and type.
#[derive(Debug, Clone, Copy)]
pub struct Set<'a> {
    /// The owner.
    pub owner: Owner<'a>,
    /// The records.
    pub rrset: &'a RrSet,
}

impl Set<'_> {
    /// Writes the records.
    pub fn push<'b>(&self, section: &mut impl RecordSectionBuilder<Out<'b>>) -> Result<(), Full> {
        self.push_all(self.rrset.rtype, &self.rrset.data, self.rrset.ttl, section)
    }

    /// Writes their signatures.
    pub fn push_signatures<'b>(&self, section: &mut impl RecordSectionBuilder<Out<'b>>) -> Result<(), Full> {
        self.push_all(Rtype::RRSIG, &self.rrset.signatures, self.rrset.ttl, section)
    }

    /// Writes the records with another time to live, and with their signatures if `secure`.
    pub fn push_for<'b>(
        &self,
        ttl: u32,
        secure: bool,
        section: &mut impl RecordSectionBuilder<Out<'b>>,
    ) -> Result<(), Full> {
        self.push_all(self.rrset.rtype, &self.rrset.data, ttl, section)?;
        match secure {
            true => self.push_all(Rtype::RRSIG, &self.rrset.signatures, ttl, section),
            false => Ok(()),
        }
    }

    fn push_all<'b>(
        &self,
        rtype: Rtype,
        list: &[crate::rdata::Rdata],
        ttl: u32,
        section: &mut impl RecordSectionBuilder<Out<'b>>,
    ) -> Result<(), Full> {
        let pointer = self.owner.pointer();
        for data in list {
            let data = Typed(rtype, data);
            let pushed = match pointer {
                Some(pointer) => section.push(Pointed { pointer, ttl, rtype, data }),
                None => section.push((self.owner.name(), Class::IN, ttl, data)),
            };
            pushed.map_err(|_| Full)?;
        }
        Ok(())
    }

    /// Returns an upper bound of the length in octets, with signatures if `secure`.
    pub fn max_len(&self, secure: bool) -> usize {
        let owner = self.owner.pointer().map_or(self.owner.name().len(), |pointer| pointer.len());
        let signatures = if secure { &self.rrset.signatures[..] } else { &[] };
        let data = self.rrset.data.iter().chain(signatures);
        data.map(|data| owner + RECORD_LEN + data.max_len()).sum()
    }
}

/// A record whose owner is a pointer.
struct Pointed<D> {
    pointer: [u8; 2],
    ttl: u32,
    rtype: Rtype,
    data: D,
}

impl<D: ComposeRecordData> ComposeRecord for Pointed<D> {
    fn compose_record<Target: Composer + ?Sized>(
        &self,
        target: &mut Target,
    ) -> Result<(), Target::AppendError> {
        target.append_slice(&self.pointer)?;
        target.append_slice(&fixed(self.rtype, self.ttl))?;
        self.data.compose_len_rdata(target)
    }
}

/// Returns the octets of a record between its owner and its length.
pub fn fixed(rtype: Rtype, ttl: u32) -> [u8; RECORD_LEN - 2] {
    let mut fixed = [0; RECORD_LEN - 2];
    fixed[..2].copy_from_slice(&rtype.to_int().to_be_bytes());
    fixed[2..4].copy_from_slice(&Class::IN.to_int().to_be_bytes());
    fixed[4..].copy_from_slice(&ttl.to_be_bytes());
    fixed
}

/// The data of a CNAME record that is in no zone.
struct Alias<'a>(&'a Name<[u8]>);

impl domain::base::rdata::RecordData for Alias<'_> {
    fn rtype(&self) -> Rtype {
        Rtype::CNAME
    }
}

impl ComposeRecordData for Alias<'_> {
    fn rdlen(&self, _compress: bool) -> Option<u16> {
        None
    }

    fn compose_rdata<Target: Composer + ?Sized>(
        &self,
        target: &mut Target,
    ) -> Result<(), Target::AppendError> {
        target.append_compressed_name(self.0)
    }

    fn compose_canonical_rdata<Target: Composer + ?Sized>(
        &self,
        target: &mut Target,
    ) -> Result<(), Target::AppendError> {
        use domain::base::name::ToName;
        self.0.compose_canonical(target)
    }
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
pub fn finish<'a>(
    mut additional: AdditionalBuilder<Out<'a>>,
    edns: Option<Edns>,
    rcode: OptRcode,
) -> AdditionalBuilder<Out<'a>> {
    additional.header_mut().set_rcode(rcode.rcode());
    if let Some(edns) = edns {
        additional.clear_push_limit();
        // Room was reserved for it.
        let _ = additional.opt(|opt| {
            opt.set_udp_payload_size(MAX_UDP);
            opt.set_dnssec_ok(edns.dnssec_ok);
            opt.set_rcode(rcode);
            Ok(())
        });
    }
    additional
}
