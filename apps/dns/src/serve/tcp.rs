//! Connections: queries one after the other, each preceded by its length (RFC 1035, section 4.2.2;
//! RFC 7766).
//!
//! Owns a connection from its acceptance to its end. Queries that have arrived together are
//! answered together, in their order. A connection ends when the client closes it, when no whole
//! query has arrived for the [idle time](super::Limits::idle), even if single octets arrive, when
//! the client does not read an answer for as long, or at a message that is not a query.
//!
//! Memory of a connection: 512 octets, growing to the longest query (at most 64 KiB), and as much
//! for unsent answers, at most 16 KiB and one answer.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::counters::Event;
use super::{Shared, Stream};
use crate::answer::{Transport, Verdict, respond};

/// Length of a message's length field in octets.
const PREFIX: usize = 2;

/// Minimum number of octets read at a time.
const READ_LEN: usize = 512;

/// Octets of answers at which they are sent without waiting for more queries.
const FLUSH_AT: usize = 16 * 1024;

/// A place among the connections of a server.
#[derive(Debug)]
pub struct Permit(Arc<Shared>);

impl Permit {
    /// Takes a place; `None`, and counted, if all are taken: close the connection then.
    pub fn take(shared: &Arc<Shared>) -> Option<Self> {
        // Relaxed: the number guards nothing but itself.
        let free = |taken: usize| (taken < shared.limits.connections).then_some(taken + 1);
        if shared.connections.try_update(Relaxed, Relaxed, free).is_ok() {
            return Some(Self(Arc::clone(shared)));
        }
        shared.counters().add(Event::Refused);
        None
    }

    /// Serves a connection to its end.
    ///
    /// # Errors
    /// Why it ended, unless the client closed it after its last query; callers may ignore it.
    pub fn serve(&self, stream: &mut impl Stream) -> io::Result<()> {
        stream.set_nodelay()?;
        stream.set_write_timeout(self.0.limits.idle)?;
        Connection {
            shared: &self.0,
            stream,
            received: Vec::new(),
            begin: 0,
            answers: Vec::new(),
            answer: Vec::new(),
        }
        .serve()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

struct Connection<'a, S> {
    shared: &'a Shared,
    stream: &'a mut S,
    /// Received octets; answered up to `begin`.
    received: Vec<u8>,
    begin: usize,
    /// Answers not sent yet.
    answers: Vec<u8>,
    /// Buffer for one answer.
    answer: Vec<u8>,
}

impl<S: Stream> Connection<'_, S> {
    fn serve(&mut self) -> io::Result<()> {
        let mut deadline = Instant::now() + self.shared.limits.idle;
        loop {
            let before = self.begin;
            self.answer_all()?;
            if self.begin > before {
                deadline = Instant::now() + self.shared.limits.idle;
            }
            if !self.receive(deadline)? {
                return Ok(());
            }
        }
    }

    /// Answers all queries that have arrived completely.
    fn answer_all(&mut self) -> io::Result<()> {
        while let Some((length, rest)) = self.received[self.begin..].split_first_chunk::<PREFIX>()
            && let Some(query) = rest.get(..usize::from(u16::from_be_bytes(*length)))
        {
            // No view is kept between queries: an idle connection would keep replaced zones alive.
            let zones = self.shared.store.zones();
            let Verdict::Reply(answered) = respond(&zones, query, Transport::Tcp, &mut self.answer) else {
                self.shared.counters().add(Event::Ignored);
                self.flush()?;
                return Err(ErrorKind::InvalidData.into());
            };
            self.begin += PREFIX + query.len();
            // An answer has at most 65,535 octets.
            self.answers.extend_from_slice(&(self.answer.len() as u16).to_be_bytes());
            self.answers.extend_from_slice(&self.answer);
            self.shared.counters().add_answer(Transport::Tcp, answered);
            if self.answers.len() >= FLUSH_AT {
                self.flush()?;
            }
        }
        self.flush()
    }

    /// Sends the answers, all of them before one deadline, however slowly the client reads them.
    /// Between two calls a write may wait for the idle time; the timeout is shortened only if one
    /// write is not enough.
    fn flush(&mut self) -> io::Result<()> {
        let idle = self.shared.limits.idle;
        let deadline = Instant::now() + idle;
        let (mut rest, mut shortened) = (&self.answers[..], false);
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if !rest.is_empty() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(ErrorKind::TimedOut.into());
                }
                self.stream.set_write_timeout(left)?;
                shortened = true;
            }
        }
        if shortened {
            self.stream.set_write_timeout(idle)?;
        }
        self.answers.clear();
        Ok(())
    }

    /// Reads some octets; returns false at the end.
    fn receive(&mut self, deadline: Instant) -> io::Result<bool> {
        self.received.drain(..self.begin);
        self.begin = 0;
        let len = self.received.len();
        self.received.resize((2 * len).max(READ_LEN), 0);
        let result = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(left)?;
            match self.stream.read(&mut self.received[len..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        let read = result?;
        self.received.truncate(len + read);
        Ok(read > 0)
    }
}
