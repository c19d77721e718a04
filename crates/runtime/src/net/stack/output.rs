//! A datagram is to leave: where to, and as what.

use super::config::Route;
use super::{Event, Outlet, OutletError, Stack};
use crate::net::neighbour::Resolution;
use crate::net::udp::{Endpoint, Offer, SocketError};
use crate::net::wire::{
    EtherType, EthernetHeader, IPV4_HEADER, IpProtocol, Ipv4Header, MacAddr, UDP_HEADER, UDP_OVERHEAD,
    UdpHeader,
};
use core::net::{Ipv4Addr, SocketAddrV4};
use core::sync::atomic::Ordering::Relaxed;
use zerocopy::{Immutable, IntoBytes, Unaligned};

/// Most data bytes of a UDP datagram over IPv4.
pub const MAX_DATAGRAM: usize = 65_535 - IPV4_HEADER - UDP_HEADER;

/// Why a datagram was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No room in the egress ring: wait and try again.
    #[error("the egress ring is full")]
    Full,
    /// There is no link (any more), or the caller is no kthread and has no ring.
    #[error("the network is down")]
    Down,
    /// Datagrams are not fragmented.
    #[error("a datagram of {len} bytes: at most {limit} bytes can be sent there")]
    TooLong {
        /// Its data bytes.
        len: usize,
        /// The most that fit.
        limit: usize,
    },
    /// No route leads there.
    #[error("the network cannot be reached: no route leads there")]
    NetworkUnreachable,
    /// The neighbour does not answer.
    #[error("the host cannot be reached: it does not answer")]
    HostUnreachable,
    /// Sending to everybody must be allowed first.
    #[error("sending to a broadcast address is not allowed on this socket: call set_broadcast(true)")]
    BroadcastForbidden,
    /// Port zero is nobody's.
    #[error("no socket can have port 0")]
    NoPort,
    /// A socket bound to 127.0.0.0/8 cannot reach other hosts.
    #[error("a socket bound to a loopback address cannot send to other hosts")]
    LoopbackSource,
}

impl From<OutletError> for SendError {
    fn from(error: OutletError) -> Self {
        match error {
            OutletError::Full => Self::Full,
            OutletError::Down => Self::Down,
        }
    }
}

/// The headers of a datagram, in one piece.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Headers {
    ethernet: EthernetHeader,
    ip: Ipv4Header,
    udp: UdpHeader,
}

const _: () = assert!(size_of::<Headers>() == UDP_OVERHEAD);

impl Headers {
    /// Sends the datagram to station `to`.
    #[inline]
    fn transmit(self, outlet: &mut impl Outlet, to: MacAddr, data: &[u8]) -> Result<(), SendError> {
        outlet.transmit(UDP_OVERHEAD + data.len(), |out| self.write(to, data, out))?;
        Ok(())
    }

    /// Writes the frame to station `to`.
    #[inline]
    fn write(mut self, to: MacAddr, data: &[u8], out: &mut [u8]) {
        self.ethernet.destination = to;
        let (headers, rest) = out.split_at_mut(UDP_OVERHEAD);
        headers.copy_from_slice(self.as_bytes());
        rest.copy_from_slice(data);
    }
}

/// The destination a caller means: the unspecified address stands for this host, as it does on Linux.
#[inline]
pub(super) fn destination(of: SocketAddrV4) -> Result<SocketAddrV4, SendError> {
    if of.port() == 0 {
        return Err(SendError::NoPort);
    }
    let ip = if of.ip().is_unspecified() { Ipv4Addr::LOCALHOST } else { *of.ip() };
    Ok(SocketAddrV4::new(ip, of.port()))
}

impl Stack {
    /// Sends `data` from the socket `endpoint`, bound to `local`, to `to`.
    ///
    /// A datagram to another host is on its way, or waits for its neighbour, when this returns; one to this host is in the
    /// receiver's queue, or dropped because that was full.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_udp(
        &self,
        outlet: &mut impl Outlet,
        endpoint: &Endpoint,
        local: SocketAddrV4,
        to: SocketAddrV4,
        data: &[u8],
    ) -> Result<(), SendError> {
        let to = destination(to)?;
        let ip = if local.ip().is_unspecified() { self.addressing.source_for(*to.ip()) } else { *local.ip() };
        let source = SocketAddrV4::new(ip, local.port());
        match self.addressing.route(*to.ip()) {
            Route::Local => self.send_to_self(source, to, data)?,
            Route::Via(hop) => {
                let headers = self.headers(source, to, endpoint.ttl.load(Relaxed), data)?;
                match self.neighbours.find(hop) {
                    Some(mac) => headers.transmit(outlet, mac, data)?,
                    None => self.send_when_resolved(outlet, hop, headers, data)?,
                }
            }
            Route::Broadcast if !endpoint.broadcast.load(Relaxed) => {
                return Err(SendError::BroadcastForbidden);
            }
            Route::Broadcast => {
                let headers = self.headers(source, to, endpoint.ttl.load(Relaxed), data)?;
                headers.transmit(outlet, MacAddr::BROADCAST, data)?;
            }
            Route::Unreachable => return Err(SendError::NetworkUnreachable),
        }
        endpoint.count_sent();
        Ok(())
    }

    /// The headers of a datagram that leaves this host.
    #[inline]
    fn headers(
        &self,
        source: SocketAddrV4,
        to: SocketAddrV4,
        ttl: u8,
        data: &[u8],
    ) -> Result<Headers, SendError> {
        let limit = self.addressing.mtu() - IPV4_HEADER - UDP_HEADER;
        if data.len() > limit {
            return Err(SendError::TooLong { len: data.len(), limit });
        }
        if source.ip().is_loopback() {
            return Err(SendError::LoopbackSource);
        }
        if !self.link_up.load(Relaxed) {
            return Err(SendError::Down);
        }
        Ok(Headers {
            ethernet: EthernetHeader {
                destination: MacAddr::ZERO,
                source: self.addressing.mac(),
                ethertype: EtherType::IPV4,
            },
            ip: Ipv4Header::new(*source.ip(), *to.ip(), IpProtocol::UDP, ttl, UDP_HEADER + data.len()),
            udp: UdpHeader::new((*source.ip(), source.port()), (*to.ip(), to.port()), data),
        })
    }

    /// Straight into the receiver's queue; if nobody listens the sender's socket hears of it as if from another host.
    fn send_to_self(&self, source: SocketAddrV4, to: SocketAddrV4, data: &[u8]) -> Result<(), SendError> {
        if data.len() > MAX_DATAGRAM {
            return Err(SendError::TooLong { len: data.len(), limit: MAX_DATAGRAM });
        }
        if self.udp.deliver(source, to, data) == Offer::NotMine {
            self.counters.count(Event::NoSocket);
            self.udp.post_error(source, to, SocketError::Refused);
        }
        Ok(())
    }

    #[cold]
    fn send_when_resolved(
        &self,
        outlet: &mut impl Outlet,
        hop: Ipv4Addr,
        headers: Headers,
        data: &[u8],
    ) -> Result<(), SendError> {
        let (resolution, question) = self.neighbours.resolve(hop, outlet.now(), || {
            let mut frame = vec![0; UDP_OVERHEAD + data.len()];
            headers.write(MacAddr::ZERO, data, &mut frame);
            frame.into()
        });
        if let Some(question) = question {
            self.ask(outlet, question);
        }
        self.want_poll(outlet);
        match resolution {
            Resolution::Go(mac) => headers.transmit(outlet, mac, data),
            Resolution::Waits { dropped } => {
                if dropped {
                    self.counters.count(Event::PendingDropped);
                }
                Ok(())
            }
            Resolution::Unreachable => Err(SendError::HostUnreachable),
        }
    }
}
