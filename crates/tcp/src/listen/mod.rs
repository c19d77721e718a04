//! Listening: from a SYN to a connection, remembering as little as possible of clients that may not exist.
//!
//! Owns the handshakes under way: a bounded queue of SYNs, their answers' retransmission, and cookies for the SYNs that
//! find the queue full (RFC 4987). Never holds a connection: it hands one out when the handshake's ACK has come. Never
//! counts connections that wait to be accepted: the caller does, and says with each segment whether there is room for one
//! more; without room SYNs and the handshake's ACKs are dropped, as Linux does, and clients try again.
//!
//! # A hostile client
//! A SYN costs an entry of the queue or, beyond, nothing but its answer. Entries leave after
//! [`ListenConfig::syn_ack_retries`] answers, or with a reset of exactly the right number. An ACK without an entry is
//! looked at as a cookie only while cookies are out; guessing one takes 2^28 tries. What a client may lie about in its
//! timestamp is about itself.

mod cookie;

use crate::config::{Config, InitialNumbers, Opening, default_mss};
use crate::connection::{Events, MIN_MSS, timestamp};
use crate::isn::{Flow, Secret, initial_numbers, timestamp_offset};
use crate::segment::{Flags, Header, Options, Segment, Timestamps};
use crate::{Connection, EcnCodepoint, Full, Instant, Seq, answer_closed};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// How a listener behaves.
#[derive(Debug, Clone)]
pub struct ListenConfig {
    /// For the connections.
    pub connection: Config,
    /// Handshakes remembered at most.
    pub syn_queue: usize,
    /// Whether SYNs beyond that are answered with a cookie, or dropped.
    pub cookies: bool,
    /// How often an answer to a SYN is repeated: after 1 s, 2 s, 4 s and so on (RFC 6298 section 5). At most 10.
    pub syn_ack_retries: u8,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self { connection: Config::default(), syn_queue: 256, cookies: true, syn_ack_retries: 5 }
    }
}

/// A segment to a listening port that is no connection's.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// From whom to whom.
    pub flow: Flow,
    /// The segment; its ports are the flow's.
    pub segment: Segment<'a>,
    /// From its IP header.
    pub ecn: EcnCodepoint,
    /// As [`Opening::path_mss`].
    pub path_mss: u16,
    /// Whether one more connection may wait to be accepted.
    pub room: bool,
    /// From [`Verdict::Reopen`](crate::Verdict::Reopen), if that sent it here.
    pub iss: Option<Seq>,
}

/// What a listener does about a segment.
#[derive(Debug)]
#[must_use]
pub enum Answer {
    /// Nothing.
    Ignore,
    /// This leaves, without data, to the segment's sender.
    Reply(Header),
    /// The handshake is complete: a connection, which has seen the segment, with its events.
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
    /// ACKs that were no cookie of ours.
    pub cookies_refused: u64,
    /// SYNs dropped for the full queue.
    pub syns_dropped: u64,
    /// SYNs and ACKs dropped because too many connections wait to be accepted.
    pub overflows: u64,
    /// Answers repeated.
    pub retransmissions: u64,
    /// Handshakes given up.
    pub expired: u64,
    /// Connections handed out.
    pub accepted: u64,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    syn: Header,
    numbers: InitialNumbers,
    path_mss: u16,
    /// Answers that a timer repeated.
    retries: u8,
    /// Whether the answer left more than once, for whatever reason.
    repeated: bool,
    sent_at: Instant,
    due: Instant,
}

/// A listening port. See the [module's documentation](self).
#[derive(Debug)]
pub struct Listener {
    config: ListenConfig,
    secret: Secret,
    pending: BTreeMap<Flow, Pending>,
    /// When the next answer to each is due.
    due: BTreeSet<(Instant, Flow)>,
    /// When a cookie was last sent.
    cookie_at: Option<Instant>,
    stats: ListenStats,
}

/// First wait for the handshake's ACK (RFC 6298 section 2.1).
const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_RETRIES: u8 = 10;
/// Answers repeated in one call of [`Listener::poll_transmit`].
const MAX_BATCH: usize = 64;

impl Listener {
    /// A listener that knows nobody yet.
    pub fn new(config: ListenConfig, secret: Secret) -> Self {
        Self {
            config,
            secret,
            pending: BTreeMap::new(),
            due: BTreeSet::new(),
            cookie_at: None,
            stats: ListenStats::default(),
        }
    }

    /// Counters.
    pub fn stats(&self) -> ListenStats {
        self.stats
    }

    /// Handshakes under way.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Takes a segment (RFC 9293 section 3.10.7.2).
    pub fn handle_segment(&mut self, now: Instant, arrival: &Arrival<'_>) -> Answer {
        let header = &arrival.segment.header;
        let flags = header.flags;
        if flags.contains(Flags::RST) {
            self.on_reset(arrival);
            return Answer::Ignore;
        }
        if flags.contains(Flags::ACK) {
            return self.on_ack(now, arrival);
        }
        if !flags.contains(Flags::SYN) || flags.contains(Flags::FIN) {
            return Answer::Ignore;
        }
        if let Some(pending) = self.pending.get_mut(&arrival.flow) {
            // Our answer was lost; if it is another client's number, the answer makes that client reset this one. It is not
            // counted as a retry: whoever repeats a SYN must not end the handshake sooner.
            pending.repeated = true;
            let pending = *pending;
            return Answer::Reply(self.syn_ack(&arrival.flow, &pending, now));
        }
        if !arrival.room {
            self.stats.overflows += 1;
            return Answer::Ignore;
        }
        self.on_syn(now, arrival)
    }

    fn on_syn(&mut self, now: Instant, arrival: &Arrival<'_>) -> Answer {
        let flow = &arrival.flow;
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
        let due = now + FIRST_WAIT;
        let pending = Pending {
            syn: arrival.segment.header,
            numbers,
            path_mss: arrival.path_mss,
            retries: 0,
            repeated: false,
            sent_at: now,
            due,
        };
        let answer = self.syn_ack(flow, &pending, now);
        self.pending.insert(*flow, pending);
        self.due.insert((due, *flow));
        self.stats.syns += 1;
        Answer::Reply(answer)
    }

    fn on_reset(&mut self, arrival: &Arrival<'_>) {
        let exact = |pending: &Pending| arrival.segment.header.seq == pending.syn.seq + 1;
        if self.pending.get(&arrival.flow).is_some_and(exact) {
            self.forget(&arrival.flow);
        }
    }

    fn forget(&mut self, flow: &Flow) {
        if let Some(pending) = self.pending.remove(flow) {
            self.due.remove(&(pending.due, *flow));
        }
    }

    fn on_ack(&mut self, now: Instant, arrival: &Arrival<'_>) -> Answer {
        let segment = &arrival.segment;
        let reset = || answer_closed(segment).map_or(Answer::Ignore, Answer::Reply);
        if segment.header.flags.contains(Flags::SYN) {
            return reset();
        }
        let Some(pending) = self.pending.get(&arrival.flow).copied() else {
            return match self.open_cookie(now, arrival) {
                Some(connection) if arrival.room => {
                    self.stats.cookies_accepted += 1;
                    self.hand_out(connection, now, arrival)
                }
                Some(_) => {
                    self.stats.overflows += 1;
                    Answer::Ignore
                }
                None => reset(),
            };
        };
        if segment.header.ack != pending.numbers.seq + 1 {
            return reset();
        }
        if !arrival.room {
            self.stats.overflows += 1;
            return Answer::Ignore;
        }
        // A repeated answer leaves open which one is acknowledged (RFC 6298 section 3); the first data is measured instead.
        let sent_at = (!pending.repeated).then_some(pending.sent_at);
        let connection = Connection::accept(
            &self.config.connection,
            &opening(&arrival.flow, pending.numbers, pending.path_mss),
            &pending.syn,
            sent_at,
            now,
        );
        self.hand_out(connection, now, arrival)
    }

    /// Lets the connection judge the segment: it becomes established, or the segment was none of the handshake and nothing
    /// has happened.
    fn hand_out(&mut self, mut connection: Connection, now: Instant, arrival: &Arrival<'_>) -> Answer {
        let events = connection.handle_segment(now, &arrival.segment, arrival.ecn);
        if !events.contains(Events::ESTABLISHED) {
            return Answer::Ignore;
        }
        self.forget(&arrival.flow);
        self.stats.accepted += 1;
        Answer::Accept(Box::new(connection), events)
    }

    fn syn_ack(&self, flow: &Flow, pending: &Pending, now: Instant) -> Header {
        let opening = opening(flow, pending.numbers, pending.path_mss);
        Connection::accept(&self.config.connection, &opening, &pending.syn, None, now).syn_ack(now)
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
                timestamps.value = cookie::hide(timestamp(now, numbers.timestamp_offset), remembered);
            }
            // Without timestamps there is no room to remember: nothing is agreed to.
            None => {
                answer.options.window_scale = None;
                answer.options.sack_permitted = false;
                answer.flags.remove(Flags::ECE);
            }
        }
        answer
    }

    /// The connection that a cookie in `arrival` stands for.
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
        // The SYN as it was, as far as it matters.
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

    /// When [`poll_transmit`](Self::poll_transmit) has something to do; `None` while no handshake is under way.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Repeats the answers that are due, at most 64 a call, and forgets handshakes that were answered often enough. When
    /// `emit` has no room, the rest stays due.
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
