//! TIME-WAIT without a connection: the state that must be kept until a connection's old duplicates
//! have died out (RFC 9293 section 3.4.2).
//!
//! Owns at most 48 bytes, where a connection takes hundreds. Never sends data and holds none.

use crate::challenge::Bucket;
use crate::segment::{Flags, Header, Options, Segment, Timestamps};
use crate::seq::Seq;
use crate::time::Instant;
use core::time::Duration;

/// The rest of a connection in TIME-WAIT: see
/// [`Connection::time_wait`](crate::Connection::time_wait).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeWait {
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    /// The number after this side's FIN.
    pub(crate) seq: Seq,
    /// The number after the peer's FIN.
    pub(crate) ack: Seq,
    pub(crate) window: u16,
    /// The peer's last timestamp and the offset of this side's, if timestamps are used.
    pub(crate) timestamps: Option<(u32, u32)>,
    pub(crate) lasts_ms: u32,
    pub(crate) expires_at: Instant,
    pub(crate) challenges: Bucket,
}

/// The response to a segment in TIME-WAIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum TimeWaitResponse {
    /// Nothing.
    Ignore,
    /// Send this header.
    Reply(Header),
    /// The segment opens a new connection between the same ports, which cannot be confused with the
    /// old one (RFC 6191, RFC 9293 section 3.6.1): drop this value and pass the segment to the
    /// listener with `iss`.
    Reopen {
        /// The new connection's initial number, beyond all numbers of the old one.
        iss: Seq,
    },
}

/// Distance from the old connection's last number to a new one's first: farther than any unscaled
/// window reaches.
const REOPEN_DISTANCE: u32 = (1 << 16) + 2;

impl TimeWait {
    /// Returns the time at which it is to be dropped.
    pub fn expires_at(&self) -> Instant {
        self.expires_at
    }

    /// Handles a segment between the connection's ports.
    pub fn handle_segment(&mut self, segment: &Segment<'_>, now: Instant) -> TimeWaitResponse {
        self.respond(segment, now)
    }

    pub(crate) fn respond(&mut self, segment: &Segment<'_>, now: Instant) -> TimeWaitResponse {
        let header = &segment.header;
        let value = header.options.timestamps.map(|timestamps| timestamps.value);
        let newer = |(recent, _): (u32, u32)| value.map(|value| value.wrapping_sub(recent) as i32);
        let age = self.timestamps.and_then(newer);
        if header.flags.contains(Flags::RST) {
            // Even a RST with the exact number does not end TIME-WAIT: the answer to an old
            // duplicate can provoke one (RFC 1337 section 3, fix F1).
            return TimeWaitResponse::Ignore;
        }
        if header.flags.contains(Flags::SYN) && !header.flags.contains(Flags::ACK) {
            // RFC 6191 section 2: a later timestamp, or, if the timestamps do not decide, a later
            // number.
            let later = match age {
                Some(age) if age != 0 => age > 0,
                _ => header.seq > self.ack,
            };
            if later {
                return TimeWaitResponse::Reopen { iss: self.seq + REOPEN_DISTANCE };
            }
        }
        let fin_again = header.flags.contains(Flags::FIN)
            && header.seq + segment.payload.len() as u32 + 1 == self.ack
            && age.is_none_or(|age| age >= 0);
        if fin_again {
            // The last ACK was lost (RFC 9293 section 3.10.7.4, eighth step).
            self.expires_at = now + Duration::from_millis(self.lasts_ms.into());
            return TimeWaitResponse::Reply(self.ack(now));
        }
        let expected = segment.sequence_len() == 0 && header.seq == self.ack && header.ack == self.seq;
        if expected || !self.challenges.take(now) {
            return TimeWaitResponse::Ignore;
        }
        TimeWaitResponse::Reply(self.ack(now))
    }

    fn ack(&self, now: Instant) -> Header {
        let timestamps =
            self.timestamps.map(|(echo, offset)| Timestamps { value: now.timestamp(offset), echo });
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
