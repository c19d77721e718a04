//! TCP Fast Open of one connection (RFC 7413): data on the SYN.
//!
//! **Client.** To the sender, data on a SYN counts as sent only when the SYN-ACK acknowledges it.
//! Data that the SYN-ACK leaves out, because the cookie was refused or the SYN that carried it was
//! lost, is therefore the first new data of the connection. A repeated SYN has neither data nor the
//! option, for a middlebox may have dropped the first because of them.
//!
//! **Server.** A connection in SYN-RECEIVED that was opened by a cookie sends and receives as an
//! established one does ([`Set::FAST_OPEN`]); its FIN waits for the handshake. Its sender starts
//! with the SYN-ACK, and is told nothing when the handshake ends.

use super::{Connection, Events, Set};
use crate::config::{Config, Opening};
use crate::error::Error;
use crate::segment::{Cookie, FastOpen, Options, Segment};
use crate::seq::{Range, Seq};
use crate::state::State;
use crate::time::Instant;
use alloc::boxed::Box;

/// The state that a client keeps of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastOpenPeer {
    /// The cookie that it handed out.
    pub cookie: Cookie,
    /// The segment size that it announced then.
    pub mss: u16,
}

/// What a handshake with Fast Open has shown: see [`Connection::take_fast_open`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastOpenOutcome {
    /// To a client.
    Client {
        /// The cookie that the server handed out, if it did.
        cookie: Option<Cookie>,
        /// The segment size that the server announced.
        mss: u16,
        /// True if nothing shows that the path carries a SYN with the option: the first SYN was
        /// repeated and the answer does not show that it arrived, or the attempt failed.
        lost: bool,
        /// Time at which the first SYN left.
        began: Instant,
    },
    /// To a server: the client is there.
    Server,
}

/// The state of the handshake, on the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FastOpening {
    /// The option of this side's first SYN, or of its SYN-ACKs.
    offer: FastOpen,
    /// Most bytes of a segment to the server, options included, as it announced earlier.
    mss: u16,
    /// Bytes of data that the first SYN carried.
    sent: u16,
    /// Time at which the first SYN left; `None` before.
    left_at: Option<Instant>,
    /// The answer echoes the timestamp of the first SYN.
    echoed: bool,
    received: Option<Cookie>,
}

impl FastOpening {
    fn new(offer: FastOpen, mss: u16) -> Self {
        Self { offer, mss, sent: 0, left_at: None, echoed: false, received: None }
    }
}

impl Connection {
    /// Lets the SYN, which has not left yet, ask for a cookie, or show that of `peer` and carry the
    /// data that is handed over before it leaves.
    pub fn offer_fast_open(&mut self, peer: Option<FastOpenPeer>) {
        let offer = peer.map_or(FastOpen::Request, |peer| FastOpen::Cookie(peer.cookie));
        let mss = peer.map_or(0, |peer| peer.mss);
        self.set_fast_opening(Some(Box::new(FastOpening::new(offer, mss))));
    }

    /// Creates a connection from a SYN with a valid cookie: its data can be read, and data can be
    /// sent before the handshake is complete. A new `cookie` goes with the answer, which is
    /// repeated `retries` times.
    pub(crate) fn accept_fast(
        config: &Config,
        opening: &Opening,
        syn: &Segment<'_>,
        (cookie, retries): (Option<Cookie>, u8),
        now: Instant,
    ) -> (Self, Events) {
        let mut connection = Self::connect(config, opening, now);
        connection.set.insert(Set::SYN_ACK | Set::FAST_OPEN);
        connection.state = State::SynReceived;
        connection.syn_retries = retries;
        connection.negotiate(&syn.header, now);
        connection.start_sender(now);
        let offer = cookie.map_or(FastOpen::None, FastOpen::Cookie);
        connection.set_fast_opening(Some(Box::new(FastOpening::new(offer, 0))));
        let events = connection.take_syn_data(syn, now);
        (connection, events | Events::TRANSMIT)
    }

    /// Stores the data of a SYN.
    fn take_syn_data(&mut self, syn: &Segment<'_>, now: Instant) -> Events {
        let payload = &syn.payload[..syn.payload.len().min(usize::from(self.receive.initial_window()))];
        if payload.is_empty() {
            return Events::empty();
        }
        self.set.insert(Set::SYN_DATA);
        self.counters.data_segments_received += 1;
        let events = self.take(self.receive.next, payload, now);
        self.receive.offer_initial();
        events
    }

    /// Returns true while the handshake is under way and the application has to wait for it.
    #[inline]
    pub fn is_connecting(&self) -> bool {
        match self.state {
            State::SynSent => true,
            State::SynReceived => !self.set.contains(Set::FAST_OPEN),
            _ => false,
        }
    }

    /// Returns what the handshake has shown, once after [`Events::FAST_OPEN`]; `None` if it has
    /// shown nothing, because no SYN has left or the application ended the attempt before the first
    /// SYN was repeated.
    ///
    /// An attempt that the network ended counts as lost, whatever ended it (RFC 7413 section
    /// 4.1.3.1): a middlebox that refuses data on a SYN answers with a reset or an ICMP error, or
    /// drops what follows it. Whether plain SYNs fail, too, is for the caller to find out:
    /// [`has_failed_to_open`](Self::has_failed_to_open).
    pub fn take_fast_open(&mut self) -> Option<FastOpenOutcome> {
        let opening = *self.fast_opening()?;
        self.set_fast_opening(None);
        if self.set.contains(Set::SYN_ACK) {
            return Some(FastOpenOutcome::Server);
        }
        let began = opening.left_at?;
        // Repeated SYNs have neither data nor the option: the first was answered, if late.
        let answered = opening.echoed || opening.received.is_some() || self.set.contains(Set::SYN_DATA);
        let repeated = self.counters.all_troubles().retransmissions > 0;
        let lost = self.has_failed() || (repeated && !answered);
        let (cookie, mss) = (opening.received, self.peer_mss);
        (lost || !self.is_closed()).then_some(FastOpenOutcome::Client { cookie, mss, lost, began })
    }

    fn has_failed(&self) -> bool {
        self.error.is_some_and(|error| error != Error::Aborted)
    }

    /// Returns true if this side opened the connection and the network ended the attempt before the
    /// SYN was acknowledged, with Fast Open or without.
    pub fn has_failed_to_open(&self) -> bool {
        // Acknowledged data moves the start of the data, so this holds for no later number.
        let unanswered = self.sender.una() == self.iss() && !self.set.contains(Set::SYN_ACK);
        self.is_closed() && unanswered && self.has_failed()
    }

    /// Returns the option of a SYN or SYN-ACK that leaves now.
    pub(super) fn fast_open_option(&self, repeated: bool) -> FastOpen {
        let answer = self.set.contains(Set::SYN_ACK);
        let offer = self.fast_opening().map_or(FastOpen::None, |opening| opening.offer);
        if answer != self.set.contains(Set::FAST_OPEN) || (repeated && !answer) {
            return FastOpen::None;
        }
        offer
    }

    /// Returns how much data a first SYN with these options carries.
    pub(super) fn syn_data(&self, options: &Options) -> usize {
        let Some(opening) = self.fast_opening().filter(|_| self.state == State::SynSent) else { return 0 };
        if !matches!(options.fast_open, FastOpen::Cookie(_)) {
            return 0;
        }
        let segment = usize::from(opening.mss.min(self.path_mss).min(self.own_mss));
        self.unacked.len().min(segment.saturating_sub(options.len()))
    }

    /// Records that the first SYN left with `bytes` of data.
    pub(super) fn note_first_syn(&mut self, bytes: u32, now: Instant) {
        self.change_fast_opening(|opening| {
            (opening.sent, opening.left_at) = (bytes as u16, Some(now));
        });
    }

    /// Records what the peer's SYN-ACK shows in SYN-SENT: a cookie, and which SYN it answers. A SYN
    /// is repeated after many ticks of the timestamp clock.
    pub(super) fn note_fast_answer(&mut self, options: &Options) {
        let Some(&opening) = self.fast_opening() else { return };
        let first = opening.left_at.map(|at| self.timestamp(at));
        let echo = options.timestamps.map(|timestamps| timestamps.echo);
        let echoed = self.set.contains(Set::TIMESTAMPS) && first.is_some() && echo == first;
        let cookie = match options.fast_open {
            FastOpen::Cookie(cookie) => Some(cookie),
            _ => None,
        };
        self.change_fast_opening(|opening| (opening.received, opening.echoed) = (cookie, echoed));
    }

    /// Returns the number after the data that the SYN carried.
    pub(super) fn syn_end(&self) -> Seq {
        self.data_start + self.fast_opening().map_or(0, |opening| opening.sent.into())
    }

    /// Counts the data of the SYN up to `ack` as sent; returns true if there was some.
    pub(super) fn count_syn_data(&mut self, ack: Seq) -> bool {
        let bytes = ack - self.data_start;
        if bytes == 0 {
            return false;
        }
        self.set.insert(Set::SYN_DATA);
        self.counters.bytes_sent += u64::from(bytes);
        self.counters.data_segments_sent += 1;
        // The SYN left when the attempt last made progress.
        self.sender.on_sent(Range::new(self.data_start, bytes), self.progress_at);
        true
    }
}
