//! Listening: from a SYN to a connection, storing as little as possible for clients that may not
//! exist.
//!
//! Owns the handshakes under way: a bounded queue of SYNs, the retransmission of their answers, and
//! cookies for SYNs that find the queue full (RFC 4987). It never holds a connection: it returns
//! one when the handshake's ACK has arrived. It does not count connections that wait to be
//! accepted: the caller does, and passes with each segment whether there is room for one more.
//! Without room, SYNs and the handshake's ACKs are dropped, as in Linux, and clients try again.
//!
//! # A hostile client
//! A SYN costs an entry of the queue; beyond the queue's bound it costs only its answer. An entry
//! is removed after [`ListenConfig::syn_ack_retries`] answers, or by a reset with exactly the right
//! number; other segments of a handshake that may be forged are challenged, at most ten a second
//! (RFC 5961). An ACK without an entry is checked as a cookie only while cookies are outstanding;
//! guessing one takes 2^28 attempts. A SYN with a valid cookie of Fast Open makes a connection at
//! once; how many may be unconfirmed is bounded (`fast_open`). False options in the timestamp
//! affect only the client itself.

mod cookie;
mod fast_open;

use crate::challenge::Bucket;
use crate::closed::answer_closed;
use crate::config::{Config, InitialNumbers, Opening, default_mss};
use crate::connection::{Connection, Full};
use crate::connection::{Events, MIN_MSS};
use crate::ecn::EcnCodepoint;
use crate::isn::{Flow, Secret, initial_numbers, timestamp_offset};
use crate::segment::{FastOpen, Flags, Header, Options, Segment, Timestamps};
use crate::seq::Seq;
use crate::time::Instant;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;
use fast_open::{Places, Validity};

/// The behaviour of a listener.
#[derive(Debug, Clone)]
pub struct ListenConfig {
    /// The configuration of its connections.
    pub connection: Config,
    /// Most handshakes remembered.
    pub syn_queue: usize,
    /// True if further SYNs are answered with a cookie, false if they are dropped.
    pub cookies: bool,
    /// Times an answer to a SYN is repeated: after 1 s, 2 s, 4 s and so on (RFC 6298 section 5). At
    /// most 10.
    pub syn_ack_retries: u8,
    /// Most connections opened by a cookie of TCP Fast Open (RFC 7413) whose handshake is not
    /// complete; zero accepts no data on SYNs and hands out no cookies.
    pub fast_open: usize,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self {
            connection: Config::default(),
            syn_queue: 256,
            cookies: true,
            syn_ack_retries: 5,
            fast_open: 0,
        }
    }
}

/// A segment to a listening port that belongs to no connection.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The flow it belongs to.
    pub flow: Flow,
    /// The segment; its ports are the flow's.
    pub segment: Segment<'a>,
    /// The ECN field of its IP header.
    pub ecn: EcnCodepoint,
    /// As [`Opening::path_mss`].
    pub path_mss: u16,
    /// True if one more connection may wait to be accepted.
    pub room: bool,
    /// The number from [`TimeWaitResponse::Reopen`](crate::TimeWaitResponse::Reopen), if TIME-WAIT
    /// passed the segment on.
    pub iss: Option<Seq>,
}

/// A listener's response to a segment.
#[derive(Debug)]
#[must_use]
pub enum Answer {
    /// Nothing.
    Ignore,
    /// Send this header, without data, to the segment's sender.
    Reply(Header),
    /// The connection, which has processed the segment, and its events. The handshake is complete,
    /// unless the SYN showed a cookie of Fast Open.
    Accept(Box<Connection>, Events),
}

/// Counters of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListenStats {
    /// SYNs taken into the queue.
    pub syns: u64,
    /// SYNs answered with a cookie.
    pub cookies_sent: u64,
    /// Connections from cookies.
    pub cookies_accepted: u64,
    /// ACKs that were not valid cookies.
    pub cookies_refused: u64,
    /// SYNs dropped because the queue was full.
    pub syns_dropped: u64,
    /// SYNs and ACKs dropped because too many connections wait to be accepted.
    pub overflows: u64,
    /// Answers repeated.
    pub retransmissions: u64,
    /// Handshakes given up.
    pub expired: u64,
    /// Connections handed out.
    pub accepted: u64,
    /// Connections among these opened by a cookie of Fast Open.
    pub fast_opens: u64,
    /// Cookies of Fast Open that were not valid, any more or ever.
    pub fast_open_refused: u64,
    /// Valid ones for which no place was free.
    pub fast_open_overflows: u64,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    syn: Header,
    numbers: InitialNumbers,
    path_mss: u16,
    /// Number of answers repeated by a timer.
    retries: u8,
    /// True if the answer was sent more than once, for any reason.
    repeated: bool,
    /// True if the answer hands out a cookie of Fast Open.
    hands_out: bool,
    sent_at: Instant,
    due: Instant,
    challenges: Bucket,
}

/// A listening port. See the [module's documentation](self).
#[derive(Debug)]
pub struct Listener {
    config: ListenConfig,
    secret: Secret,
    pending: BTreeMap<Flow, Pending>,
    /// Times at which the next answers are due.
    due: BTreeSet<(Instant, Flow)>,
    /// Time at which a cookie was last sent.
    cookie_at: Option<Instant>,
    /// Time at which a new SYN last came, answered or dropped for a full queue.
    syn_at: Option<Instant>,
    /// Connections opened by Fast Open whose handshake is not complete.
    places: Places,
    stats: ListenStats,
}

/// First wait for the handshake's ACK (RFC 6298 section 2.1).
const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_RETRIES: u8 = 10;
/// Most answers repeated in one call of [`Listener::poll_transmit`].
const MAX_BATCH: usize = 64;

impl Listener {
    /// Creates a listener without handshakes.
    pub fn new(config: ListenConfig, secret: Secret) -> Self {
        Self {
            config,
            secret,
            pending: BTreeMap::new(),
            due: BTreeSet::new(),
            cookie_at: None,
            syn_at: None,
            places: Places::default(),
            stats: ListenStats::default(),
        }
    }

    /// Returns the counters.
    pub fn stats(&self) -> ListenStats {
        self.stats
    }

    /// Returns the number of handshakes under way.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns whether the acknowledgment of a handshake may be on its way: one is remembered, and
    /// a new SYN came within the time after which answers are repeated. So clients that do not
    /// exist make a listener await acknowledgments for no longer than that after the last of them.
    /// Neither a cookie's acknowledgment nor that of a repeated SYN is awaited by itself.
    pub fn awaits_acks(&self, now: Instant) -> bool {
        !self.pending.is_empty() && self.syn_at.is_some_and(|at| now < at + FIRST_WAIT)
    }

    /// Handles a segment (RFC 9293 section 3.10.7.2).
    pub fn handle_segment(&mut self, now: Instant, arrival: &Arrival<'_>) -> Answer {
        if let Some(pending) = self.pending.get(&arrival.flow).copied() {
            return self.in_handshake(now, arrival, pending);
        }
        let flags = arrival.segment.header.flags;
        if flags.contains(Flags::RST) {
            return Answer::Ignore;
        }
        if flags.contains(Flags::ACK) {
            return self.on_stray_ack(now, arrival);
        }
        if !flags.contains(Flags::SYN) || flags.contains(Flags::FIN) {
            return Answer::Ignore;
        }
        if !arrival.room {
            self.stats.overflows += 1;
            return Answer::Ignore;
        }
        self.on_syn(now, arrival)
    }

    fn on_syn(&mut self, now: Instant, arrival: &Arrival<'_>) -> Answer {
        let flow = &arrival.flow;
        self.syn_at = Some(now);
        if self.pending.len() >= self.config.syn_queue {
            if !self.config.cookies {
                self.stats.syns_dropped += 1;
                return Answer::Ignore;
            }
            self.stats.cookies_sent += 1;
            self.cookie_at = Some(now);
            return Answer::Reply(self.cookie_answer(now, arrival));
        }
        let mut numbers = initial_numbers(&self.secret, flow, now);
        numbers.seq = arrival.iss.unwrap_or(numbers.seq);
        let hands_out = match self.try_fast_open(now, arrival, numbers) {
            Ok(answer) => return answer,
            Err(hands_out) => hands_out,
        };
        let due = now + FIRST_WAIT;
        let pending = Pending {
            syn: arrival.segment.header,
            numbers,
            path_mss: arrival.path_mss,
            retries: 0,
            repeated: false,
            hands_out,
            sent_at: now,
            due,
            challenges: Bucket::new(now),
        };
        let answer = self.syn_ack(flow, &pending, now);
        self.pending.insert(*flow, pending);
        self.due.insert((due, *flow));
        self.stats.syns += 1;
        Answer::Reply(answer)
    }

    /// Opens a connection if the SYN shows a valid cookie and a place is free. Otherwise returns
    /// whether the answer hands out a cookie.
    fn try_fast_open(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        numbers: InitialNumbers,
    ) -> Result<Answer, bool> {
        let flow = &arrival.flow;
        if self.config.fast_open == 0 {
            return Err(false);
        }
        let cookie = match &arrival.segment.header.options.fast_open {
            FastOpen::None => return Err(false),
            FastOpen::Request => return Err(true),
            FastOpen::Cookie(cookie) => cookie,
        };
        let validity = fast_open::check(&self.secret, flow, cookie, now);
        if validity == Validity::No {
            self.stats.fast_open_refused += 1;
            return Err(true);
        }
        let retries = self.config.syn_ack_retries.min(MAX_RETRIES);
        let until = now + fast_open::hold(&self.config.connection.sender, retries);
        if !self.places.take(flow, self.config.fast_open, until, now) {
            self.stats.fast_open_overflows += 1;
            return Err(false);
        }
        let new = (validity == Validity::Old).then(|| fast_open::make(&self.secret, flow, now));
        let answer = (new, retries);
        let opening = opening(flow, numbers, arrival.path_mss);
        let config = &self.config.connection;
        let (connection, events) = Connection::accept_fast(config, &opening, &arrival.segment, answer, now);
        self.stats.fast_opens += 1;
        Ok(self.hand_out(connection, events, arrival))
    }

    /// Frees the place of a connection opened by Fast Open, whose handshake is complete or which
    /// the caller drops before its SYN-ACK has left.
    pub fn complete_fast_open(&mut self, flow: &Flow) {
        self.places.free(flow);
    }

    fn forget(&mut self, flow: &Flow) {
        if let Some(pending) = self.pending.remove(flow) {
            self.due.remove(&(pending.due, *flow));
        }
    }

    /// Handles a segment of a handshake under way, in SYN-RECEIVED (RFC 9293 section 3.10.7.4): the
    /// connection that it would become judges it.
    fn in_handshake(&mut self, now: Instant, arrival: &Arrival<'_>, mut pending: Pending) -> Answer {
        let (flow, header) = (&arrival.flow, &arrival.segment.header);
        let control = header.flags & (Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN);
        if control == Flags::SYN && header.seq == pending.syn.seq {
            // The answer was lost. This does not count as a retry: repeating a SYN must not end the
            // handshake sooner.
            pending.repeated = true;
            self.pending.insert(*flow, pending);
            return Answer::Reply(self.syn_ack(flow, &pending, now));
        }
        if control == Flags::ACK && header.ack == pending.numbers.seq + 1 && !arrival.room {
            self.stats.overflows += 1;
            return Answer::Ignore;
        }
        // After a repetition it is unknown which answer is acknowledged (RFC 6298 section 3); the
        // first data is measured instead.
        let sent_at = (!pending.repeated).then_some(pending.sent_at);
        let opening = opening(flow, pending.numbers, pending.path_mss);
        let config = &self.config.connection;
        let mut connection = Connection::accept(config, &opening, &pending.syn, sent_at, now);
        let (reply, events) =
            connection.in_handshake(&arrival.segment, arrival.ecn, &mut pending.challenges, now);
        if connection.is_closed() {
            // A reset with exactly the right number.
            self.forget(flow);
        } else if events.contains(Events::ESTABLISHED) {
            return self.hand_out(connection, events, arrival);
        } else {
            self.pending.insert(*flow, pending);
        }
        reply.map_or(Answer::Ignore, Answer::Reply)
    }

    /// Handles an ACK without a handshake: it may return a cookie.
    fn on_stray_ack(&mut self, now: Instant, arrival: &Arrival<'_>) -> Answer {
        let segment = &arrival.segment;
        let reset = || answer_closed(segment).map_or(Answer::Ignore, Answer::Reply);
        if segment.header.flags.contains(Flags::SYN) {
            return reset();
        }
        match self.open_cookie(now, arrival) {
            Some(mut connection) if arrival.room => {
                let events = connection.handle_segment(now, segment, arrival.ecn);
                if !events.contains(Events::ESTABLISHED) {
                    return Answer::Ignore;
                }
                self.stats.cookies_accepted += 1;
                self.hand_out(connection, events, arrival)
            }
            Some(_) => {
                self.stats.overflows += 1;
                Answer::Ignore
            }
            None => reset(),
        }
    }

    fn hand_out(&mut self, connection: Connection, events: Events, arrival: &Arrival<'_>) -> Answer {
        self.forget(&arrival.flow);
        self.stats.accepted += 1;
        Answer::Accept(Box::new(connection), events)
    }

    fn syn_ack(&self, flow: &Flow, pending: &Pending, now: Instant) -> Header {
        let opening = opening(flow, pending.numbers, pending.path_mss);
        let connection = Connection::accept(&self.config.connection, &opening, &pending.syn, None, now);
        let mut answer = connection.syn_ack(now);
        if pending.hands_out {
            answer.options.fast_open = FastOpen::Cookie(fast_open::make(&self.secret, flow, now));
        }
        answer
    }

    fn cookie_answer(&self, now: Instant, arrival: &Arrival<'_>) -> Header {
        let (flow, syn) = (&arrival.flow, &arrival.segment.header);
        let mss = syn.options.mss.unwrap_or(default_mss(flow.remote));
        let numbers = InitialNumbers {
            seq: cookie::make(&self.secret, flow, syn.seq, mss, now),
            timestamp_offset: timestamp_offset(&self.secret, flow),
        };
        let opening = opening(flow, numbers, arrival.path_mss);
        let mut answer = Connection::accept(&self.config.connection, &opening, syn, None, now).syn_ack(now);
        match &mut answer.options.timestamps {
            Some(timestamps) => {
                let remembered = cookie::Remembered {
                    window_scale: syn.options.window_scale.filter(|_| answer.options.window_scale.is_some()),
                    sack: answer.options.sack_permitted,
                    ecn: answer.flags.contains(Flags::ECE),
                };
                timestamps.value = cookie::hide(now.timestamp(numbers.timestamp_offset), remembered);
            }
            // Without timestamps there is no room for options, so none are agreed to.
            None => {
                answer.options.window_scale = None;
                answer.options.sack_permitted = false;
                answer.flags.remove(Flags::ECE);
            }
        }
        answer
    }

    /// Returns the connection that a cookie in `arrival` describes.
    fn open_cookie(&mut self, now: Instant, arrival: &Arrival<'_>) -> Option<Connection> {
        if (now - self.cookie_at?).as_nanos() >= u128::from(cookie::LIFE_NS) {
            self.cookie_at = None;
            return None;
        }
        let (flow, header) = (&arrival.flow, &arrival.segment.header);
        let (irs, iss) = (Seq(header.seq.0.wrapping_sub(1)), Seq(header.ack.0.wrapping_sub(1)));
        let Some(mss) = cookie::open(&self.secret, flow, irs, iss, now) else {
            self.stats.cookies_refused += 1;
            return None;
        };
        let remembered = header.options.timestamps.map(|t| cookie::reveal(t.echo)).unwrap_or_default();
        // The relevant parts of the original SYN.
        let syn = Header {
            seq: irs,
            ack: Seq(0),
            flags: if remembered.ecn { Flags::SYN | Flags::ECE | Flags::CWR } else { Flags::SYN },
            options: Options {
                mss: Some(mss.max(MIN_MSS)),
                window_scale: remembered.window_scale,
                sack_permitted: remembered.sack,
                timestamps: header.options.timestamps.map(|t| Timestamps { value: t.value, echo: 0 }),
                ..Options::default()
            },
            ..*header
        };
        let numbers = InitialNumbers { seq: iss, timestamp_offset: timestamp_offset(&self.secret, flow) };
        let opening = opening(flow, numbers, arrival.path_mss);
        Some(Connection::accept(&self.config.connection, &opening, &syn, None, now))
    }

    /// Returns the time at which [`poll_transmit`](Self::poll_transmit) has work to do; `None`
    /// while no handshake is under way.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Repeats the answers that are due, at most 64 a call, and drops handshakes whose answers were
    /// repeated often enough. If `emit` has no room, the rest stays due.
    pub fn poll_transmit(&mut self, now: Instant, mut emit: impl FnMut(&Flow, &Header) -> Result<(), Full>) {
        let retries = self.config.syn_ack_retries.min(MAX_RETRIES);
        for _ in 0..MAX_BATCH {
            let Some(&(at, flow)) = self.due.first() else { return };
            if at > now {
                return;
            }
            let Some(mut pending) = self.pending.get(&flow).copied() else {
                self.due.pop_first();
                continue;
            };
            if pending.retries >= retries {
                self.forget(&flow);
                self.stats.expired += 1;
                continue;
            }
            pending.retries += 1;
            pending.repeated = true;
            if emit(&flow, &self.syn_ack(&flow, &pending, now)).is_err() {
                return;
            }
            self.stats.retransmissions += 1;
            self.due.pop_first();
            pending.due = now + FIRST_WAIT * (1 << pending.retries);
            self.due.insert((pending.due, flow));
            self.pending.insert(flow, pending);
        }
    }
}

fn opening(flow: &Flow, numbers: InitialNumbers, path_mss: u16) -> Opening {
    let (local_port, remote_port) = (flow.local_port, flow.remote_port);
    Opening { local_port, remote_port, numbers, path_mss, default_mss: default_mss(flow.remote) }
}

#[cfg(test)]
mod tests;
