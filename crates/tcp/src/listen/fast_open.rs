//! TCP Fast Open on the side of the listener (RFC 7413 section 4.2): cookies, and the bound on
//! connections whose client has not proved yet that it exists now.
//!
//! A cookie is a keyed hash over both addresses and a period of the clock, so that nothing is
//! stored for a client, and the key changes with the period. A cookie is valid for one to two
//! periods; a client that shows one of the last period gets a new one.
//!
//! A cookie can be stolen and used with forged addresses. Each connection that is opened by one
//! therefore occupies a place until its handshake is complete. A reset by the forged address does
//! not free it, or an attacker would gain from the victim's resets (section 5.1): the place is free
//! when the time has passed for which a connection may wait for its client.

use crate::isn::{Domain, Flow, Secret};
use crate::segment::Cookie;
use crate::sender;
use crate::time::Instant;
use alloc::collections::VecDeque;
use core::time::Duration;

/// Time after which another key is used.
pub(super) const PERIOD: Duration = Duration::from_hours(12);

/// Returns the time for which a place stays occupied if the handshake is not completed: at least
/// that after which the last of `retries` repetitions of an answer times out. A tail loss probe may
/// come before each of them, which starts the time-out anew.
pub(super) fn hold(sender: &sender::Config, retries: u8) -> Duration {
    let longest = sender.max_rto.min(sender::MAX_RTO);
    let first = sender.initial_rto.max(sender.min_rto);
    let time_outs = (0..=u32::from(retries)).map(|n| first.saturating_mul(1 << n).min(longest));
    2 * time_outs.sum::<Duration>()
}

/// The validity of a cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Validity {
    Current,
    /// It is of the last period: the client needs a new one.
    Old,
    No,
}

fn of_period(secret: &Secret, flow: &Flow, period: u64) -> Cookie {
    // The ports differ from connection to connection.
    let addresses = Flow { local_port: 0, remote_port: 0, ..*flow };
    let bytes = secret.hash(Domain::FastOpen, &addresses, period).to_be_bytes();
    Cookie::new(&bytes).expect("eight bytes are a cookie")
}

fn period(now: Instant) -> u64 {
    now.0 / PERIOD.as_nanos() as u64
}

/// Returns the cookie of a client at `now`.
pub(super) fn make(secret: &Secret, flow: &Flow, now: Instant) -> Cookie {
    of_period(secret, flow, period(now))
}

/// Checks a cookie that a client shows.
pub(super) fn check(secret: &Secret, flow: &Flow, cookie: &Cookie, now: Instant) -> Validity {
    let period = period(now);
    if *cookie == of_period(secret, flow, period) {
        Validity::Current
    } else if period > 0 && *cookie == of_period(secret, flow, period - 1) {
        Validity::Old
    } else {
        Validity::No
    }
}

/// Connections opened by a cookie whose handshake is not complete.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// In order of the times at which the places become free.
    taken: VecDeque<(Instant, Flow)>,
}

impl Places {
    /// Takes a place of `bound` until `until`, which lies as far ahead as in other calls; returns
    /// false if all are taken.
    pub fn take(&mut self, flow: &Flow, bound: usize, until: Instant, now: Instant) -> bool {
        while self.taken.front().is_some_and(|&(until, _)| until <= now) {
            self.taken.pop_front();
        }
        if self.taken.len() >= bound {
            return false;
        }
        self.taken.push_back((until, *flow));
        true
    }

    /// Frees the place of a completed handshake.
    pub fn free(&mut self, flow: &Flow) {
        self.taken.retain(|(_, taken)| taken != flow);
    }
}
