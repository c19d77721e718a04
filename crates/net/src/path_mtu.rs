//! Path MTUs by destination (RFC 1191, RFC 8201), learnt from ICMP errors of routers.
//!
//! Owns the destinations whose path is narrower than the link. Time is an argument. Only reductions
//! are stored, for [`AGE`], so a path that becomes wider is rediscovered (RFC 1191 section 6.3, RFC
//! 8201 section 4). Reports can be forged: none lowers an MTU below the size that every host must
//! accept ([`FLOOR4`], [`FLOOR6`]), and the caller has checked that it quotes a packet of this host
//! (RFC 5927 section 7).
//!
//! # Bounds
//! [`CAPACITY`] destinations; the one that would expire soonest is evicted.

use crate::platform::{Lock, Platform};
use alloc::collections::BTreeMap;
use core::net::IpAddr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use tailwater_wire::{IPV6_MIN_MTU, MIN_REASSEMBLY};

/// How long a narrow path is remembered: ten minutes (RFC 1191 section 6.3, RFC 8201 section 4).
pub const AGE: Duration = Duration::from_secs(600);
/// Maximum number of destinations remembered.
pub const CAPACITY: usize = 256;
/// Minimum MTU accepted for an IPv4 path. A path that claims less gets packets of this length that
/// routers may break up, as Linux does it (ip-sysctl, `min_pmtu`).
pub const FLOOR4: u16 = MIN_REASSEMBLY as u16;
/// Least MTU accepted for an IPv6 path: that of every link (RFC 8201 section 4).
pub const FLOOR6: u16 = IPV6_MIN_MTU as u16;

#[derive(Debug, Clone, Copy)]
struct Path {
    mtu: u16,
    /// The reported MTU is below the floor.
    narrow: bool,
    forget_at: Duration,
}

/// See the module documentation.
#[derive(Debug)]
pub struct PathMtus<P: Platform> {
    /// Number of destinations: while it is zero, senders do not lock. Written under the lock.
    /// Relaxed: a sender that reads an old value sends one packet too long, or locks without need.
    len: AtomicUsize,
    paths: P::Lock<BTreeMap<IpAddr, Path>>,
}

impl<P: Platform> PathMtus<P> {
    /// Makes an empty table: all paths carry as much as the link.
    pub fn new() -> Self {
        Self { len: AtomicUsize::new(0), paths: Lock::new(BTreeMap::new()) }
    }

    /// Returns the longest packet to `destination` in bytes if it is shorter than the link's. Costs
    /// one load while no path is narrow.
    #[inline]
    pub fn get(&self, destination: IpAddr) -> Option<u16> {
        self.find(destination).map(|path| path.mtu)
    }

    /// Returns whether the path to `destination` is reported to carry less than the floor.
    #[inline]
    pub fn is_narrow(&self, destination: IpAddr) -> bool {
        self.find(destination).is_some_and(|path| path.narrow)
    }

    #[inline]
    fn find(&self, destination: IpAddr) -> Option<Path> {
        if self.len.load(Relaxed) == 0 {
            return None;
        }
        self.paths.lock().get(&destination).copied()
    }

    /// Handles a router's report that packets of more than `mtu` bytes do not reach `destination`.
    /// Returns the MTU now in use; `None` if nothing changed.
    pub fn narrow(&self, destination: IpAddr, mtu: u32, now: Duration) -> Option<u16> {
        let floor = if destination.is_ipv4() { FLOOR4 } else { FLOOR6 };
        let narrow = mtu < u32::from(floor);
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX).max(floor);
        let mut paths = self.paths.lock();
        if let Some(path) = paths.get(&destination)
            && (path.mtu < mtu || (path.mtu == mtu && path.narrow >= narrow))
        {
            return None;
        }
        if paths.len() >= CAPACITY && !paths.contains_key(&destination) {
            let oldest = paths.iter().min_by_key(|(_, path)| path.forget_at).map(|(&ip, _)| ip);
            oldest.map(|ip| paths.remove(&ip));
        }
        paths.insert(destination, Path { mtu, narrow, forget_at: now + AGE });
        self.len.store(paths.len(), Relaxed);
        Some(mtu)
    }

    /// Returns when [`poll`](Self::poll) has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        if self.len.load(Relaxed) == 0 {
            return None;
        }
        self.paths.lock().values().map(|path| path.forget_at).min()
    }

    /// Removes expired entries.
    pub fn poll(&self, now: Duration) {
        let mut paths = self.paths.lock();
        paths.retain(|_, path| now < path.forget_at);
        self.len.store(paths.len(), Relaxed);
    }
}

/// Returns the MTU assumed when a router does not state it (RFC 1191 section 5): the next plateau
/// below the length of the dropped packet (section 7.1, table 7-1).
pub fn plateau_below(len: usize) -> u32 {
    const PLATEAUS: [u32; 9] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296];
    PLATEAUS.into_iter().find(|&plateau| (plateau as usize) < len).unwrap_or(68)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    const NOW: Duration = Duration::from_secs(100);

    fn ip(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + n).into()
    }

    #[test]
    fn a_path_becomes_narrower_only_and_is_wide_again_after_ten_minutes() {
        let paths = PathMtus::<crate::Single>::new();
        assert_eq!((paths.get(ip(1)), paths.deadline()), (None, None));
        assert_eq!(paths.narrow(ip(1), 1400, NOW), Some(1400));
        assert_eq!(paths.narrow(ip(1), 1450, NOW), None);
        assert_eq!(paths.narrow(ip(1), 1400, NOW + AGE / 2), None, "repetition does not keep it alive");
        assert_eq!(paths.narrow(ip(1), 1300, NOW), Some(1300));
        assert_eq!((paths.get(ip(1)), paths.get(ip(2))), (Some(1300), None));
        assert_eq!(paths.deadline(), Some(NOW + AGE));
        paths.poll(NOW + AGE);
        assert_eq!((paths.get(ip(1)), paths.deadline()), (None, None));
    }

    #[test]
    fn no_report_goes_below_the_floor() {
        let paths = PathMtus::<crate::Single>::new();
        assert_eq!(paths.narrow(ip(1), 68, NOW), Some(576));
        assert!(paths.is_narrow(ip(1)));
        assert_eq!(paths.narrow(ip(2), 576, NOW), Some(576));
        assert!(!paths.is_narrow(ip(2)));
        assert_eq!(paths.narrow(ip(2), 0, NOW), Some(576));
        assert!(paths.is_narrow(ip(2)));
        assert_eq!(paths.narrow("fd00::1".parse().unwrap(), 0, NOW), Some(1280));
        assert_eq!(paths.narrow("fd00::2".parse().unwrap(), u32::MAX, NOW), Some(u16::MAX));
    }

    #[test]
    fn a_flood_of_reports_stays_within_bounds() {
        let paths = PathMtus::<crate::Single>::new();
        for i in 0..10_000 {
            paths.narrow(ip(i), 1000, NOW + Duration::from_millis(i.into()));
        }
        assert_eq!(paths.paths.lock().len(), CAPACITY);
        assert_eq!(paths.get(ip(9_999)), Some(1000));
    }

    #[test]
    fn a_router_that_does_not_say_is_taken_for_the_next_common_link() {
        for (len, expected) in [(65_535, 32_000), (1500, 1492), (1492, 1006), (577, 508), (68, 68)] {
            assert_eq!(plateau_below(len), expected);
        }
    }
}
