//! What frames from ports may not say: that they come from a program of this machine.
//!
//! Owns the table of the programs' IPv4 addresses. A host on a wire that claims the address of a
//! program, by ARP, by neighbour discovery or as the source of a frame, would otherwise get what
//! other programs of this machine send there. No such frame is honest: programs send through their
//! own rings only.
//!
//! | field | rule |
//! |---|---|
//! | source MAC | not a program's |
//! | ARP sender IP | not a program's |
//! | IPv4 and IPv6 source | not a program's |
//! | advertised target (RFC 4861) | not a program's |
//!
//! A probe for a program's address passes (RFC 5227 section 2.1, RFC 4862 section 5.4): it claims
//! nothing yet, and its sender is to learn that the address is taken.

use std::net::{IpAddr, Ipv4Addr};
use tailwater_sched::RuntimeId;
use tailwater_shm::ring::FIRST_LINE_FRAME;
use tailwater_wire::frame::{ARP_FRAME, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_FRAME};
use tailwater_wire::icmpv6::kind::NEIGHBOUR_ADVERTISEMENT;
use tailwater_wire::packet::{Family, ICMPV6, decode};
use tailwater_wire::{ETHERNET_HEADER, MacAddr};

use super::absent::ip4_of;
use super::check::mac_key;
use super::mac::{Destination, MacTable};
use crate::config::Config;

/// The target address of a neighbour advertisement.
const TARGET: core::ops::Range<usize> = 8..24;

/// The programs by their IPv4 addresses, each as the MAC address that is derived from it.
#[derive(Debug)]
pub(super) struct Locals(MacTable);

impl Locals {
    pub(super) fn new() -> Self {
        Self(MacTable::new())
    }

    pub(super) fn insert(&mut self, ip: Ipv4Addr, id: RuntimeId) {
        self.0.insert(MacAddr::derived(ip), Destination::Runtime(id));
    }

    pub(super) fn remove(&mut self, id: RuntimeId) {
        self.0.remove(Destination::Runtime(id));
    }

    #[inline(always)]
    fn has(&self, ip: Ipv4Addr) -> bool {
        self.0.find(MacAddr::derived(ip).key()).is_some()
    }

    fn has_either(&self, ip: IpAddr, macs: &MacTable, config: &Config) -> bool {
        match ip {
            IpAddr::V4(ip) => self.has(ip),
            IpAddr::V6(ip) => match MacAddr::from_link_local(ip) {
                Some(mac) => is_program(macs, mac.key()),
                None => ip4_of(config, ip).is_some_and(|ip| self.has(ip)),
            },
        }
    }

    /// Returns whether a frame from a port speaks for a program of this machine. `head` is its
    /// first line, zero beyond its end.
    #[inline]
    pub(super) fn are_claimed_by(
        &self,
        head: &[u8; FIRST_LINE_FRAME],
        frame: &[u8],
        macs: &MacTable,
        config: &Config,
    ) -> bool {
        if mac_key(head, 6).is_some_and(|source| is_program(macs, source)) {
            return true;
        }
        let ip_at = |at: usize| Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]);
        match u16::from_be_bytes([head[12], head[13]]) {
            ETHERTYPE_IPV4 if frame.len() >= IPV4_FRAME => self.has(ip_at(26)),
            ETHERTYPE_ARP if frame.len() >= ARP_FRAME => self.has(ip_at(28)),
            ETHERTYPE_IPV6 if frame.len() > ETHERNET_HEADER => self.claims_in_ipv6(frame, macs, config),
            _ => false,
        }
    }

    fn claims_in_ipv6(&self, frame: &[u8], macs: &MacTable, config: &Config) -> bool {
        // What cannot be decoded is dropped by its receiver.
        let Ok(Some(packet)) = decode(frame, frame.len()) else { return false };
        let has = |ip: u128| self.has_either(IpAddr::from(ip.to_be_bytes()), macs, config);
        let advertised = || {
            let target = packet.payload.get(TARGET)?.first_chunk::<16>()?;
            Some(u128::from_be_bytes(*target))
        };
        let advertises =
            packet.protocol == ICMPV6 && packet.payload.first() == Some(&NEIGHBOUR_ADVERTISEMENT);
        packet.family == Family::V6 && (has(packet.source) || (advertises && advertised().is_some_and(has)))
    }
}

#[inline(always)]
fn is_program(macs: &MacTable, key: u64) -> bool {
    matches!(macs.find(key), Some(Destination::Runtime(_)))
}

#[cfg(test)]
mod tests;
