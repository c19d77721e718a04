//! One connection of a server: its reader, its writer, and the right to reply that each request
//! carries.
//!
//! The reader accepts requests while there is room for them; else it does not read, and the
//! client's bytes wait in its own socket. The writer alone waits for a client that does not read:
//! threads of the dispatcher leave their replies and go on.
//!
//! | thread | waits for | is woken by |
//! |---|---|---|
//! | reader | bytes | the stream, also when the writer has shut it down |
//! | reader | room ([`Connection::room`]) | the writer, after each batch and at its end; an empty reply |
//! | reader | a part of the budget, if there is one | a reply that is made or written, of any connection |
//! | reader | a permit for the dispatcher's queue | a request that begins |
//! | writer | replies ([`Connection::ready`]) | a request that is completed; the reader's end |
//! | writer | the client to read | the stream |
//!
//! After that both wait for the client once more ([`closing`]).

use super::super::dispatcher::Dispatcher;
use super::super::server::catch;
use super::super::udp::{Service, flow_of, request};
use super::budget::{Budget, Room};
use super::closing;
use super::framing::Framing;
use super::input::{Found, Input};
use super::pace::Pace;
use super::replies::{Replies, Write as Next};
use super::{Counters, Job, Source};
use crate::dispatch::permits::QueuePermits;
use crate::ground::spin::SpinLock;
use crate::net::TcpStream;
use crate::sync::{Event, Notify, OwnedSemaphorePermit};
use core::sync::atomic::Ordering::Relaxed;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum length of a reply for which memory is reserved: sums of such lengths do not overflow.
const REPLY_MAX: usize = 1 << 40;

/// What the threads of a server share.
pub struct Shared<S> {
    pub service: Arc<S>,
    pub framing: Framing,
    pub counters: Arc<Counters>,
    /// A request that begins gives its permit back.
    pub permits: Arc<QueuePermits>,
    pub budget: Arc<Budget>,
}

/// A connection, for as long as a thread serves it or a request of it is outstanding.
#[derive(Debug)]
pub struct Connection {
    replies: SpinLock<Replies>,
    room: Notify,
    ready: Notify,
    /// Nothing more is read, not even to be discarded.
    reader_ended: Event,
    idle: Option<Duration>,
    counters: Arc<Counters>,
    budget: Arc<Budget>,
    _open: OwnedSemaphorePermit,
}

/// The right to reply to a request. Dropped without a reply, it closes the connection.
#[derive(Debug)]
pub struct Ticket {
    connection: Arc<Connection>,
    number: u64,
    /// Bytes of the request and its longest reply.
    len: usize,
    replied: bool,
}

/// What a request and its longest reply take.
struct Taken {
    len: usize,
    room: Room,
}

/// Why no more requests are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client sends no more, or the writer has ended.
    Over,
    /// It has ended or failed amid a request.
    Cut,
    Malformed,
    TooLong,
    Unclassified,
    Idle,
}

impl Ticket {
    /// Completes the request.
    pub fn reply(mut self, reply: Vec<u8>) {
        self.complete(Some(reply));
    }

    fn complete(&mut self, reply: Option<Vec<u8>>) {
        self.replied = true;
        self.connection.change(|replies| replies.complete(self.number, self.len, reply));
        self.connection.ready.notify_one();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.replied {
            self.complete(None);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counters.unsent.fetch_add(self.replies.lock().unsent(), Relaxed);
    }
}

impl Connection {
    /// A new connection, which counts as open for as long as it lives.
    pub fn new<S>(shared: &Shared<S>, open: OwnedSemaphorePermit) -> Self {
        Self {
            replies: SpinLock::new(Replies::new(&shared.framing.limits)),
            room: Notify::new(),
            ready: Notify::new(),
            reader_ended: Event::new(),
            idle: shared.framing.limits.idle,
            counters: Arc::clone(&shared.counters),
            budget: Arc::clone(&shared.budget),
            _open: open,
        }
    }

    /// Reads requests until the connection ends, and discards what the client sends from then on.
    pub fn read<S: Service>(
        self: &Arc<Self>,
        stream: &TcpStream,
        from: SocketAddr,
        shared: &Shared<S>,
        dispatcher: Dispatcher<Job>,
    ) {
        let counter = match self.read_until(stream, from, shared, dispatcher) {
            End::Over => None,
            End::Cut => Some(&self.counters.cut),
            End::Malformed => Some(&self.counters.malformed),
            End::TooLong => Some(&self.counters.too_long),
            End::Unclassified => Some(&self.counters.unclassified),
            End::Idle => Some(&self.counters.idle),
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Relaxed);
        }
        self.end_requests();
        closing::discard(stream);
        self.reader_ended.set();
    }

    /// Ends a connection whose reader cannot be started.
    pub fn abandon(&self) {
        self.end_requests();
        self.reader_ended.set();
    }

    /// Records that no more requests are read.
    fn end_requests(&self) {
        self.replies.lock().end();
        self.ready.notify_one();
    }

    fn read_until<S: Service>(
        self: &Arc<Self>,
        mut stream: &TcpStream,
        from: SocketAddr,
        shared: &Shared<S>,
        dispatcher: Dispatcher<Job>,
    ) -> End {
        let (framing, flow) = (&shared.framing, flow_of(from));
        let mut input = Input::default();
        // When the first bytes of a request arrived that is not complete.
        let mut begun: Option<Instant> = None;
        // What that request takes, as soon as its length is known.
        let mut taken: Option<Taken> = None;
        let mut completed = 0;
        loop {
            match input.next(framing) {
                Found::Request(bytes) => {
                    begun = None;
                    let taken = match taken.take() {
                        Some(taken) => Ok(taken),
                        None => self.take_room(shared, &bytes, bytes.len()),
                    };
                    let submitted =
                        taken.and_then(|taken| self.submit(bytes, taken, flow, shared, dispatcher));
                    if let Err(end) = submitted {
                        return end;
                    }
                    continue;
                }
                Found::Nothing => {
                    if taken.is_none()
                        && let Some((head, len)) = input.announced()
                    {
                        match self.take_room(shared, head, len) {
                            Ok(room) => taken = Some(room),
                            Err(end) => return end,
                        }
                        // The client did not hold up what has waited for room.
                        begun = None;
                    }
                }
                Found::Malformed => return End::Malformed,
                Found::TooLong => return End::TooLong,
            }
            match stream.read(input.space(framing)) {
                Ok(1..) | Err(_) if self.replies.lock().is_broken() => return End::Over,
                Ok(len @ 1..) => input.filled(len),
                Err(error) if is_timeout(&error) => {
                    let (outstanding, now) = self.replies.lock().progress();
                    // From a reply on, a client may be silent for a whole idle time.
                    let waits = outstanding > 0 || now != completed;
                    completed = now;
                    if !waits {
                        return End::Idle;
                    }
                }
                // The end, a reset, or the writer has given up.
                Ok(_) | Err(_) => {
                    let is_cut = input.is_amid_request() && !self.replies.lock().is_broken();
                    return if is_cut { End::Cut } else { End::Over };
                }
            }
            if let Some(idle) = self.idle
                && input.is_amid_request()
                && begun.get_or_insert_with(Instant::now).elapsed() > idle
            {
                return End::Idle;
            }
        }
    }

    /// Waits for a part of the budget for the request of `len` bytes that begins with `head`.
    fn take_room<S: Service>(&self, shared: &Shared<S>, head: &[u8], len: usize) -> Result<Taken, End> {
        let reply = catch(|| shared.service.reply_len(head)).ok_or(End::Unclassified)?;
        let len = len.saturating_add(reply.min(REPLY_MAX));
        Ok(Taken { len, room: self.budget.take(len) })
    }

    /// Waits for room, and passes a request to the dispatcher.
    fn submit<S: Service>(
        self: &Arc<Self>,
        bytes: Box<[u8]>,
        taken: Taken,
        flow: u32,
        shared: &Shared<S>,
        dispatcher: Dispatcher<Job>,
    ) -> Result<(), End> {
        let service = &*shared.service;
        let request =
            catch(|| request(service, service.classify(&bytes), &bytes, flow)).ok_or(End::Unclassified)?;
        let len = taken.len;
        let number = self.wait_for_room(taken).ok_or(End::Over)?;
        // Before the wait for a permit, which is the server's; after that for room, which is the
        // client's: one that reads no replies would have old requests, which policies prefer.
        let request = request.arrives();
        let ticket = Ticket { connection: Arc::clone(self), number, len, replied: false };
        let permit = shared.permits.try_take(request.class()).unwrap_or_else(|| {
            self.counters.held_back.fetch_add(1, Relaxed);
            shared.permits.take(request.class())
        });
        let from = Source::Connection(ticket);
        // With a permit, it is not refused.
        dispatcher.submit(request, Job { bytes, from, permit }).map_err(|_refused| End::Over)
    }

    /// Changes the replies; those that it discards are freed after the lock.
    fn change(&self, change: impl FnOnce(&mut Replies)) {
        let mut replies = self.replies.lock();
        change(&mut replies);
        let (discarded, surplus) = (replies.take_discarded(), replies.take_surplus());
        drop(replies);
        drop(discarded);
        self.budget.give_back(surplus);
    }

    /// Begins a request as soon as there is room for it; returns its number. `None`: the connection
    /// is over.
    fn wait_for_room(&self, taken: Taken) -> Option<u64> {
        loop {
            let mut replies = self.replies.lock();
            if replies.is_broken() {
                drop(replies);
                return None;
            }
            if replies.has_room() {
                return Some(replies.begin(taken.len, taken.room.keep()));
            }
            drop(replies);
            self.room.wait();
        }
    }

    /// Writes replies until the connection is over, then closes it.
    pub fn write(&self, stream: &TcpStream) {
        if self.write_replies(|batch| write_all(stream, batch, self.idle)) {
            closing::close(stream, self.idle, &self.reader_ended);
        } else {
            closing::reset(stream);
        }
    }

    /// Passes replies to `write` until the connection is over; returns whether none has failed.
    fn write_replies(&self, write: impl Fn(&[Vec<u8>]) -> io::Result<()>) -> bool {
        let mut has_failed = false;
        loop {
            // In a statement of its own, so that the lock is free afterwards.
            let next = self.replies.lock().next();
            match next {
                Next::Replies(batch) => has_failed |= self.write_batch(&write, &batch).is_err(),
                Next::Nothing => self.ready.wait(),
                Next::End => break,
            }
            self.room.notify_one();
        }
        // A request that panicked may have ended the connection since the reader found no room.
        self.room.notify_one();
        !has_failed
    }

    /// Passes replies to `write`; if that fails, no further one is written.
    fn write_batch(&self, write: impl Fn(&[Vec<u8>]) -> io::Result<()>, batch: &[Vec<u8>]) -> io::Result<()> {
        let bytes = batch.iter().map(Vec::len).sum();
        let written = write(batch);
        self.change(|replies| match &written {
            Ok(()) => replies.written(batch.len(), bytes),
            Err(_) => replies.break_off(batch.len(), bytes),
        });
        if let Err(error) = &written
            && is_timeout(error)
        {
            self.counters.idle.fetch_add(1, Relaxed);
        }
        written
    }
}

/// Writes replies, none of which is empty, as one flow of bytes.
///
/// # Errors
/// Those of the stream; [`TimedOut`](ErrorKind::TimedOut) if the client reads too slowly.
fn write_all(mut stream: &TcpStream, batch: &[Vec<u8>], idle: Option<Duration>) -> io::Result<()> {
    let Some(last) = batch.len().checked_sub(1) else { return Ok(()) };
    let mut pace = idle.map(|idle| Pace::new(idle, Instant::now()));
    for (i, reply) in batch.iter().enumerate() {
        let mut rest = &reply[..];
        while !rest.is_empty() {
            let len = if i < last { stream.corked().write(rest)? } else { stream.write(rest)? };
            rest = &rest[len..];
            let is_done = i == last && rest.is_empty();
            if let Some(pace) = &mut pace
                && !is_done
                && !pace.follows(len, Instant::now())
            {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }
    Ok(())
}

/// Returns whether a stream's timeout has passed.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::super::framing::Frame;
    use super::*;
    use crate::sync::Semaphore;

    struct Silent;

    impl Service for Silent {
        fn classify(&self, _: &[u8]) -> usize {
            0
        }

        fn handle(&self, _: &[u8], _: &mut Vec<u8>) {}
    }

    /// Returns a connection with room for one request.
    fn connection() -> Arc<Connection> {
        let shared = Shared {
            service: Arc::new(Silent),
            framing: Framing::new(|_, _| Frame::Partial).outstanding(1),
            counters: Arc::default(),
            permits: Arc::new(QueuePermits::new(1, 1)),
            budget: Budget::new(None),
        };
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("the first");
        Arc::new(Connection::new(&shared, permit))
    }

    #[test]
    fn a_reader_that_has_found_no_room_is_woken_by_the_end_of_the_connection() {
        let connection = connection();
        let number = connection.replies.lock().begin(1, 0);
        assert!(!connection.replies.lock().has_room(), "the reader waits");
        // The request panics between two looks of the writer.
        drop(Ticket { connection: Arc::clone(&connection), number, len: 1, replied: false });
        assert!(connection.write_replies(|_| Ok(())));
        assert!(connection.room.try_wait(), "the reader waits for good");
    }
}
