//! Why a user may not register a program, in words that say what to do.

use core::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use tailwater_shm::control::ProgramClass;

use super::Held;

/// A limit of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Programs.
    Programs,
    /// Guaranteed cores.
    Guaranteed,
    /// Kthreads.
    Kthreads,
    /// Bytes of shared memory.
    RegionBytes,
}

impl Limit {
    /// Returns how much of it programs have.
    pub(super) fn of(self, held: &Held) -> u64 {
        match self {
            Self::Programs => held.programs,
            Self::Guaranteed => held.guaranteed,
            Self::Kthreads => held.kthreads,
            Self::RegionBytes => held.region_bytes,
        }
    }

    /// Returns what it counts, and its key in the configuration.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Programs => ("programs", "programs"),
            Self::Guaranteed => ("guaranteed cores", "guaranteed"),
            Self::Kthreads => ("kthreads", "kthreads"),
            Self::RegionBytes => ("bytes of shared memory", "region-bytes"),
        }
    }
}

/// What a registration lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// No grant covers the user.
    NoGrant,
    /// The grant lists other names.
    Name {
        /// What was requested.
        name: String,
        /// What the grant lists.
        allowed: String,
    },
    /// A grant of other users lists the name.
    NameKept {
        /// What was requested.
        name: String,
        /// The number of that grant.
        by: usize,
    },
    /// The grant has not this class.
    Class(ProgramClass),
    /// The grant does not let its users choose this address.
    Address {
        /// What was requested.
        ip: Ipv4Addr,
        /// What the grant lists; may be empty.
        allowed: String,
    },
    /// The programs of the grant would have too much.
    Limit {
        /// Of what.
        limit: Limit,
        /// What was requested.
        asked: u64,
        /// What its programs have.
        held: u64,
        /// What they may have.
        most: u64,
        /// The user whose programs have most of it, and how much.
        largest: Option<(u32, u64)>,
    },
    /// The programs of one user would have too much of the grant.
    Share {
        /// Of what.
        limit: Limit,
        /// What was requested.
        asked: u64,
        /// The user, who may have subordinate ids.
        owner: u32,
        /// What the programs of that user and of these ids have.
        held: u64,
        /// What they may have.
        most: u64,
    },
}

/// A user may not register a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The user.
    pub user: u32,
    /// The grant that comes closest, counted from 1.
    pub grant: Option<usize>,
    /// What it lacks.
    pub reason: Reason,
    /// The configuration file, if there is one.
    pub file: Option<PathBuf>,
}

impl Denial {
    /// Returns whether the registration would be permitted if another program left.
    pub fn is_about_others(&self) -> bool {
        match self.reason {
            Reason::Limit { held, asked, most, .. } | Reason::Share { held, asked, most, .. } => {
                held > 0 && asked <= most
            }
            _ => false,
        }
    }

    /// Writes what an administrator does to permit it.
    fn write_remedy(&self, f: &mut fmt::Formatter<'_>, change: &str) -> fmt::Result {
        match &self.file {
            Some(file) => {
                write!(f, "; an administrator {change} in {}, and sends the IOKernel SIGHUP", file.display())
            }
            None => write!(f, "; an administrator starts it with --config FILE, and {change} in that file"),
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (user, grant) = (self.user, self.grant.unwrap_or(0));
        let change = match &self.reason {
            Reason::NoGrant => {
                write!(
                    f,
                    "user {user} may register no programs at this IOKernel: no [[grant]] covers that user"
                )?;
                return self.write_remedy(f, &format!("adds a table [[grant]] with users = {user}"));
            }
            Reason::Name { name, allowed } => {
                write!(f, "[[grant]] {grant} lets user {user} use the names {allowed}, not {name:?}")?;
                format!("adds it to `names` of [[grant]] {grant}")
            }
            Reason::NameKept { name, by } => {
                write!(f, "the name {name:?} is kept for other users than {user}; choose another one")?;
                format!("adds the user to [[grant]] {by}")
            }
            Reason::Class(class) => {
                let class = class_name(*class);
                write!(f, "[[grant]] {grant} lets user {user} register no programs of class {class}")?;
                format!("adds \"{class}\" to `classes` of [[grant]] {grant}")
            }
            Reason::Address { ip, allowed } => {
                write!(f, "[[grant]] {grant} does not let user {user} choose address {ip}")?;
                match &allowed[..] {
                    "" => write!(f, "; ask for none")?,
                    allowed => write!(f, "; choose one of {allowed}, or none")?,
                }
                format!("adds it to `addresses` of [[grant]] {grant}")
            }
            Reason::Limit { limit, asked, held, most, largest } => {
                let (what, key) = limit.words();
                write!(
                    f,
                    "{asked} {what} requested by user {user}; the programs of [[grant]] {grant} have {held} of at \
                     most {most}"
                )?;
                if let Some((user, held)) = largest {
                    write!(f, ", those of user {user} {held}")?;
                }
                write!(f, "; request fewer, or stop a program")?;
                format!("raises `{key}` of [[grant]] {grant}")
            }
            Reason::Share { limit, asked, owner, held, most } => {
                let (what, key) = limit.words();
                write!(f, "{asked} {what} requested by user {user}; the programs of user {owner}")?;
                if user != *owner {
                    write!(f, ", of whom {user} is a subordinate id,")?;
                }
                write!(
                    f,
                    " have {held} of at most {most} that [[grant]] {grant} gives to one user without naming it; \
                     request fewer, or stop a program"
                )?;
                format!("raises `{key}` of [[grant]] {grant}, or names the user in its `users`")
            }
        };
        self.write_remedy(f, &change)
    }
}

impl core::error::Error for Denial {}

/// Returns a class as it is written in the configuration.
pub(super) fn class_name(class: ProgramClass) -> &'static str {
    match class {
        ProgramClass::LatencyCritical => "latency-critical",
        ProgramClass::BestEffort => "best-effort",
    }
}
