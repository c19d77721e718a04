//! Why bytes are not the header they should be.

/// The protocol whose rules were broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layer {
    /// Ethernet II framing (RFC 894).
    Ethernet,
    /// ARP (RFC 826).
    Arp,
    /// IPv4 (RFC 791).
    Ipv4,
    /// IPv6 (RFC 8200).
    Ipv6,
    /// ICMP (RFC 792).
    Icmp,
    /// ICMPv6 (RFC 4443) and neighbour discovery (RFC 4861).
    Icmpv6,
    /// UDP (RFC 768).
    Udp,
    /// TCP (RFC 9293).
    Tcp,
}

impl core::fmt::Display for Layer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "Ethernet",
            Self::Arp => "ARP",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Icmp => "ICMP",
            Self::Icmpv6 => "ICMPv6",
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
        })
    }
}

/// A parser's refusal. The only remedy is to drop the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end before the header, or before the length that a header states.
    #[error("{layer}: {need} bytes are needed and {have} are there")]
    Truncated {
        /// The protocol.
        layer: Layer,
        /// Bytes needed.
        need: usize,
        /// Bytes present.
        have: usize,
    },
    /// A field holds a value that the protocol forbids.
    #[error("{layer}: {field} cannot be {value}")]
    Field {
        /// The protocol.
        layer: Layer,
        /// The field's name in its RFC.
        field: &'static str,
        /// The value found.
        value: u16,
    },
    /// The checksum does not match the data.
    #[error("{layer}: the checksum does not match")]
    Checksum {
        /// The protocol.
        layer: Layer,
    },
}
