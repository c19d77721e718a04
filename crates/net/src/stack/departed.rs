//! The end of a program of this machine, as the IOKernel reports it to the programs beside it.
//!
//! A peer that only waits sends nothing, so nothing is answered with a reset. The report is an ICMP
//! or ICMPv6 error "host unreachable" from the address that has no program any more. It quotes the
//! IP header of a packet from this host to that address, without a transport header: it is about
//! all that this host has with that address.
//!
//! If one of two instances of a program has ended, the report is "protocol unreachable" instead.
//! The other one resets the connections that it does not have when it is asked, so each connection
//! to the address is probed.
//!
//! It ends connections without quoting a sequence number in flight, so it is believed only where
//! the link vouches for the frame ([`Checksums::Trust`]): no frame from a wire is vouched for, and
//! the IOKernel lets no program send an error "host unreachable". A quote with a transport header
//! is an ordinary error (see [`errors`](super::errors)).

use super::Stack;
use crate::arrived::Arrived;
use crate::counters::Event;
use crate::outlet::Outlet;
use crate::platform::Platform;
use crate::udp::SocketError;
use core::net::IpAddr;
use tailwater_wire::{Addresses, Checksums, Ipv4Packet, Ipv6Packet, Undelivered};

impl<P: Platform> Stack<P> {
    /// Handles an error, if it is the report of an ended program; false if it is another one.
    pub(super) fn handle_departure(
        &self,
        outlet: &mut impl Outlet<P>,
        arrived: &Arrived<'_>,
        why: Undelivered,
        quote: &[u8],
    ) -> bool {
        if !matches!(why, Undelivered::Host | Undelivered::Protocol) || arrived.checksums != Checksums::Trust
        {
            return false;
        }
        let Some(addresses) = read_bare_header(quote, arrived.addresses.source().is_ipv4()) else {
            return false;
        };
        let gone = addresses.destination();
        if addresses.source() != arrived.addresses.destination()
            || gone != arrived.addresses.source()
            || self.addressing.is_local(gone)
        {
            return false;
        }
        if why == Undelivered::Protocol {
            self.probe_peer(outlet, gone);
        } else {
            self.counters.count(Event::PeerDeparted);
            self.forget_peer(outlet, gone);
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

/// Parses a quote that is an IP header and nothing else.
fn read_bare_header(quote: &[u8], ipv4: bool) -> Option<Addresses> {
    if ipv4 {
        let (header, rest) = Ipv4Packet::parse_quoted(quote).ok()?;
        return (rest.is_empty() && header.total_len() == quote.len()).then(|| header.addresses());
    }
    let (header, rest) = Ipv6Packet::parse_quoted(quote).ok()?;
    (rest.is_empty() && header.payload_len() == 0).then(|| header.addresses())
}
