//! Received fragments: stored, and passed to their protocol once the packet is whole.

use super::Stack;
use crate::arrived::{Arrived, Link, Origin};
use crate::counters::CountedEvent;
use crate::outlet::{InputBatch, Outlet};
use crate::platform::{Lock, Platform};
use crate::reassembly::{Accepted, Datagram, Key, Piece};
use core::time::Duration;
use tailwater_wire::{Addresses, Checksums, FRAGMENT_HEADER, IPV6_HEADER, Report, upper_layer};

impl<P: Platform> Stack<P> {
    /// Handles a fragment of a packet for this host. The checksum of the whole is verified even if
    /// those of the fragments are vouched for.
    #[cold]
    pub(super) fn handle_piece(
        &self,
        batch: &mut impl InputBatch<P>,
        outlet: &mut impl Outlet<P>,
        key: &Key,
        piece: &Piece<'_>,
        to_all: bool,
    ) -> Result<(), CountedEvent> {
        self.counters.count(CountedEvent::Fragment);
        let (accepted, evicted) = {
            let mut reassembly = self.reassembly.lock();
            (reassembly.accept(key, piece, outlet.now()), reassembly.take_evicted())
        };
        self.counters.add(CountedEvent::ReassemblyFailed, evicted);
        match accepted {
            Accepted::Refused => Err(CountedEvent::FragmentRefused),
            Accepted::Waits => {
                self.want_poll(outlet);
                Ok(())
            }
            Accepted::Whole(datagram) => {
                self.counters.count(CountedEvent::Reassembled);
                self.handle_whole(batch, outlet, key, &datagram, to_all)
            }
        }
    }

    fn handle_whole(
        &self,
        batch: &mut impl InputBatch<P>,
        outlet: &mut impl Outlet<P>,
        key: &Key,
        datagram: &Datagram,
        to_all: bool,
    ) -> Result<(), CountedEvent> {
        let mut link = Link {
            station: datagram.station,
            packet: [&datagram.header, &datagram.data],
            to_all,
            never_routed: false,
            named_at: datagram.header.len().saturating_sub(FRAGMENT_HEADER),
        };
        let (mut protocol, mut at) = (datagram.protocol, 0);
        if let Addresses::V6 { .. } = key.addresses {
            // Extensions for the destination alone are in the fragments.
            let upper = match upper_layer(protocol, &datagram.data) {
                Ok(upper) if upper.fragment.is_none() => upper,
                Ok(_) => return Err(CountedEvent::Malformed),
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
        self.handle_transport(batch, outlet, &arrived)
    }

    /// Drops packets whose time is over, and reports it to their senders (RFC 792 "time exceeded",
    /// RFC 4443 section 3.3).
    pub(super) fn poll_reassembly(&self, outlet: &mut impl Outlet<P>, now: Duration) {
        loop {
            // Its own statement: the lock is not held while the error is sent.
            let expired = self.reassembly.lock().poll(now);
            let Some(expired) = expired else { return };
            self.counters.count(CountedEvent::ReassemblyFailed);
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
