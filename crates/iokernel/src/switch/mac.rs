//! Table of the runtimes and ports by MAC address.
//!
//! Owns the rule that an address keeps its first owner. Changed on registration only.

use hashbrown::HashMap;
use tailwater_sched::RuntimeId;

use crate::frame::MacAddr;

/// The owner of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    Runtime(RuntimeId),
    /// Index of a port.
    Port(u16),
}

/// The table, by [`MacAddr::key`].
#[derive(Debug, Default)]
pub(crate) struct MacTable(HashMap<u64, Destination>);

impl MacTable {
    /// Returns the owner of the address with this key.
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<Destination> {
        self.0.get(&key).copied()
    }

    /// Adds an address; an address that is in the table keeps its owner.
    pub(crate) fn insert(&mut self, mac: MacAddr, destination: Destination) {
        self.0.entry(mac.key()).or_insert(destination);
    }

    /// Removes every address of `destination`.
    pub(crate) fn remove(&mut self, destination: Destination) {
        self.0.retain(|_, other| *other != destination);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_owner_keeps_an_address() {
        let mut table = MacTable::default();
        table.insert(MacAddr::BROADCAST, Destination::Port(1));
        table.insert(MacAddr::BROADCAST, Destination::Port(2));
        assert_eq!(table.find(MacAddr::BROADCAST.key()), Some(Destination::Port(1)));
        table.remove(Destination::Port(2));
        assert_eq!(table.find(MacAddr::BROADCAST.key()), Some(Destination::Port(1)));
        table.remove(Destination::Port(1));
        assert_eq!(table.find(MacAddr::BROADCAST.key()), None);
    }
}
