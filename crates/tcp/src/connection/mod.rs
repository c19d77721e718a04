//! One TCP connection.
//!
//! Owns everything between two ports: both buffers, the states, what is acknowledged and offered, options, and all timers
//! but those of loss recovery, which are the [`sender`](crate::sender)'s. Never reads a clock, computes a checksum, knows
//! an address or sends: the caller does.
//!
//! # Contract
//! - **Who calls.** One caller at a time; the runtime holds the connection's lock. `now` never goes back from call to call.
//! - **In.** Each segment that parsed, whose checksum is right and whose addresses and ports are this connection's, goes to
//!   [`Connection::handle_segment`], in the order of arrival. Any segment is survived.
//! - **Time.** At [`Connection::next_timeout`] or later: [`Connection::handle_timeout`]. Ask again after each other call.
//! - **Out.** After each call, `send` and `recv` included, while [`Connection::wants_transmit`] (or [`Events::TRANSMIT`] was among its events):
//!   [`Connection::poll_transmit`], which hands out one segment a call. State advances only when the closure says `Ok`;
//!   `Err(Full)` means that the same segment, or a better one, is offered again. A closure that answers `Ok` and sends
//!   nothing has lost a segment on the way, which TCP survives.
//! - **Data.** `send`, `recv`, `peek` copy from and to the connection's buffers. Neither blocks; [`Events`] say when to
//!   try again.
//! - **Ending.** [`Connection::close`] is `shutdown(Write)`, [`Connection::shutdown_read`] `shutdown(Read)`,
//!   [`Connection::release`] what a dropped socket does, [`Connection::abort`] the same with a linger time of zero. When
//!   the state is [`State::TimeWait`], [`Connection::time_wait`] gives a small value that can take the connection's place.
//!   When it is [`State::Closed`] and nothing is to be transmitted any more, it can be dropped.
//! - **Memory.** The struct, a ring per direction that grows with what is in it up to the configured limit and is given
//!   back within two seconds of being empty, at most 32 ranges out of order, and the sender's scoreboard.
//!
//! # Invariants (`check`)
//! - `una <= nxt`, and `nxt` is at most one (the FIN) beyond what is queued.
//! - What is received, in order or not, lies before the edge of the advertised window, which never goes back.
//! - An ACK is due, or its timer runs, while something received is unacknowledged.
//! - While something is unsent or unacknowledged a timer runs, or something wants to leave now: nothing waits for ever.
//!
//! # Deliberately so
//! - Urgent data is delivered in line and the pointer ignored (RFC 6093 section 3.1); URG is never sent.
//! - Data on a SYN is not taken, so that nothing is stored for a peer that may not exist; it is sent again after the
//!   handshake.
//! - A window probe carries nothing and lies before the window, where each TCP must answer it (RFC 9293 section 3.10.7.4):
//!   no byte beyond the window needs remembering.

mod icmp;
mod input;
mod output;
mod receive;
mod setters;
mod stats;
mod text;
mod timers;

pub use icmp::IcmpError;
pub use output::{Full, Outgoing, Purpose, Transmit};
pub use stats::Stats;

use crate::config::{BUFFER_BOUNDS, Config, FIRST_SEND_ROOM, Opening};
use crate::ring::Ring;
use crate::segment::{Header, Options};
use crate::sender::{Algorithm, Range, Sender};
use crate::state::Event;
use crate::{Error, Instant, RecvError, SendError, Seq, State, TimeWait};
use core::time::Duration;
use receive::Receive;
use stats::Counters;
pub(crate) use timers::Bucket;

bitflags::bitflags! {
    /// What a call has changed for those who wait.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    #[must_use]
    pub struct Events: u16 {
        /// There is more to read than before, or the end of the stream.
        const READABLE = 1;
        /// There is room to write again.
        const WRITABLE = 1 << 1;
        /// The handshake is complete.
        const ESTABLISHED = 1 << 2;
        /// The peer has closed its direction, and all it sent is there to read.
        const PEER_CLOSED = 1 << 3;
        /// The connection has failed: see [`Connection::error`].
        const ERROR = 1 << 4;
        /// The state is [`State::Closed`] now.
        const CLOSED = 1 << 5;
        /// Something wants to leave: call [`Connection::poll_transmit`].
        const TRANSMIT = 1 << 6;
        /// The state is [`State::TimeWait`] now.
        const TIME_WAIT = 1 << 7;
        /// Three retransmissions went unanswered (R1 of RFC 9293 section 3.8.3): doubt the route and the neighbour.
        const SUSPECT_PATH = 1 << 8;
    }
}

bitflags::bitflags! {
    /// What is negotiated, asked for or due.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Set: u32 {
        const NODELAY = 1;
        /// Negotiated, or offered while the handshake lasts.
        const TIMESTAMPS = 1 << 1;
        const SACK = 1 << 2;
        const ECN = 1 << 3;
        const SCALING = 1 << 4;
        /// The receiver echoes each mark (RFC 8257 section 3.2) instead of until CWR (RFC 3168 section 6.1.3).
        const DCTCP = 1 << 5;
        /// The application closed its direction: a FIN follows what is queued.
        const FIN_QUEUED = 1 << 6;
        /// The application reads no more.
        const READ_CLOSED = 1 << 7;
        /// Nor does it do anything else.
        const RELEASED = 1 << 8;
        const ACK_NOW = 1 << 9;
        const CHALLENGE = 1 << 10;
        /// Our ACKs carry ECE.
        const ECHO = 1 << 11;
        /// An ACK up to `early_ack` with the opposite of `ECHO` goes first.
        const EARLY_ACK = 1 << 12;
        /// The next new data carries CWR.
        const CWR = 1 << 13;
        /// A RST with number `reset_seq` goes out.
        const RESET = 1 << 14;
        /// That RST acknowledges nothing.
        const RESET_BARE = 1 << 15;
        /// Silly windows are used: the override timer expired (RFC 9293 section 3.8.6.2.1).
        const OVERRIDE = 1 << 16;
        /// A probe of the window or of the peer's life goes out.
        const PROBE = 1 << 17;
        /// A buffer was used since its timer was started last.
        const TOUCHED = 1 << 18;
        /// The send buffer was full.
        const WANTS_ROOM = 1 << 19;
        /// Both sides opened at once, or the connection was accepted: the SYN carries an ACK.
        const SYN_ACK = 1 << 20;
    }
}

/// A moment that never comes: what a timer that does not run is set to.
const NEVER: Instant = Instant(u64::MAX);

/// A connection. See the [module's documentation](self) for the contract.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    receive: Receive,
    /// Bytes from `data_start` on: unacknowledged, then unsent.
    unacked: Ring,
    /// Number of the first byte in `unacked`.
    data_start: Seq,
    send_limit: u32,
    local_port: u16,
    remote_port: u16,
    state: State,
    error: Option<Error>,
    set: Set,
    /// Bytes a segment may have behind the fixed header: for the path, and for the peer.
    path_mss: u16,
    peer_mss: u16,
    /// The peer's window: in bytes, and the largest it ever was.
    window: u32,
    max_window: u32,
    /// Number and acknowledgment of the segment that last told the window (SND.WL1, SND.WL2).
    window_seq: Seq,
    window_ack: Seq,
    /// Shift of the peer's windows.
    window_shift: u8,
    syn_retries: u8,
    /// Probes of either kind without an answer.
    probes: u8,
    /// What routers said while nothing else was heard.
    soft_error: Option<Error>,
    /// End of the last segment that was smaller than could be (Nagle).
    small_end: Seq,
    early_ack: Seq,
    reset_seq: Seq,
    timestamp_offset: u32,
    delayed_ack_us: u32,
    user_timeout_ms: u32,
    time_wait_ms: u32,
    fin_wait_ms: u32,
    keepalive: Option<Box<crate::config::Keepalive>>,
    /// When the peer was last heard.
    heard_at: Instant,
    /// When something was last acknowledged, or sent into silence.
    progress_at: Instant,
    /// Window probes and the silly window's override.
    persist_at: Instant,
    /// End of FIN-WAIT-2 or TIME-WAIT.
    expires_at: Instant,
    /// When buffers that lie empty are given back.
    trim_at: Instant,
    challenges: Bucket,
    counters: Counters,
}

impl Connection {
    /// A connection that opens: its SYN wants to leave.
    pub fn connect(config: &Config, opening: &Opening, now: Instant) -> Self {
        let (least, most) = BUFFER_BOUNDS;
        let mut set = Set::empty();
        set.set(Set::NODELAY, config.nodelay);
        set.set(Set::TIMESTAMPS, config.timestamps);
        set.set(Set::SACK, config.sack);
        set.set(Set::SCALING, config.window_scaling);
        set.set(Set::DCTCP, config.sender.algorithm == Algorithm::Dctcp);
        set.set(Set::ECN, config.ecn || config.sender.algorithm == Algorithm::Dctcp);
        let iss = opening.numbers.seq;
        let path_mss = opening.path_mss.max(MIN_MSS);
        Self {
            sender: Sender::new(&config.sender, iss, u32::from(path_mss), now),
            receive: Receive::new(config.receive_buffer.clamp(least, most)),
            unacked: Ring::default(),
            data_start: iss + 1,
            send_limit: config.send_buffer.clamp(least, most),
            local_port: opening.local_port,
            remote_port: opening.remote_port,
            state: State::SynSent,
            error: None,
            set,
            path_mss,
            peer_mss: opening.default_mss.max(MIN_MSS),
            window: 0,
            max_window: 0,
            window_seq: Seq(0),
            window_ack: Seq(0),
            window_shift: 0,
            syn_retries: config.syn_retries,
            probes: 0,
            soft_error: None,
            small_end: iss,
            early_ack: Seq(0),
            reset_seq: Seq(0),
            timestamp_offset: opening.numbers.timestamp_offset,
            delayed_ack_us: micros(config.delayed_ack.min(MAX_ACK_DELAY)),
            user_timeout_ms: millis(config.user_timeout),
            time_wait_ms: millis(config.time_wait),
            fin_wait_ms: millis(config.fin_wait),
            keepalive: config.keepalive.map(Box::new),
            heard_at: now,
            progress_at: now,
            persist_at: NEVER,
            expires_at: NEVER,
            trim_at: NEVER,
            challenges: Bucket::new(now),
            counters: Counters::default(),
        }
    }

    /// A connection in SYN-RECEIVED, whose `syn` was answered at `sent_at`; not measured if that is `None`.
    pub(crate) fn accept(
        config: &Config,
        opening: &Opening,
        syn: &Header,
        sent_at: Option<Instant>,
        now: Instant,
    ) -> Self {
        let mut connection = Self::connect(config, opening, now);
        let ours = Range::new(opening.numbers.seq, 1);
        connection.set.insert(Set::SYN_ACK);
        connection.state = State::SynReceived;
        connection.negotiate(syn, now);
        connection.sender.on_sent(ours, sent_at.unwrap_or(now));
        if sent_at.is_none() {
            connection.sender.on_retransmitted(ours, now);
        }
        connection
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether the connection is over: [`State::Closed`]. A reset may still want to leave.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Why the connection failed, if it did.
    #[inline]
    pub fn error(&self) -> Option<Error> {
        self.error
    }

    /// This side's port.
    pub fn local_port(&self) -> u16 {
        self.local_port
    }

    /// The peer's port.
    pub fn remote_port(&self) -> u16 {
        self.remote_port
    }

    /// Takes as much of `data` as there is room for, and says how much: at least one byte unless `data` is empty. It may
    /// be called before the handshake is complete.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&mut self, data: &[u8]) -> Result<usize, SendError> {
        if let Some(error) = self.error {
            return Err(error.into());
        }
        if !self.state.sends() || self.set.contains(Set::FIN_QUEUED) {
            return Err(SendError::Closed);
        }
        let len = data.len().min(self.writable_bytes());
        if len == 0 && !data.is_empty() {
            // There was room when it was last asked for: the congestion window has shrunk since.
            self.set.insert(Set::WANTS_ROOM);
            return Err(SendError::WouldBlock);
        }
        self.unacked.push(&data[..len]);
        self.set.insert(Set::TOUCHED);
        self.note_room();
        Ok(len)
    }

    /// A full buffer is told of when it has room again.
    fn note_room(&mut self) {
        if self.unacked.len() >= self.send_room() {
            self.set.insert(Set::WANTS_ROOM);
        }
    }

    /// How much may be unacknowledged or unsent now: a window that outgrew the buffer would never be used.
    fn send_room(&self) -> usize {
        self.send_limit.min(self.sender.cwnd().saturating_mul(2).max(FIRST_SEND_ROOM)) as usize
    }

    /// Copies what was received into `out` and says how much it was; zero at the end of the stream, or if `out` is empty.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv(&mut self, out: &mut [u8]) -> Result<usize, RecvError> {
        let len = self.peek(out)?;
        self.receive.consume(len);
        self.give_back();
        if self.state.receives() && self.receive.update_is_worth_it() {
            self.set.insert(Set::ACK_NOW);
        }
        Ok(len)
    }

    /// As [`recv`](Self::recv), and leaves it there.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn peek(&self, out: &mut [u8]) -> Result<usize, RecvError> {
        if self.set.contains(Set::READ_CLOSED) || out.is_empty() {
            return Ok(0);
        }
        if self.receive.readable() > 0 {
            return Ok(self.receive.peek(out));
        }
        match self.error {
            Some(error) => Err(error.into()),
            None if self.state.peer_closed() || self.is_closed() => Ok(0),
            None => Err(RecvError::WouldBlock),
        }
    }

    /// Bytes that [`recv`](Self::recv) would give now.
    #[inline]
    pub fn readable_bytes(&self) -> usize {
        if self.set.contains(Set::READ_CLOSED) { 0 } else { self.receive.readable() }
    }

    /// Whether [`recv`](Self::recv) would not answer [`RecvError::WouldBlock`].
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.readable_bytes() > 0
            || self.set.contains(Set::READ_CLOSED)
            || self.state.peer_closed()
            || self.is_closed()
    }

    /// Bytes that [`send`](Self::send) would take now.
    #[inline]
    pub fn writable_bytes(&self) -> usize {
        if !self.state.sends() || self.set.contains(Set::FIN_QUEUED) {
            return 0;
        }
        self.send_room().saturating_sub(self.unacked.len())
    }

    /// Bytes handed over and not yet acknowledged by the peer.
    #[inline]
    pub fn unacknowledged_bytes(&self) -> usize {
        self.unacked.len()
    }

    /// Closes this direction: what is queued is sent, then a FIN. Does nothing if it was closed before.
    pub fn close(&mut self) -> Events {
        if self.set.contains(Set::FIN_QUEUED) || self.is_closed() {
            return Events::empty();
        }
        self.set.insert(Set::FIN_QUEUED);
        // A SYN that was not answered is not waited for; in SYN-RECEIVED the FIN waits.
        self.apply(Event::Close)
    }

    /// Reads no more: what is unread is dropped, and what still arrives is acknowledged and dropped.
    pub fn shutdown_read(&mut self) {
        self.set.insert(Set::READ_CLOSED);
        self.receive.discard();
        self.give_back();
        if self.state.receives() && self.receive.update_is_worth_it() {
            self.set.insert(Set::ACK_NOW);
        }
    }

    /// The application is gone and calls nothing of the kind any more. Closes both directions; if something received was
    /// never read, resets the connection instead, so that the peer learns that it was lost (RFC 2525 section 2.17, RFC
    /// 9293 section 3.6.1). Data that arrives later resets it too, and FIN-WAIT-2 ends after a while.
    pub fn release(&mut self, now: Instant) -> Events {
        let unread = self.readable_bytes() > 0;
        self.set.insert(Set::READ_CLOSED | Set::RELEASED);
        self.receive.discard();
        if unread {
            return self.abort();
        }
        if self.state == State::FinWait2 {
            self.expires_at = now + Duration::from_millis(self.fin_wait_ms.into());
        }
        self.close()
    }

    /// Ends the connection at once, with a reset if the peer may know of it (RFC 9293 section 3.10.5). Unsent data is
    /// dropped.
    pub fn abort(&mut self) -> Events {
        if self.is_closed() {
            return Events::empty();
        }
        if !matches!(self.state, State::SynSent | State::TimeWait) {
            self.set.insert(Set::RESET);
            self.reset_seq = self.sender.nxt();
        }
        self.fail(Error::Aborted)
    }

    /// The small value that can take the place of a connection in TIME-WAIT; `None` in other states.
    pub fn time_wait(&self) -> Option<TimeWait> {
        (self.state == State::TimeWait).then(|| TimeWait {
            local_port: self.local_port,
            remote_port: self.remote_port,
            seq: self.sender.nxt(),
            ack: self.receive.next,
            window: self.receive.window_field(),
            timestamps: self
                .set
                .contains(Set::TIMESTAMPS)
                .then_some((self.receive.recent_timestamp, self.timestamp_offset)),
            lasts_ms: self.time_wait_ms,
            expires_at: self.expires_at,
            challenges: self.challenges,
        })
    }

    /// Lets `event` change the state, and what goes with the new one.
    fn apply(&mut self, event: Event) -> Events {
        let Some(state) = self.state.after(event) else { return Events::empty() };
        self.state = state;
        match state {
            State::Closed => {
                self.unacked.release();
                self.stop_timers();
                Events::CLOSED
            }
            State::TimeWait => Events::TIME_WAIT,
            _ => Events::empty(),
        }
    }

    fn fail(&mut self, error: Error) -> Events {
        if self.is_closed() {
            return Events::empty();
        }
        self.error.get_or_insert(error);
        self.apply(Event::Reset) | Events::ERROR | Events::READABLE | Events::WRITABLE
    }

    /// Number behind the last byte queued: that of the FIN.
    #[inline]
    fn data_end(&self) -> Seq {
        self.data_start + self.unacked.len() as u32
    }

    #[inline]
    fn fin_sent(&self) -> bool {
        self.sender.nxt().distance(self.data_end()) > 0
    }

    /// Ticks of a millisecond (RFC 7323 section 5.4 allows 1 ms to 1 s).
    #[inline]
    fn timestamp(&self, now: Instant) -> u32 {
        timestamp(now, self.timestamp_offset)
    }

    /// Bytes of data in a segment with these options.
    #[inline]
    fn mss_with(&self, options: &Options) -> usize {
        usize::from(self.path_mss.min(self.peer_mss)).saturating_sub(options.len()).max(1)
    }
}

/// The least that is taken for a segment's size, whatever a peer or router says: smaller ones only serve to make us work
/// (the reason for Linux's `tcp_min_snd_mss`). Forty bytes of options leave eight of data.
pub(crate) const MIN_MSS: u16 = 48;

/// An ACK waits less than half a second (RFC 9293 section 3.8.6.3).
const MAX_ACK_DELAY: Duration = Duration::from_millis(499);

#[inline]
pub(crate) fn timestamp(now: Instant, offset: u32) -> u32 {
    ((now.0 / TICK_NS) as u32).wrapping_add(offset)
}

/// A tick of the timestamp clock.
pub(crate) const TICK_NS: u64 = 1_000_000;

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
