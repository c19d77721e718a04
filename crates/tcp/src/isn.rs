//! Initial sequence numbers that only the two ends know (RFC 6528), and the keyed hash behind them.
//!
//! Owns the mapping from a flow and a secret to a number. It never draws the secret: the caller
//! does so once per start, from the system's random numbers.

use crate::config::InitialNumbers;
use crate::seq::Seq;
use crate::time::Instant;
use core::fmt;
use core::hash::Hasher;
use core::net::IpAddr;
use siphasher::sip::SipHasher24;

/// A key that must stay inside this host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The purpose of a hash; numbers for one purpose reveal nothing about those for another.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Domain {
    Sequence = 1,
    Timestamp = 2,
    Cookie = 3,
    PortOffset = 4,
    PortSlot = 5,
    FastOpen = 6,
}

/// The addresses and ports that identify a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// This side's address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// This side's port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
}

impl Secret {
    /// Returns the SipHash-2-4 of the flow and a number, for one purpose.
    pub(crate) fn hash(&self, domain: Domain, flow: &Flow, more: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write_u8(domain as u8);
        for address in [flow.local, flow.remote] {
            match address {
                IpAddr::V4(v4) => hasher.write(&v4.to_ipv6_mapped().octets()),
                IpAddr::V6(v6) => hasher.write(&v6.octets()),
            }
        }
        hasher.write(&flow.local_port.to_le_bytes());
        hasher.write(&flow.remote_port.to_le_bytes());
        hasher.write(&more.to_le_bytes());
        hasher.finish()
    }
}

/// Tick of the clock that initial numbers follow: 4 us (RFC 9293 section 3.4.1).
const TICK_NS: u64 = 4_000;

/// Returns the initial numbers of a new connection of `flow` at `now`.
///
/// # Examples
/// ```
/// use tailwater_tcp::{Flow, Instant, Secret, isn::initial_numbers};
///
/// let flow = Flow {
///     local: [10, 0, 0, 1].into(),
///     remote: [10, 0, 0, 2].into(),
///     local_port: 80,
///     remote_port: 50_000,
/// };
/// let first = initial_numbers(&Secret([7; 16]), &flow, Instant(0));
/// let later = initial_numbers(&Secret([7; 16]), &flow, Instant(4_000_000));
/// assert_eq!(later.seq - first.seq, 1000, "one each 4 us");
/// ```
pub fn initial_numbers(secret: &Secret, flow: &Flow, now: Instant) -> InitialNumbers {
    let clock = (now.0 / TICK_NS) as u32;
    InitialNumbers {
        seq: Seq(clock.wrapping_add(secret.hash(Domain::Sequence, flow, 0) as u32)),
        timestamp_offset: timestamp_offset(secret, flow),
    }
}

/// Returns the timestamp offset of a flow. It is the same for each of its connections, so that
/// timestamps distinguish old connections from new (RFC 6191).
pub(crate) fn timestamp_offset(secret: &Secret, flow: &Flow) -> u32 {
    secret.hash(Domain::Timestamp, flow, 0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;

    fn flow(remote_port: u16) -> Flow {
        Flow { local: [10, 0, 0, 1].into(), remote: [10, 0, 0, 2].into(), local_port: 80, remote_port }
    }

    #[test]
    fn numbers_of_one_flow_say_nothing_of_another() {
        let secret = Secret([7; 16]);
        let of = |port| initial_numbers(&secret, &flow(port), Instant(0));
        let mut seen: Vec<u32> = (1..1000).map(|port| of(port).seq.0).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 999);
        assert_ne!(of(1).seq.0, of(1).timestamp_offset);
        assert_ne!(of(1).seq, initial_numbers(&Secret([8; 16]), &flow(1), Instant(0)).seq);
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret([9; 16])), "Secret");
    }
}
