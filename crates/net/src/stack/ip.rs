//! Sends packets: the one way out for every protocol of either family.
//!
//! Owns the choice of route and neighbour for a packet, its Ethernet and IP headers, its fragments.
//! Does not know its payload.
//!
//! # Contract of [`Stack::transmit_ip`]
//! * The caller passes the fields of the packet and the length of its transport header and data.
//!   Its closure gets exactly those bytes, in place where the packet leaves from, and the sum of
//!   the pseudo-header, to which it adds the bytes it writes for its checksum. The bytes have
//!   arbitrary content; the closure writes all of them.
//! * On success the packet is sent, waits for its neighbour, or is in the loopback queue. On an
//!   error the closure was not called and nothing was sent. After [`SendError::Full`] another try
//!   may succeed, for the loopback queue as for the outlet.
//! * It may be called with a connection's lock held: it takes the lock of the neighbour cache, the
//!   loopback queue or the timers and none of a socket. A packet to this host is processed later,
//!   by the thread that empties the loopback queue.
//! * It does not fragment: the caller cuts its data to [`Stack::path_mtu`], or for a peer on this
//!   machine to [`NetConfig::local_mtu`](crate::NetConfig::local_mtu).
//! * It costs a route (a few comparisons) and a look into the table of neighbours (no lock); a
//!   connection caches nothing.
//!
//! Received packets go to `input::handle_transport`, one arm for each protocol, and errors about
//! sent ones to `errors::handle_icmp_error`. Both are called with no lock held.

use super::Stack;
use crate::addressing::Route;
use crate::counters::CountedEvent;
use crate::error::SendError;
use crate::neighbour::{Question, Resolution};
use crate::outlet::{Outlet, OutletError};
use crate::platform::Platform;
use alloc::vec;
use core::net::IpAddr;
use core::sync::atomic::Ordering::Relaxed;
use tailwater_wire::{Addresses, FRAGMENT_HEADER, Fragmenting, MacAddr, PacketInfo, Stations, Sum};

/// The next station of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hop {
    /// The station of this neighbour, which may have to be resolved first.
    Neighbour(IpAddr),
    /// This station.
    Station(MacAddr),
}

/// The part of a datagram that has been sent, for another call after a full outlet.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    identification: u32,
    /// Bytes of the transport header and data that have left.
    sent: usize,
}

impl<P: Platform> Stack<P> {
    /// Sends one packet of `len` bytes of transport header and data, which `fill` writes; see the
    /// module's contract. `packet.addresses` come from [`source_for`](Self::source_for) or a bound
    /// socket, so that the source is this host's.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn transmit_ip(
        &self,
        outlet: &mut impl Outlet<P>,
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
                // Not the link's MTU: where the peer is, the caller knows. A port drops what is
                // longer.
                let limit = usize::from(self.config().local_mtu) - packet.addresses.header_len();
                if len > limit {
                    return Err(SendError::TooLong { len, limit });
                }
                let fragmenting = self.fragmenting(packet);
                self.transmit_via(outlet, Hop::Neighbour(hop), packet, fragmenting, len, fill)
            }
            Route::Broadcast | Route::Group | Route::Unreachable => Err(SendError::NetworkUnreachable),
        }
    }

    /// Checks that a packet may leave this host.
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

    /// Returns whether routers may fragment a packet: only on a path with a reported MTU below the
    /// accepted floor.
    #[inline]
    pub(super) fn fragmenting(&self, packet: &PacketInfo) -> Fragmenting {
        let destination = packet.addresses.destination();
        if destination.is_ipv4() && self.paths.is_narrow(destination) {
            return Fragmenting::Allowed { identification: self.identification(&packet.addresses) };
        }
        Fragmenting::Forbidden
    }

    /// Sends transport header and data, the concatenation of `parts`, in fragments of at most `mtu`
    /// bytes, or whole if they fit. Skips the bytes that `progress` records as sent.
    pub(super) fn transmit_parts(
        &self,
        outlet: &mut impl Outlet<P>,
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
        self.counters.count(CountedEvent::Fragmented);
        Ok(())
    }

    /// Sends a packet, or the fragment that `fragmenting` describes.
    #[inline]
    pub(super) fn transmit_via(
        &self,
        outlet: &mut impl Outlet<P>,
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
        outlet: &mut impl Outlet<P>,
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
        outlet: &mut impl Outlet<P>,
        neighbour: IpAddr,
        packet: &PacketInfo,
        fragmenting: Fragmenting,
        len: usize,
        fill: impl FnOnce(&mut [u8], Sum),
    ) -> Result<(), SendError> {
        // Called once: by the cache if the packet waits, or below if it does not.
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
                self.counters.add(CountedEvent::PendingDropped, dropped);
                Ok(())
            }
            Resolution::Unreachable => Err(SendError::HostUnreachable),
        }
    }

    /// Handles signs that packets to `remote` are lost (RFC 9293 section 3.8.3, R1): the neighbour
    /// on the path may have another station now, or be gone, and is solicited.
    #[cfg(feature = "tcp")]
    #[cold]
    pub(super) fn doubt_neighbour(&self, outlet: &mut impl Outlet<P>, remote: IpAddr) {
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

    /// Returns the identification of the fragments of a packet between `addresses`: a counter with
    /// another start for each pair of addresses, so that one pair's does not reveal another's (RFC
    /// 7739 section 5.1).
    fn identification(&self, addresses: &Addresses) -> u32 {
        let count = self.identifications.fetch_add(1, Relaxed);
        (self.hash(addresses) as u32).wrapping_add(count)
    }
}

/// Fills `out` from the concatenation of `parts`, beginning at byte `from`.
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
