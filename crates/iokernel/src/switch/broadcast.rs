//! The limit on copies of broadcasts and multicasts.
//!
//! A frame to a group costs the polling thread a copy for each receiver, and each receiver the time
//! to look at it. So each tenant may cause a number of copies a second (`broadcast-copies`), and as
//! many at once; a frame beyond is dropped, counted, and charged to the tenant ([`crate::tenant`]),
//! whose account outlives its programs. A network stack itself sends few frames to groups, ARP and
//! neighbour discovery for the most part, a few for each peer. Frames of ports are not limited, but
//! each frame to a group leaves half of a receiver's ring to frames for that receiver alone
//! ([`leaves_room`]).

use tailwater_shm::account::Account;
use tailwater_shm::ring::Producer;
use tailwater_shm::{Clock, Cycles};

/// Part of a ring that frames to groups leave free.
const ROOM: u32 = 2;

/// Copies that each tenant may cause in a second, and at once.
#[derive(Debug)]
pub(super) struct BroadcastLimit(pub(super) u32);

impl BroadcastLimit {
    /// Returns whether a tenant with this account may cause this many copies now, and charges them
    /// if it may. A frame of more copies than all of a second's counts as those.
    pub(super) fn take(&self, account: &mut Account, copies: usize, clock: Clock, now: Cycles) -> bool {
        let (rate, second) = (u64::from(self.0), clock.hz());
        let price = (copies as u64).min(rate) * second / rate;
        account.take(price, second, now)
    }
}

/// Returns whether a ring of `lines` lines has room for a frame to a group.
pub(super) fn leaves_room(ring: &Producer, lines: u32) -> bool {
    ring.head().wrapping_sub(ring.unchecked_tail()) <= lines - lines / ROOM
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_gets_its_copies_back_with_time() {
        let (limit, clock) = (BroadcastLimit(1_000), Clock::from_hz(1_000_000_000));
        let mut account = Account::default();
        let mut take = |copies, now| limit.take(&mut account, copies, clock, now);
        assert!(take(600, 5) && take(400, 5) && !take(1, 5));
        assert!(!take(11, 10_000_005) && take(10, 10_000_005));
        assert!(take(5_000, 2_000_000_000), "a frame to more receivers than copies passes alone");
    }
}
