//! Answers to segments that belong to no connection.

use crate::segment::{Flags, Header, Options, Segment};
use crate::seq::Seq;

/// Returns the reset that answers a segment to a closed port or from before a restart (RFC 9293
/// section 3.10.7.1); `None` if the segment is itself a reset. The caller limits the number of
/// resets sent, because any host can provoke them.
pub fn answer_closed(segment: &Segment<'_>) -> Option<Header> {
    let header = &segment.header;
    if header.flags.contains(Flags::RST) {
        return None;
    }
    let (seq, ack, flags) = if header.flags.contains(Flags::ACK) {
        (header.ack, Seq(0), Flags::RST)
    } else {
        (Seq(0), header.seq + segment.sequence_len(), Flags::RST | Flags::ACK)
    };
    Some(Header {
        source: header.destination,
        destination: header.source,
        seq,
        ack,
        flags,
        window: 0,
        options: Options::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(flags: Flags, payload: &[u8]) -> Option<(Seq, Seq, Flags)> {
        let header = Header {
            source: 1,
            destination: 2,
            seq: Seq(u32::MAX),
            ack: Seq(500),
            flags,
            window: 9,
            options: Options::default(),
        };
        let reply = answer_closed(&Segment { header, payload })?;
        assert_eq!((reply.source, reply.destination), (2, 1));
        Some((reply.seq, reply.ack, reply.flags))
    }

    #[test]
    fn a_reset_is_what_the_sender_will_believe() {
        assert_eq!(answer(Flags::SYN, &[]), Some((Seq(0), Seq(0), Flags::RST | Flags::ACK)));
        assert_eq!(answer(Flags::FIN, b"abc"), Some((Seq(0), Seq(3), Flags::RST | Flags::ACK)));
        assert_eq!(answer(Flags::ACK, b"abc"), Some((Seq(500), Seq(0), Flags::RST)));
        assert_eq!(answer(Flags::RST | Flags::ACK, &[]), None, "never a reset to a reset");
    }
}
