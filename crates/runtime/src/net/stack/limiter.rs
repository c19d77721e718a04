//! A limit on answers to those who need not be who they say they are, for each of them alone.
//!
//! A limit for all of a stack can be read from outside: whoever uses it up and counts what is left learns whether a packet that
//! it sent in another's name was answered, and so whether that other has a connection or a port is open (CVE-2016-5696,
//! CVE-2020-25705). Here each peer has a bucket of tokens, found by a keyed hash of its address; that two share one is a matter
//! of chance, one in [`BUCKETS`], and drawn again each [`EPOCH`]. A network of IPv6 counts as one peer, for one host has all of it.
//!
//! Never bounds the sum over all peers: an answer is about as large as what provoked it, and so bounded by what arrives.
//!
//! # Bounds
//! [`BUCKETS`] numbers, whatever the peers are.

use core::hash::{BuildHasher, BuildHasherDefault};
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::hash::DefaultHasher;

/// Peers told apart: 32 KiB.
const BUCKETS: usize = 4096;
/// How long two peers share a bucket, if they do.
const EPOCH: Duration = Duration::from_secs(60);
/// Of an IPv6 address, what a network has in common (RFC 4291 section 2.5.4).
const NETWORK6: u32 = 64;

/// A number of tokens at once, and a number a second after that, for each peer.
#[derive(Debug)]
pub struct PeerLimiter {
    /// Time one token takes to grow.
    interval_ns: u64,
    /// Time a full bucket takes to grow.
    full_ns: u64,
    seed: u64,
    /// When each bucket would have been empty: the tokens in it are the intervals since then. Relaxed: counts, and nothing else
    /// is read by them.
    empty_at: Box<[AtomicU64]>,
}

impl PeerLimiter {
    /// Full buckets of `burst` tokens that gain `per_second` tokens a second. `seed` must not be guessable.
    ///
    /// # Panics
    /// If either is zero.
    pub fn new(burst: u32, per_second: u32, seed: u64) -> Self {
        assert!(burst > 0 && per_second > 0, "a limit of {burst} at once and {per_second} a second");
        let interval_ns = 1_000_000_000 / u64::from(per_second);
        let empty_at = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { interval_ns, full_ns: interval_ns * u64::from(burst), seed, empty_at }
    }

    /// Takes a token of `peer`'s if there is one.
    pub fn take(&self, peer: IpAddr, now: Duration) -> bool {
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let bucket = &self.empty_at[self.bucket(peer, now)];
        let taken = |empty_at: u64| {
            // A bucket never holds more than `full`. Before the clock has run that long the subtraction stops at zero.
            let taken = empty_at.max(now_ns.saturating_sub(self.full_ns)).saturating_add(self.interval_ns);
            (taken <= now_ns).then_some(taken)
        };
        bucket.fetch_update(Relaxed, Relaxed, taken).is_ok()
    }

    fn bucket(&self, peer: IpAddr, now: Duration) -> usize {
        let peer = match peer {
            IpAddr::V4(ip) => u128::from(ip.to_bits()),
            // Apart from all of IPv4.
            IpAddr::V6(ip) => ip.to_bits() >> NETWORK6 | 1 << 127,
        };
        let epoch = now.as_secs() / EPOCH.as_secs();
        let hash =
            BuildHasherDefault::<DefaultHasher>::default().hash_one((self.seed, "limiter", epoch, peer));
        hash as usize % BUCKETS
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
