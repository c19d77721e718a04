//! memcached's text protocol: `get` and `set` (protocol.txt of memcached).
//!
//! Over UDP each message has a head of 8 bytes: request id, datagram number, number of datagrams
//! and zero, each 16 bits big-endian. A request must fit one datagram there, so values are kept
//! short enough that the answer does too: [`MAX_UDP_VALUE`].
//!
//! A ticket is the operation in its lowest bit (1 for `set`) and the key's number above.

use tailwater_workload::Prng;
use tailwater_workload::keyvalue::{KeyValueError, KeyValues, MAX_VALUE_BYTES, Operation, Workload};

use super::{Ids, MAX_ANSWER, Malformed, Medium, Protocol, Request, Ticket, Verdict};

/// Bytes of the head of a datagram.
const UDP_HEAD: usize = 8;

/// Longest value over UDP: memcached cuts its answers into datagrams of 1400 bytes, of which a key
/// of 250 bytes, the words around it and the head leave so much.
pub const MAX_UDP_VALUE: usize = 1_100;

/// Longest first line of an answer: `VALUE`, a key, two numbers.
const MAX_LINE: usize = 512;

/// Reads and writes a cache.
#[derive(Debug, Clone)]
pub struct Memcached {
    store: KeyValues,
}

impl Memcached {
    /// Creates a client with `keys` keys of a published workload. Over UDP values are limited to
    /// [`MAX_UDP_VALUE`].
    ///
    /// # Errors
    /// As [`KeyValues::new`].
    pub fn new(workload: Workload, keys: u64, medium: Medium) -> Result<Self, KeyValueError> {
        let max_value = match medium {
            Medium::Datagram => MAX_UDP_VALUE,
            Medium::Stream => MAX_VALUE_BYTES,
        };
        Ok(Self { store: KeyValues::new(workload, keys, max_value)? })
    }

    /// Sets the share of `get`, 0 to 1.
    ///
    /// # Errors
    /// As [`KeyValues::with_get_share`].
    pub fn with_get_share(self, share: f64) -> Result<Self, KeyValueError> {
        Ok(Self { store: self.store.with_get_share(share)? })
    }

    fn ticket(operation: Operation, key: u64) -> Ticket {
        key << 1 | u64::from(operation == Operation::Set)
    }

    fn write_text(&self, ticket: Ticket, out: &mut Vec<u8>) {
        let key = ticket >> 1;
        if ticket & 1 == 0 {
            out.extend_from_slice(b"get ");
            self.store.write_key(key, out);
        } else {
            out.extend_from_slice(b"set ");
            self.store.write_key(key, out);
            // No flags, never expires.
            out.extend_from_slice(b" 0 0 ");
            write_decimal(self.store.value_len(key), out);
            out.extend_from_slice(b"\r\n");
            self.store.write_value(key, out);
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Returns true if `text` is a whole answer to a `get` that found `key`.
    fn is_found(&self, key: u64, text: &[u8]) -> bool {
        let mut head = Vec::with_capacity(MAX_LINE);
        head.extend_from_slice(b"VALUE ");
        self.store.write_key(key, &mut head);
        head.extend_from_slice(b" 0 ");
        write_decimal(self.store.value_len(key), &mut head);
        head.extend_from_slice(b"\r\n");
        let value = text.strip_prefix(&head[..]).and_then(|rest| rest.strip_suffix(b"\r\nEND\r\n"));
        value.is_some_and(|value| self.store.is_value(key, value))
    }

    fn check_text(&self, ticket: Ticket, text: &[u8]) -> Verdict {
        let (is_set, key) = (ticket & 1 == 1, ticket >> 1);
        match text {
            b"STORED\r\n" if is_set => Verdict::Right,
            b"END\r\n" if !is_set => Verdict::Miss,
            _ if !is_set && self.is_found(key, text) => Verdict::Right,
            b"NOT_STORED\r\n" if is_set => Verdict::Refused,
            _ if text.starts_with(b"SERVER_ERROR") => Verdict::Refused,
            _ => Verdict::Wrong,
        }
    }
}

fn write_decimal(number: usize, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        // A digit.
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Returns the number that ends the line `VALUE <key> <flags> <bytes>`.
fn value_len(line: &[u8]) -> Option<usize> {
    let mut words = line.split(|byte| *byte == b' ');
    let (_value, _key, _flags) = (words.next()?, words.next()?, words.next()?);
    let text = std::str::from_utf8(words.next()?).ok()?;
    let len: usize = text.parse().ok()?;
    (len <= MAX_ANSWER / 2).then_some(len)
}

/// Returns the answer in a datagram, if it is a whole one with a head.
fn datagram_text(answer: &[u8]) -> Option<(u16, &[u8])> {
    let (head, text) = answer.split_first_chunk::<UDP_HEAD>()?;
    let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    // The first of one datagram.
    (number(2) == 0 && number(4) == 1).then_some((number(0), text))
}

impl Protocol for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn ids(&self, medium: Medium) -> Ids {
        match medium {
            Medium::Datagram => Ids::Short,
            Medium::Stream => Ids::Order,
        }
    }

    fn draw(&self, prng: &mut Prng) -> Ticket {
        let (operation, key) = self.store.draw(prng);
        Self::ticket(operation, key)
    }

    fn encode(&self, request: &Request, medium: Medium, out: &mut Vec<u8>) {
        if medium == Medium::Datagram {
            let id = (request.id as u16).to_be_bytes();
            out.extend_from_slice(&[id[0], id[1], 0, 0, 0, 1, 0, 0]);
        }
        self.write_text(request.ticket, out);
    }

    fn split(&self, stream: &[u8]) -> Result<Option<usize>, Malformed> {
        let searched = &stream[..stream.len().min(MAX_LINE)];
        let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
            return if stream.len() >= MAX_LINE { Err(Malformed) } else { Ok(None) };
        };
        let line = stream[..end].strip_suffix(b"\r").ok_or(Malformed)?;
        if !line.starts_with(b"VALUE ") {
            return Ok(Some(end + 1));
        }
        // The value, its line's end, and `END` with its own.
        let len = end + 1 + value_len(line).ok_or(Malformed)? + 2 + 5;
        Ok((stream.len() >= len).then_some(len))
    }

    fn id(&self, answer: &[u8], medium: Medium) -> Option<u64> {
        match medium {
            Medium::Datagram => datagram_text(answer).map(|(id, _)| u64::from(id)),
            Medium::Stream => None,
        }
    }

    fn check(&self, request: &Request, answer: &[u8], medium: Medium) -> Verdict {
        match medium {
            Medium::Stream => self.check_text(request.ticket, answer),
            Medium::Datagram => match datagram_text(answer) {
                Some((id, text)) if id == request.id as u16 => self.check_text(request.ticket, text),
                _ => Verdict::Wrong,
            },
        }
    }

    fn contact(&self) -> Ticket {
        Self::ticket(Operation::Get, 0)
    }

    fn preloads(&self) -> u64 {
        self.store.keys()
    }

    fn preload(&self, index: u64) -> Ticket {
        Self::ticket(Operation::Set, index)
    }
}
