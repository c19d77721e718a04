//! The data of one record, ready to be written into a message.
//!
//! Owns which data hold names that are compressed in messages: those of RFC 1035 only (RFC 3597,
//! section 4). Everything else is octets, so unknown types are served as well as others. Data are
//! made by [`Rdata::from_wire`], which checks them.

use domain::base::iana::Rtype;
use domain::base::name::{Name, ParsedName, ToName};
use domain::base::rdata::{ComposeRecordData, ParseRecordData, RecordData};
use domain::base::wire::Composer;
use domain::dep::octseq::Parser;
use domain::rdata::ZoneRecordData;

use crate::name::{StoredName, store};

/// The five numbers at the end of a SOA record (RFC 1035, section 3.3.13).
const SOA_NUMBERS: usize = 20;

/// Data of a record, without its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rdata {
    /// Octets that are copied into the message.
    Opaque(Box<[u8]>),
    /// One name: NS, CNAME, PTR.
    Name(StoredName),
    /// A preference and a name: MX.
    Exchange(u16, StoredName),
    /// SOA: primary server, mailbox, and serial, refresh, retry, expire, minimum.
    Soa(Box<(StoredName, StoredName, [u8; SOA_NUMBERS])>),
}

/// Octets that are not valid data of their record's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the data of this {0} record are malformed: see to names with two dots together and to what follows `\\#`"
)]
pub struct Malformed(pub Rtype);

impl Rdata {
    /// Parses data from uncompressed octets.
    ///
    /// # Errors
    /// If the type is known and these are not valid data of it.
    pub fn from_wire(rtype: Rtype, wire: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed(rtype);
        let mut parser = Parser::from_ref(wire);
        let parsed = ZoneRecordData::<&[u8], ParsedName<&[u8]>>::parse_rdata(rtype, &mut parser)
            .map_err(|_| malformed)?;
        let Some(data) = parsed else { return Ok(Self::Opaque(wire.into())) };
        // Trailing octets, or a compressed name, make a difference.
        let mut again = Vec::with_capacity(wire.len());
        let Ok(()) = data.compose_rdata(&mut again);
        if again != wire {
            return Err(malformed);
        }
        Ok(match &data {
            ZoneRecordData::Ns(ns) => Self::Name(store(ns.nsdname())),
            ZoneRecordData::Cname(cname) => Self::Name(store(cname.cname())),
            ZoneRecordData::Ptr(ptr) => Self::Name(store(ptr.ptrdname())),
            ZoneRecordData::Mx(mx) => Self::Exchange(mx.preference(), store(mx.exchange())),
            ZoneRecordData::Soa(soa) => {
                let numbers = wire.last_chunk().ok_or(malformed)?;
                Self::Soa(Box::new((store(soa.mname()), store(soa.rname()), *numbers)))
            }
            // At least one string (RFC 1035, section 3.3.14).
            ZoneRecordData::Txt(_) if wire.is_empty() => return Err(malformed),
            _ => Self::Opaque(wire.into()),
        })
    }

    /// Returns the host that this record refers to, whose addresses are added to an answer (RFC
    /// 1035, section 3.3; RFC 2782 for SRV).
    pub fn host(&self, rtype: Rtype) -> Option<&Name<[u8]>> {
        match self {
            Self::Name(name) if rtype == Rtype::NS => Some(name.for_slice()),
            Self::Exchange(_, name) => Some(name.for_slice()),
            Self::Opaque(octets) if rtype == Rtype::SRV => Name::from_slice(octets.get(6..)?).ok(),
            _ => None,
        }
    }

    /// Returns the name of a CNAME, NS or PTR record.
    pub fn target(&self) -> Option<&StoredName> {
        match self {
            Self::Name(name) => Some(name),
            _ => None,
        }
    }

    /// Returns the name that a DNAME record puts in place of its owner.
    pub fn redirect(&self) -> Option<&Name<[u8]>> {
        match self {
            Self::Opaque(octets) => Name::from_slice(octets).ok(),
            _ => None,
        }
    }

    /// Returns the octets of data that hold no compressed name.
    pub fn octets(&self) -> &[u8] {
        match self {
            Self::Opaque(octets) => octets,
            _ => &[],
        }
    }

    /// Returns the type of the records that a RRSIG record signs (RFC 4034, section 3.1.1).
    pub fn signs(&self) -> Option<Rtype> {
        self.octets().first_chunk().map(|rtype| Rtype::from_int(u16::from_be_bytes(*rtype)))
    }

    /// Returns the length without compression in octets, an upper bound of the length in a message.
    pub fn max_len(&self) -> usize {
        match self {
            Self::Opaque(octets) => octets.len(),
            Self::Name(name) => name.len(),
            Self::Exchange(_, name) => 2 + name.len(),
            Self::Soa(soa) => soa.0.len() + soa.1.len() + SOA_NUMBERS,
        }
    }

    /// Returns how long clients may cache that a name or type does not exist, in s: the last number
    /// of a SOA (RFC 2308, section 4).
    pub fn soa_minimum(&self) -> Option<u32> {
        let Self::Soa(soa) = self else { return None };
        soa.2.last_chunk().map(|octets| u32::from_be_bytes(*octets))
    }

    /// Returns the serial number of a SOA.
    pub fn soa_serial(&self) -> Option<u32> {
        let Self::Soa(soa) = self else { return None };
        soa.2.first_chunk().map(|octets| u32::from_be_bytes(*octets))
    }
}

/// Data with their type, as messages need them.
#[derive(Debug, Clone, Copy)]
pub struct Typed<'a>(pub Rtype, pub &'a Rdata);

impl RecordData for Typed<'_> {
    fn rtype(&self) -> Rtype {
        self.0
    }
}

impl ComposeRecordData for Typed<'_> {
    fn rdlen(&self, _compress: bool) -> Option<u16> {
        match self.1 {
            Rdata::Opaque(octets) => u16::try_from(octets.len()).ok(),
            _ => None,
        }
    }

    fn compose_rdata<Target: Composer + ?Sized>(
        &self,
        target: &mut Target,
    ) -> Result<(), Target::AppendError> {
        match self.1 {
            Rdata::Opaque(octets) => target.append_slice(octets),
            Rdata::Name(name) => target.append_compressed_name(name),
            Rdata::Exchange(preference, name) => {
                target.append_slice(&preference.to_be_bytes())?;
                target.append_compressed_name(name)
            }
            Rdata::Soa(soa) => {
                target.append_compressed_name(&soa.0)?;
                target.append_compressed_name(&soa.1)?;
                target.append_slice(&soa.2)
            }
        }
    }

    fn compose_canonical_rdata<Target: Composer + ?Sized>(
        &self,
        target: &mut Target,
    ) -> Result<(), Target::AppendError> {
        match self.1 {
            Rdata::Opaque(octets) => target.append_slice(octets),
            Rdata::Name(name) => name.compose_canonical(target),
            Rdata::Exchange(preference, name) => {
                target.append_slice(&preference.to_be_bytes())?;
                name.compose_canonical(target)
            }
            Rdata::Soa(soa) => {
                soa.0.compose_canonical(target)?;
                soa.1.compose_canonical(target)?;
                target.append_slice(&soa.2)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_known_types_are_checked_and_others_taken_as_they_are() {
        assert!(Rdata::from_wire(Rtype::A, &[192, 0, 2, 1]).is_ok());
        assert_eq!(Rdata::from_wire(Rtype::A, &[192, 0, 2]), Err(Malformed(Rtype::A)));
        assert_eq!(Rdata::from_wire(Rtype::A, &[192, 0, 2, 1, 0]), Err(Malformed(Rtype::A)));
        assert!(Rdata::from_wire(Rtype::NS, b"\x01a\0").is_ok());
        assert!(Rdata::from_wire(Rtype::NS, b"\x01a\xc0\0").is_err(), "a compressed name");
        assert!(Rdata::from_wire(Rtype::NS, b"\x01a\0x").is_err(), "something after it");
        assert!(Rdata::from_wire(Rtype::MX, b"\0").is_err());
        let unknown = Rdata::from_wire(Rtype::from_int(65280), b"anything").unwrap();
        assert_eq!(unknown, Rdata::Opaque((*b"anything").into()));
    }

    #[test]
    fn hosts_are_those_of_ns_mx_and_srv() {
        let host =
            |rtype, wire: &[u8]| Rdata::from_wire(rtype, wire).unwrap().host(rtype).map(ToString::to_string);
        assert_eq!(host(Rtype::NS, b"\x01a\0").as_deref(), Some("a"));
        assert_eq!(host(Rtype::MX, b"\0\x05\x01a\0").as_deref(), Some("a"));
        assert_eq!(host(Rtype::SRV, b"\0\0\0\0\0\x50\x01a\0").as_deref(), Some("a"));
        assert_eq!(host(Rtype::CNAME, b"\x01a\0"), None);
        assert_eq!(host(Rtype::TXT, b"\x01a"), None);
    }
}
