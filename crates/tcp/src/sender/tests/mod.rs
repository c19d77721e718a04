//! The sender against the rules it cites, one at a time; [`model`] drives it at random against a
//! model.

mod model;
mod recovery;
mod window;

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::*;

pub(super) const MSS: u32 = 1000;
pub(super) const ISS: Seq = Seq(u32::MAX - 2_500);
/// The first byte of data, after the SYN.
pub(super) const DATA: Seq = Seq(ISS.0 + 1);

/// A sender, its clock in microseconds, and helpers.
pub(super) struct Bed {
    pub(super) sender: Sender,
    pub(super) now: Instant,
}

pub(super) fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Bed {
    /// Returns an established sender with a round trip of 100 ms measured on the SYN.
    pub(super) fn new(algorithm: Algorithm, sack: bool, stamps: bool) -> Self {
        let config = Config { algorithm, ..Config::default() };
        let mut sender = Sender::new(&config, ISS, MSS, Instant(0));
        sender.on_sent(Range::new(ISS, 1), Instant(0));
        let now = Instant(100_000_000);
        let mut bed = Self { sender, now };
        bed.ack_to(DATA);
        let timestamp_tick = stamps.then_some(us(1));
        bed.sender.on_established(&Negotiated { mss: MSS, sack, timestamp_tick }, now);
        bed
    }

    pub(super) fn wait(&mut self, duration: Duration) -> &mut Self {
        self.now = self.now + duration;
        self
    }

    /// Sends `segments` full segments of new data, one every microsecond.
    pub(super) fn send(&mut self, segments: u32) -> &mut Self {
        for _ in 0..segments {
            self.sender.on_sent(Range::new(self.sender.nxt(), MSS), self.now);
            self.wait(us(1));
        }
        self.sender.check();
        self
    }

    /// Sends as much new data as the window admits; returns the number of segments.
    pub(super) fn fill(&mut self) -> u32 {
        let segments = self.sender.may_send_new(self.now) / MSS;
        self.send(segments);
        segments
    }

    /// Sends every segment that is due again; returns their numbers, counted from 0.
    pub(super) fn resend(&mut self) -> Vec<u32> {
        let mut again = Vec::new();
        while let Some(range) = self.sender.next_retransmission(false) {
            self.sender.on_retransmitted(range, self.now);
            self.sender.check();
            again.push((range.start - DATA) / MSS);
            assert!(again.len() < 10_000, "without end");
        }
        again
    }

    pub(super) fn ack_with(&mut self, ack: Seq, sack: &[Range], echoed: Option<Instant>) -> Acked {
        let info = AckInfo { ack, sack, echoed, ecn_echo: false, may_be_duplicate: true };
        let acked = self.sender.on_ack(&info, self.now).expect("sent");
        self.sender.check();
        acked
    }

    pub(super) fn ack_to(&mut self, ack: Seq) -> Acked {
        self.ack_with(ack, &[], None)
    }

    /// Acknowledges the segments before number `segment`.
    pub(super) fn ack(&mut self, segment: u32) -> Acked {
        self.ack_to(at(segment))
    }

    /// Acknowledges as [`ack`](Self::ack) does, with SACK blocks of segments.
    pub(super) fn sack(&mut self, segment: u32, blocks: &[(u32, u32)]) -> Acked {
        let blocks: Vec<_> =
            blocks.iter().map(|&(from, to)| Range { start: at(from), end: at(to) }).collect();
        self.ack_with(at(segment), &blocks, None)
    }

    /// Waits for the next timer.
    pub(super) fn expire(&mut self) -> Timeout {
        self.now = self.now.max(self.sender.next_timeout().expect("a timer"));
        let timeout = self.sender.on_timeout(self.now);
        self.sender.check();
        timeout
    }

    pub(super) fn until_timeout(&self) -> Duration {
        self.sender.next_timeout().expect("a timer") - self.now
    }
}

/// Returns the first number of a segment.
pub(super) fn at(segment: u32) -> Seq {
    DATA + segment * MSS
}

#[test]
fn an_idle_sender_is_small_and_owns_no_memory() {
    assert!(size_of::<Sender>() <= 288, "{} bytes", size_of::<Sender>());
    let mut bed = Bed::new(Algorithm::Cubic, true, true);
    bed.send(8).wait(ms(100));
    bed.sack(0, &[(1, 8)]);
    assert_eq!(bed.resend(), [0]);
    bed.ack(8);
    bed.sender.trim();
    assert!(bed.sender.episode.is_none() && bed.sender.next_timeout().is_none());
}

#[test]
fn an_ack_of_what_was_never_sent_is_refused_and_changes_nothing() {
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.send(2);
    let before = format!("{:?}", bed.sender);
    let info = AckInfo { ack: at(2) + 1, sack: &[], echoed: None, ecn_echo: true, may_be_duplicate: true };
    assert_eq!(bed.sender.on_ack(&info, bed.now), Err(AckError::Unsent { ack: at(2) + 1, nxt: at(2) }));
    assert_eq!(format!("{:?}", bed.sender), before);
}

#[test]
fn sacks_of_what_was_never_sent_or_is_acknowledged_are_ignored() {
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.send(4).wait(ms(100));
    let acked = bed.sack(1, &[(2, 5), (0, 1), (3, 3), (4, 2)]);
    assert_eq!((acked.acked, acked.sacked, bed.sender.in_flight()), (MSS, 0, 3 * MSS));
}
