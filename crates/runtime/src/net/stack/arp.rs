//! ARP: asking, answering, announcing (RFC 826, RFC 5227).
//!
//! What is believed of a packet: its sender address pair, if this host asked for it or knows it (RFC 826's "merge"), or if the
//! sender asks for this host, because then it is about to be sent an answer. Announcements and answers nobody asked for
//! update what is known and introduce nobody.

use super::{Event, Outlet, Stack};
use crate::net::neighbour::{Ask, Due, Heard, PendingFrame, Question};
use crate::net::wire::{
    ARP_PACKET, ArpOperation, ArpPacket, ETHERNET_HEADER, EtherType, EthernetHeader, MacAddr, Undelivered,
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use zerocopy::IntoBytes;

/// Announcements of a new host (RFC 5227 section 1.1, ANNOUNCE_NUM) and the time between them (ANNOUNCE_INTERVAL).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// When this host announces itself, so that neighbours who knew its address at another station learn the new one.
#[derive(Debug)]
pub struct Announcer {
    left: u8,
    at: Duration,
}

impl Announcer {
    /// Announces at the first opportunity, if there is a link to do it on.
    pub fn new(attached: bool) -> Self {
        Self { left: if attached { ANNOUNCEMENTS } else { 0 }, at: Duration::ZERO }
    }

    /// When the next announcement is due.
    pub fn deadline(&self) -> Option<Duration> {
        (self.left > 0).then_some(self.at)
    }

    /// Whether to announce now.
    fn take(&mut self, now: Duration) -> bool {
        let due = self.deadline().is_some_and(|at| at <= now);
        if due {
            self.left -= 1;
            self.at = now + ANNOUNCE_INTERVAL;
        }
        due
    }
}

impl Stack {
    pub(super) fn handle_arp(&self, outlet: &mut impl Outlet, packet: &ArpPacket) -> Result<(), Event> {
        let (sender_ip, sender_mac) = (packet.sender_ip, packet.sender_mac);
        let asks_for_us =
            packet.operation == ArpOperation::Request && packet.target_ip == self.addressing.ip();
        if sender_ip == self.addressing.ip() && sender_mac != self.addressing.mac() {
            return Err(Event::ArpConflict);
        }
        // A probe has no sender address yet: it is answered, and teaches nothing (RFC 5227 section 1.1).
        let probe = sender_ip.is_unspecified();
        let neighbour = self.addressing.is_peer(sender_ip) && self.addressing.is_on_link(sender_ip);
        if !sender_mac.is_station() || !(probe || neighbour) {
            return Err(Event::ArpForeign);
        }
        let mut result = Ok(());
        if neighbour {
            match self.neighbours.hear(sender_ip, sender_mac, asks_for_us, outlet.now()) {
                Heard::Known(frames) => self.release(outlet, sender_mac, frames),
                Heard::Ignored => result = Err(Event::ArpIgnored),
                Heard::Stranger => {}
            }
            self.want_poll(outlet);
        }
        if asks_for_us {
            self.counters.count(Event::ArpAnswered);
            self.transmit_arp(outlet, ArpOperation::Reply, sender_mac, (sender_mac, sender_ip));
        }
        result
    }

    /// Asks for a neighbour. A question that finds no room is repeated with the next timer.
    pub(super) fn ask(&self, outlet: &mut impl Outlet, question: Question<Ipv4Addr>) {
        let to = match question.ask {
            Ask::All => MacAddr::BROADCAST,
            Ask::Station(mac) => mac,
        };
        self.counters.count(Event::ArpSolicited);
        self.transmit_arp(outlet, ArpOperation::Request, to, (MacAddr::ZERO, question.address));
    }

    /// Tells the outlet of the next timer that may just have been set: of a neighbour, of a path.
    pub(super) fn want_poll(&self, outlet: &mut impl Outlet) {
        if let Some(deadline) = self.deadline_of_tables() {
            outlet.poll_by(deadline);
        }
    }

    pub(super) fn poll_neighbours(&self, outlet: &mut impl Outlet, now: Duration) {
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

    /// A neighbour did not answer, and these packets waited for it.
    fn handle_undeliverable(
        &self,
        outlet: &mut impl Outlet,
        frames: impl ExactSizeIterator<Item = PendingFrame>,
    ) {
        self.counters.count(Event::NeighbourFailed);
        self.counters.add(Event::PendingDropped, frames.len());
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

    pub(super) fn poll_announcer(&self, outlet: &mut impl Outlet, now: Duration) {
        if self.announcer.lock().take(now) {
            let target = (MacAddr::ZERO, self.addressing.ip());
            self.transmit_arp(outlet, ArpOperation::Request, MacAddr::BROADCAST, target);
            self.announce6(outlet);
        }
    }

    /// Sends frames that waited for the address of their station.
    pub(super) fn release(
        &self,
        outlet: &mut impl Outlet,
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
        outlet: &mut impl Outlet,
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
            out[..ETHERNET_HEADER].copy_from_slice(ethernet.as_bytes());
            out[ETHERNET_HEADER..].copy_from_slice(&packet.encode());
        });
    }

    /// Sends a frame that nobody waits for: if there is no room it is dropped and counted.
    pub(super) fn answer(&self, outlet: &mut impl Outlet, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let sent = outlet.transmit(len, fill).is_ok();
        if !sent {
            self.counters.count(Event::EgressFull);
        }
        sent
    }
}
