//! Table of the runtimes and ports by MAC address.
//!
//! Owns an open-addressing hash table with linear probing, at most a quarter full, so that a
//! look-up is one multiplication and nearly always one cache line. Changed on registration only.

use tailwater_sched::RuntimeId;
use tailwater_wire::MacAddr;

/// The owner of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    Runtime(RuntimeId),
    /// Index of a port.
    Port(u16),
}

/// The table.
#[derive(Debug)]
pub(crate) struct MacTable {
    entries: Vec<(u64, Destination)>,
    used: usize,
}

/// Key of an unused entry; keys of MAC addresses are below 2^48.
const EMPTY: u64 = u64::MAX;
const LEAST: usize = 64;

impl MacTable {
    pub(crate) fn new() -> Self {
        Self { entries: vec![(EMPTY, Destination::Port(0)); LEAST], used: 0 }
    }

    #[inline(always)]
    fn start(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.entries.len() - 1)
    }

    /// Returns the owner of the address with this key ([`MacAddr::key`]).
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<Destination> {
        let mut at = self.start(key);
        // Bounded: the table is never more than a quarter full.
        loop {
            let (found, destination) = self.entries[at];
            if found == key {
                return Some(destination);
            }
            if found == EMPTY {
                return None;
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }

    /// Adds an address; an address that is in the table keeps its owner.
    pub(crate) fn insert(&mut self, mac: MacAddr, destination: Destination) {
        if (self.used + 1) * 4 > self.entries.len() {
            let bigger = vec![(EMPTY, Destination::Port(0)); self.entries.len() * 2];
            let old = core::mem::replace(&mut self.entries, bigger);
            self.used = 0;
            for (key, destination) in old.into_iter().filter(|(key, _)| *key != EMPTY) {
                self.place(key, destination);
            }
        }
        self.place(mac.key(), destination);
    }

    fn place(&mut self, key: u64, destination: Destination) {
        let mut at = self.start(key);
        while self.entries[at].0 != EMPTY {
            if self.entries[at].0 == key {
                return;
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
        self.entries[at] = (key, destination);
        self.used += 1;
    }

    /// Removes every address of `destination`.
    pub(crate) fn remove(&mut self, destination: Destination) {
        let empty = vec![(EMPTY, Destination::Port(0)); self.entries.len()];
        let old = core::mem::replace(&mut self.entries, empty);
        self.used = 0;
        for (key, other) in old.into_iter().filter(|(key, other)| *key != EMPTY && *other != destination) {
            self.place(key, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::net::Ipv4Addr;

    #[test]
    fn behaves_like_a_map_through_growth_and_removal() {
        let (mut table, mut model) = (MacTable::new(), HashMap::new());
        let mac = |i: u32| MacAddr::derived(Ipv4Addr::from_bits(0x0a4d_0000 + i));
        for i in 0..500u32 {
            let destination = Destination::Runtime(RuntimeId(i % 100));
            table.insert(mac(i), destination);
            model.insert(mac(i), destination);
        }
        for gone in [3, 50, 99] {
            table.remove(Destination::Runtime(RuntimeId(gone)));
            model.retain(|_, d| *d != Destination::Runtime(RuntimeId(gone)));
        }
        for i in 0..600 {
            assert_eq!(table.find(mac(i).key()), model.get(&mac(i)).copied(), "{}", mac(i));
        }
    }

    #[test]
    fn the_first_owner_keeps_an_address() {
        let mut table = MacTable::new();
        table.insert(MacAddr::BROADCAST, Destination::Port(1));
        table.insert(MacAddr::BROADCAST, Destination::Port(2));
        assert_eq!(table.find(MacAddr::BROADCAST.key()), Some(Destination::Port(1)));
    }
}
