//! The end of a program of this machine, as the IOKernel reports it to the programs beside it.
//!
//! A peer that only waits sends nothing, so nothing is answered with a reset. The report is an ICMP
//! or ICMPv6 error "host unreachable" from the address that has no program any more. It quotes the
//! IP header of a packet from this host to that address, without a transport header: it is about
//! all that this host has with that address. The protocol in that header says what has ended:
//!
//! | protocol | meaning |
//! |---|---|
//! | no next header (59) | the program: connections end |
//! | TCP | one of two instances: the other one resets the connections that it does not have when it is asked, so each connection is probed |
//!
//! The report quotes no sequence number in flight, and makes its receiver look at all its
//! connections. So it is believed only where the link vouches for the frame ([`Checksums::Trust`]):
//! no frame from a wire is vouched for, and the IOKernel lets no program send an error "host
//! unreachable". A quote with a transport header is an ordinary error (see
//! [`errors`](super::errors)).

use super::Stack;
use crate::arrived::Arrived;
use crate::counters::CountedEvent;
use crate::outlet::Outlet;
use crate::platform::Platform;
use crate::udp::SocketError;
use core::net::IpAddr;
use tailwater_wire::{Addresses, Checksums, IpProtocol, Ipv4Packet, Ipv6Packet, Undelivered};

impl<P: Platform> Stack<P> {
    /// Handles an error, if it is the report of an ended program; false if it is another one.
    pub(super) fn handle_departure(
        &self,
        outlet: &mut impl Outlet<P>,
        arrived: &Arrived<'_>,
        why: Undelivered,
        quote: &[u8],
    ) -> bool {
        if why != Undelivered::Host || arrived.checksums != Checksums::Trust {
            return false;
        }
        let Some((addresses, protocol)) = read_bare_header(quote, arrived.addresses.source().is_ipv4())
        else {
            return false;
        };
        let gone = addresses.destination();
        if addresses.source() != arrived.addresses.destination()
            || gone != arrived.addresses.source()
            || self.addressing.is_local(gone)
        {
            return false;
        }
        match protocol {
            IpProtocol::NO_NEXT_HEADER => {
                self.counters.count(CountedEvent::PeerDeparted);
                self.forget_peer(outlet, gone);
            }
            IpProtocol::TCP => self.probe_peer(outlet, gone),
            _ => return false,
        }
        true
    }

    /// Ends the connections to `gone`, and reports its end to the UDP sockets that are connected to
    /// it.
    fn forget_peer(&self, outlet: &mut impl Outlet<P>, gone: IpAddr) {
        self.fail_departed(outlet, gone);
        self.udp.post_error_of_host(gone, SocketError::Refused);
    }
}

/// Parses a quote that is an IP header and nothing else; returns its addresses and its protocol.
fn read_bare_header(quote: &[u8], ipv4: bool) -> Option<(Addresses, IpProtocol)> {
    if ipv4 {
        let (header, rest) = Ipv4Packet::parse_quoted(quote).ok()?;
        let bare = rest.is_empty() && header.total_len() == quote.len();
        return bare.then(|| (header.addresses(), header.protocol()));
    }
    let (header, rest) = Ipv6Packet::parse_quoted(quote).ok()?;
    let bare = rest.is_empty() && header.payload_len() == 0;
    bare.then(|| (header.addresses(), header.next_header()))
}
