//! The problems of a zone, with messages for the author of its file.

use core::fmt;
use std::path::{Path, PathBuf};

use domain::base::iana::{Class, Rtype};

use crate::name::StoredName;
use crate::rdata::Malformed;

/// A place in a master file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; `None` if the fault is in no line.
    pub line: Option<usize>,
}

impl Place {
    /// Returns the place of a fault of a whole file.
    pub fn file(file: &Path) -> Self {
        Self { file: file.to_owned(), line: None }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file.display()),
            None => write!(f, "{}", self.file.display()),
        }
    }
}

/// A fault and its place.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct Problem {
    /// The place.
    pub place: Place,
    /// The fault.
    pub fault: Fault,
}

/// A fault of a zone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Read(#[source] std::io::Error),
    /// `$INCLUDE` is nested too deeply: likely a file that includes itself.
    #[error("includes within includes, more than {0} deep: let no file include itself")]
    Depth(usize),
    /// Too many files in one zone.
    #[error("the zone includes more than {0} files: put them together")]
    Files(usize),
    /// Not an entry of a master file; the reader's message says why, after line and column.
    #[error("not understood: {0} (relative names need a zone or $ORIGIN)")]
    Syntax(String),
    /// The file ends before an entry does.
    #[error("the file ends within an entry: close the parenthesis or the quotation mark")]
    Unfinished,
    /// A record of another class.
    #[error("class {0}: only IN is served")]
    Class(Class),
    /// A name that is not valid.
    #[error(
        "a name with an empty part or of more than 255 octets: leave no two dots together, and shorten it"
    )]
    Name,
    /// Data that are not valid for their type.
    #[error(transparent)]
    Data(#[from] Malformed),
    /// A type for queries or messages only.
    #[error("{0} is not a record type of zones: remove the record")]
    Meta(Rtype),
    /// A record of another zone.
    #[error(
        "{owner} is not within the zone {zone}: move the record, or end the name without a dot if it is relative"
    )]
    OutOfZone {
        /// The name of the record.
        owner: StoredName,
        /// The zone.
        zone: StoredName,
    },
    /// The zone has no SOA record.
    #[error("the zone {0} has no SOA record: begin with `@ SOA ...`")]
    NoSoa(StoredName),
    /// Two different SOA records.
    #[error("a second SOA record: keep one")]
    SecondSoa,
    /// A SOA record that is not at the apex.
    #[error("a SOA record at {0}, which is not the name of the zone: move it there or remove it")]
    MisplacedSoa(StoredName),
    /// The zone has no name servers.
    #[error("the zone {0} has no NS record: name its servers with `@ NS ...`")]
    NoNs(StoredName),
    /// A CNAME record and something else at the same name (RFC 1034, section 3.6.2).
    #[error(
        "{owner} has a CNAME and other records ({other}): keep one or the other (RFC 1034, section 3.6.2)"
    )]
    CnameBesideOthers {
        /// The name of the records.
        owner: StoredName,
        /// Type of another record.
        other: Rtype,
    },
    /// Two CNAME records at the same name.
    #[error("{0} has several CNAME records: keep one (RFC 2181, section 10.1)")]
    SeveralCnames(StoredName),
    /// Two DNAME records at the same name.
    #[error("{0} has several DNAME records: keep one (RFC 6672, section 2.4)")]
    SeveralDnames(StoredName),
    /// A DNAME record at a delegation.
    #[error("{0} has a DNAME record and is delegated: keep one or the other (RFC 6672, section 2.3)")]
    DnameBesideNs(StoredName),
    /// A NSEC3 record whose name is not made from a hash.
    #[error("{0} is not the name of a NSEC3 record: sign the zone again (RFC 5155, section 3)")]
    Nsec3Name(StoredName),
    /// A chain of NSEC3 records with too much work for each answer.
    #[error("{0} iterations of NSEC3: sign the zone with none, or with at most {1} (RFC 9276, section 3.1)")]
    Iterations(u16, u16),
    /// NS records at a wildcard, which have no defined meaning.
    #[error("NS records at the wildcard {0}: delegate names one by one (RFC 4592, section 4.2)")]
    WildcardNs(StoredName),
    /// A server of a zone or delegation that has no address.
    #[error("{server}, a name server of {owner}, has no A or AAAA record: add one")]
    NoAddress {
        /// The zone or delegation.
        owner: StoredName,
        /// The server.
        server: StoredName,
    },
    /// A server whose name is an alias (RFC 2181, section 10.3).
    #[error(
        "{server}, a name server of {owner}, is an alias: name the server itself (RFC 2181, section 10.3)"
    )]
    AliasServer {
        /// The zone or delegation.
        owner: StoredName,
        /// The server.
        server: StoredName,
    },
    /// More records than a message can hold.
    #[error("the {rtype} records of {owner} fit into no message: have fewer (at most {limit} octets)")]
    TooLarge {
        /// The name of the records.
        owner: StoredName,
        /// Their type.
        rtype: Rtype,
        /// Maximum length in octets.
        limit: usize,
    },
}
