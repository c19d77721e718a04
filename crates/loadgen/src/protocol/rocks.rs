//! The rocks protocol as a [`Protocol`]; its layout is in `tailwater_workload::rocks`.
//!
//! The store has the keys 0 to `keys` - 1, each with a value of the same length derived from the
//! key. So a GET's value and a SCAN's sums are known in advance.
//!
//! A ticket is the operation in its two lowest bits and the key above. GETs are of class 0, SCANs
//! of class 1, PUTs of class 2.

use tailwater_workload::random::unit_open_closed;
use tailwater_workload::rocks::{HEADER_LEN, Header, MAX_BODY, Operation, ScanSum, Status, write_value};
use tailwater_workload::{Prng, content};

use super::{Ids, Malformed, Medium, Protocol, Request, Ticket, Verdict};

/// Longest value: with its header it fits the datagrams of any network.
pub const MAX_VALUE: usize = 1_400;

/// Why a mix of requests was refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum RocksError {
    /// No keys, or too many.
    #[error("a rocks store has 1 to 2^32 keys, not {keys}")]
    Keys {
        /// What was given.
        keys: u64,
    },
    /// Values that do not fit a datagram.
    #[error("values have at most {MAX_VALUE} bytes, not {bytes}")]
    Value {
        /// What was given.
        bytes: usize,
    },
    /// Shares that are invalid or sum to more than 1.
    #[error("the shares of SCAN and PUT must be in 0..=1 and sum to at most 1, not {scan} and {put}")]
    Shares {
        /// Of SCAN.
        scan: f64,
        /// Of PUT.
        put: f64,
    },
}

/// Reads, scans and writes an ordered store.
#[derive(Debug, Clone)]
pub struct Rocks {
    keys: u64,
    value_len: usize,
    scan_share: f64,
    put_share: f64,
    scan_count: u32,
}

impl Rocks {
    /// Creates a client of `keys` keys with values of `value_len` bytes.
    ///
    /// # Errors
    /// [`RocksError::Keys`] and [`RocksError::Value`].
    pub fn new(keys: u64, value_len: usize) -> Result<Self, RocksError> {
        if keys == 0 || keys > 1 << 32 {
            return Err(RocksError::Keys { keys });
        }
        if value_len > MAX_VALUE {
            return Err(RocksError::Value { bytes: value_len });
        }
        // Shinjuku section 4: scans of 5000 keys.
        Ok(Self { keys, value_len, scan_share: 0.0, put_share: 0.0, scan_count: 5_000 })
    }

    /// Sets the shares of scans and writes; the other requests are reads.
    ///
    /// # Errors
    /// [`RocksError::Shares`].
    pub fn with_shares(self, scan: f64, put: f64) -> Result<Self, RocksError> {
        let each = [scan, put].iter().all(|share| (0.0..=1.0).contains(share));
        if !each || scan + put > 1.0 {
            return Err(RocksError::Shares { scan, put });
        }
        Ok(Self { scan_share: scan, put_share: put, ..self })
    }

    /// Sets the number of entries that a scan reads at most.
    #[must_use]
    pub fn with_scan_count(self, scan_count: u32) -> Self {
        Self { scan_count, ..self }
    }

    fn ticket(operation: Operation, key: u64) -> Ticket {
        let code = match operation {
            Operation::Get => 0,
            Operation::Scan => 1,
            Operation::Put => 2,
        };
        key << 2 | code
    }

    fn asked(ticket: Ticket) -> (Operation, u64) {
        let operation = match ticket & 3 {
            0 => Operation::Get,
            1 => Operation::Scan,
            _ => Operation::Put,
        };
        (operation, ticket >> 2)
    }

    /// Returns true if `body` is what the store holds.
    fn is_body(&self, operation: Operation, key: u64, count: u32, body: &[u8]) -> bool {
        match operation {
            Operation::Get => count == 1 && body.len() == self.value_len && content::is_content(key, body),
            Operation::Put => count == 1 && body.is_empty(),
            Operation::Scan => {
                let want = u64::from(self.scan_count).min(self.keys.saturating_sub(key));
                u64::from(count) == want
                    && ScanSum::decode(body) == Some(ScanSum::expected(key, count, self.value_len))
            }
        }
    }
}

impl Protocol for Rocks {
    fn name(&self) -> &'static str {
        "rocks"
    }

    fn ids(&self, _medium: Medium) -> Ids {
        Ids::Long
    }

    fn draw(&self, prng: &mut Prng) -> Ticket {
        let kind = unit_open_closed(prng);
        // The draw can be 1.
        let key = ((unit_open_closed(prng) * self.keys as f64) as u64).min(self.keys - 1);
        let operation = if kind <= self.scan_share {
            Operation::Scan
        } else if kind <= self.scan_share + self.put_share {
            Operation::Put
        } else {
            Operation::Get
        };
        Self::ticket(operation, key)
    }

    fn encode(&self, request: &Request, _medium: Medium, out: &mut Vec<u8>) {
        let (operation, key) = Self::asked(request.ticket);
        let mut header = Header::request(operation, request.id, key, 0);
        match operation {
            Operation::Get => {}
            Operation::Scan => header.count = self.scan_count,
            Operation::Put => header.body_len = self.value_len as u32,
        }
        out.extend_from_slice(&header.encode());
        if operation == Operation::Put {
            write_value(key, self.value_len, out);
        }
    }

    fn split(&self, stream: &[u8]) -> Result<Option<usize>, Malformed> {
        if stream.len() < HEADER_LEN {
            return Ok(None);
        }
        let header = Header::decode(stream).map_err(|_| Malformed)?;
        header.status.ok_or(Malformed)?;
        // At most MAX_BODY, by decoding.
        let len = HEADER_LEN + header.body_len as usize;
        const { assert!(HEADER_LEN + MAX_BODY <= super::MAX_ANSWER) };
        Ok((stream.len() >= len).then_some(len))
    }

    fn id(&self, answer: &[u8], _medium: Medium) -> Option<u64> {
        let header = Header::decode(answer).ok()?;
        (header.status.is_some() && answer.len() == HEADER_LEN + header.body_len as usize)
            .then_some(header.id)
    }

    fn check(&self, request: &Request, answer: &[u8], _medium: Medium) -> Verdict {
        let Ok(header) = Header::decode(answer) else { return Verdict::Wrong };
        let (operation, key) = Self::asked(request.ticket);
        let body = &answer[HEADER_LEN..];
        if (header.operation, header.key, header.id) != (operation, key, request.id)
            || body.len() != header.body_len as usize
        {
            return Verdict::Wrong;
        }
        match header.status {
            Some(Status::Done) if self.is_body(operation, key, header.count, body) => Verdict::Right,
            Some(Status::NotFound) if operation == Operation::Get && body.is_empty() => Verdict::Miss,
            Some(Status::Refused | Status::Failed) if body.is_empty() => Verdict::Refused,
            _ => Verdict::Wrong,
        }
    }

    fn class(&self, ticket: Ticket) -> usize {
        match Self::asked(ticket).0 {
            Operation::Get => 0,
            Operation::Scan => 1,
            Operation::Put => 2,
        }
    }

    fn contact(&self) -> Ticket {
        Self::ticket(Operation::Get, 0)
    }

    fn preloads(&self) -> u64 {
        self.keys
    }

    fn preload(&self, index: u64) -> Ticket {
        Self::ticket(Operation::Put, index)
    }
}
