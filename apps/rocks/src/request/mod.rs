//! The execution of a request, independent of what carried it.
//!
//! Owns [`handle`], the [limits](Limits) of requests, and the [counts](Tally). Bytes are untrusted
//! until [`handle`] has decoded them; any bytes give a reply or [`NoRequest`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tailwater_workload::rocks::{HEADER_LEN, Header, MAX_BODY, Operation, Status};

use crate::Store;

/// Maximum length of a message in a UDP datagram over IPv4, in bytes (RFC 768, RFC 791 section
/// 3.1).
pub const MAX_DATAGRAM: usize = 65_507;

/// Maximum length of a message in bytes.
pub const MAX_MESSAGE: usize = HEADER_LEN + MAX_BODY;

/// Limits of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of entries of a SCAN.
    pub scan: u32,
    /// Maximum length of the value of a PUT in bytes, at most [`MAX_BODY`].
    pub value: usize,
    /// How long a connection may be silent while it waits for nothing, take for a request once it
    /// has begun, and leave a reply unread; then it is closed.
    pub idle: Duration,
}

impl Default for Limits {
    /// 1,000,000 entries, 1 MiB, a minute.
    fn default() -> Self {
        Self { scan: 1_000_000, value: MAX_BODY, idle: Duration::from_secs(60) }
    }
}

/// The bytes are not a request: no answer is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRequest;

/// Executes the request in `bytes`, and puts the reply into `reply`, replacing its contents. A SCAN
/// calls `poll` about every microsecond. A reply longer than `longest` becomes *refused*.
///
/// # Errors
/// [`NoRequest`]: nothing was done.
pub fn handle(
    bytes: &[u8],
    store: &Store,
    limits: &Limits,
    longest: usize,
    poll: &mut impl FnMut(),
    reply: &mut Vec<u8>,
) -> Result<Status, NoRequest> {
    let request = Header::decode(bytes).map_err(|_| NoRequest)?;
    let body = &bytes[HEADER_LEN..];
    if request.status.is_some() || body.len() != request.body_len as usize {
        return Err(NoRequest);
    }
    reply.clear();
    reply.resize(HEADER_LEN, 0);
    let (mut status, mut count) = execute(&request, body, store, limits, poll, reply);
    if reply.len() > longest.min(MAX_MESSAGE) {
        (status, count) = (Status::Refused, 0);
    }
    if status != Status::Done {
        reply.truncate(HEADER_LEN);
        count = 0;
    }
    let body_len = (reply.len() - HEADER_LEN) as u32;
    let header = Header { status: Some(status), count, body_len, ..request };
    reply[..HEADER_LEN].copy_from_slice(&header.encode());
    Ok(status)
}

/// Appends the reply's body to `reply`; returns its status and count.
fn execute(
    request: &Header,
    body: &[u8],
    store: &Store,
    limits: &Limits,
    poll: &mut impl FnMut(),
    reply: &mut Vec<u8>,
) -> (Status, u32) {
    let &Header { operation, key, count, .. } = request;
    let fits = match operation {
        Operation::Get => count == 0 && body.is_empty(),
        Operation::Scan => count <= limits.scan && body.is_empty(),
        Operation::Put => count == 0 && body.len() <= limits.value,
    };
    if !fits {
        return (Status::Refused, 0);
    }
    let done = match operation {
        Operation::Get => store.get(key, reply).map(|found| found.then_some(1)),
        Operation::Put => store.put(key, body).map(|()| Some(1)),
        Operation::Scan => store.scan(key, count, poll).map(|scan| {
            reply.extend_from_slice(&scan.sum.encode());
            Some(scan.entries)
        }),
    };
    match done {
        Ok(Some(count)) => (Status::Done, count),
        Ok(None) => (Status::NotFound, 0),
        Err(_) => (Status::Failed, 0),
    }
}

/// Counters of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests answered with done or not found.
    pub served: u64,
    /// Requests refused.
    pub refused: u64,
    /// Requests that the store failed to do.
    pub failed: u64,
    /// Datagrams that are no requests, dropped, and connections closed because of such bytes.
    pub malformed: u64,
    /// Replies that could not be sent.
    pub unsent: u64,
    /// Datagrams that found as many requests waiting as are allowed.
    pub dropped: u64,
}

/// [`Counts`] of a running server: serving threads add to them and any thread reads them, in no
/// particular order.
#[derive(Debug, Default)]
pub struct Tally {
    served: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    malformed: AtomicU64,
    unsent: AtomicU64,
}

impl Tally {
    /// Counts a request by the status of its reply.
    pub fn count(&self, status: Status) {
        let count = match status {
            Status::Done | Status::NotFound => &self.served,
            Status::Refused => &self.refused,
            Status::Failed => &self.failed,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Counts bytes that are not a request.
    pub fn count_malformed(&self) {
        self.malformed.fetch_add(1, Relaxed);
    }

    /// Counts a reply that could not be sent.
    pub fn count_unsent(&self) {
        self.unsent.fetch_add(1, Relaxed);
    }

    /// Returns the counters. None is dropped here.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            served: self.served.load(Relaxed),
            refused: self.refused.load(Relaxed),
            failed: self.failed.load(Relaxed),
            malformed: self.malformed.load(Relaxed),
            unsent: self.unsent.load(Relaxed),
            dropped: 0,
        }
    }
}

#[cfg(test)]
mod tests;
