//! One client's connection: bytes in, bytes out, in any pieces.
//!
//! The server puts received bytes into [`Connection::space`], calls [`Connection::process`], writes
//! [`Connection::output`], and does as the [`Step`] says. Pipelined commands are answered into one
//! output until it is full or the input is used up, so that a server writes once for many.
//!
//! Bounds: the input by [`buffer::MAX`], the output by [`OUTPUT`] plus the answer to one command,
//! which is a value of up to [`INLINE`] bytes or [statistics](super::stats). Larger values and
//! blocks stay in the store while they are transferred. No memory is allocated per command once the
//! buffers have grown; a buffer that grew for statistics is not kept.
//!
//! | state | waits for | left by |
//! |---|---|---|
//! | `Command` | a line, with its block if both fit the buffer; a packet | the command |
//! | `Keys` | the next key of a retrieval, room for its value | the end of the line |
//! | `Send` | room for the rest of a large value | its end; then `Keys` or `Command` |
//! | `Fill` | the rest of a large block | its end |
//! | `Swallow` | the rest of a refused block | its end |
//! | `SkipLine` | the end of a line whose answer is complete | it |
//! | `Dump` | room for more of a list | its end |
//! | `Closed` | nothing | - |
//!
//! A server with classes of requests has a connection [divide](Connection::divide_turns) its
//! commands into turns: [`Connection::process`] then returns before a retrieval of the other
//! [size](super::size).

use std::sync::Arc;

use super::buffer::{self, Input};
use super::bytes::DecodedKey;
use super::dump::{Dump, Listed};
use super::packet::REQUEST;
#[cfg(any(test, feature = "fuzzing"))]
use super::stats;
use super::turn::{Block, Keys, Next, Reply, Turn};
use super::words::{BAD_CHUNK, BAD_LINE};
use super::{binary, meta, size, text};
use crate::service::Service;
use crate::store::{Filling, Horizon, MAX_KEY, Now, Pinned, Put, Refusal, Stored};

/// Bytes of output after which a connection has it written before it continues.
const OUTPUT: usize = 32 << 10;
/// Largest value that goes to the output as a whole.
const INLINE: usize = 16 << 10;
/// Longest output.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) const MAX_OUTPUT: usize = OUTPUT + stats::MAX_LEN;
/// Output buffers up to this size are kept: vectors at most double, so without statistics none is
/// larger.
pub(crate) const KEPT: usize = 2 * (OUTPUT + INLINE + 1024);
/// Longest line; only those that list keys may be longer, and are then read key by key.
pub(super) const MAX_LINE: usize = 2048;

/// The server's next step, after it has written the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Read.
    Read,
    /// Process again.
    Continue,
    /// Close.
    Close,
}

#[derive(Debug)]
enum State {
    Command,
    Keys(Keys),
    Send { pinned: Pinned, tail: &'static [u8], then: Option<Keys> },
    Fill { filling: Filling, put: Put, reply: Reply, line: Vec<u8> },
    Swallow(usize),
    SkipLine,
    Dump(Dump),
    Closed,
}

/// A client's connection.
#[derive(Debug)]
pub struct Connection {
    service: Arc<Service>,
    input: Input,
    output: Vec<u8>,
    state: State,
    /// True for the binary protocol; set by the first byte.
    binary: Option<bool>,
    output_limit: usize,
    inline_limit: usize,
    /// Number of keys from which a retrieval is large, if turns are divided.
    large: Option<usize>,
    /// True if this turn has large retrievals.
    is_large: bool,
    horizon: Horizon,
}

impl Connection {
    /// Creates the connection of a new client.
    #[must_use]
    pub fn new(service: Arc<Service>) -> Self {
        Self::with_limits(service, OUTPUT, INLINE)
    }

    /// Creates a connection that collects answers of up to `output_limit` bytes, and values of up
    /// to `inline_limit` within one turn.
    pub(super) fn with_limits(service: Arc<Service>, output_limit: usize, inline_limit: usize) -> Self {
        let (input, output, state) = (Input::new(), Vec::new(), State::Command);
        let (binary, large, is_large, horizon) = (None, None, false, Horizon::default());
        Self { service, input, output, state, binary, output_limit, inline_limit, large, is_large, horizon }
    }

    /// Returns the space for the client's bytes; empty only before [`process`](Self::process).
    pub fn space(&mut self) -> &mut [u8] {
        self.input.space()
    }

    /// Records that `len` bytes were put there.
    ///
    /// # Panics
    /// If that is more than there was space for.
    pub fn received(&mut self, len: usize) {
        self.input.filled(len);
    }

    /// Returns the bytes to write to the client.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Records that all output was written.
    pub fn sent(&mut self) {
        self.output.clear();
        self.output.shrink_to(KEPT);
    }

    /// Returns the latest changes that the commands executed so far have made, or may have seen.
    #[must_use]
    pub fn horizon(&self) -> &Horizon {
        &self.horizon
    }

    /// Returns the bytes of memory of the output.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn output_memory(&self) -> usize {
        self.output.capacity()
    }

    /// Resets the connection to that of a new client.
    pub(super) fn reset(&mut self) {
        self.drop_state();
        (self.state, self.binary) = (State::Command, None);
        self.input.clear();
        self.output.clear();
    }

    /// Releases everything that the store holds for this client.
    fn drop_state(&mut self) {
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Send { pinned, .. } => self.service.store.release(pinned),
            State::Fill { filling, .. } => self.service.store.abandon(filling),
            State::Command | State::Keys(_) | State::Swallow(_) | State::SkipLine => {}
            State::Dump(_) | State::Closed => {}
        }
    }

    /// Divides commands into turns: from now on none has both retrievals of at least `large` keys
    /// and others. Pipelined packets of the binary protocol stay together.
    pub fn divide_turns(&mut self, large: usize) {
        self.large = Some(large);
    }

    /// Begins a turn, which is what the next [`process`](Self::process) executes; returns whether
    /// it has large retrievals.
    pub fn begin_turn(&mut self) -> bool {
        if matches!(self.state, State::Command) {
            self.is_large = self.is_large_next();
        }
        self.is_large
    }

    /// Returns whether the next command begins a large retrieval.
    fn is_large_next(&self) -> bool {
        let (Some(large), input) = (self.large, self.input.get()) else { return false };
        let is_binary = self.binary.unwrap_or(input.first() == Some(&REQUEST));
        if is_binary { size::are_large_packets(input, large) } else { size::is_large_line(input, large) }
    }

    /// Returns whether the next command belongs into another turn.
    fn turn_ends(&self) -> bool {
        self.large.is_some()
            && self.binary != Some(true)
            && !self.input.get().is_empty()
            && self.is_large_next() != self.is_large
    }

    /// Executes the commands that have arrived; returns the server's next step.
    pub fn process(&mut self, now: Now) -> Step {
        loop {
            // Between two commands, and between two keys of one.
            tailwater::poll();
            if self.output.len() >= self.output_limit {
                return Step::Continue;
            }
            let goes_on = match &mut self.state {
                State::Command => {
                    if self.turn_ends() {
                        return Step::Continue;
                    }
                    self.command(now)
                }
                State::Keys(keys) => {
                    let keys = *keys;
                    self.next_key(keys, now)
                }
                State::Send { .. } => self.send_more(),
                State::Fill { .. } => self.fill_more(now),
                State::Swallow(left) => {
                    let len = self.input.get().len().min(*left);
                    *left -= len;
                    let complete = *left == 0;
                    self.input.consume(len);
                    if complete {
                        self.state = State::Command;
                    }
                    complete
                }
                State::SkipLine => self.skip_line(),
                State::Dump(dump) => {
                    match dump.write(&self.service, now, &mut self.output) {
                        Listed::More => {}
                        Listed::Send => return Step::Continue,
                        Listed::All => self.state = State::Command,
                    }
                    true
                }
                State::Closed => return Step::Close,
            };
            if !goes_on {
                return if matches!(self.state, State::Closed) { Step::Close } else { Step::Read };
            }
        }
    }

    /// Executes a command; returns false if more input is needed.
    #[inline]
    fn command(&mut self, now: Now) -> bool {
        let Some(&first) = self.input.get().first() else { return false };
        if *self.binary.get_or_insert(first == REQUEST) { self.packet(now) } else { self.line(now) }
    }

    #[inline]
    fn line(&mut self, now: Now) -> bool {
        let Self { service, input, output, state, inline_limit, horizon, .. } = self;
        let buffered = input.get();
        let Some(end) = buffered.iter().position(|&c| c == b'\n') else {
            if buffered.len() > MAX_LINE {
                self.long_line();
                return true;
            }
            return false;
        };
        let line = buffered[..end].strip_suffix(b"\r").unwrap_or(&buffered[..end]);
        let mut turn = Turn { service, out: output, now, horizon, inline_limit: *inline_limit };
        let (consume, next) = match text::command(line, &mut turn) {
            Next::Block(block) => match offer(&block, line, buffered, end + 1, &mut turn) {
                Some((consume, next)) => (end + 1 + consume, next),
                None => return false,
            },
            Next::Keys { skip, keys } => (skip, State::Keys(keys)),
            next => (end + 1, next.into_state(b"\r\n")),
        };
        input.consume(consume);
        *state = next;
        true
    }

    /// Handles a line that fills the buffer without an end: it lists keys, or is invalid.
    fn long_line(&mut self) {
        let buffered = self.input.get();
        let spaces = buffered.iter().take_while(|&&c| c == b' ').count();
        let (skip, with_cas) = match &buffered[spaces..] {
            name if name.starts_with(b"get ") => (spaces + 3, false),
            name if name.starts_with(b"gets ") => (spaces + 4, true),
            _ => return self.state = State::Closed,
        };
        self.input.consume(skip);
        self.state = State::Keys(Keys { with_cas, touch: None });
    }

    fn packet(&mut self, now: Now) -> bool {
        let Self { service, input, output, state, inline_limit, horizon, .. } = self;
        let mut turn = Turn { service, out: output, now, horizon, inline_limit: *inline_limit };
        let buffered = input.get();
        let Some((head, next)) = binary::command(buffered, &mut turn) else { return false };
        let (consume, next) = match next {
            Next::Block(block) => match offer(&block, b"", buffered, head, &mut turn) {
                Some((consume, next)) => (head + consume, next),
                None => return false,
            },
            next => (head, next.into_state(b"")),
        };
        input.consume(consume);
        *state = next;
        true
    }

    /// Answers the next key of a line; returns false if the key is not complete.
    #[inline]
    fn next_key(&mut self, keys: Keys, now: Now) -> bool {
        let Self { service, input, output, state, inline_limit, horizon, .. } = self;
        let buffered = input.get();
        let spaces = buffered.iter().take_while(|&&c| c == b' ').count();
        let word = &buffered[spaces..];
        let len = word.iter().take(MAX_KEY + 2).position(|&c| c == b' ' || c == b'\n');
        let Some(len) = len else {
            if word.len() > MAX_KEY + 1 {
                Turn { service, out: output, now, horizon, inline_limit: 0 }.say(BAD_LINE);
                *state = State::SkipLine;
                return true;
            }
            input.consume(spaces);
            return false;
        };
        let last = word[len] == b'\n';
        let key = if last { word[..len].strip_suffix(b"\r").unwrap_or(&word[..len]) } else { &word[..len] };
        let mut turn = Turn { service, out: output, now, horizon, inline_limit: *inline_limit };
        let next = match key.len() {
            0 => Next::Done,
            1..=MAX_KEY => text::value(key, &keys, &mut turn),
            _ => {
                turn.say(BAD_LINE);
                Next::SkipLine
            }
        };
        match next {
            Next::Send(pinned) => *state = State::Send { pinned, tail: b"\r\n", then: Some(keys) },
            Next::SkipLine => *state = State::SkipLine,
            _ if last && key.is_empty() => {
                turn.say("END");
                *state = State::Command;
            }
            _ => {}
        }
        // The end of the line stays until it is the only thing left of it.
        let consume = spaces + if last && !key.is_empty() { key.len() } else { len + usize::from(last) };
        input.consume(consume);
        true
    }

    /// Sends more of a large value.
    fn send_more(&mut self) -> bool {
        let State::Send { pinned, tail, then } = &mut self.state else { return true };
        let room = self.output_limit.saturating_sub(self.output.len());
        self.output.reserve(room.min(pinned.left()) + tail.len());
        self.service.store.drain(pinned, room, &mut self.output);
        if pinned.left() == 0 {
            self.output.extend_from_slice(tail);
            let then = then.map_or(State::Command, State::Keys);
            if let State::Send { pinned, .. } = std::mem::replace(&mut self.state, then) {
                self.service.store.release(pinned);
            }
        }
        true
    }

    /// Stores more of a large block, and answers when it is complete.
    fn fill_more(&mut self, now: Now) -> bool {
        let State::Fill { filling, reply, .. } = &mut self.state else { return true };
        let buffered = self.input.get();
        let len = buffered.len().min(filling.left());
        self.service.store.fill(filling, &buffered[..len]);
        let tail = reply.tail();
        let complete = filling.left() == 0 && buffered.len() >= len + tail.len();
        let valid = complete && buffered[len..].starts_with(tail);
        self.input.consume(if complete { len + tail.len() } else { len });
        if !complete {
            return false;
        }
        let State::Fill { filling, put, reply, line } = std::mem::replace(&mut self.state, State::Command)
        else {
            return true;
        };
        let Self { service, output, inline_limit, horizon, .. } = self;
        let mut turn = Turn { service, out: output, now, horizon, inline_limit: *inline_limit };
        if valid {
            let stored = service.store.commit(filling, &put, now, horizon);
            answer(Ok(stored), reply, &line, &mut turn);
        } else {
            service.store.abandon(filling);
            bad_chunk(reply, &mut turn);
        }
        true
    }

    fn skip_line(&mut self) -> bool {
        let buffered = self.input.get();
        let end = buffered.iter().position(|&c| c == b'\n');
        self.input.consume(end.map_or(buffered.len(), |end| end + 1));
        if end.is_some() {
            self.state = State::Command;
        }
        end.is_some()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.drop_state();
    }
}

impl Next<'_> {
    /// Returns the state after a command that is consumed as a whole; `tail` follows a large value.
    fn into_state(self, tail: &'static [u8]) -> State {
        match self {
            // The line is consumed already, and the other cases were handled before.
            Self::Done | Self::SkipLine | Self::Keys { .. } | Self::Block(_) => State::Command,
            Self::Swallow(0) => State::Command,
            Self::Swallow(len) => State::Swallow(len),
            Self::Dump(dump) => State::Dump(dump),
            Self::Send(pinned) => State::Send { pinned, tail, then: None },
            Self::Close => State::Closed,
        }
    }
}

/// Stores a block that has arrived, or prepares for one that does not fit the buffer together with
/// its command, which is the first `head` bytes of `buffered`. Returns the bytes consumed after the
/// command; `None` if the block will fit and is not complete.
fn offer(
    block: &Block,
    line: &[u8],
    buffered: &[u8],
    head: usize,
    turn: &mut Turn,
) -> Option<(usize, State)> {
    let rest = &buffered[head..];
    let (key, tail) = (block.decoded.as_ref().map_or(block.key, DecodedKey::as_bytes), block.reply.tail());
    let total = block.len + tail.len();
    if let Some(why) = turn.refusal() {
        answer(Err(Refused(why)), block.reply, line, turn);
        return Some((0, if total == 0 { State::Command } else { State::Swallow(total) }));
    }
    let mut locked = turn.lock(key);
    let fits_input = total <= buffer::MAX / 2 && head + total <= buffer::MAX;
    if turn.service.store.fits(key.len(), block.len) && fits_input {
        if rest.len() < total {
            return None;
        }
        if rest[block.len..].starts_with(tail) {
            let stored = locked.put(&block.put, &rest[..block.len]);
            drop(locked);
            answer(Ok(stored), block.reply, line, turn);
        } else {
            drop(locked);
            bad_chunk(block.reply, turn);
        }
        return Some((total, State::Command));
    }
    let reserved = locked.reserve(block.len);
    drop(locked);
    let state = match reserved {
        Ok(filling) => State::Fill { filling, put: block.put, reply: block.reply, line: line.to_vec() },
        Err(refusal) => {
            let stored = if refusal == Refusal::TooLarge { Stored::TooLarge } else { Stored::NoMemory };
            answer(Ok(stored), block.reply, line, turn);
            State::Swallow(total)
        }
    };
    Some((0, state))
}

/// Changes are refused at present ([`Turn::refusal`]): the answer of the text protocol.
#[derive(Clone, Copy)]
struct Refused(&'static str);

fn answer(stored: Result<Stored, Refused>, reply: Reply, line: &[u8], turn: &mut Turn) {
    let stored = match stored {
        Ok(stored) => stored,
        Err(Refused(why)) => {
            return match reply {
                Reply::Binary(header) => binary::refuse(&header, turn),
                Reply::Text { silent: true } => {}
                Reply::Text { silent: false } | Reply::Meta => turn.say(why),
            };
        }
    };
    match reply {
        Reply::Text { silent } => text::stored(stored, silent, turn),
        Reply::Meta => meta::stored(stored, line, turn),
        Reply::Binary(header) => binary::stored(stored, &header, turn),
    }
}

/// Only the text protocol has an end of line after a block.
fn bad_chunk(reply: Reply, turn: &mut Turn) {
    if !matches!(reply, Reply::Text { silent: true }) {
        turn.say(BAD_CHUNK);
    }
}
