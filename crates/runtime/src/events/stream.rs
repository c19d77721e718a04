//! A connection of a loop.
//!
//! Owns the stream, its link, and what is on loan of its data.
//!
//! # States
//! | state | reports | leaves it by |
//! |---|---|---|
//! | `Incoming` | nothing | `accept` |
//! | `Connecting` | - | `Connected`, or `Closed` |
//! | `Open` | `Received`, `Window` | `Eof`, or `Closed` |
//! | `Eof` | `Window` | `Closed` |
//! | `Over` | nothing | - |
//!
//! A visit reports one condition at most, in this order: the end of the handshake, data, the end of
//! data, a failure, room. So nothing that arrived before a failure is lost.

use super::condition::CommandError;
use super::inbox::Link;
use crate::net::tcp::Inner;
use crate::net::{SharedBytes, TcpStream};
use core::cell::Cell;
use core::ops::Deref;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;
use tailwater_net::tcp::Refusal;
use tailwater_tcp::{Buffer, Connection, SendError};

/// Buffers that a loop keeps for the next loan are no larger than this: one that a burst has filled
/// does not stay.
const MAX_SPARE_BYTES: usize = 64 << 10;
/// Number of buffers that a loop keeps.
const MAX_SPARES: usize = 64;
/// Bytes sent in a round from which a connection counts as one that fills a ring by itself.
const LARGE: usize = 8 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Incoming,
    Connecting,
    Open,
    Eof,
    Over,
}

/// What a visit reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Connected,
    Received(usize),
    Window { room: usize, acknowledged: usize },
    Eof,
    Closed(Option<io::ErrorKind>),
}

/// See the module documentation.
#[derive(Debug)]
pub struct Stream {
    stream: TcpStream,
    link: Arc<Link>,
    state: State,
    /// This side has closed its direction.
    shut_down: bool,
    lent: Buffer,
    /// Bytes at the beginning of `lent` that are consumed.
    consumed: usize,
    /// Bytes sent in this round.
    sent: Cell<usize>,
    /// A send was not accepted in full.
    wants_room: Cell<bool>,
    /// Bytes handed over that were not reported as acknowledged.
    unreported: Cell<usize>,
    /// Acknowledgments are reported although no send waits for room.
    reports_acknowledged: bool,
    /// The loop's list of connections with commands has it.
    listed: Cell<bool>,
}

impl Stream {
    fn new(stream: TcpStream, link: Arc<Link>, state: State) -> Self {
        Self {
            stream,
            link,
            state,
            shut_down: false,
            lent: Buffer::default(),
            consumed: 0,
            sent: Cell::new(0),
            wants_room: Cell::new(false),
            unreported: Cell::new(0),
            reports_acknowledged: false,
            listed: Cell::new(false),
        }
    }

    /// Returns a connection that waits to be accepted.
    pub fn incoming(stream: TcpStream, link: Arc<Link>) -> Self {
        Self::new(stream, link, State::Incoming)
    }

    /// Returns a connection that may still be connecting.
    pub fn watched(stream: TcpStream, link: Arc<Link>, connecting: bool) -> Self {
        let state = if connecting { State::Connecting } else { State::Open };
        let this = Self::new(stream, link, state);
        this.watch();
        this
    }

    fn watch(&self) {
        self.stream.with_inner(|inner| {
            // SAFETY: 1. each connection has its own link and watches once; `drop` ends the watch.
            // 2. The socket's lock is held.
            unsafe {
                self.link.watch_reads(inner.readers().watchers());
                self.link.watch_writes(inner.writers().watchers());
            }
        });
    }

    /// Begins to report a connection that waited to be accepted.
    ///
    /// # Errors
    /// [`CommandError::Accepted`].
    pub fn accept(&mut self) -> Result<(), CommandError> {
        if self.state != State::Incoming {
            return Err(CommandError::Accepted);
        }
        self.state = State::Open;
        self.watch();
        Ok(())
    }

    /// Returns the first condition that holds, and whether another one may.
    pub fn visit(&mut self, spares: &mut Vec<Buffer>) -> (Option<Change>, bool) {
        let (change, again) = self.look(spares);
        match change {
            Some(Change::Connected) => self.state = State::Open,
            Some(Change::Eof) => self.state = State::Eof,
            Some(Change::Closed(_)) => self.state = State::Over,
            Some(Change::Window { room, acknowledged }) => {
                // An acknowledgment may be reported while a send still waits for room.
                self.wants_room.update(|wants| wants && room == 0);
                self.unreported.update(|bytes| bytes - acknowledged);
            }
            Some(Change::Received(_)) | None => {}
        }
        (change, again)
    }

    fn look(&mut self, spares: &mut Vec<Buffer>) -> (Option<Change>, bool) {
        let Self { stream, lent, state, shut_down, wants_room, .. } = self;
        if matches!(state, State::Incoming | State::Over) {
            return (None, false);
        }
        let (acknowledges, unreported) = (self.reports_acknowledged, self.unreported.get());
        stream.with_inner(|inner| {
            let change = first_change(inner, *state, lent, spares);
            match change {
                Some(Change::Received(_)) => {
                    let more = inner.connection.is_readable() || inner.has_failed();
                    (change, more || wants_room.get() || acknowledges)
                }
                Some(Change::Closed(_)) => (change, false),
                Some(_) => (change, true),
                None => match window(inner, wants_room, acknowledges, unreported) {
                    Some(window) => (Some(window), true),
                    None if *state == State::Eof && *shut_down => (Some(Change::Closed(None)), false),
                    None => (None, false),
                },
            }
        })
    }

    /// Sets whether acknowledgments are reported although no send waits for room.
    pub fn report_acknowledged(&mut self, report: bool) {
        self.reports_acknowledged = report;
    }

    /// Returns the bytes that are on loan and not consumed.
    pub fn data(&self) -> &[u8] {
        self.lent.as_slice().get(self.consumed..).unwrap_or_default()
    }

    /// Returns whether the end of the peer's data was reported.
    pub fn is_eof(&self) -> bool {
        matches!(self.state, State::Eof | State::Over)
    }

    /// Ends the loan of the first `bytes`.
    ///
    /// # Errors
    /// [`CommandError::NotLent`].
    pub fn consume(&mut self, bytes: usize) -> Result<(), CommandError> {
        let lent = self.data().len();
        if bytes > lent {
            return Err(CommandError::NotLent { asked: bytes, lent });
        }
        self.consumed += bytes;
        Ok(())
    }

    /// Copies as much of the slices as there is room for to the send buffer; returns the number of
    /// bytes. [`complete`](Self::complete) sends them.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn send(&self, slices: &[IoSlice<'_>]) -> Result<usize, CommandError> {
        self.hand_over(slices, |connection, slice| connection.send(slice))
    }

    /// As [`send`](Self::send), with a reference in place of a copy.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn send_shared(&self, bytes: &SharedBytes) -> Result<usize, CommandError> {
        self.hand_over(core::slice::from_ref(bytes), Connection::send_shared)
    }

    /// Calls `give` with each piece until one is not accepted in full; returns the number of bytes
    /// accepted.
    #[inline]
    fn hand_over<B: Deref<Target = [u8]>>(
        &self,
        pieces: &[B],
        give: impl Fn(&mut Connection, &B) -> Result<usize, SendError>,
    ) -> Result<usize, CommandError> {
        self.check_sends()?;
        let (mut sent, mut cut) = (0, false);
        self.stream.with_inner(|inner| {
            for piece in pieces {
                match give(&mut inner.connection, piece) {
                    Ok(len) => {
                        sent += len;
                        cut = len < piece.len();
                    }
                    Err(SendError::WouldBlock) => cut = true,
                    Err(SendError::Closed | SendError::Failed(_)) => return Err(CommandError::Over),
                }
                if cut {
                    break;
                }
            }
            if self.reports_acknowledged {
                inner.connection.await_acknowledgment();
            }
            Ok(())
        })?;
        if cut {
            self.wants_room.set(true);
        }
        self.sent.update(|bytes| bytes + sent);
        self.unreported.update(|bytes| bytes + sent);
        Ok(sent)
    }

    /// Checks that this side's direction is open.
    fn check_sends(&self) -> Result<(), CommandError> {
        match self.state {
            State::Incoming => Err(CommandError::NotAccepted),
            State::Over => Err(CommandError::Over),
            State::Connecting | State::Open | State::Eof if self.shut_down => Err(CommandError::ShutDown),
            State::Connecting | State::Open | State::Eof => Ok(()),
        }
    }

    /// Closes this side's direction behind what was sent.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn shutdown(&mut self) -> Result<(), CommandError> {
        self.check_sends()?;
        // Otherwise it has failed, which the next round reports.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        self.shut_down = true;
        self.wants_room.set(false);
        Ok(())
    }

    /// Adds it to the loop's list of connections with commands; false if it is there.
    pub fn list(&self) -> bool {
        !self.listed.replace(true)
    }

    /// Returns whether so much was sent that it fills a ring by itself.
    pub fn is_large(&self) -> bool {
        self.sent.get() >= LARGE
    }

    /// Carries the round's commands out: one segment has what was sent, and opens the window by
    /// what was consumed.
    pub fn complete(&mut self, spares: &mut Vec<Buffer>) {
        self.listed.set(false);
        let consumed = core::mem::take(&mut self.consumed);
        self.stream.complete_round(self.sent.take(), consumed);
        self.lent.consume(consumed);
        if self.lent.is_empty() && self.lent.capacity() > 0 {
            let lent = core::mem::take(&mut self.lent);
            if spares.len() < MAX_SPARES && lent.capacity() <= MAX_SPARE_BYTES {
                spares.push(lent);
            }
        }
    }

    /// Ends all loans, so that the end of the stream is no reset.
    pub fn return_all(&mut self) {
        self.consumed = self.lent.len();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stream.with_inner(|inner| {
            // SAFETY: it watches these or, while it was not accepted, none.
            unsafe {
                self.link.ignore_reads(inner.readers().watchers());
                self.link.ignore_writes(inner.writers().watchers());
            }
        });
        self.link.leave();
        self.stream.complete_round(self.sent.take(), self.consumed);
        if matches!(self.stream.linger(), Ok(Some(linger)) if linger > Duration::ZERO) {
            // The end of the stream's last handle would wait.
            let _ = self.stream.set_linger(None);
        }
    }
}

/// Returns the room of a locked connection, and how many of `unreported` bytes are acknowledged, if
/// a send waits for room or acknowledgments are reported.
fn window(
    inner: &mut Inner,
    wants_room: &Cell<bool>,
    acknowledges: bool,
    unreported: usize,
) -> Option<Change> {
    if !wants_room.get() && !acknowledges {
        return None;
    }
    let connection = &mut inner.connection;
    let unacknowledged = connection.unacknowledged_bytes();
    // What a clone of the stream has sent may be among them.
    let acknowledged = unreported.saturating_sub(unacknowledged);
    let has_room = wants_room.get() && connection.poll_writable();
    let room = connection.writable_bytes();
    if has_room && room == 0 {
        // A clone of the stream has closed the direction: there will be no room.
        wants_room.set(false);
    }
    if acknowledges && unacknowledged > 0 {
        connection.await_acknowledgment();
    }
    inner.note_awaited();
    let due = has_room && room > 0 || acknowledges && acknowledged > 0;
    due.then_some(Change::Window { room, acknowledged })
}

/// Returns what a locked connection reports before it reports room.
fn first_change(
    inner: &mut Inner,
    state: State,
    lent: &mut Buffer,
    spares: &mut Vec<Buffer>,
) -> Option<Change> {
    if state == State::Connecting {
        if inner.is_connecting() {
            return None;
        }
        if !inner.has_failed() {
            return Some(Change::Connected);
        }
    }
    if state == State::Open && inner.connection.is_readable() {
        if lent.capacity() == 0 {
            *lent = spares.pop().unwrap_or_default();
        }
        match inner.lend_untraced(lent) {
            Ok(fresh @ 1..) => return Some(Change::Received(fresh)),
            Ok(_) if !inner.has_failed() => return Some(Change::Eof),
            Err(Refusal::Failed(failure)) => return Some(Change::Closed(Some(TcpStream::kind_of(failure)))),
            Ok(_) | Err(_) => {}
        }
    }
    inner.has_failed().then(|| Change::Closed(inner.take_failure().map(TcpStream::kind_of)))
}
