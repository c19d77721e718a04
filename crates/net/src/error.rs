//! Why a packet was not sent.

use crate::outlet::OutletError;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tailwater_wire::{IPV4_HEADER, UDP_HEADER};

/// Maximum data bytes of a UDP datagram: IPv4's limit. IPv6 could carry 20 more, which Linux does
/// not send either.
pub const MAX_DATAGRAM: usize = 65_535 - IPV4_HEADER - UDP_HEADER;

/// Why a datagram was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No room in the outlet: wait and try again.
    #[error("the egress ring is full")]
    Full,
    /// There is no link, or none that the calling thread can use.
    #[error("the network is down")]
    Down,
    /// Longer than a datagram, or than a packet that may not be fragmented.
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
    /// The socket does not allow broadcasts.
    #[error("sending to a broadcast address is not allowed on this socket: call set_broadcast(true)")]
    BroadcastForbidden,
    /// Port zero is reserved.
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

/// Returns the destination that a caller means. An unspecified address stands for this host, as on
/// Linux, an IPv4-mapped one for the IPv4 address. Scope and flow of IPv6 are dropped: there is one
/// link.
#[inline]
pub fn destination(of: SocketAddr) -> Result<SocketAddr, SendError> {
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
