//! Fragments that arrive: between the frame, the place where they wait, and the protocol that gets the whole.

use super::input::{Arrived, Link, Origin};
use super::reassembly::{Accepted, Datagram, Key, Piece};
use super::{Event, Outlet, Stack};
use crate::net::wire::{Addresses, Checksums, FRAGMENT_HEADER, IPV6_HEADER, Report, upper_layer};
use core::time::Duration;

impl Stack {
    /// A piece of a packet for this host. No ring vouches for the whole, so its checksum is looked at whatever the piece's
    /// flags say.
    #[cold]
    pub(super) fn handle_piece(
        &self,
        outlet: &mut impl Outlet,
        key: &Key,
        piece: &Piece<'_>,
        to_all: bool,
    ) -> Result<(), Event> {
        self.counters.count(Event::Fragment);
        let (accepted, evicted) = {
            let mut reassembly = self.reassembly.lock();
            (reassembly.accept(key, piece, outlet.now()), reassembly.take_evicted())
        };
        self.counters.add(Event::ReassemblyFailed, evicted);
        match accepted {
            Accepted::Refused => Err(Event::FragmentRefused),
            Accepted::Waits => {
                self.want_poll(outlet);
                Ok(())
            }
            Accepted::Whole(datagram) => {
                self.counters.count(Event::Reassembled);
                self.handle_whole(outlet, key, &datagram, to_all)
            }
        }
    }

    fn handle_whole(
        &self,
        outlet: &mut impl Outlet,
        key: &Key,
        datagram: &Datagram,
        to_all: bool,
    ) -> Result<(), Event> {
        let mut link = Link {
            station: datagram.station,
            packet: [&datagram.header, &datagram.data],
            to_all,
            never_routed: false,
            named_at: datagram.header.len().saturating_sub(FRAGMENT_HEADER),
        };
        let (mut protocol, mut at) = (datagram.protocol, 0);
        if let Addresses::V6 { .. } = key.addresses {
            // Extensions for the destination alone are in the pieces.
            let upper = match upper_layer(protocol, &datagram.data) {
                Ok(upper) if upper.fragment.is_none() => upper,
                Ok(_) => return Err(Event::Malformed),
                Err(error) => return Err(self.handle_extension_error(outlet, &key.addresses, &link, error)),
            };
            if upper.at > 0 {
                link.named_at = datagram.header.len() + upper.named_at - IPV6_HEADER;
            }
            (protocol, at) = (upper.protocol, upper.at);
        }
        let arrived = Arrived {
            addresses: key.addresses,
            protocol,
            traffic_class: datagram.traffic_class,
            payload: &datagram.data[at..],
            checksums: Checksums::Verify,
            origin: Origin::Link(link),
        };
        self.handle_transport(outlet, &arrived)
    }

    /// Gives up on packets whose time is over, and tells their senders (RFC 792 "time exceeded", RFC 4443 section 3.3).
    pub(super) fn poll_reassembly(&self, outlet: &mut impl Outlet, now: Duration) {
        loop {
            // Its own statement: the lock is not held while the error is sent.
            let expired = self.reassembly.lock().poll(now);
            let Some(expired) = expired else { return };
            self.counters.count(Event::ReassemblyFailed);
            let Some(first) = expired.first else { continue };
            let to_all = match expired.key.addresses {
                Addresses::V4 { destination, .. } => self.addressing.is_broadcast(destination),
                Addresses::V6 { destination, .. } => destination.is_multicast(),
            };
            let link = Link {
                station: first.station,
                packet: [&first.header, &first.data],
                to_all,
                never_routed: false,
                named_at: 0,
            };
            if !to_all {
                self.report(outlet, &expired.key.addresses, &link, Report::Reassembly);
            }
        }
    }
}
