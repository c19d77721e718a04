//! A grant as an administrator writes it: one `[[grant]]` table of the configuration.

use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};
use tailwater_shm::control::ProgramClass;

use crate::firewall::{Prefix, as_text, one_or_many};

/// Maximum number of grants.
pub(crate) const MAX_GRANTS: usize = 1024;
/// Default of [`Grant::kthreads`].
const KTHREADS: u32 = 256;
/// Default of [`Grant::programs`].
const PROGRAMS: u32 = 16;
/// Maximum of [`Grant::connections`]: what all users other than root and the IOKernel's own get.
pub(crate) const MAX_CONNECTIONS: u32 = 192;
/// Maximum length of the name of a user or group in characters (useradd(8): 32; directories have
/// longer ones).
const MAX_ACCOUNT: usize = 256;

/// What users other than root and the IOKernel's own may register. The limits hold for all programs
/// together that users have by this grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Grant {
    /// Users by name or number; `*` is every user.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub users: Vec<Account>,
    /// Groups by name or number; their members are covered.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub groups: Vec<Account>,
    /// Names that programs may have, and that users without a grant of them may not; empty: all
    /// that no other grant lists.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub names: Vec<Pattern>,
    /// Addresses that programs may choose, and that no others are given; empty: they may choose
    /// none.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub addresses: Vec<Prefix>,
    /// Classes that programs may have.
    pub classes: Vec<ProgramClass>,
    /// Maximum number of guaranteed cores.
    pub guaranteed: u32,
    /// Maximum number of kthreads, and so of cores held at once.
    pub kthreads: u32,
    /// Maximum number of programs; with 0 users may ask, and register nothing.
    pub programs: u32,
    /// Maximum number of bytes of shared memory; `None`: a quarter of `max-region-bytes` for each
    /// user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region_bytes: Option<u64>,
    /// Maximum number of connections of one user that are no registered program, capture or trace;
    /// `None`: that of users without a grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
}

impl Default for Grant {
    fn default() -> Self {
        Self {
            users: Vec::new(),
            groups: Vec::new(),
            names: Vec::new(),
            addresses: Vec::new(),
            classes: vec![ProgramClass::BestEffort],
            guaranteed: 0,
            kthreads: KTHREADS,
            programs: PROGRAMS,
            region_bytes: None,
            connections: None,
        }
    }
}

impl Grant {
    /// Checks what can be checked without reading the accounts of the machine.
    ///
    /// # Errors
    /// The key, its value, and what is allowed.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String, String)> {
        let wrong = |key, value: String, expected: &str| Err((key, value, expected.to_owned()));
        if self.users.is_empty() && self.groups.is_empty() {
            return wrong(
                "grant.users",
                "none".to_owned(),
                "name a user or group, or write \"*\" for every user",
            );
        }
        if self.groups.contains(&Account::Everyone) {
            return wrong("grant.groups", "*".to_owned(), "write users = \"*\" for every user");
        }
        if let Some(prefix) = self.addresses.iter().find(|prefix| prefix.is_ipv6()) {
            let expected = "IPv4 addresses; a program's IPv6 address follows from its IPv4 address";
            return wrong("grant.addresses", prefix.to_string(), expected);
        }
        let most = MAX_CONNECTIONS;
        if let Some(asked) = self.connections.filter(|asked| !(1..=most).contains(asked)) {
            return Err(("grant.connections", asked.to_string(), format!("1 to {most}")));
        }
        if self.kthreads == 0 {
            let expected = "at least 1; programs = 0 lets users ask, and register nothing";
            return wrong("grant.kthreads", self.kthreads.to_string(), expected);
        }
        if self.classes.is_empty() {
            return wrong("grant.classes", "none".to_owned(), "at least one class: a program has one");
        }
        Ok(())
    }
}

/// A user or a group, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Account {
    /// Every user.
    Everyone,
    /// By name.
    Name(String),
    /// By number.
    Number(u32),
}

impl FromStr for Account {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |c: char| c.is_ascii_graphic() && !matches!(c, ':' | ',' | '*');
        if text == "*" {
            Ok(Self::Everyone)
        } else if let Ok(number) = text.parse() {
            Ok(Self::Number(number))
        } else if (1..=MAX_ACCOUNT).contains(&text.len()) && text.chars().all(is_name) {
            Ok(Self::Name(text.to_owned()))
        } else {
            Err(format!("`{text}` is no name of a user or group; write for instance \"alice\" or 1000"))
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => f.write_str("*"),
            Self::Name(name) => f.write_str(name),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// Names of programs: a name in which each `*` stands for any characters, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Returns whether `name` is one of them.
    pub(crate) fn covers(&self, name: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else { return self.0 == name };
        let Some(mut left) = name.strip_prefix(first) else { return false };
        let mut parts: Vec<&str> = rest.split('*').collect();
        let last = parts.pop().unwrap_or_default();
        // The first place of each part leaves the most for those after it.
        for part in parts {
            let Some(at) = left.find(part) else { return false };
            left = &left[at + part.len()..];
        }
        left.ends_with(last)
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |c: u8| c.is_ascii_graphic() || c == b' ';
        if (1..=64).contains(&text.len()) && text.bytes().all(is_plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "`{text}` names no program: names are 1 to 64 printable ASCII characters; write \"web-*\""
            ))
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

as_text! {
    Account, "a user or group such as \"alice\" or 1000";
    Pattern, "a name such as \"web\" or \"web-*\"";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, covered, others) in [
            ("web", &["web"][..], &["we", "webs", ""][..]),
            ("web-*", &["web-", "web-1"], &["web", "a web-1"]),
            ("*", &["", "anything"], &[]),
            ("*.db", &["a.db", ".db"], &["db", "a.db2"]),
            ("a*b*c", &["abc", "axbbyc"], &["ac", "acb", "ab"]),
            ("ab*ba", &["abba", "abxba"], &["aba"]),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            assert!(covered.iter().all(|name| pattern.covers(name)), "{pattern}");
            assert!(!others.iter().any(|name| pattern.covers(name)), "{pattern}");
        }
    }
}
