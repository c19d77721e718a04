//! How long packets may be on the way to each destination (RFC 1191, RFC 8201), learnt from errors of routers.
//!
//! Owns the destinations whose path is narrower than the link. Pure: time is an argument. Only what shortens a path is
//! remembered, and for [`AGE`] only: so a path that has become wider is found again (RFC 1191 section 6.3, RFC 8201 section
//! 4). Who reports is anybody; so no report goes below what every host must accept anyway ([`FLOOR4`], [`FLOOR6`]), and the
//! caller has checked that it quotes a packet of this host (RFC 5927 section 7).
//!
//! # Bounds
//! [`CAPACITY`] destinations; the one that would be forgotten soonest gives way.

use crate::net::wire::{IPV6_MIN_MTU, MIN_REASSEMBLY};
use crate::sync::spin::SpinLock;
use core::net::IpAddr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use std::collections::BTreeMap;

/// How long a narrow path is believed: ten minutes (RFC 1191 section 6.3, RFC 8201 section 4).
pub const AGE: Duration = Duration::from_secs(600);
/// Most destinations remembered.
pub const CAPACITY: usize = 256;
/// Least MTU believed of an IPv4 path. A path that claims less gets packets of this length that routers may break up, as
/// Linux does it (ip-sysctl, `min_pmtu`).
pub const FLOOR4: u16 = MIN_REASSEMBLY as u16;
/// Least MTU believed of an IPv6 path: what every link carries (RFC 8201 section 4).
pub const FLOOR6: u16 = IPV6_MIN_MTU as u16;

#[derive(Debug, Clone, Copy)]
struct Path {
    mtu: u16,
    /// The path claims less than the floor.
    narrow: bool,
    forget_at: Duration,
}

/// See the module documentation.
#[derive(Debug)]
pub struct PathMtus {
    /// Number of destinations: lets senders look without locking while there are none. Written under the lock; Relaxed, a
    /// sender that sees an old value sends one packet too long, or looks in vain.
    len: AtomicUsize,
    paths: SpinLock<BTreeMap<IpAddr, Path>>,
}

impl PathMtus {
    /// All paths are as wide as the link.
    pub fn new() -> Self {
        Self { len: AtomicUsize::new(0), paths: SpinLock::new(BTreeMap::new()) }
    }

    /// Longest packet to `destination` in bytes, if it is less than the link carries. Costs one load while no path is narrow.
    #[inline]
    pub fn get(&self, destination: IpAddr) -> Option<u16> {
        self.find(destination).map(|path| path.mtu)
    }

    /// Whether the path to `destination` claims to carry less than [`FLOOR4`].
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

    /// A router says that packets of more than `mtu` bytes do not get through to `destination`. Returns what is believed
    /// now; `None` if nothing changed.
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

    /// When [`poll`](Self::poll) has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        if self.len.load(Relaxed) == 0 {
            return None;
        }
        self.paths.lock().values().map(|path| path.forget_at).min()
    }

    /// Forgets what is too old.
    pub fn poll(&self, now: Duration) {
        let mut paths = self.paths.lock();
        paths.retain(|_, path| now < path.forget_at);
        self.len.store(paths.len(), Relaxed);
    }
}

/// What to believe of a router that does not say what its link carries (RFC 1191 section 5): the next plateau below the
/// length of the packet it dropped (section 7.1, table 7-1).
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
        let paths = PathMtus::new();
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
        let paths = PathMtus::new();
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
        let paths = PathMtus::new();
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
