//! One TCP connection.
//!
//! Owns everything between two ports: both buffers, the state, the acknowledged and offered
//! numbers, options, and all timers except those of loss recovery, which belong to the
//! [`sender`](crate::sender). It never reads a clock, computes a checksum, handles an address or
//! sends a packet: the caller does.
//!
//! # Contract
//! - **Caller.** One caller at a time; the runtime holds the connection's lock. `now` never goes
//!   back from call to call.
//! - **Input.** Pass each segment that parsed, whose checksum is right and whose addresses and
//!   ports are this connection's, to [`Connection::handle_segment`], in order of arrival. The
//!   connection survives any segment.
//! - **Time.** Call [`Connection::handle_timeout`] at [`Connection::next_timeout`] or later. Read
//!   `next_timeout` again after every other call.
//! - **Output.** After each call, `send` and `recv` included, call [`Connection::poll_transmit`]
//!   while [`Connection::wants_transmit`] returns true or [`Events::TRANSMIT`] was among the
//!   events. Each call hands out one segment. The state advances only if the closure returns `Ok`;
//!   after `Err(Full)` the same segment, or a better one, is offered again. A closure that returns
//!   `Ok` and sends nothing has lost a segment, which TCP survives.
//! - **Data.** `send`, `recv` and `peek` copy from and to the connection's buffers;
//!   [`Connection::send_shared`] keeps a reference instead, and [`Connection::lend`] hands the
//!   receive buffer over in exchange for another. They do not block; [`Events`] say when to try
//!   again. Segments that leave may make room for more unsent data: see
//!   [`Connection::take_writable`].
//! - **Ending.** [`Connection::close`] is `shutdown(Write)`, [`Connection::shutdown_read`] is
//!   `shutdown(Read)`, [`Connection::release`] is the drop of a socket, and [`Connection::abort`]
//!   is a close with a linger time of zero. In [`State::TimeWait`], [`Connection::time_wait`]
//!   returns a small value that can take the connection's place. In [`State::Closed`], with nothing
//!   left to transmit, the connection can be dropped.
//! - **Memory.** The struct; one ring per direction, which grows with its content up to the
//!   configured limit and is freed within two seconds of becoming empty; references to shared
//!   bytes, which count towards the same limit and are dropped when all of their bytes are
//!   acknowledged or the connection has ended ([`State::Closed`]); at most 32 out-of-order ranges;
//!   the sender's scoreboard.
//!
//! # Invariants (`check`)
//! - `una <= nxt`, and `nxt` is at most one (the FIN) beyond the queued data.
//! - Received data, in order or not, lies before the edge of the advertised window, which never
//!   goes back.
//! - While something received is unacknowledged, an ACK is due or its timer runs.
//! - While something is unsent or unacknowledged, a timer runs or a segment is ready to leave:
//!   nothing waits for ever.
//!
//! # Deliberate choices
//! - Urgent data is delivered in line and the pointer ignored (RFC 6093 section 3.1); URG is never
//!   sent.
//! - Data on a SYN is accepted only with a valid cookie of TCP Fast Open, so that nothing is stored
//!   for a peer that may not exist; without one the peer sends it again after the handshake.
//! - A window probe carries no data and lies before the window, where every TCP must answer it (RFC
//!   9293 section 3.10.7.4), so no byte beyond the window has to be remembered.

mod fast_open;
mod icmp;
mod info;
mod input;
mod loan;
mod output;
mod rare;
mod receive;
mod send;
mod setters;
mod stats;
mod text;
mod timers;

pub use fast_open::{FastOpenOutcome, FastOpenPeer};
pub use icmp::IcmpError;
pub use info::Info;
pub use loan::Buffer;
pub use output::{Full, Outgoing, Purpose, Transmit};
pub use stats::Stats;

use crate::challenge::Bucket;
use crate::config::{BUFFER_BOUNDS, Config, Opening};
use crate::error::{Error, RecvError};
use crate::segment::{Header, Options};
use crate::send_queue::SendQueue;
use crate::sender::{Algorithm, Sender};
use crate::seq::{Range, Seq};
use crate::state::State;
use crate::state::StateEvent;
use crate::time::Instant;
use crate::time_wait::TimeWait;
use alloc::boxed::Box;
use core::time::Duration;
use rare::Rare;
use receive::Receive;
use stats::Counters;

bitflags::bitflags! {
    /// Changes made by a call that waiting threads must learn of.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    #[must_use]
    pub struct Events: u16 {
        /// More bytes can be read than before, or the end of the stream was reached.
        const READABLE = 1;
        /// The send buffer has room again.
        const WRITABLE = 1 << 1;
        /// The handshake is complete.
        const ESTABLISHED = 1 << 2;
        /// The peer has closed its direction, and all it sent can be read.
        const PEER_CLOSED = 1 << 3;
        /// The connection has failed: see [`Connection::error`].
        const ERROR = 1 << 4;
        /// The state is [`State::Closed`] now.
        const CLOSED = 1 << 5;
        /// A segment is ready to leave: call [`Connection::poll_transmit`].
        const TRANSMIT = 1 << 6;
        /// The state is [`State::TimeWait`] now.
        const TIME_WAIT = 1 << 7;
        /// Three retransmissions went unanswered (R1 of RFC 9293 section 3.8.3): check the route
        /// and the neighbour.
        const SUSPECT_PATH = 1 << 8;
        /// The handshake was one with Fast Open and is over, or a client's attempt is: see
        /// [`Connection::take_fast_open`].
        const FAST_OPEN = 1 << 9;
    }
}

bitflags::bitflags! {
    /// Options in force and actions due.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Set: u32 {
        const NODELAY = 1;
        /// Negotiated, or offered during the handshake.
        const TIMESTAMPS = 1 << 1;
        const SACK = 1 << 2;
        const ECN = 1 << 3;
        const SCALING = 1 << 4;
        /// The receiver echoes each mark separately (RFC 8257 section 3.2) instead of repeating it
        /// until CWR (RFC 3168 section 6.1.3).
        const DCTCP = 1 << 5;
        /// The application closed its direction: a FIN follows the queued data.
        const FIN_QUEUED = 1 << 6;
        /// The application closed its reading direction.
        const READ_CLOSED = 1 << 7;
        /// The application dropped the socket.
        const RELEASED = 1 << 8;
        const ACK_NOW = 1 << 9;
        const CHALLENGE = 1 << 10;
        /// ACKs of this side carry ECE.
        const ECHO = 1 << 11;
        /// An ACK up to `early_ack` with the opposite of `ECHO` is sent first.
        const EARLY_ACK = 1 << 12;
        /// The next new data carries CWR.
        const CWR = 1 << 13;
        /// A RST with number `reset_seq` is due.
        const RESET = 1 << 14;
        /// That RST carries no acknowledgment.
        const RESET_BARE = 1 << 15;
        /// Small windows are used: the override timer expired (RFC 9293 section 3.8.6.2.1).
        const OVERRIDE = 1 << 16;
        /// A window or keepalive probe is due.
        const PROBE = 1 << 17;
        /// A buffer was used since the trim timer was last started.
        const TOUCHED = 1 << 18;
        /// The send buffer was full, so `WRITABLE` is due once it has room.
        const WANTS_ROOM = 1 << 19;
        /// Both sides opened at once, or the connection was accepted: the SYN carries an ACK.
        const SYN_ACK = 1 << 20;
        /// The application waits for the peer: small segments that Nagle's algorithm holds leave.
        const FLUSH = 1 << 21;
        /// The last small segment left for that reason.
        const FLUSHED = 1 << 22;
        /// The application asked for full segments only (TCP_CORK).
        const CORK = 1 << 23;
        /// It announced more data with the last it handed over (MSG_MORE).
        const MORE = 1 << 24;
        /// [`Rare::notsent_lowat`] bounds the unsent data.
        const LOWAT = 1 << 25;
        /// In SYN-RECEIVED by a cookie of Fast Open: data is sent and received.
        const FAST_OPEN = 1 << 26;
        /// The SYN carried data that was accepted (TCPI_OPT_SYN_DATA).
        const SYN_DATA = 1 << 27;
        /// The peer's FIN was seen: [`Receive::fin`] is its number.
        const PEER_FIN = 1 << 28;
    }
}

/// A connection. See the [module's documentation](self) for the contract.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    receive: Receive,
    /// Bytes from `data_start` on: first the unacknowledged, then the unsent.
    unacked: SendQueue,
    /// Number of the first byte in `unacked`.
    data_start: Seq,
    send_limit: u32,
    local_port: u16,
    remote_port: u16,
    state: State,
    error: Option<Error>,
    set: Set,
    /// Most bytes a segment may carry behind the fixed header: on the path, for the peer, and for
    /// the application (TCP_MAXSEG).
    path_mss: u16,
    peer_mss: u16,
    own_mss: u16,
    /// The peer's window in bytes, and the largest it ever was.
    window: u32,
    max_window: u32,
    /// Number and acknowledgment of the segment that last set the window (SND.WL1, SND.WL2).
    window_seq: Seq,
    window_ack: Seq,
    /// Shift of the peer's windows.
    window_shift: u8,
    syn_retries: u8,
    /// Unanswered probes of either kind.
    probes: u8,
    /// The last ICMP error since the peer was last heard.
    soft_error: Option<Error>,
    /// End of the last segment that was smaller than possible (Nagle).
    small_end: Seq,
    early_ack: Seq,
    reset_seq: Seq,
    timestamp_offset: u32,
    rare: Option<Box<Rare>>,
    /// Time at which the peer was last heard.
    heard_at: Instant,
    /// Time at which data was last acknowledged, or sent when nothing was in flight.
    progress_at: Instant,
    /// Deadline of the window probe or the silly window override.
    persist_at: Instant,
    /// End of FIN-WAIT-2 or TIME-WAIT.
    expires_at: Instant,
    /// Time at which empty buffers are freed.
    trim_at: Instant,
    challenges: Bucket,
    counters: Counters,
}

impl Connection {
    /// Creates a connection that opens actively: its SYN is ready to leave.
    pub fn connect(config: &Config, opening: &Opening, now: Instant) -> Self {
        let (least, most) = BUFFER_BOUNDS;
        let mut set = Set::empty();
        set.set(Set::NODELAY, config.nodelay);
        set.set(Set::LOWAT, config.notsent_lowat.is_some_and(|bytes| bytes > 0));
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
            unacked: SendQueue::default(),
            data_start: iss + 1,
            send_limit: config.send_buffer.clamp(least, most),
            local_port: opening.local_port,
            remote_port: opening.remote_port,
            state: State::SynSent,
            error: None,
            set,
            path_mss,
            peer_mss: opening.default_mss.max(MIN_MSS),
            own_mss: config.max_segment.unwrap_or(u16::MAX).max(MIN_MSS),
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
            rare: Rare::of(config),
            heard_at: now,
            progress_at: now,
            persist_at: Instant::NEVER,
            expires_at: Instant::NEVER,
            trim_at: Instant::NEVER,
            challenges: Bucket::new(now),
            counters: Counters::default(),
        }
    }

    /// Creates a connection in SYN-RECEIVED whose `syn` was answered at `sent_at`; with `None` the
    /// handshake gives no round-trip time.
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

    /// Returns the state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns true in [`State::Closed`]. A reset may still be ready to leave.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Returns why the connection failed, if it did.
    #[inline]
    pub fn error(&self) -> Option<Error> {
        self.error
    }

    /// Returns this side's port.
    pub fn local_port(&self) -> u16 {
        self.local_port
    }

    /// Returns the peer's port.
    pub fn remote_port(&self) -> u16 {
        self.remote_port
    }

    /// Moves received bytes into `out`; returns their number, which is zero at the end of the
    /// stream or if `out` is empty.
    ///
    /// An application that has nothing to read waits for the peer, which may wait for the rest of a
    /// request: data that Nagle's algorithm holds is released, at most one small segment beside the
    /// one it waits for. See [`is_flushing`](Self::is_flushing).
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv(&mut self, out: &mut [u8]) -> Result<usize, RecvError> {
        let len = match self.peek(out) {
            Ok(len) => len,
            Err(error) => {
                self.flush();
                return Err(error);
            }
        };
        self.receive.consume(len);
        self.note_read();
        Ok(len)
    }

    /// Gives memory back and opens the window, after the application has read.
    #[inline]
    fn note_read(&mut self) {
        self.give_back();
        if self.state.receives() && self.receive.update_is_worth_it() {
            self.set.insert(Set::ACK_NOW);
        }
    }

    /// Releases a small segment that Nagle's algorithm holds, unless the last one it released is
    /// still unacknowledged.
    fn flush(&mut self) {
        let held = self.small_end > self.sender.una() && self.data_end() > self.sender.nxt();
        if held && !self.is_corked() && !self.set.intersects(Set::NODELAY | Set::FLUSHED) {
            self.set.insert(Set::FLUSH);
        }
    }

    /// Returns true if [`recv`](Self::recv) or [`await_peer`](Self::await_peer) has released data
    /// that may be ready to leave now.
    #[inline]
    pub fn is_flushing(&self) -> bool {
        self.set.contains(Set::FLUSH)
    }

    /// Copies received bytes into `out` as [`recv`](Self::recv) does, without removing them.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn peek(&self, out: &mut [u8]) -> Result<usize, RecvError> {
        if self.receive.readable() > 0 || out.is_empty() {
            return Ok(self.receive.peek(out));
        }
        self.nothing_to_read()
    }

    /// Returns zero at the end of the stream, and otherwise why there is nothing to read.
    fn nothing_to_read(&self) -> Result<usize, RecvError> {
        match self.error {
            _ if self.set.contains(Set::READ_CLOSED) => Ok(0),
            Some(error) => Err(error.into()),
            None if self.state.peer_closed() || self.is_closed() => Ok(0),
            None => Err(RecvError::WouldBlock),
        }
    }

    /// Returns the number of bytes that [`recv`](Self::recv) can return now.
    #[inline]
    pub fn readable_bytes(&self) -> usize {
        self.receive.readable()
    }

    /// Returns true if [`recv`](Self::recv) would return something other than
    /// [`RecvError::WouldBlock`].
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.readable_bytes() > 0
            || self.set.contains(Set::READ_CLOSED)
            || self.state.peer_closed()
            || self.is_closed()
    }

    /// Closes this direction: the queued data is sent, then a FIN. Does nothing if it was closed
    /// before.
    pub fn close(&mut self) -> Events {
        if self.set.contains(Set::FIN_QUEUED) || self.is_closed() {
            return Events::empty();
        }
        self.set.insert(Set::FIN_QUEUED);
        // An unanswered SYN is not waited for; in SYN-RECEIVED the FIN waits.
        self.apply(StateEvent::Close)
    }

    /// Closes the reading direction as Linux does: with nothing to read, [`recv`](Self::recv)
    /// returns the end of the stream instead of [`RecvError::WouldBlock`]. Unread data stays, data
    /// that still arrives can be read too, and the peer learns nothing. If this side has closed the
    /// other direction as well, data that arrives resets the connection (RFC 9293 section 3.6.1).
    pub fn shutdown_read(&mut self) {
        self.set.insert(Set::READ_CLOSED);
    }

    /// Closes both directions for an application that has dropped the socket.
    ///
    /// If received data was never read, or is on loan, resets the connection instead, so that the
    /// peer learns of the loss (RFC 2525 section 2.17, RFC 9293 section 3.6.1). Data that arrives
    /// later resets it too. FIN-WAIT-2 ends after [`Config::fin_wait`].
    pub fn release(&mut self, now: Instant) -> Events {
        let unread = self.readable_bytes() > 0 || self.receive.has_loan();
        self.set.insert(Set::READ_CLOSED | Set::RELEASED);
        self.receive.discard();
        if unread {
            return self.abort();
        }
        if self.state == State::FinWait2 {
            self.expires_at = now + self.fin_wait();
        }
        self.close()
    }

    /// Ends the connection at once, with a reset if the peer may know of it (RFC 9293 section
    /// 3.10.5). Unsent data is dropped.
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

    /// Returns the small value that can take the place of a connection in TIME-WAIT; `None` in
    /// other states.
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
            lasts_ms: millis(self.time_wait_period()),
            expires_at: self.expires_at,
            challenges: self.challenges,
        })
    }

    /// Applies `event` to the state and performs the actions of entering the new one.
    fn apply(&mut self, event: StateEvent) -> Events {
        let Some(state) = self.state.after(event) else { return Events::empty() };
        let before = core::mem::replace(&mut self.state, state);
        match state {
            State::Closed => {
                self.unacked.release();
                self.stop_timers();
                let mut events = Events::CLOSED;
                events.set(Events::FAST_OPEN, before == State::SynSent && self.fast_opening().is_some());
                events
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
        self.apply(StateEvent::Reset) | Events::ERROR | Events::READABLE | Events::WRITABLE
    }

    /// Returns the number of this side's SYN. Meaningful until the SYN is acknowledged:
    /// `data_start` moves on with the bytes that are acknowledged after it.
    #[inline]
    fn iss(&self) -> Seq {
        self.data_start + u32::MAX
    }

    /// Returns the number after the last queued byte, which is the FIN's.
    #[inline]
    fn data_end(&self) -> Seq {
        self.data_start + self.unacked.len() as u32
    }

    #[inline]
    fn fin_sent(&self) -> bool {
        self.sender.nxt().distance(self.data_end()) > 0
    }

    /// Returns the timestamp of this side at `now`.
    #[inline]
    fn timestamp(&self, now: Instant) -> u32 {
        now.timestamp(self.timestamp_offset)
    }

    /// Returns the bytes of data that fit in a segment with these options.
    #[inline]
    fn mss_with(&self, options: &Options) -> usize {
        usize::from(self.path_mss.min(self.peer_mss).min(self.own_mss)).saturating_sub(options.len()).max(1)
    }
}

/// Least segment size used, whatever a peer or router reports: smaller ones would only make this
/// side work (the reason for Linux's `tcp_min_snd_mss`). Forty bytes of options leave eight of
/// data.
pub(crate) const MIN_MSS: u16 = 48;

/// Most bytes of data in an ordinary packet, of 1500 bytes. On a link that carries more and between
/// programs, Nagle's algorithm takes no segment of this length for a small one, and the peer's
/// window cuts no segment below it.
const ORDINARY: usize = 1460;
/// No packet of a link or between programs carries more bytes of data: longer segments are within
/// one program.
const JUMBO: usize = 9000;

/// Longest delay of an ACK: less than half a second (RFC 9293 section 3.8.6.3).
const MAX_ACK_DELAY: Duration = Duration::from_millis(499);

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
