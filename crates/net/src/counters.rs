//! The stack's counters.
//!
//! Events of every packet are counted where a lock is held anyway, in the sockets. The cells here
//! count exceptions, so that threads share no cache line on the ordinary path.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tailwater_wire::WireError;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $event:ident => $field:ident,)+) => {
        /// An event that is counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum CountedEvent {
            $($(#[doc = $doc])+ $event,)+
        }

        /// A reading of all counters since the start of the stack. Not a snapshot: other threads
        /// count meanwhile.
        ///
        /// # Examples
        /// ```
        /// let counters = tailwater_net::NetCounters::default();
        /// assert_eq!((counters.udp_received, counters.udp_overflows), (0, 0));
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct NetCounters {
            $($(#[doc = $doc])+ pub $field: u64,)+
            /// UDP: datagrams put into sockets.
            pub udp_received: u64,
            /// UDP: data bytes of those.
            pub udp_received_bytes: u64,
            /// UDP: datagrams dropped because their socket's buffer was full.
            pub udp_overflows: u64,
            /// UDP: datagrams sent, including those to sockets of this stack.
            pub udp_sent: u64,
            /// UDP: open sockets.
            pub udp_sockets: u64,
            /// TCP: connections, those in TIME-WAIT not counted.
            pub tcp_connections: u64,
            /// TCP: closed connections whose old duplicates are waited for.
            pub tcp_time_waits: u64,
            /// TCP: segments that connections were given. The count of one connection wraps at
            /// 2^32.
            pub tcp_segments_received: u64,
            /// TCP: segments that connections sent, counted likewise.
            pub tcp_segments_sent: u64,
            /// TCP: data bytes received in order.
            pub tcp_received_bytes: u64,
            /// TCP: data bytes sent, each once.
            pub tcp_sent_bytes: u64,
            /// TCP: segments sent again.
            pub tcp_retransmitted: u64,
            /// TCP: times a retransmission timer expired.
            pub tcp_timeouts: u64,
            /// TCP: tail loss probes (RFC 8985 section 7).
            pub tcp_tail_probes: u64,
            /// TCP: repairs that turned out to have been unnecessary.
            pub tcp_spurious_repairs: u64,
            /// TCP: segments received ahead of others.
            pub tcp_out_of_order: u64,
            /// TCP: data bytes that had to wait for earlier ones.
            pub tcp_resequenced_bytes: u64,
            /// TCP: connections that listeners completed.
            pub tcp_accepted: u64,
            /// TCP: SYNs and ACKs that listeners dropped because too many connections waited to be
            /// accepted.
            pub tcp_listen_overflows: u64,
            /// TCP: SYNs answered with a cookie.
            pub tcp_cookies_sent: u64,
            /// TCP: connections from cookies.
            pub tcp_cookies_accepted: u64,
            /// TCP: ACKs that were no cookie of ours.
            pub tcp_cookies_refused: u64,
        }

        const EVENTS: usize = [$(CountedEvent::$event),+].len();

        impl Cells {
            /// Returns the cells as numbers; the counters of UDP and TCP sockets are zero.
            pub fn read(&self) -> NetCounters {
                // Relaxed: statistics.
                NetCounters { $($field: self.0[CountedEvent::$event as usize].load(Relaxed),)+ ..NetCounters::default() }
            }
        }
    };
}

counters! {
    /// Frames shorter than their headers state, or with invalid fields.
    Malformed => malformed,
    /// Frames with a wrong IPv4, ICMP, ICMPv6 or UDP checksum.
    BadChecksum => bad_checksums,
    /// Fragments of IP packets received.
    Fragment => fragments,
    /// Packets put together from fragments.
    Reassembled => reassembled,
    /// Fragments dropped because they contradict others, have no possible place, or belong to a
    /// packet of which another did.
    FragmentRefused => fragments_refused,
    /// Packets of which some fragments came and others did not, within 30 s, or before there was no
    /// more room for them.
    ReassemblyFailed => reassemblies_failed,
    /// Packets sent in fragments, because they were longer than the path carries.
    Fragmented => fragmented,
    /// Frames passed on to the earlier instance of this host: it may have the socket.
    PassedOn => passed_on,
    /// Frames to another station's or a multicast MAC address, or from a group address.
    ForeignMac => foreign_macs,
    /// Frames of a type other than IPv4, ARP and, where it is configured, IPv6.
    UnknownEtherType => unknown_ethertypes,
    /// IP packets to an address that is not this stack's, loopback addresses on the wire included.
    ForeignAddress => foreign_addresses,
    /// IP packets from an address no peer can have (RFC 1122 section 3.2.1.3).
    MartianSource => martian_sources,
    /// IP packets of a protocol that is not spoken here.
    UnknownProtocol => unknown_protocols,
    /// ARP packets answered with a reply.
    ArpAnswered => arp_answered,
    /// ARP requests sent.
    ArpSolicited => arp_solicited,
    /// ARP packets from senders that cannot be neighbours.
    ArpForeign => arp_foreign,
    /// ARP packets from a station that claims this stack's address (RFC 5227 section 2.4).
    ArpConflict => arp_conflicts,
    /// Changes of a neighbour's MAC address ignored because they came too fast, and neighbours not
    /// learnt because the cache was full.
    ArpIgnored => arp_ignored,
    /// IPv6 packets with an extension header or an unknown option that requires refusal.
    ExtensionRefused => extensions_refused,
    /// Neighbour solicitations answered.
    NdAnswered => nd_answered,
    /// Neighbour solicitations sent.
    NdSolicited => nd_solicited,
    /// Neighbour discovery that breaks its rules: routed, in fragments, or about addresses that
    /// cannot be neighbours (RFC 4861 section 7.1).
    NdInvalid => nd_invalid,
    /// Probes for this stack's addresses (duplicate address detection) that were not answered
    /// because of the rate limit.
    NdLimited => nd_limited,
    /// Neighbour advertisements of this stack's addresses by another station.
    NdConflict => nd_conflicts,
    /// Neighbour advertisements not accepted, and neighbours not learnt because the cache was full.
    NdIgnored => nd_ignored,
    /// Paths found to carry shorter packets than the link (RFC 1191, RFC 8201).
    PathNarrowed => paths_narrowed,
    /// Neighbours that did not answer.
    NeighbourFailed => neighbours_failed,
    /// Packets dropped while they waited for a neighbour: pushed out by later ones, or the
    /// neighbour did not answer.
    PendingDropped => pending_dropped,
    /// ICMP and ICMPv6 echo requests answered.
    EchoAnswered => echoes_answered,
    /// ICMP and ICMPv6 messages of no concern, or that quote no packet of ours.
    IcmpIgnored => icmp_ignored,
    /// Reports of the IOKernel that a program of this machine has ended.
    PeerDeparted => peers_departed,
    /// ICMP and ICMPv6 errors sent.
    UnreachableSent => unreachables_sent,
    /// ICMP and ICMPv6 messages that were not sent because of the rate limit.
    UnreachableLimited => unreachables_limited,
    /// TCP segments that belonged to no connection and no listener.
    TcpNoConnection => tcp_no_connection,
    /// Resets sent to those.
    TcpResetSent => tcp_resets_sent,
    /// Resets that were not sent because of the rate limit.
    TcpResetLimited => tcp_resets_limited,
    /// TCP segments to a group of hosts.
    TcpToGroup => tcp_to_group,
    /// UDP datagrams for which no socket was open.
    NoSocket => udp_no_socket,
    /// Answers (ARP, neighbour discovery, ICMP, ICMPv6, packets that waited for a neighbour)
    /// dropped because the egress ring was full.
    EgressFull => egress_full,
}

impl From<WireError> for CountedEvent {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Truncated { .. } | WireError::Field { .. } => Self::Malformed,
            WireError::Checksum { .. } => Self::BadChecksum,
        }
    }
}

/// The counting cells.
#[derive(Debug)]
pub struct Cells([AtomicU64; EVENTS]);

impl Cells {
    /// Makes cells that are zero.
    pub fn new() -> Self {
        Self([const { AtomicU64::new(0) }; EVENTS])
    }

    /// Counts one `event`.
    pub fn count(&self, event: CountedEvent) {
        self.add(event, 1);
    }

    /// Counts `n` of `event`.
    pub fn add(&self, event: CountedEvent, n: usize) {
        // Relaxed: a statistic.
        self.0[event as usize].fetch_add(n as u64, Relaxed);
    }
}
