//! Groups of hosts that sockets have joined (RFC 1112, RFC 4291 section 2.7).
//!
//! Owns how many sockets have joined each. Sends no membership reports: the IOKernel's switch
//! passes every group on. Which sockets they are is in [`Inbound`](super::Inbound).

use crate::platform::{Lock, Platform};
use alloc::collections::BTreeMap;
use core::net::IpAddr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tailwater_wire::MacAddr;

/// Maximum number of groups that one socket may join: Linux's `igmp_max_memberships`.
pub const MAX_GROUPS: usize = 20;

/// Why a socket could not join or leave a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// The address is one host's.
    #[error("{0} is no multicast address")]
    NoGroup(IpAddr),
    /// The socket is bound to one address.
    #[error("datagrams to {0} do not reach the socket: bind it to the unspecified address of that family")]
    Bound(IpAddr),
    /// It is in the group.
    #[error("the socket has joined {0} before")]
    Joined(IpAddr),
    /// It is not in the group.
    #[error("the socket has not joined {0}")]
    NotJoined(IpAddr),
    /// It is in the most groups that a socket may be in.
    #[error("the socket is in {MAX_GROUPS} groups, the maximum: leave one first")]
    TooMany,
}

/// The groups of all sockets of a stack.
#[derive(Debug)]
pub struct Groups<P: Platform> {
    /// Number of groups, so that a stack without any does not lock. Written under the lock.
    /// Relaxed: a socket hears its group from some moment of its call on.
    count: AtomicUsize,
    /// Sockets in each group.
    members: P::Lock<BTreeMap<IpAddr, usize>>,
}

impl<P: Platform> Groups<P> {
    pub(super) fn new() -> Self {
        Self { count: AtomicUsize::new(0), members: Lock::new(BTreeMap::new()) }
    }

    /// Counts a socket that joins.
    pub(super) fn join(&self, group: IpAddr) {
        let mut members = self.members.lock();
        *members.entry(group).or_default() += 1;
        self.count.store(members.len(), Relaxed);
    }

    /// Counts a socket that leaves.
    pub(super) fn leave(&self, group: IpAddr) {
        let mut members = self.members.lock();
        if let Some(sockets) = members.get_mut(&group) {
            *sockets -= 1;
            if *sockets == 0 {
                members.remove(&group);
            }
        }
        self.count.store(members.len(), Relaxed);
    }

    /// Returns whether a socket is in the group.
    #[inline]
    pub fn has(&self, group: IpAddr) -> bool {
        self.count.load(Relaxed) > 0 && self.members.lock().contains_key(&group)
    }

    /// Returns whether frames to `mac` may be for a group that a socket is in.
    #[inline]
    pub fn hears(&self, mac: MacAddr) -> bool {
        self.count.load(Relaxed) > 0
            && mac.is_group()
            && self.members.lock().keys().any(|&group| MacAddr::of_ip_group(group) == mac)
    }
}
