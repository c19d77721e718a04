//! Selects the receivers of frames for a group.
//!
//! Owns the table of solicited-node groups and the rule by group. Listener reports (RFC 3810) are
//! not evaluated: a runtime gets the groups that its addresses imply, and the others by the
//! configured policy. A group is identified by its MAC address, which holds 32 of its 128 bits; a
//! frame for another group with the same MAC address is delivered too, and the runtime drops it.
//!
//! | group | runtimes | ports |
//! |---|---|---|
//! | broadcast, IPv4 groups | all | all |
//! | all nodes, ff02::1 | all | all |
//! | solicited node, ff02::1:ffXX:XXXX | those with an address that ends so | all |
//! | all routers ff02::2, listener reports ff02::16 | none | all |
//! | other IPv6 groups | all, or none (`multicast = "drop"`) | all |

use std::collections::HashMap;
use std::net::Ipv6Addr;
use tailwater_sched::RuntimeId;

use crate::firewall::Multicast;

/// Which runtimes get a frame for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Audience {
    AllRuntimes,
    /// Runtimes with an address that ends in these 24 bits.
    Solicited(u32),
    PortsOnly,
}

/// Returns the audience of the group with this MAC key.
pub(super) fn audience(key: u64, others: Multicast) -> Audience {
    let [0x33, 0x33, a, b, c, d, ..] = key.to_le_bytes() else { return Audience::AllRuntimes };
    match u32::from_be_bytes([a, b, c, d]) {
        1 => Audience::AllRuntimes,
        2 | 0x16 => Audience::PortsOnly,
        group @ 0xff00_0000.. => Audience::Solicited(group & 0x00ff_ffff),
        _ if others == Multicast::Drop => Audience::PortsOnly,
        _ => Audience::AllRuntimes,
    }
}

/// Runtimes by the last 24 bits of their IPv6 addresses.
#[derive(Debug, Default)]
pub(super) struct SolicitedNodes(HashMap<u32, Vec<RuntimeId>>);

impl SolicitedNodes {
    pub(super) fn insert(&mut self, id: RuntimeId, addresses: impl IntoIterator<Item = Ipv6Addr>) {
        for address in addresses {
            let owners = self.0.entry(address.to_bits() as u32 & 0x00ff_ffff).or_default();
            if !owners.contains(&id) {
                owners.push(id);
            }
        }
    }

    pub(super) fn remove(&mut self, id: RuntimeId) {
        self.0.retain(|_, owners| {
            owners.retain(|&owner| owner != id);
            !owners.is_empty()
        });
    }

    pub(super) fn owners(&self, low: u32) -> &[RuntimeId] {
        self.0.get(&low).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_wire::MacAddr;

    fn of(group: &str, others: Multicast) -> Audience {
        audience(MacAddr::of_group(group.parse().unwrap()).key(), others)
    }

    #[test]
    fn each_group_has_its_audience() {
        for others in [Multicast::Flood, Multicast::Drop] {
            assert_eq!(audience(MacAddr::BROADCAST.key(), others), Audience::AllRuntimes);
            assert_eq!(audience(MacAddr([1, 0, 0x5e, 0, 0, 251]).key(), others), Audience::AllRuntimes);
            assert_eq!(of("ff02::1", others), Audience::AllRuntimes);
            assert_eq!(of("ff02::2", others), Audience::PortsOnly);
            assert_eq!(of("ff02::16", others), Audience::PortsOnly);
            assert_eq!(of("ff02::1:ff12:3456", others), Audience::Solicited(0x12_3456));
        }
        assert_eq!(of("ff02::fb", Multicast::Flood), Audience::AllRuntimes);
        assert_eq!(of("ff02::fb", Multicast::Drop), Audience::PortsOnly);
    }

    #[test]
    fn addresses_that_end_alike_share_a_group_and_leave_it_one_by_one() {
        let mut nodes = SolicitedNodes::default();
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        nodes.insert(RuntimeId(1), [address("fd00::12:3456"), address("fe80::12:3456")]);
        nodes.insert(RuntimeId(2), [address("fd00::1:0012:3456"), address("fd00::7")]);
        assert_eq!(nodes.owners(0x12_3456), [RuntimeId(1), RuntimeId(2)]);
        nodes.remove(RuntimeId(1));
        assert_eq!(nodes.owners(0x12_3456), [RuntimeId(2)]);
        nodes.remove(RuntimeId(2));
        assert!(nodes.owners(7).is_empty() && nodes.0.is_empty());
    }
}
