//! Which socket a datagram is for.
//!
//! Owns: the endpoints, and for each port the chain of those bound to it (hardly ever more than one: only different addresses can
//! share a port).
//!
//! | field | written by | ordering | read by |
//! |---|---|---|---|
//! | `ports[p]`, `Endpoint::next` | `bind`, `close`, under the table's lock | Release | anybody, Acquire |
//! | an endpoint's identity | `bind`, `close`, `connect`, under the endpoint's lock | the lock | whoever holds it |
//!
//! A receiving kthread follows a chain without the table's lock. An endpoint may be closed, or even opened again for another port,
//! while it does; under the endpoint's lock it sees whether the datagram is still for it. A chain that changed underfoot
//! can hide an endpoint that was there all along, so a search that finds nothing is repeated under the table's lock before
//! anybody is told that the port is closed.
//!
//! Lock order: table, then endpoint.

use super::endpoint::{Endpoint, Offer, SocketError};
use super::ring::DatagramRing;
use super::slab::Slab;
use crate::net::stack::Counters;
use crate::sync::spin::SpinLock;
use core::hash::{BuildHasher, BuildHasherDefault};
use core::net::{Ipv4Addr, SocketAddrV4};
use core::sync::atomic::{AtomicU32, Ordering};
use std::hash::DefaultHasher;

/// Sockets of different addresses that can share a port.
pub const MAX_PER_PORT: usize = 16;
/// Most sockets open at once.
pub const MAX_SOCKETS: u32 = 65_536;
/// First port handed out to who asks for any: the Dynamic Ports (RFC 6335 section 6).
pub const FIRST_EPHEMERAL: u16 = 49_152;
const EPHEMERAL_PORTS: u16 = u16::MAX - FIRST_EPHEMERAL + 1;

/// Why a socket could not be bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Another socket is there.
    #[error("UDP {0} is taken by another socket of this process: close that one or choose another port")]
    InUse(SocketAddrV4),
    /// All ephemeral ports are taken.
    #[error("no ephemeral UDP port is free on {0}: close sockets")]
    NoPort(Ipv4Addr),
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
    /// Numbers drawn for ephemeral ports.
    drawn: u64,
}

/// All UDP sockets of a stack.
#[derive(Debug)]
pub struct UdpTable {
    /// First endpoint of each port, as index plus one; zero for none. 256 KiB.
    ports: Box<[AtomicU32]>,
    endpoints: Slab<Endpoint>,
    admin: SpinLock<Admin>,
    receive_bytes: usize,
    seed: u64,
}

impl UdpTable {
    /// No sockets. Each will buffer `receive_bytes`; `seed` makes the order of ephemeral ports hard to guess (RFC 6056).
    pub fn new(receive_bytes: usize, seed: u64) -> Self {
        Self {
            ports: (0..=u16::MAX).map(|_| AtomicU32::new(0)).collect(),
            endpoints: Slab::new(),
            admin: SpinLock::new(Admin { free: Vec::new(), used: 0, drawn: 0 }),
            receive_bytes,
            seed,
        }
    }

    /// Opens a socket at `local`; port zero stands for any that is free.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&self, local: SocketAddrV4) -> Result<&Endpoint, BindError> {
        let queue = DatagramRing::new(self.receive_bytes);
        let mut admin = self.admin.lock();
        let local = match local.port() {
            0 => self.draw_port(&mut admin, *local.ip())?,
            _ if self.is_free(local) => local,
            _ => return Err(BindError::InUse(local)),
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
        // Relaxed load: written under the table's lock only. Release stores: pair with the Acquire loads in `find`.
        endpoint.next.store(head.load(Ordering::Relaxed), Ordering::Release);
        head.store(index + 1, Ordering::Release);
        Ok(endpoint)
    }

    /// Closes the socket of `endpoint`. Call once for each `bind`.
    pub fn close(&self, endpoint: &Endpoint) {
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
        let queue = endpoint.close();
        admin.free.push(endpoint.index);
        drop(admin);
        drop(queue);
    }

    /// Queues a datagram at the socket it is for. [`Offer::NotMine`] says that there is none.
    #[inline]
    pub fn deliver(&self, source: SocketAddrV4, destination: SocketAddrV4, data: &[u8]) -> Offer {
        let port = destination.port();
        let mut offer = Offer::NotMine;
        self.find(port, |endpoint| {
            offer = endpoint.offer(source, destination, data);
            offer != Offer::NotMine
        });
        offer
    }

    /// Tells the socket of `local` that is connected to `peer`, if there is one, of `error`.
    pub fn post_error(&self, local: SocketAddrV4, peer: SocketAddrV4, error: SocketError) -> bool {
        self.find(local.port(), |endpoint| endpoint.post_error(local, peer, error))
    }

    /// Offers the endpoints of `port` to `accept` until it takes one.
    #[inline]
    fn find(&self, port: u16, mut accept: impl FnMut(&Endpoint) -> bool) -> bool {
        self.search(port, &mut accept) || self.search_again(port, &mut accept)
    }

    #[inline]
    fn search(&self, port: u16, accept: &mut impl FnMut(&Endpoint) -> bool) -> bool {
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
    fn search_again(&self, port: u16, accept: &mut impl FnMut(&Endpoint) -> bool) -> bool {
        let _chains_stand_still = self.admin.lock();
        self.search(port, accept)
    }

    /// The endpoint that a link names.
    #[inline]
    fn endpoint(&self, link: u32) -> Option<&Endpoint> {
        self.endpoints.get(link.checked_sub(1)?)
    }

    /// Whether a socket may be bound to `local`. The caller holds the table's lock.
    fn is_free(&self, local: SocketAddrV4) -> bool {
        let mut sockets = 0;
        let taken = self.search(local.port(), &mut |endpoint| {
            sockets += 1;
            endpoint.conflicts(local)
        });
        !taken && sockets < MAX_PER_PORT
    }

    /// A free ephemeral port: a random one, or the next free one after it (RFC 6056 section 3.3.1).
    fn draw_port(&self, admin: &mut Admin, ip: Ipv4Addr) -> Result<SocketAddrV4, BindError> {
        admin.drawn += 1;
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let random = hasher.hash_one((self.seed, admin.drawn));
        let first = random % u64::from(EPHEMERAL_PORTS);
        (0..u64::from(EPHEMERAL_PORTS))
            .map(|i| FIRST_EPHEMERAL + ((first + i) % u64::from(EPHEMERAL_PORTS)) as u16)
            .map(|port| SocketAddrV4::new(ip, port))
            .find(|&local| self.is_free(local))
            .ok_or(BindError::NoPort(ip))
    }

    /// Adds what the sockets have counted. An endpoint counts on for the next socket it is given to, so closed sockets are
    /// included.
    pub fn count(&self, counters: &mut Counters) {
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
