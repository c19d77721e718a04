//! SYN cookies (RFC 4987 section 3.6): the content of a SYN, kept by the client.
//!
//! The number of the SYN-ACK holds one bit of the clock, three of the segment size, and 28 of a
//! keyed hash over the flow, the client's number and these four bits. The low six bits of this
//! side's timestamp, which the client echoes, hold the remaining options. A cookie is valid for one
//! to two periods: at least 64 s and less than 128 s.

use crate::isn::{Domain, Flow, Secret};
use crate::segment::MAX_WINDOW_SCALE;
use crate::seq::Seq;
use crate::time::Instant;

/// Period of the cookie clock.
const PERIOD_NS: u64 = 64_000_000_000;
/// Time for which a cookie may be returned after it was sent.
pub(super) const LIFE_NS: u64 = 2 * PERIOD_NS;
/// Segment sizes that a cookie can hold; the largest one not above the peer's is used. They are the
/// common ones of Ethernet, tunnels, IPv6 and large frames.
const SIZES: [u16; 8] = [64, 536, 1220, 1300, 1380, 1440, 1460, 8940];
const HASH_BITS: u32 = 28;
/// Low bits of the timestamp that hold options.
const OPTION_BITS: u32 = 6;
/// Marks the absence of window scaling; no legal shift.
const NO_SCALE: u32 = 15;

/// The options held in a timestamp's low bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Remembered {
    pub window_scale: Option<u8>,
    pub sack: bool,
    pub ecn: bool,
}

fn hash(secret: &Secret, flow: &Flow, irs: Seq, period: u64, size: usize) -> u32 {
    let period_and_size = (period << 3 | size as u64) << 32;
    (secret.hash(Domain::Cookie, flow, period_and_size ^ u64::from(irs.0)) as u32) & ((1 << HASH_BITS) - 1)
}

fn compose(secret: &Secret, flow: &Flow, irs: Seq, period: u64, size: usize) -> Seq {
    let clock = (period as u32 & 1) << 31;
    Seq(clock | (size as u32) << HASH_BITS | hash(secret, flow, irs, period, size))
}

/// Returns the number that answers a SYN with number `irs` and segment size `mss`.
pub(super) fn make(secret: &Secret, flow: &Flow, irs: Seq, mss: u16, now: Instant) -> Seq {
    let size = SIZES.iter().rposition(|&size| size <= mss).unwrap_or(0);
    compose(secret, flow, irs, now.0 / PERIOD_NS, size)
}

/// Returns the segment size in `cookie`, if this side made it for this client in this period or the
/// last.
pub(super) fn open(secret: &Secret, flow: &Flow, irs: Seq, cookie: Seq, now: Instant) -> Option<u16> {
    let this = now.0 / PERIOD_NS;
    let period = if (this as u32 & 1) << 31 == cookie.0 & 1 << 31 { this } else { this.checked_sub(1)? };
    let size = (cookie.0 >> HASH_BITS & 7) as usize;
    (compose(secret, flow, irs, period, size) == cookie).then(|| SIZES[size])
}

/// Returns `timestamp`, or one shortly before it, with `options` in its low bits.
pub(super) fn hide(timestamp: u32, options: Remembered) -> u32 {
    let scale = options.window_scale.map_or(NO_SCALE, u32::from);
    let bits = scale << 2 | u32::from(options.sack) << 1 | u32::from(options.ecn);
    let hidden = timestamp & !((1 << OPTION_BITS) - 1) | bits;
    // The result is never from the future: later timestamps of the connection must not be smaller.
    if bits > timestamp & ((1 << OPTION_BITS) - 1) { hidden.wrapping_sub(1 << OPTION_BITS) } else { hidden }
}

/// Returns the options that [`hide`] put into a timestamp.
pub(super) fn reveal(echo: u32) -> Remembered {
    let scale = echo >> 2 & 15;
    Remembered {
        window_scale: (scale <= u32::from(MAX_WINDOW_SCALE)).then_some(scale as u8),
        sack: echo & 2 != 0,
        ecn: echo & 1 != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: Secret = Secret([3; 16]);

    fn flow(remote_port: u16) -> Flow {
        Flow { local: [10, 0, 0, 1].into(), remote: [10, 0, 0, 2].into(), local_port: 80, remote_port }
    }

    proptest! {
        #[test]
        fn a_cookie_opens_for_whom_it_was_made_and_for_a_while(
            port: u16, irs: u32, mss in 64_u16.., made in 0..u64::MAX / 4, later in 0..4 * PERIOD_NS, flip in 0..32_u32,
        ) {
            let cookie = make(&SECRET, &flow(port), Seq(irs), mss, Instant(made));
            let size = open(&SECRET, &flow(port), Seq(irs), cookie, Instant(made + later));
            if later < PERIOD_NS {
                prop_assert!(size.is_some_and(|size| size <= mss));
            } else if later >= LIFE_NS {
                prop_assert_eq!(size, None);
            }
            let now = Instant(made);
            prop_assert_eq!(open(&SECRET, &flow(port ^ 1), Seq(irs), cookie, now), None);
            prop_assert_eq!(open(&SECRET, &flow(port), Seq(irs.wrapping_add(1)), cookie, now), None);
            prop_assert_eq!(open(&SECRET, &flow(port), Seq(irs), Seq(cookie.0 ^ 1 << flip), now), None);
            prop_assert_eq!(open(&Secret([4; 16]), &flow(port), Seq(irs), cookie, now), None);
        }

        #[test]
        fn options_are_hidden_in_a_timestamp_that_is_not_late(
            timestamp: u32, window_scale in prop::option::of(0_u8..=14), sack: bool, ecn: bool,
        ) {
            let options = Remembered { window_scale, sack, ecn };
            let hidden = hide(timestamp, options);
            prop_assert_eq!(reveal(hidden), options);
            prop_assert!(timestamp.wrapping_sub(hidden) < 64);
        }
    }
}
