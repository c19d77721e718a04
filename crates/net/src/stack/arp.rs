//! ARP: requests, replies, announcements (RFC 826, RFC 5227).
//!
//! The sender's address pair is accepted if this host solicited it or has it cached (RFC 826's
//! "merge"), or if the packet is a request for this host, which is about to answer it.
//! Announcements and unsolicited replies update cached entries and add none.

use super::Stack;
use crate::counters::CountedEvent;
use crate::neighbour::{Ask, Due, Evidence, Heard, PendingFrame, Question};
use crate::outlet::Outlet;
use crate::platform::{Lock, Platform};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use tailwater_wire::{
    ARP_PACKET, ArpOperation, ArpPacket, ETHERNET_HEADER, EtherType, EthernetHeader, MacAddr, Undelivered,
};

impl<P: Platform> Stack<P> {
    pub(super) fn handle_arp(
        &self,
        outlet: &mut impl Outlet<P>,
        packet: &ArpPacket,
    ) -> Result<(), CountedEvent> {
        let (sender_ip, sender_mac) = (packet.sender_ip, packet.sender_mac);
        let asks_for_us =
            packet.operation == ArpOperation::Request && packet.target_ip == self.addressing.ip();
        if sender_ip == self.addressing.ip() && sender_mac != self.addressing.mac() {
            return Err(CountedEvent::ArpConflict);
        }
        // A probe has no sender address: it is answered, and is no evidence (RFC 5227 section 1.1).
        let probe = sender_ip.is_unspecified();
        let neighbour = self.addressing.is_peer(sender_ip) && self.addressing.is_on_link(sender_ip);
        if !sender_mac.is_station() || !(probe || neighbour) {
            return Err(CountedEvent::ArpForeign);
        }
        let mut result = Ok(());
        let reply = packet.operation == ArpOperation::Reply;
        if neighbour {
            let evidence = if asks_for_us { Evidence::Request } else { Evidence::Answer };
            match self.neighbours.hear(sender_ip, sender_mac, evidence, outlet.now()) {
                Heard::Known(frames) => self.release(outlet, sender_mac, frames),
                Heard::Ignored => result = Err(CountedEvent::ArpIgnored),
                Heard::Stranger => {}
            }
            self.want_poll(outlet);
        }
        if asks_for_us {
            self.counters.count(CountedEvent::ArpAnswered);
            self.transmit_arp(outlet, ArpOperation::Reply, sender_mac, (sender_mac, sender_ip));
        }
        self.share_answer(!reply)?;
        result
    }

    /// Solicits a neighbour. If there is no room, the next timer repeats it.
    pub(super) fn ask(&self, outlet: &mut impl Outlet<P>, question: Question<Ipv4Addr>) {
        let to = match question.ask {
            Ask::All => MacAddr::BROADCAST,
            Ask::Station(mac) => mac,
        };
        self.counters.count(CountedEvent::ArpSolicited);
        self.transmit_arp(outlet, ArpOperation::Request, to, (MacAddr::ZERO, question.address));
    }

    /// Requests a poll for a timer that may just have been set: of a neighbour, a path or a
    /// fragment.
    pub(super) fn want_poll(&self, outlet: &mut impl Outlet<P>) {
        if let Some(deadline) = self.deadline_of_tables() {
            outlet.poll_by(deadline);
        }
    }

    pub(super) fn poll_neighbours(&self, outlet: &mut impl Outlet<P>, now: Duration) {
        for due in self.neighbours.poll(now) {
            match due {
                Due::Ask(question) => self.ask(outlet, question),
                Due::Failed(frames) => self.handle_undeliverable(outlet, frames.into_iter()),
            }
        }
        for due in self.neighbours6.poll(now) {
            match due {
                Due::Ask(question) => self.ask6(outlet, question),
                Due::Failed(frames) => self.handle_undeliverable(outlet, frames.into_iter()),
            }
        }
    }

    /// Drops the packets that waited for a neighbour that did not answer, and reports it to their
    /// sockets.
    fn handle_undeliverable(
        &self,
        outlet: &mut impl Outlet<P>,
        frames: impl ExactSizeIterator<Item = PendingFrame>,
    ) {
        self.counters.count(CountedEvent::NeighbourFailed);
        self.counters.add(CountedEvent::PendingDropped, frames.len());
        for frame in frames {
            let Ok((header, packet)) = EthernetHeader::parse(&frame) else { continue };
            let own = if header.ethertype == EtherType::IPV4 {
                IpAddr::V4(self.addressing.ip())
            } else {
                IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            };
            self.handle_quote(outlet, own, packet, Undelivered::Host);
        }
    }

    pub(super) fn poll_announcer(&self, outlet: &mut impl Outlet<P>, now: Duration) {
        if self.announcer.lock().take(now) {
            let target = (MacAddr::ZERO, self.addressing.ip());
            self.transmit_arp(outlet, ArpOperation::Request, MacAddr::BROADCAST, target);
            self.announce6(outlet);
        }
    }

    /// Sends frames that waited for the address of their station, now `mac`.
    pub(super) fn release(
        &self,
        outlet: &mut impl Outlet<P>,
        mac: MacAddr,
        frames: impl IntoIterator<Item = PendingFrame>,
    ) {
        for frame in frames {
            self.answer(outlet, frame.len(), |out| {
                out.copy_from_slice(&frame);
                out[..6].copy_from_slice(&mac.0);
            });
        }
    }

    fn transmit_arp(
        &self,
        outlet: &mut impl Outlet<P>,
        operation: ArpOperation,
        to: MacAddr,
        target: (MacAddr, Ipv4Addr),
    ) {
        let ethernet =
            EthernetHeader { destination: to, source: self.addressing.mac(), ethertype: EtherType::ARP };
        let packet = ArpPacket {
            operation,
            sender_mac: self.addressing.mac(),
            sender_ip: self.addressing.ip(),
            target_mac: target.0,
            target_ip: target.1,
        };
        self.answer(outlet, ETHERNET_HEADER + ARP_PACKET, |out| {
            out[..ETHERNET_HEADER].copy_from_slice(&ethernet.to_bytes());
            out[ETHERNET_HEADER..].copy_from_slice(&packet.encode());
        });
    }

    /// Sends a frame; if there is no room it is dropped and counted.
    pub(super) fn answer(
        &self,
        outlet: &mut impl Outlet<P>,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let sent = outlet.transmit(len, fill).is_ok();
        if !sent {
            self.counters.count(CountedEvent::EgressFull);
        }
        sent
    }
}
