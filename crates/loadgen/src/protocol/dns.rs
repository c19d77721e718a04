//! DNS: A queries over UDP and TCP (RFC 1035; over TCP with a length of two bytes before each
//! message, section 4.2.2).
//!
//! Names come from a list, one per line: `NAME`, `NAME ADDRESS` or `NAME nxdomain`. An answer must
//! repeat the question and give at least one address, including the listed one if there is one; or
//! it must deny the name, if that is expected. Names are compared without regard to case (RFC
//! 4343).
//!
//! A ticket is the index of the name in the list.

use std::net::Ipv4Addr;

use tailwater_workload::Prng;
use tailwater_workload::random::unit_open_closed;

use super::{Ids, Malformed, Medium, Protocol, Request, Ticket, Verdict};

/// Bytes before the question (RFC 1035 section 4.1.1).
const HEADER: usize = 12;
/// Longest name on the wire and longest label (section 2.3.4).
const MAX_NAME: usize = 255;
const MAX_LABEL: usize = 63;
/// Type A and class IN (sections 3.2.2 and 3.2.4).
const A: u16 = 1;
const IN: u16 = 1;
/// Response codes (section 4.1.1).
const NO_ERROR: u16 = 0;
const NAME_ERROR: u16 = 3;
/// Maximum number of names of a list.
pub const MAX_NAMES: usize = 1 << 20;

/// Why a list of names was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DnsError {
    /// A name that cannot be queried.
    #[error(
        "line {line}: `{name}` is not a domain name (labels of 1 to {MAX_LABEL} bytes, {MAX_NAME} together)"
    )]
    Name {
        /// Its line, from 1.
        line: usize,
        /// What was given.
        name: String,
    },
    /// What is neither an address nor `nxdomain`.
    #[error("line {line}: `{expected}` is neither an IPv4 address nor nxdomain")]
    Expected {
        /// Its line, from 1.
        line: usize,
        /// What was given.
        expected: String,
    },
    /// No names, or too many.
    #[error("a list has 1 to {MAX_NAMES} names, not {count}")]
    Count {
        /// Names given.
        count: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Any,
    Address(Ipv4Addr),
    NoName,
}

#[derive(Debug, Clone)]
struct Question {
    /// The name as it stands on the wire, type and class after it.
    wire: Vec<u8>,
    expected: Expected,
}

/// Queries the addresses of names, each equally often.
#[derive(Debug, Clone)]
pub struct Dns {
    questions: Vec<Question>,
}

impl Dns {
    /// Reads a list. Skips empty lines and lines that begin with `#`.
    ///
    /// # Errors
    /// [`DnsError`].
    pub fn from_list(list: &str) -> Result<Self, DnsError> {
        let mut questions = Vec::new();
        for (line, text) in (1..).zip(list.lines()) {
            let mut words = text.split_whitespace();
            let Some(name) = words.next().filter(|name| !name.starts_with('#')) else { continue };
            let wire = wire_question(name).ok_or_else(|| DnsError::Name { line, name: name.to_owned() })?;
            let expected = match words.next() {
                None => Expected::Any,
                Some("nxdomain") => Expected::NoName,
                Some(text) => Expected::Address(
                    text.parse().map_err(|_| DnsError::Expected { line, expected: text.to_owned() })?,
                ),
            };
            questions.push(Question { wire, expected });
        }
        if questions.is_empty() || questions.len() > MAX_NAMES {
            return Err(DnsError::Count { count: questions.len() });
        }
        Ok(Self { questions })
    }

    fn check_message(&self, request: &Request, message: &[u8]) -> Verdict {
        let Some(question) = self.questions.get(request.ticket as usize) else { return Verdict::Wrong };
        let Some(header) = message.get(..HEADER) else { return Verdict::Wrong };
        let (id, flags) = (get_u16(header, 0), get_u16(header, 2));
        let answers = get_u16(header, 6);
        // An answer to a standard query, whole, with one question.
        if id != request.id as u16 || flags & 0xfa00 != 0x8000 || get_u16(header, 4) != 1 {
            return if id == request.id as u16 && flags & 0x8200 == 0x8200 {
                Verdict::Refused
            } else {
                Verdict::Wrong
            };
        }
        let end = HEADER + question.wire.len();
        let same = message.get(HEADER..end).is_some_and(|asked| asked.eq_ignore_ascii_case(&question.wire));
        match (flags & 0xf, question.expected) {
            _ if !same => Verdict::Wrong,
            (NAME_ERROR, Expected::NoName) => Verdict::Right,
            (NO_ERROR, Expected::Any | Expected::Address(_)) => {
                match addresses(message, end, answers, question.expected) {
                    Some(true) => Verdict::Right,
                    _ => Verdict::Wrong,
                }
            }
            (NO_ERROR | NAME_ERROR, _) => Verdict::Wrong,
            _ => Verdict::Refused,
        }
    }
}

/// Returns true if the expected address, or any, is among `count` records from `at` on; `None` if
/// they are not well-formed.
fn addresses(message: &[u8], mut at: usize, count: u16, expected: Expected) -> Option<bool> {
    let mut found = false;
    for _ in 0..count {
        at = skip_name(message, at)?;
        // Type, class, time to live, length (RFC 1035 section 4.1.3).
        let fixed = message.get(at..at + 10)?;
        let data = message.get(at + 10..at + 10 + usize::from(get_u16(fixed, 8)))?;
        if get_u16(fixed, 0) == A && get_u16(fixed, 2) == IN {
            let octets: [u8; 4] = data.try_into().ok()?;
            found |= match expected {
                Expected::Address(address) => address.octets() == octets,
                Expected::Any | Expected::NoName => true,
            };
        }
        at += 10 + data.len();
    }
    Some(found)
}

/// Returns where the name at `at` ends (RFC 1035 section 4.1.4: a pointer ends it).
fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    for _ in 0..MAX_NAME {
        match *message.get(at)? {
            0 => return Some(at + 1),
            len if len & 0xc0 == 0xc0 => return (at + 2 <= message.len()).then_some(at + 2),
            len if usize::from(len) <= MAX_LABEL => at += 1 + usize::from(len),
            _ => return None,
        }
    }
    None
}

/// Returns a name, type A and class IN as they stand in a question.
fn wire_question(name: &str) -> Option<Vec<u8>> {
    let mut wire = Vec::with_capacity(name.len() + 6);
    for label in name.strip_suffix('.').unwrap_or(name).split('.') {
        let len = u8::try_from(label.len()).ok().filter(|len| (1..=MAX_LABEL as u8).contains(len))?;
        wire.push(len);
        wire.extend_from_slice(label.as_bytes());
    }
    wire.push(0);
    if wire.len() > MAX_NAME {
        return None;
    }
    wire.extend_from_slice(&[0, A as u8, 0, IN as u8]);
    Some(wire)
}

/// Returns the integer at `at`; the caller has checked the length.
fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the message in an answer, without the length before it.
fn message(answer: &[u8], medium: Medium) -> &[u8] {
    match medium {
        Medium::Datagram => answer,
        Medium::Stream => answer.get(2..).unwrap_or_default(),
    }
}

impl Protocol for Dns {
    fn name(&self) -> &'static str {
        "dns"
    }

    fn ids(&self, _medium: Medium) -> Ids {
        // Over TCP too: answers may come in another order (RFC 7766 section 7).
        Ids::Short
    }

    fn draw(&self, prng: &mut Prng) -> Ticket {
        let count = self.questions.len() as u64;
        // The draw can be 1.
        ((unit_open_closed(prng) * count as f64) as u64).min(count - 1)
    }

    fn encode(&self, request: &Request, medium: Medium, out: &mut Vec<u8>) {
        let wire = &self.questions[request.ticket as usize % self.questions.len()].wire;
        if medium == Medium::Stream {
            // A header and a name of at most 255 bytes with 4 more.
            out.extend_from_slice(&((HEADER + wire.len()) as u16).to_be_bytes());
        }
        let id = (request.id as u16).to_be_bytes();
        // A standard query without recursion, one question.
        out.extend_from_slice(&[id[0], id[1], 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        out.extend_from_slice(wire);
    }

    fn split(&self, stream: &[u8]) -> Result<Option<usize>, Malformed> {
        let Some(len) = stream.first_chunk().map(|len| usize::from(u16::from_be_bytes(*len))) else {
            return Ok(None);
        };
        if len < HEADER {
            return Err(Malformed);
        }
        Ok((stream.len() >= 2 + len).then_some(2 + len))
    }

    fn id(&self, answer: &[u8], medium: Medium) -> Option<u64> {
        message(answer, medium).get(..HEADER).map(|header| u64::from(get_u16(header, 0)))
    }

    fn check(&self, request: &Request, answer: &[u8], medium: Medium) -> Verdict {
        self.check_message(request, message(answer, medium))
    }

    fn contact(&self) -> Ticket {
        0
    }
}
