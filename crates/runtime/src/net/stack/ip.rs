//! How packets leave: the one way out for every protocol of either family.
//!
//! Owns: the choice of route and neighbour for a packet, its Ethernet and IP headers, its fragments. Knows nothing of what
//! it carries.
//!
//! # Contract of [`Stack::transmit_ip`]
//! * A caller names the fields of the packet and how many bytes its transport header and data have, and is lent exactly
//!   those bytes, in place where the packet leaves from, together with the sum of the pseudo-header: it adds the bytes it
//!   writes and puts the result into its checksum field. The bytes it is lent hold anything; it writes every one.
//! * On success the packet is on its way, waits for its neighbour, or lies in the loopback queue. On an error the closure
//!   has not been called and nothing was sent; [`SendError::Full`] is worth another try after `egress::wait_for_room`, for
//!   the loopback queue as for the egress ring.
//! * It may be called with a connection's spin lock held: it takes the neighbour cache's, the loopback queue's or the
//!   timers' lock and none of a socket, and what it sends to this host is processed later, by the thread that empties the
//!   loopback queue, never by the caller.
//! * It never fragments: who cuts its data to [`Stack::path_mtu`] need not.
//! * It costs a route (a few comparisons) and a look into the table of neighbours (no lock); a connection has nothing to
//!   remember and nothing to invalidate.
//!
//! What arrives comes to `input::handle_transport`, one arm for each protocol, and errors about what was sent to
//! `errors::handle_icmp_error`. Both are called with no lock held.

use super::addressing::Route;
use super::output::SendError;
use super::{Event, Outlet, OutletError, Stack};
use crate::net::neighbour::{Question, Resolution};
use crate::net::wire::{Addresses, FRAGMENT_HEADER, Fragmenting, MacAddr, PacketInfo, Stations, Sum};
use core::net::IpAddr;
use core::sync::atomic::Ordering::Relaxed;

/// Where on the link a packet goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hop {
    /// To this neighbour, whose station may have to be found first.
    Neighbour(IpAddr),
    /// To this station.
    Station(MacAddr),
}

/// How far a datagram has been sent, for a second try.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    identification: u32,
    /// Bytes of the transport header and data that have left.
    sent: usize,
}

impl Stack {
    /// Sends one packet of `len` bytes of transport header and data, which `fill` writes; see the module's contract.
    /// `packet.addresses` come from [`source_for`](Self::source_for) or a bound socket, so that the source is this host's.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn transmit_ip(
        &self,
        outlet: &mut impl Outlet,
        packet: &PacketInfo,
        len: usize,
        fill: impl FnOnce(&mut [u8], Sum),
    ) -> Result<(), SendError> {
        match self.addressing.route(packet.addresses.destination()) {
            Route::Local => {
                if self.loopback.push(packet, len, fill)? {
                    outlet.poll_loopback();
                }
                Ok(())
            }
            Route::Via(hop) => {
                self.check_exit(packet)?;
                let limit = self.addressing.mtu() - packet.addresses.header_len();
                if len > limit {
                    return Err(SendError::TooLong { len, limit });
                }
                let fragmenting = self.fragmenting(packet);
                self.transmit_via(outlet, Hop::Neighbour(hop), packet, fragmenting, len, fill)
            }
            Route::Broadcast | Route::Unreachable => Err(SendError::NetworkUnreachable),
        }
    }

    /// Whether a packet may leave this host at all.
    #[inline]
    pub(super) fn check_exit(&self, packet: &PacketInfo) -> Result<(), SendError> {
        if packet.addresses.source().is_loopback() {
            return Err(SendError::LoopbackSource);
        }
        if !self.link_up.load(Relaxed) {
            return Err(SendError::Down);
        }
        Ok(())
    }

    /// Whether routers may break up a whole packet: only on a path whose MTU is below what this host is ready to believe.
    #[inline]
    pub(super) fn fragmenting(&self, packet: &PacketInfo) -> Fragmenting {
        let destination = packet.addresses.destination();
        if destination.is_ipv4() && self.paths.is_narrow(destination) {
            return Fragmenting::Allowed { identification: self.identification(&packet.addresses) };
        }
        Fragmenting::Forbidden
    }

    /// Bytes of `sent` transport bytes and more in pieces of at most `mtu` bytes; whole if they fit. `parts` are the
    /// transport header and data, one after the other. Nothing of what `progress` says has left is sent again.
    pub(super) fn transmit_parts(
        &self,
        outlet: &mut impl Outlet,
        hop: Hop,
        packet: &PacketInfo,
        parts: [&[u8]; 3],
        mtu: usize,
        progress: &mut Progress,
    ) -> Result<(), SendError> {
        let total = parts.iter().map(|part| part.len()).sum();
        let room = mtu - packet.addresses.header_len();
        if total <= room {
            let fragmenting = self.fragmenting(packet);
            return self.transmit_via(outlet, hop, packet, fragmenting, total, |out, _| copy(parts, 0, out));
        }
        let extension = if matches!(packet.addresses, Addresses::V6 { .. }) { FRAGMENT_HEADER } else { 0 };
        let most = (room - extension) & !7;
        if progress.sent == 0 {
            progress.identification = self.identification(&packet.addresses);
        }
        while progress.sent < total {
            let offset = progress.sent;
            let len = most.min(total - offset);
            let more = offset + len < total;
            let piece = Fragmenting::Piece { identification: progress.identification, offset, more };
            self.transmit_via(outlet, hop, packet, piece, len, |out, _| copy(parts, offset, out))?;
            progress.sent += len;
        }
        self.counters.count(Event::Fragmented);
        Ok(())
    }

    /// Sends a packet, or the piece of one that `fragmenting` says it is.
    #[inline]
    pub(super) fn transmit_via(
        &self,
        outlet: &mut impl Outlet,
        hop: Hop,
        packet: &PacketInfo,
        fragmenting: Fragmenting,
        len: usize,
        fill: impl FnOnce(&mut [u8], Sum),
    ) -> Result<(), SendError> {
        let neighbour = match hop {
            Hop::Station(mac) => return Ok(self.transmit_to(outlet, mac, packet, fragmenting, len, fill)?),
            Hop::Neighbour(neighbour) => neighbour,
        };
        let known = match neighbour {
            IpAddr::V4(ip) => self.neighbours.find(ip),
            IpAddr::V6(ip) => self.neighbours6.find(ip),
        };
        match known {
            Some(mac) => Ok(self.transmit_to(outlet, mac, packet, fragmenting, len, fill)?),
            None => self.transmit_when_resolved(outlet, neighbour, packet, fragmenting, len, fill),
        }
    }

    #[inline]
    fn transmit_to(
        &self,
        outlet: &mut impl Outlet,
        mac: MacAddr,
        packet: &PacketInfo,
        fragmenting: Fragmenting,
        len: usize,
        fill: impl FnOnce(&mut [u8], Sum),
    ) -> Result<(), OutletError> {
        let overhead = packet.overhead_of(fragmenting);
        outlet.transmit(overhead + len, |out| self.write(out, mac, packet, fragmenting, fill))
    }

    /// Writes the frame to station `mac`.
    #[inline]
    fn write(
        &self,
        out: &mut [u8],
        mac: MacAddr,
        packet: &PacketInfo,
        fragmenting: Fragmenting,
        fill: impl FnOnce(&mut [u8], Sum),
    ) {
        let stations = Stations { source: self.addressing.mac(), destination: mac };
        let (front, rest) = out.split_at_mut(packet.overhead_of(fragmenting));
        packet.write_headers(front, stations, fragmenting, rest.len());
        let len = rest.len();
        fill(rest, packet.addresses.pseudo_header(packet.protocol, len));
    }

    #[cold]
    fn transmit_when_resolved(
        &self,
        outlet: &mut impl Outlet,
        neighbour: IpAddr,
        packet: &PacketInfo,
        fragmenting: Fragmenting,
        len: usize,
        fill: impl FnOnce(&mut [u8], Sum),
    ) -> Result<(), SendError> {
        // Called once: by the cache if the packet has to wait, or below if it need not.
        let mut fill = Some(fill);
        let frame = || {
            let mut frame = vec![0; packet.overhead_of(fragmenting) + len];
            let fill = fill.take().expect("a packet waits once");
            self.write(&mut frame, MacAddr::ZERO, packet, fragmenting, fill);
            frame.into()
        };
        let now = outlet.now();
        let resolution = match neighbour {
            IpAddr::V4(ip) => {
                let (resolution, question) = self.neighbours.resolve(ip, now, frame);
                question.into_iter().for_each(|question| self.ask(outlet, question));
                resolution
            }
            IpAddr::V6(ip) => {
                let (resolution, question) = self.neighbours6.resolve(ip, now, frame);
                question.into_iter().for_each(|question: Question<_>| self.ask6(outlet, question));
                resolution
            }
        };
        self.want_poll(outlet);
        match resolution {
            Resolution::Go(mac) => {
                let fill = fill.take().expect("the packet did not wait");
                Ok(self.transmit_to(outlet, mac, packet, fragmenting, len, fill)?)
            }
            Resolution::Waits { dropped } => {
                self.counters.add(Event::PendingDropped, dropped);
                Ok(())
            }
            Resolution::Unreachable => Err(SendError::HostUnreachable),
        }
    }

    /// Packets to `remote` seem to be lost (RFC 9293 section 3.8.3, R1): the neighbour that they go through may be at another
    /// station by now, or gone, and is asked whether it is still there.
    #[cold]
    pub(super) fn doubt_neighbour(&self, outlet: &mut impl Outlet, remote: IpAddr) {
        let Route::Via(neighbour) = self.addressing.route(remote) else { return };
        let now = outlet.now();
        match neighbour {
            IpAddr::V4(ip) => {
                self.neighbours.doubt(ip, now).into_iter().for_each(|question| self.ask(outlet, question));
            }
            IpAddr::V6(ip) => {
                self.neighbours6.doubt(ip, now).into_iter().for_each(|question| self.ask6(outlet, question));
            }
        }
        self.want_poll(outlet);
    }

    /// What the pieces of a packet between `addresses` will have in common: a counter that begins elsewhere for each pair of
    /// addresses, so that who sees one pair's cannot guess another's (RFC 7739 section 5.1).
    fn identification(&self, addresses: &Addresses) -> u32 {
        let count = self.identifications.fetch_add(1, Relaxed);
        (self.hash(addresses) as u32).wrapping_add(count)
    }
}

/// Fills `out` from what begins `from` bytes into the concatenation of `parts`.
fn copy(parts: [&[u8]; 3], mut from: usize, mut out: &mut [u8]) {
    for part in parts {
        let Some(part) = part.get(from..) else {
            from -= part.len();
            continue;
        };
        let (now, later) = out.split_at_mut(part.len().min(out.len()));
        now.copy_from_slice(&part[..now.len()]);
        (out, from) = (later, 0);
    }
    debug_assert!(out.is_empty(), "the parts are too short by {}", out.len());
}
