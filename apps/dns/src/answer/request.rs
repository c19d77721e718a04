//! The contents of a query.

use domain::base::iana::{Class, OptRcode, Rtype};
use domain::base::name::ParsedName;
use domain::base::opt::Opt;
use domain::base::{Message, ParsedRecord};
use domain::rdata::Tsig;

use crate::name::FlatName;

/// The name of a TSIG key, and the record that names it.
pub type Key<'a> = (ParsedName<&'a [u8]>, Tsig<&'a [u8], ParsedName<&'a [u8]>>);

/// A question, and the client's limits.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The name, in the case it was written in.
    pub name: &'a FlatName,
    /// The type.
    pub rtype: Rtype,
    /// The class.
    pub class: Class,
    /// The contents of the OPT record, if there is one.
    pub edns: Option<Edns>,
    /// The key that signs the query.
    pub key: Option<Key<'a>>,
}

/// The fixed part of an OPT record (RFC 6891, section 6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edns {
    /// Length in octets of the largest datagram that the client accepts.
    pub payload: u16,
    /// Version; there is only 0.
    pub version: u8,
    /// The client asks for DNSSEC records.
    pub dnssec_ok: bool,
}

/// Why a message is not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// It does not hold exactly one question (RFC 9619).
    #[error("{0} questions instead of one")]
    Questions(u16),
    /// It does not hold what its header promises, or more.
    #[error("malformed message")]
    Malformed,
    /// It has several OPT records, or one that is not the root's, or not in the additional section
    /// (RFC 6891, section 6.1.1).
    #[error("not one OPT record of the root in the additional section")]
    Opt,
    /// It has a TSIG record that is not its last (RFC 8945, section 5.1), or that is malformed.
    #[error("a TSIG record that is malformed or not the last")]
    Tsig,
}

impl Reject {
    /// Returns the code to answer with.
    pub fn rcode(self) -> OptRcode {
        OptRcode::FORMERR
    }
}

impl<'a> Request<'a> {
    /// Parses the one question, its name into `name`, the OPT record and the TSIG record; the
    /// options within the former are checked for their form and ignored, as are all other records.
    ///
    /// # Errors
    /// If the message is not a request.
    pub fn parse(message: &'a Message<[u8]>, name: &'a mut FlatName) -> Result<Self, Reject> {
        let counts = message.header_counts();
        if counts.qdcount() != 1 {
            return Err(Reject::Questions(counts.qdcount()));
        }
        let additional = u32::from(counts.ancount()) + u32::from(counts.nscount());
        let last = (additional + u32::from(counts.arcount())).wrapping_sub(1);
        let mut questions = message.question();
        let question = questions.next().and_then(Result::ok).ok_or(Reject::Malformed)?;
        let (mut edns, mut key, mut index) = (None, None, 0);
        let mut section = questions.answer().map_err(|_| Reject::Malformed)?;
        loop {
            for record in &mut section {
                let record = record.map_err(|_| Reject::Malformed)?;
                match record.rtype() {
                    Rtype::OPT if edns.is_some() || index < additional => return Err(Reject::Opt),
                    Rtype::OPT => edns = Some(Edns::parse(&record)?),
                    Rtype::TSIG if index != last || index < additional => return Err(Reject::Tsig),
                    Rtype::TSIG => key = Some(parse_key(record)?),
                    _ => {}
                }
                index += 1;
            }
            let end = section.pos();
            match section.next_section().map_err(|_| Reject::Malformed)? {
                Some(next) => section = next,
                None if end == message.as_slice().len() => break,
                None => return Err(Reject::Malformed),
            }
        }
        if !name.set(question.qname()) {
            return Err(Reject::Malformed);
        }
        Ok(Self { name, rtype: question.qtype(), class: question.qclass(), edns, key })
    }

    /// Returns whether the client asks for records of DNSSEC (RFC 3225).
    pub fn secure(&self) -> bool {
        self.edns.is_some_and(|edns| edns.dnssec_ok)
    }
}

fn parse_key<'a>(record: ParsedRecord<'a, [u8]>) -> Result<Key<'a>, Reject> {
    let parsed = record.into_record::<Tsig<_, _>>().ok().flatten().ok_or(Reject::Tsig)?;
    if parsed.class() != Class::ANY || parsed.ttl().as_secs() != 0 {
        return Err(Reject::Tsig);
    }
    let (owner, data) = parsed.into_owner_and_data();
    Ok((owner, data))
}

impl Edns {
    /// Returns the contents of the OPT record of a message that is not a request, unless that
    /// record is what is wrong: an answer has one if the query has (RFC 6891, section 6.1.1).
    pub fn find(message: &Message<[u8]>) -> Option<Self> {
        let records = message.additional().ok()?;
        let mut found = None;
        for record in records {
            let record = record.ok()?;
            if record.rtype() == Rtype::OPT && found.replace(Self::parse(&record).ok()?).is_some() {
                return None;
            }
        }
        found
    }

    fn parse(record: &ParsedRecord<'_, [u8]>) -> Result<Self, Reject> {
        let well_formed = matches!(record.to_record::<Opt<_>>(), Ok(Some(_)));
        match record.owner().is_root() && well_formed {
            true => Ok(Self::new(record.class(), record.ttl().as_secs())),
            false => Err(Reject::Opt),
        }
    }

    fn new(class: Class, ttl: u32) -> Self {
        let [_extended_rcode, version, flags, _] = ttl.to_be_bytes();
        Self { payload: class.to_int(), version, dnssec_ok: flags & 0x80 != 0 }
    }
}
