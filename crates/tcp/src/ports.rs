//! Ephemeral ports that cannot be guessed and are seldom reused soon: double-hash port selection
//! (RFC 6056 section 3.3.4).
//!
//! Owns the counters. It does not know which ports are taken: the caller passes a predicate.

use crate::isn::{Domain, Flow, Secret};
use core::ops::RangeInclusive;

/// Number of counters; connections to different destinations seldom share one.
const SLOTS: usize = 64;

/// Picks local ports for connections.
#[derive(Debug, Clone)]
pub struct EphemeralPorts {
    secret: Secret,
    first: u16,
    count: u32,
    used: [u32; SLOTS],
}

impl EphemeralPorts {
    /// Creates a selector of ports from `range`. Ports 49152 to 65535 are those that IANA sets
    /// aside for this use (RFC 6335 section 6); 1024 to 65535 are harder to guess (RFC 6056 section
    /// 3.2). An empty range never yields a port.
    pub fn new(range: RangeInclusive<u16>, secret: Secret) -> Self {
        let count = (u32::from(*range.end()) + 1).saturating_sub(u32::from(*range.start()));
        Self { secret, first: *range.start(), count, used: [0; SLOTS] }
    }

    /// Returns a port for a connection of `flow`, whose local port is ignored; `None` if `is_taken`
    /// returns true for all.
    pub fn choose(&mut self, flow: &Flow, mut is_taken: impl FnMut(u16) -> bool) -> Option<u16> {
        let flow = Flow { local_port: 0, ..*flow };
        let offset = self.secret.hash(Domain::PortOffset, &flow, 0) as u32;
        let slot = self.secret.hash(Domain::PortSlot, &flow, 0) as usize % SLOTS;
        for _ in 0..self.count {
            let step = self.used[slot];
            self.used[slot] = step.wrapping_add(1);
            let port = self.first + (offset.wrapping_add(step) % self.count) as u16;
            if port != 0 && !is_taken(port) {
                return Some(port);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    fn flow(remote: u8) -> Flow {
        Flow {
            local: [10, 0, 0, 1].into(),
            remote: [10, 0, 0, remote].into(),
            local_port: 0,
            remote_port: 80,
        }
    }

    #[test]
    fn all_ports_are_found_and_none_twice() {
        let mut ports = EphemeralPorts::new(50_000..=50_099, Secret([1; 16]));
        let mut taken = BTreeSet::new();
        while let Some(port) = ports.choose(&flow(2), |port| taken.contains(&port)) {
            assert!((50_000..=50_099).contains(&port) && taken.insert(port));
        }
        assert_eq!(taken.len(), 100);
    }

    #[test]
    fn one_destination_sees_successive_ports_and_another_begins_elsewhere() {
        let mut ports = EphemeralPorts::new(1024..=65_535, Secret([1; 16]));
        let a = ports.choose(&flow(2), |_| false).unwrap();
        let b = ports.choose(&flow(2), |_| false).unwrap();
        let c = ports.choose(&flow(3), |_| false).unwrap();
        assert_eq!(b.wrapping_sub(a), 1);
        assert!(c.abs_diff(a) > 1);
    }

    #[test]
    fn an_empty_range_has_no_port() {
        #[expect(clippy::reversed_empty_ranges, reason = "that is the case")]
        let mut ports = EphemeralPorts::new(10..=9, Secret([1; 16]));
        assert_eq!(ports.choose(&flow(2), |_| false), None);
    }
}
