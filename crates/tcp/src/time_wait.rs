//! TIME-WAIT without a connection: what must be remembered of one until its old duplicates have died out (RFC 9293 section
//! 3.4.2).
//!
//! Owns thirty-odd bytes where a connection has hundreds. Never sends data, and holds none.

use crate::connection::{Bucket, timestamp};
use crate::segment::{Flags, Header, Options, Segment, Timestamps};
use crate::{Instant, Seq};
use core::time::Duration;

/// What is left of a connection in TIME-WAIT: see [`Connection::time_wait`](crate::Connection::time_wait).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeWait {
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    /// The number behind our FIN.
    pub(crate) seq: Seq,
    /// The number behind the peer's FIN.
    pub(crate) ack: Seq,
    pub(crate) window: u16,
    /// The peer's last timestamp and the offset of ours, if there are any.
    pub(crate) timestamps: Option<(u32, u32)>,
    pub(crate) lasts_ms: u32,
    pub(crate) expires_at: Instant,
    pub(crate) challenges: Bucket,
}

/// What a segment does to a connection in TIME-WAIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Nothing.
    Ignore,
    /// This is the answer.
    Reply(Header),
    /// It opens a new connection between the same ports, which nothing of the old one can be taken for (RFC 6191, RFC 9293
    /// section 3.6.1): forget this one and hand the segment to the listener, with `iss` as the number to begin at.
    Reopen {
        /// Beyond all numbers of the old connection.
        iss: Seq,
    },
}

/// How far behind the old connection's last number a new one begins: no window reaches there without scaling.
const REOPEN_DISTANCE: u32 = (1 << 16) + 2;

impl TimeWait {
    /// When it is to be forgotten.
    pub fn expires_at(&self) -> Instant {
        self.expires_at
    }

    /// Takes a segment between the connection's ports.
    pub fn handle_segment(&mut self, segment: &Segment<'_>, now: Instant) -> Verdict {
        self.judge(segment, now)
    }

    pub(crate) fn judge(&mut self, segment: &Segment<'_>, now: Instant) -> Verdict {
        let header = &segment.header;
        let value = header.options.timestamps.map(|timestamps| timestamps.value);
        let newer = |(recent, _): (u32, u32)| value.map(|value| value.wrapping_sub(recent) as i32);
        let age = self.timestamps.and_then(newer);
        if header.flags.contains(Flags::RST) {
            // Not even the exact number ends TIME-WAIT: an old duplicate, answered, brings back one (RFC 1337 section 3, fix F1).
            return Verdict::Ignore;
        }
        if header.flags.contains(Flags::SYN) && !header.flags.contains(Flags::ACK) {
            // RFC 6191 section 2: a later timestamp, or, if the clocks say nothing, a later number.
            let later = match age {
                Some(age) if age != 0 => age > 0,
                _ => header.seq > self.ack,
            };
            if later {
                return Verdict::Reopen { iss: self.seq + REOPEN_DISTANCE };
            }
        }
        let fin_again = header.flags.contains(Flags::FIN)
            && header.seq + segment.payload.len() as u32 + 1 == self.ack
            && age.is_none_or(|age| age >= 0);
        if fin_again {
            // The last ACK was lost (RFC 9293 section 3.10.7.4, eighth step).
            self.expires_at = now + Duration::from_millis(self.lasts_ms.into());
            return Verdict::Reply(self.ack(now));
        }
        let expected = segment.sequence_len() == 0 && header.seq == self.ack && header.ack == self.seq;
        if expected || !self.challenges.take(now) {
            return Verdict::Ignore;
        }
        Verdict::Reply(self.ack(now))
    }

    fn ack(&self, now: Instant) -> Header {
        let timestamps =
            self.timestamps.map(|(echo, offset)| Timestamps { value: timestamp(now, offset), echo });
        Header {
            source: self.local_port,
            destination: self.remote_port,
            seq: self.seq,
            ack: self.ack,
            flags: Flags::ACK,
            window: self.window,
            options: Options { timestamps, ..Options::default() },
        }
    }
}

const _: () = assert!(size_of::<TimeWait>() <= 48);
