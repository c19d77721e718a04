//! A datagram is to leave: where to, and as what.

use super::addressing::Route;
use super::ip::{Hop, Progress};
use super::{Event, Outlet, OutletError, Stack};
use crate::net::udp::{Endpoint, Offer, SocketError};
use crate::net::wire::{Addresses, IPV4_HEADER, IpProtocol, MacAddr, PacketInfo, UDP_HEADER, UdpHeader};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering::Relaxed;
use zerocopy::IntoBytes;

/// Most data bytes of a UDP datagram: what IPv4 carries. IPv6 could carry 20 more, which Linux does not send either.
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
    /// More than a datagram, or a packet that is not to be fragmented, can hold.
    #[error("{len} bytes: at most {limit} can be sent there")]
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
    /// A socket bound to 127.0.0.0/8 or ::1 cannot reach other hosts.
    #[error("a socket bound to a loopback address cannot send to other hosts")]
    LoopbackSource,
    /// A socket bound to an address of one family cannot send to the other.
    #[error("a socket of one family of addresses cannot send to the other")]
    Family,
}

impl From<OutletError> for SendError {
    fn from(error: OutletError) -> Self {
        match error {
            OutletError::Full => Self::Full,
            OutletError::Down => Self::Down,
        }
    }
}

/// The destination a caller means: an unspecified address stands for this host, as it does on Linux, and an IPv4-mapped one
/// for the IPv4 address. Scope and flow of IPv6 are dropped: there is one link.
#[inline]
pub(super) fn destination(of: SocketAddr) -> Result<SocketAddr, SendError> {
    if of.port() == 0 {
        return Err(SendError::NoPort);
    }
    let ip = match of.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Ok(SocketAddr::new(ip, of.port()))
}

impl Stack {
    /// Sends `data` from the socket `endpoint`, bound to `local`, to `to`.
    ///
    /// A datagram to another host is on its way, or waits for its neighbour, when this returns; one to this host is in the
    /// receiver's queue, or dropped because that was full. What is longer than the path carries leaves in fragments.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_udp(
        &self,
        outlet: &mut impl Outlet,
        endpoint: &Endpoint,
        local: SocketAddr,
        to: SocketAddr,
        data: &[u8],
    ) -> Result<(), SendError> {
        self.send_udp_from(outlet, endpoint, local, to, data, &mut Progress::default())
    }

    /// As [`send_udp`](Self::send_udp), and goes on where an earlier try for the same datagram found no room.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_udp_from(
        &self,
        outlet: &mut impl Outlet,
        endpoint: &Endpoint,
        local: SocketAddr,
        to: SocketAddr,
        data: &[u8],
        progress: &mut Progress,
    ) -> Result<(), SendError> {
        let to = destination(to)?;
        let ip = if local.ip().is_unspecified() { self.addressing.source_for(to.ip()) } else { local.ip() };
        // A socket bound to all of both families may send to either, one bound to 0.0.0.0 to IPv4.
        let family = local.ip() != IpAddr::V4(Ipv4Addr::UNSPECIFIED) || to.is_ipv4();
        let addresses = Addresses::new(ip, to.ip()).filter(|_| family).ok_or(SendError::Family)?;
        if data.len() > MAX_DATAGRAM {
            return Err(SendError::TooLong { len: data.len(), limit: MAX_DATAGRAM });
        }
        let hop = match self.addressing.route(to.ip()) {
            Route::Local => {
                self.send_to_self(SocketAddr::new(ip, local.port()), to, data);
                endpoint.count_sent();
                return Ok(());
            }
            Route::Via(hop) => Hop::Neighbour(hop),
            Route::Broadcast if !endpoint.broadcast.load(Relaxed) => {
                return Err(SendError::BroadcastForbidden);
            }
            Route::Broadcast => Hop::Station(MacAddr::BROADCAST),
            Route::Unreachable => return Err(SendError::NetworkUnreachable),
        };
        let (protocol, hop_limit) = (IpProtocol::UDP, endpoint.ttl.load(Relaxed));
        let packet = PacketInfo { addresses, protocol, hop_limit, traffic_class: 0 };
        self.check_exit(&packet)?;
        let header = UdpHeader::new(&addresses, (local.port(), to.port()), data);
        let len = UDP_HEADER + data.len();
        let mtu = self.path_mtu(to.ip()).into();
        if packet.addresses.header_len() + len <= mtu {
            let fill = |out: &mut [u8], _| {
                let (front, rest) = out.split_at_mut(UDP_HEADER);
                front.copy_from_slice(header.as_bytes());
                rest.copy_from_slice(data);
            };
            self.transmit_via(outlet, hop, &packet, self.fragmenting(&packet), len, fill)?;
        } else {
            self.transmit_parts(outlet, hop, &packet, [header.as_bytes(), data, &[]], mtu, progress)?;
        }
        endpoint.count_sent();
        Ok(())
    }

    /// Straight into the receiver's queue; if nobody listens the sender's socket hears of it as if from another host.
    fn send_to_self(&self, source: SocketAddr, to: SocketAddr, data: &[u8]) {
        if self.udp.deliver(source, to, data) == Offer::NotMine {
            self.counters.count(Event::NoSocket);
            self.udp.post_error(source, to, SocketError::Refused);
        }
    }
}
