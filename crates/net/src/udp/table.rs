//! Table of UDP sockets: finds the socket of a datagram.
//!
//! Owns the endpoints, and for each port the chain of those bound to it. A chain seldom has more
//! than one: only sockets of different addresses share a port.
//!
//! | field | written | read |
//! |---|---|---|
//! | `ports[p]`, `Endpoint::next` | by `bind`, `close` under the table's lock, Release | Acquire |
//! | an endpoint's binding | by `bind`, `close`, `connect` under its lock | under its lock |
//!
//! A receiving thread follows a chain without the table's lock. Meanwhile an endpoint may be
//! closed, or opened again for another port; its binding, read under its lock, shows whether the
//! datagram is for it. A chain that changes during the search can hide an endpoint that was in it
//! all along, so a search that finds nothing is repeated under the table's lock before the port
//! counts as closed.
//!
//! Lock order: table, then endpoint.

use super::endpoint::{Endpoint, Offer, SocketError};
use super::groups::{GroupError, Groups};
use super::ring::DatagramRing;
use super::slab::Slab;
use crate::counters::NetCounters;
use crate::hash::hash;
use crate::platform::{Lock, Platform, Waiters};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, Ordering};

/// Sockets of different addresses that can share a port.
pub const MAX_PER_PORT: usize = 16;
/// Maximum number of sockets open at once.
pub const MAX_SOCKETS: u32 = 65_536;
/// Ephemeral ports: the Dynamic Ports (RFC 6335 section 6).
const EPHEMERAL: RangeInclusive<u16> = 49_152..=u16::MAX;

/// Why a socket could not be bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Another socket has the address.
    #[error("UDP {0} is taken by another socket of this process: close that one or choose another port")]
    InUse(SocketAddr),
    /// The port has sockets at 16 other addresses, the maximum.
    #[error("{MAX_PER_PORT} sockets share UDP port {0}, which is the most there can be: close one")]
    Crowded(u16),
    /// All ephemeral ports are taken.
    #[error("no ephemeral UDP port is free on {0}: close sockets")]
    NoPort(IpAddr),
    /// Too many sockets.
    #[error("{MAX_SOCKETS} UDP sockets are open, which is the most there can be: close some")]
    TooMany,
}

#[derive(Debug)]
struct Admin {
    /// Endpoints without a socket.
    free: Vec<u32>,
    /// Endpoints ever used.
    used: u32,
    /// Random numbers drawn for ephemeral ports.
    drawn: u64,
    /// The ports that unbound sockets get.
    ephemeral: RangeInclusive<u16>,
}

/// All UDP sockets of a stack.
#[derive(Debug)]
pub struct UdpTable<P: Platform> {
    /// First endpoint of each port, as index plus one; zero for none. 256 KiB.
    ports: Box<[AtomicU32]>,
    endpoints: Slab<P, Endpoint<P>>,
    admin: P::Lock<Admin>,
    groups: Groups<P>,
    receive_bytes: usize,
    seed: u64,
}

impl<P: Platform> UdpTable<P> {
    /// Makes a table without sockets. Each will buffer `receive_bytes`. `seed` is secret and
    /// decides the order of ephemeral ports (RFC 6056).
    pub fn new(receive_bytes: usize, seed: u64) -> Self {
        Self {
            ports: (0..=u16::MAX).map(|_| AtomicU32::new(0)).collect(),
            endpoints: Slab::new(),
            admin: Lock::new(Admin { free: Vec::new(), used: 0, drawn: 0, ephemeral: EPHEMERAL }),
            groups: Groups::new(),
            receive_bytes,
            seed,
        }
    }

    /// Gives sockets that are bound to no certain port one of these from now on; `None`: one of the
    /// Dynamic Ports.
    pub(crate) fn use_ports(&self, ports: Option<RangeInclusive<u16>>) {
        self.admin.lock().ephemeral = ports.unwrap_or(EPHEMERAL);
    }

    /// Opens a socket at `local`; port zero stands for any free port.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&self, local: SocketAddr) -> Result<&Endpoint<P>, BindError> {
        let queue = DatagramRing::new(self.receive_bytes);
        let mut admin = self.admin.lock();
        let local = match local.port() {
            0 => self.draw_port(&mut admin, local.ip())?,
            _ => self.check(local).map(|()| local)?,
        };
        let index = match admin.free.pop() {
            Some(index) => index,
            None if admin.used == MAX_SOCKETS => return Err(BindError::TooMany),
            None => {
                admin.used += 1;
                admin.used - 1
            }
        };
        let endpoint = self.endpoints.get_or_grow(index, Endpoint::new);
        endpoint.open(local, queue);
        let head = &self.ports[usize::from(local.port())];
        // Relaxed load: written under the table's lock only. Release stores: pair with the Acquire
        // loads in `find`.
        endpoint.next.store(head.load(Ordering::Relaxed), Ordering::Release);
        head.store(index + 1, Ordering::Release);
        Ok(endpoint)
    }

    /// Closes the socket of `endpoint`. Call once for each `bind`.
    pub fn close(&self, endpoint: &Endpoint<P>) {
        let mut admin = self.admin.lock();
        let port = endpoint.binding().local.port();
        let mut link = &self.ports[usize::from(port)];
        for _ in 0..MAX_PER_PORT {
            // Relaxed: links are written under the table's lock only.
            let here = link.load(Ordering::Relaxed);
            if here == endpoint.index + 1 {
                // Release: pairs with the Acquire in `find`.
                link.store(endpoint.next.load(Ordering::Relaxed), Ordering::Release);
                break;
            }
            link = &self.endpoint(here).expect("an open socket is in its port's chain").next;
        }
        let (queue, groups) = endpoint.close();
        admin.free.push(endpoint.index);
        drop(admin);
        groups.into_iter().for_each(|group| self.groups.leave(group));
        drop(queue);
    }

    /// Has a socket receive what is sent to a group.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn join(&self, endpoint: &Endpoint<P>, group: IpAddr) -> Result<(), GroupError> {
        endpoint.join(group)?;
        self.groups.join(group);
        Ok(())
    }

    /// Ends that.
    ///
    /// # Errors
    /// [`GroupError::NotJoined`].
    pub fn leave(&self, endpoint: &Endpoint<P>, group: IpAddr) -> Result<(), GroupError> {
        endpoint.leave(group)?;
        self.groups.leave(group);
        Ok(())
    }

    /// Returns the groups of all sockets.
    #[inline]
    pub fn groups(&self) -> &Groups<P> {
        &self.groups
    }

    /// Wakes all threads that wait for a datagram.
    pub fn wake_readers(&self) {
        let used = self.admin.lock().used;
        for endpoint in (0..used).filter_map(|index| self.endpoints.get(index)) {
            let mut inbound = endpoint.inbound();
            while inbound.readers().wake_one() {}
        }
    }

    /// Queues a datagram at its socket. Returns [`Offer::NotMine`] if there is none.
    #[inline]
    pub fn deliver(&self, source: SocketAddr, destination: SocketAddr, data: &[u8]) -> Offer {
        self.deliver_traced(source, destination, data, None)
    }

    /// As [`deliver`](Self::deliver); the datagram may be a traced request.
    #[inline]
    pub fn deliver_traced(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
        data: &[u8],
        traced: Option<P::Request>,
    ) -> Offer {
        let port = destination.port();
        let mut offer = Offer::NotMine;
        self.find(port, |endpoint| {
            offer = endpoint.offer(source, destination, data, traced);
            offer != Offer::NotMine
        });
        offer
    }

    /// Stores `error` in the socket of `local` that is connected to `peer`, if there is one.
    pub fn post_error(&self, local: SocketAddr, peer: SocketAddr, error: SocketError) -> bool {
        self.find(local.port(), |endpoint| endpoint.post_error(local, peer, error))
    }

    /// Stores `error` in all sockets that are connected to a port of `peer`.
    pub fn post_error_of_host(&self, peer: IpAddr, error: SocketError) {
        let used = self.admin.lock().used;
        for endpoint in (0..used).filter_map(|index| self.endpoints.get(index)) {
            endpoint.post_error_of_host(peer, error);
        }
    }

    /// Returns whether an open socket can have sent a datagram from `local` to `peer`.
    pub fn sends_to(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        self.find(local.port(), |endpoint| endpoint.sends_to(local, peer))
    }

    /// Offers the endpoints of `port` to `accept` until it takes one.
    #[inline]
    fn find(&self, port: u16, mut accept: impl FnMut(&Endpoint<P>) -> bool) -> bool {
        self.search(port, &mut accept) || self.search_again(port, &mut accept)
    }

    #[inline]
    fn search(&self, port: u16, accept: &mut impl FnMut(&Endpoint<P>) -> bool) -> bool {
        let mut link = &self.ports[usize::from(port)];
        for _ in 0..MAX_PER_PORT {
            // Acquire: pairs with the Release stores in `bind` and `close`.
            let Some(endpoint) = self.endpoint(link.load(Ordering::Acquire)) else { return false };
            if accept(endpoint) {
                return true;
            }
            link = &endpoint.next;
        }
        false
    }

    #[cold]
    fn search_again(&self, port: u16, accept: &mut impl FnMut(&Endpoint<P>) -> bool) -> bool {
        let _chains_stand_still = self.admin.lock();
        self.search(port, accept)
    }

    /// Returns the endpoint of a link.
    #[inline]
    fn endpoint(&self, link: u32) -> Option<&Endpoint<P>> {
        self.endpoints.get(link.checked_sub(1)?)
    }

    /// Checks that a socket may be bound to `local`. The caller holds the table's lock.
    fn check(&self, local: SocketAddr) -> Result<(), BindError> {
        let mut sockets = 0;
        let taken = self.search(local.port(), &mut |endpoint| {
            sockets += 1;
            endpoint.conflicts(local)
        });
        match taken {
            true => Err(BindError::InUse(local)),
            false if sockets >= MAX_PER_PORT => Err(BindError::Crowded(local.port())),
            false => Ok(()),
        }
    }

    /// Returns a free ephemeral port: a random one, or the next free one after it (RFC 6056 section
    /// 3.3.1).
    fn draw_port(&self, admin: &mut Admin, ip: IpAddr) -> Result<SocketAddr, BindError> {
        admin.drawn += 1;
        let random = hash(&(self.seed, admin.drawn));
        let (start, count) = (*admin.ephemeral.start(), admin.ephemeral.len() as u64);
        (0..count)
            .map(|i| start + (random.wrapping_add(i) % count) as u16)
            .map(|port| SocketAddr::new(ip, port))
            .find(|&local| self.check(local).is_ok())
            .ok_or(BindError::NoPort(ip))
    }

    /// Adds the counters of the sockets. An endpoint keeps its counters when it is recycled, so
    /// closed sockets are included.
    pub fn count(&self, counters: &mut NetCounters) {
        let admin = self.admin.lock();
        for endpoint in (0..admin.used).filter_map(|index| self.endpoints.get(index)) {
            let inbound = endpoint.inbound();
            counters.udp_received += inbound.received;
            counters.udp_received_bytes += inbound.received_bytes;
            counters.udp_overflows += inbound.overflows;
            // Relaxed: a statistic.
            counters.udp_sent += endpoint.sent.load(Ordering::Relaxed);
        }
        counters.udp_sockets += u64::from(admin.used) - admin.free.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Single;
    use crate::udp::Take;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use std::collections::HashSet;

    const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    const LO: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    const LO6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

    fn table() -> UdpTable<Single> {
        UdpTable::new(4096, 42)
    }

    fn at(ip: IpAddr, port: u16) -> SocketAddr {
        SocketAddr::new(ip, port)
    }

    fn port_of(endpoint: &Endpoint<Single>) -> u16 {
        endpoint.binding().local.port()
    }

    #[test]
    fn addresses_share_a_port_only_if_they_cannot_be_confused() {
        for (first, second, together) in [
            (ANY, ANY, false),
            (ANY, LO, false),
            (LO, ANY, false),
            (LO, LO, false),
            (LO, OWN, true),
            (ANY6, ANY6, false),
            (ANY6, ANY, false),
            (ANY, ANY6, false),
            (ANY6, LO, false),
            (LO, ANY6, false),
            (ANY6, LO6, false),
            (ANY, LO6, true),
            (LO6, LO, true),
        ] {
            let table = table();
            let open = table.bind(at(first, 7)).unwrap();
            assert_eq!(table.bind(at(second, 7)).is_ok(), together, "{first} then {second}");
            assert!(table.bind(at(second, 8)).is_ok());
            table.close(open);
            if !together {
                assert!(table.bind(at(second, 7)).is_ok(), "{first} was closed");
            }
        }
    }

    #[test]
    fn a_datagram_finds_its_socket_in_a_long_chain() {
        let table = table();
        let addresses: Vec<_> = (1..=MAX_PER_PORT as u8).map(|i| IpAddr::from([127, 0, 0, i])).collect();
        let endpoints: Vec<_> = addresses.iter().map(|&ip| table.bind(at(ip, 7)).unwrap()).collect();
        assert_eq!(table.bind(at(OWN, 7)).err(), Some(BindError::Crowded(7)), "the chain is bounded");
        assert_eq!(table.bind(at(addresses[3], 7)).err(), Some(BindError::InUse(at(addresses[3], 7))));
        for (i, &ip) in addresses.iter().enumerate() {
            assert_eq!(table.deliver(at(OWN, 1), at(ip, 7), &[i as u8]), Offer::Queued);
        }
        assert_eq!(table.deliver(at(OWN, 1), at(OWN, 7), b"?"), Offer::NotMine);
        // Closing from the middle keeps the rest.
        for i in [7, 0, 15] {
            table.close(endpoints[i]);
            assert_eq!(table.deliver(at(OWN, 1), at(addresses[i], 7), b"?"), Offer::NotMine);
        }
        for i in (0..16).filter(|i| ![7, 0, 15].contains(i)) {
            let mut buf = [0; 1];
            let received = endpoints[i].inbound().receive(&mut buf, Take::Remove).unwrap().unwrap();
            assert_eq!((received.len, buf[0]), (1, i as u8));
        }
    }

    #[test]
    fn ephemeral_ports_are_spread_and_run_out() {
        let table = table();
        let ports: Vec<_> = (0..100).map(|_| port_of(table.bind(at(OWN, 0)).unwrap())).collect();
        assert!(ports.iter().all(|port| EPHEMERAL.contains(port)));
        let steps = ports.windows(2).filter(|w| w[1] == w[0].wrapping_add(1)).count();
        assert!(steps < 5, "the next port can be guessed: {ports:?}");
        let other = UdpTable::<Single>::new(4096, 43);
        assert_ne!(port_of(other.bind(at(OWN, 0)).unwrap()), ports[0], "another seed, another order");
        let all: HashSet<_> = ports.into_iter().collect();
        let rest = (all.len()..EPHEMERAL.len()).map(|_| port_of(table.bind(at(OWN, 0)).unwrap()));
        assert_eq!(rest.filter(|port| !all.contains(port)).count() + all.len(), EPHEMERAL.len());
        assert_eq!(table.bind(at(OWN, 0)).map(|_| ()), Err(BindError::NoPort(OWN)));
        assert!(table.bind(at(LO, 0)).is_ok(), "another address has its own ports");
    }

    #[test]
    fn unbound_sockets_get_the_ports_that_the_host_may_use() {
        let table = table();
        table.use_ports(Some(61_000..=61_002));
        let mut ports = [(); 3].map(|()| port_of(table.bind(at(OWN, 0)).unwrap()));
        ports.sort_unstable();
        assert_eq!(ports, [61_000, 61_001, 61_002]);
        assert_eq!(table.bind(at(OWN, 0)).map(|_| ()), Err(BindError::NoPort(OWN)));
    }

    #[test]
    fn endpoints_are_used_again_and_start_afresh() {
        let table = table();
        let first = table.bind(at(OWN, 7)).unwrap();
        table.deliver(at(LO, 1), at(OWN, 7), b"left behind");
        first.connect(OWN, at(LO, 1));
        first.post_error(at(OWN, 7), at(LO, 1), SocketError::Refused);
        table.close(first);
        let second = table.bind(at(LO, 9)).unwrap();
        assert!(core::ptr::eq(first, second));
        assert_eq!(second.take_error(), None);
        assert_eq!(second.binding().peer, None);
        assert_eq!(second.inbound().receive(&mut [], Take::Remove), Ok(None));
        let mut counters = NetCounters::default();
        table.count(&mut counters);
        assert_eq!((counters.udp_received, counters.udp_sockets), (1, 1));
    }

    /// A kthread stands at an endpoint that is meanwhile closed and opened for another port, so
    /// that the chain it follows ends elsewhere: it still finds the socket that was open all along.
    #[test]
    fn a_chain_that_changes_underfoot_hides_nobody() {
        let table = table();
        let steady = table.bind(at(LO, 7)).unwrap();
        let first = table.bind(at(OWN, 7)).unwrap();
        let mut visited = Vec::new();
        let found = table.find(7, |endpoint| {
            visited.push(endpoint.index);
            if visited.len() == 1 {
                table.close(first);
                let moved = table.bind(at(OWN, 8)).unwrap();
                assert!(core::ptr::eq(moved, endpoint));
            }
            core::ptr::eq(endpoint, steady)
        });
        assert!(found);
        assert_eq!(visited, [first.index, steady.index]);
    }
}
