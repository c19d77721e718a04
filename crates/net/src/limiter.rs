//! A rate limit, for each peer alone, on answers to packets whose source may be forged.
//!
//! A limit for the whole stack can be observed from outside: an attacker that uses it up and counts
//! the rest learns whether a packet sent in another host's name was answered, and so whether that
//! host has a connection or a port is open (CVE-2016-5696, CVE-2020-25705). Here each peer has a
//! bucket of tokens, found by a keyed hash of its address. Two peers share one with a chance of one
//! in [`BUCKETS`], drawn anew each [`EPOCH`]. An IPv6 network counts as one peer, because one host
//! may have all of it.
//!
//! The sum over all peers is not limited: an answer is about as long as the packet that caused it,
//! so the arriving packets bound it. Answers that go to all hosts have a [`Limiter`] in common:
//! each is as many packets as there are hosts.
//!
//! # Bounds
//! [`BUCKETS`] numbers.

use crate::hash::hash;
use alloc::boxed::Box;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;

/// Number of peers distinguished: 32 KiB.
const BUCKETS: usize = 4096;
/// Time for which two peers that share a bucket do so.
const EPOCH: Duration = Duration::from_secs(60);
/// Bits of an IPv6 address that identify the network (RFC 4291 section 2.5.4).
const NETWORK6: u32 = 64;

/// How fast buckets gain tokens, and how many they hold.
#[derive(Debug)]
struct Rate {
    /// Time in which one token is added.
    interval_ns: u64,
    /// Time in which an empty bucket is filled.
    full_ns: u64,
}

impl Rate {
    fn new(burst: u32, per_second: u32) -> Self {
        assert!(burst > 0 && per_second > 0, "a limit of {burst} at once and {per_second} a second");
        let interval_ns = 1_000_000_000 / u64::from(per_second);
        Self { interval_ns, full_ns: interval_ns * u64::from(burst) }
    }

    /// Takes a token from a bucket; false if it is empty. `empty_at` is when it would have been
    /// empty: it holds one token for each interval since. Relaxed: a count that orders nothing
    /// else.
    fn take(&self, empty_at: &AtomicU64, now: Duration) -> bool {
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let taken = |empty_at: u64| {
            // A bucket holds at most the tokens of `full_ns`. Until the clock has run that long the
            // subtraction stops at zero.
            let taken = empty_at.max(now_ns.saturating_sub(self.full_ns)).saturating_add(self.interval_ns);
            (taken <= now_ns).then_some(taken)
        };
        empty_at.fetch_update(Relaxed, Relaxed, taken).is_ok()
    }
}

/// One token bucket for all peers.
#[derive(Debug)]
pub struct Limiter {
    rate: Rate,
    empty_at: AtomicU64,
}

impl Limiter {
    /// Makes a full bucket of `burst` tokens that gains `per_second` tokens a second.
    ///
    /// # Panics
    /// If either is zero.
    pub fn new(burst: u32, per_second: u32) -> Self {
        Self { rate: Rate::new(burst, per_second), empty_at: AtomicU64::new(0) }
    }

    /// Takes a token; false if there is none.
    pub fn take(&self, now: Duration) -> bool {
        self.rate.take(&self.empty_at, now)
    }
}

/// A token bucket for each peer.
#[derive(Debug)]
pub struct PeerLimiter {
    rate: Rate,
    seed: u64,
    empty_at: Box<[AtomicU64]>,
}

impl PeerLimiter {
    /// Makes full buckets of `burst` tokens that gain `per_second` tokens a second. `seed` is
    /// secret.
    ///
    /// # Panics
    /// If either is zero.
    pub fn new(burst: u32, per_second: u32, seed: u64) -> Self {
        let empty_at = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { rate: Rate::new(burst, per_second), seed, empty_at }
    }

    /// Takes a token from the bucket of `peer`; false if it is empty.
    pub fn take(&self, peer: IpAddr, now: Duration) -> bool {
        self.rate.take(&self.empty_at[self.bucket(peer, now)], now)
    }

    fn bucket(&self, peer: IpAddr, now: Duration) -> usize {
        let peer = match peer {
            IpAddr::V4(ip) => u128::from(ip.to_bits()),
            // Distinct from all IPv4 addresses.
            IpAddr::V6(ip) => ip.to_bits() >> NETWORK6 | 1 << 127,
        };
        let epoch = now.as_secs() / EPOCH.as_secs();
        hash(&(self.seed, "limiter", epoch, peer)) as usize % BUCKETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};

    const START: Duration = Duration::from_secs(100);

    fn peer(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + n).into()
    }

    fn passed(limiter: &PeerLimiter, peer: IpAddr, now: Duration, tries: u32) -> usize {
        (0..tries).filter(|_| limiter.take(peer, now)).count()
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let limiter = PeerLimiter::new(50, 1000, 1);
        assert_eq!(passed(&limiter, peer(1), START, 1000), 50);
        assert_eq!(passed(&limiter, peer(1), START + Duration::from_micros(999), 10), 0);
        assert_eq!(passed(&limiter, peer(1), START + Duration::from_millis(7), 10), 7);
        assert_eq!(passed(&limiter, peer(1), START + Duration::from_secs(9), 1000), 50);
        assert_eq!(passed(&limiter, peer(1), START, 10), 0, "a clock that goes back grants nothing");
    }

    #[test]
    fn what_one_peer_uses_up_another_cannot_count() {
        let mut shared = 0;
        for seed in 0..200 {
            let limiter = PeerLimiter::new(50, 1000, seed);
            assert_eq!(passed(&limiter, peer(1), START, 1000), 50);
            shared += usize::from(passed(&limiter, peer(2), START, 1000) != 50);
        }
        assert!(shared <= 3, "{shared} of 200 pairs share a bucket, of {BUCKETS}");
    }

    #[test]
    fn who_shares_a_bucket_is_drawn_anew() {
        let limiter = PeerLimiter::new(50, 1000, 7);
        let sharing = |now: Duration| {
            let own = limiter.bucket(peer(0), now);
            (1..100_000).filter(|&n| limiter.bucket(peer(n), now) == own).collect::<Vec<_>>()
        };
        let (now, later) = (sharing(START), sharing(START + EPOCH));
        assert!((5..60).contains(&now.len()), "{} of 100,000", now.len());
        assert!(now.iter().filter(|n| later.contains(n)).count() <= 2, "{now:?}, then {later:?}");
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer() {
        let limiter = PeerLimiter::new(50, 1000, 3);
        let host = |network: u16, host: u16| Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host).into();
        assert_eq!((0..1000).filter(|&n| limiter.take(host(1, n), START)).count(), 50);
        assert_eq!(passed(&limiter, host(2, 1), START, 1000), 50);
    }
}
