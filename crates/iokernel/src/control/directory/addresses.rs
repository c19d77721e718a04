//! Which addresses programs have.
//!
//! Owns the choice of an address, and the tables of those in use: of programs, of ports, and of
//! Linux and its next hops. Two instances of one program have one address, which is free when both
//! have ended.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use tailwater_wire::MacAddr;

use super::{Assignment, Directory, Entry, Refusal};

impl Directory {
    /// Keeps addresses of a port out of the pool; returns false if one of them is taken.
    pub(crate) fn reserve(&mut self, owner: &str, ip: Option<Ipv4Addr>, mac: Option<MacAddr>) -> bool {
        let owner = format!("port {owner}");
        if ip.is_some_and(|ip| self.ips.contains_key(&ip))
            || mac.is_some_and(|mac| self.macs.contains_key(&mac))
        {
            return false;
        }
        self.ips.extend(ip.map(|ip| (ip, owner.clone())));
        self.macs.extend(mac.map(|mac| (mac, owner)));
        true
    }

    /// Replaces the addresses on the wire that no program gets. A program that has one keeps it.
    pub(crate) fn set_taken(&mut self, taken: HashSet<IpAddr>) {
        self.taken = taken;
    }

    fn is_taken(&self, ip: Ipv4Addr) -> bool {
        self.taken.contains(&ip.into())
            || self.config.ip6_of(ip).is_some_and(|ip6| self.taken.contains(&ip6.into()))
    }

    /// Returns the IP addresses of all programs, if they have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> Option<Vec<IpAddr>> {
        let of = |place: &Assignment| {
            let ip6s = [place.ip6, Some(place.mac.link_local())].into_iter().flatten();
            core::iter::once(IpAddr::V4(place.ip)).chain(ip6s.map(IpAddr::V6))
        };
        core::mem::take(&mut self.changed)
            .then(|| self.entries.values().flat_map(|entry| of(&entry.place)).collect())
    }

    pub(super) fn take_addresses(&mut self, entry: &Entry) {
        self.changed = true;
        self.ips.insert(entry.place.ip, entry.request.name.clone());
        self.macs.insert(entry.place.mac, entry.request.name.clone());
    }

    pub(super) fn free_addresses(&mut self, place: &Assignment) {
        if self.entries.values().any(|entry| entry.place.ip == place.ip) {
            return;
        }
        self.changed = true;
        self.ips.remove(&place.ip);
        self.macs.remove(&place.mac);
    }

    pub(super) fn addresses(&mut self, ip: Option<Ipv4Addr>) -> Result<(Ipv4Addr, MacAddr), Refusal> {
        let ip = match ip {
            Some(ip) if !self.config.is_host(ip) => {
                let (network, prefix_len) = (self.config.network, self.config.prefix_len);
                return Err(Refusal::AddressOutside { ip, network, prefix_len });
            }
            Some(ip) if self.is_taken(ip) => {
                return Err(Refusal::AddressTaken {
                    ip,
                    owner: "Linux, or to a router that it uses".to_owned(),
                });
            }
            Some(ip) => match self.ips.get(&ip) {
                Some(owner) => return Err(Refusal::AddressTaken { ip, owner: owner.clone() }),
                None => ip,
            },
            None => self.next_of_pool()?,
        };
        let mac = self.config.macs.of(ip);
        match self.macs.get(&mac) {
            Some(owner) => Err(Refusal::MacTaken { ip, mac, owner: owner.clone() }),
            None => Ok((ip, mac)),
        }
    }

    /// Returns the next free address, in turn, so that an address is not reused at once. Bounded by
    /// the number of addresses in use and kept.
    fn next_of_pool(&mut self) -> Result<Ipv4Addr, Refusal> {
        let first = self.config.first_pool_address();
        let mut ip = self.next_ip;
        // A prefix that is kept may be entered in its middle, and met again after the last address.
        let taken = self.ips.len() + self.macs.len() + self.owed.len() + self.taken.len();
        for _ in 0..=taken + 2 * self.authority.prefixes() {
            let candidate = ip;
            let kept = self.authority.keeps(candidate);
            let next = Ipv4Addr::from_bits(kept.unwrap_or(ip).to_bits().wrapping_add(1));
            ip = if self.config.is_host(next) { next } else { first };
            if kept.is_none()
                && !self.ips.contains_key(&candidate)
                && !self.is_taken(candidate)
                && !self.owed.iter().any(|owed| owed.ip == candidate)
                && !self.macs.contains_key(&self.config.macs.of(candidate))
            {
                self.next_ip = ip;
                return Ok(candidate);
            }
        }
        Err(Refusal::PoolExhausted)
    }
}
