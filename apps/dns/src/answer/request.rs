//! The contents of a query.

use domain::base::Message;
use domain::base::iana::{Class, OptRcode, Rtype};
use domain::base::opt::Opt;

use crate::name::FlatName;

/// A question, and the client's limits.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The name, in the case it was written in.
    pub name: &'a FlatName,
    /// The type.
    pub rtype: Rtype,
    /// The class.
    pub class: Class,
    /// The contents of the OPT record, if there is one.
    pub edns: Option<Edns>,
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
    /// It has several OPT records, or one that is not the root's (RFC 6891, section 6.1.1).
    #[error("not one OPT record of the root")]
    Opt,
}

impl Reject {
    /// Returns the code to answer with.
    pub fn rcode(self) -> OptRcode {
        OptRcode::FORMERR
    }
}

impl<'a> Request<'a> {
    /// Parses the one question, its name into `name`, and the OPT record; the options within it are
    /// checked for their form and ignored, as are all other records.
    ///
    /// # Errors
    /// If the message is not a request.
    pub fn parse(message: &Message<[u8]>, name: &'a mut FlatName) -> Result<Self, Reject> {
        let count = message.header_counts().qdcount();
        if count != 1 {
            return Err(Reject::Questions(count));
        }
        let mut questions = message.question();
        let question = questions.next().and_then(Result::ok).ok_or(Reject::Malformed)?;
        let mut edns = None;
        let mut section = questions.answer().map_err(|_| Reject::Malformed)?;
        loop {
            for record in &mut section {
                let record = record.map_err(|_| Reject::Malformed)?;
                if record.rtype() != Rtype::OPT {
                    continue;
                }
                let well_formed = matches!(record.to_record::<Opt<_>>(), Ok(Some(_)));
                if edns.is_some() || !record.owner().is_root() || !well_formed {
                    return Err(Reject::Opt);
                }
                edns = Some(Edns::new(record.class(), record.ttl().as_secs()));
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
        Ok(Self { name, rtype: question.qtype(), class: question.qclass(), edns })
    }
}

impl Edns {
    fn new(class: Class, ttl: u32) -> Self {
        let [_extended_rcode, version, flags, _] = ttl.to_be_bytes();
        Self { payload: class.to_int(), version, dnssec_ok: flags & 0x80 != 0 }
    }
}
