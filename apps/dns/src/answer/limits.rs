//! How much an answer holds, and how a query arrived, on which that depends.

/// Maximum length of an answer over UDP in octets, and the receive size we announce: it fits into
/// the packets of every network in use, so none is fragmented (RFC 9715, section 3).
pub const MAX_UDP: u16 = 1232;

/// Maximum length of an answer to a client that announces no size, in octets (RFC 1035, section
/// 4.2.1).
pub const MIN_UDP: u16 = 512;

/// Maximum number of hosts of an answer whose addresses are looked up. Glue of delegations has no
/// such bound.
pub const MAX_HOSTS: usize = 32;

/// How a query arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// In a datagram: the answer is truncated if it is too long.
    Udp,
    /// Over a connection.
    Tcp,
}
