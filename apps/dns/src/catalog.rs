//! The zones that are served together.
//!
//! Owns the choice of the zone a name belongs to: the one with the longest matching name (RFC 1034,
//! section 4.3.2, step 2). A catalog does not change; a reload makes another one, which shares the
//! unchanged zones.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::name::FlatName;
use crate::zone::Zone;

/// Zones by name.
#[derive(Debug, Default)]
pub struct Catalog {
    zones: HashMap<Box<[u8]>, Arc<Zone>>,
    /// Bit `n` is set if some zone has a name of `n` labels: no other suffix of a name needs to be
    /// looked up.
    depths: u128,
}

impl Catalog {
    /// Returns a catalog of these zones; if several have one name, the last is used.
    pub fn new(zones: impl IntoIterator<Item = Arc<Zone>>) -> Self {
        let mut catalog = Self::default();
        for zone in zones {
            let origin = *zone.origin();
            catalog.depths |= 1 << origin.labels();
            catalog.zones.insert(origin.suffix(origin.labels()).into(), zone);
        }
        catalog
    }

    /// Returns the zones, in no order.
    pub fn zones(&self) -> impl ExactSizeIterator<Item = &Arc<Zone>> {
        self.zones.values()
    }

    /// Returns the zone of exactly this name.
    pub fn zone(&self, origin: &FlatName) -> Option<&Arc<Zone>> {
        self.zones.get(origin.suffix(origin.labels()))
    }

    /// Returns the zone with the longest name that is the last `labels` labels of `name` or fewer.
    #[inline]
    pub fn find(&self, name: &FlatName, labels: usize) -> Option<&Zone> {
        (0..=labels.min(name.labels()))
            .rev()
            .filter(|labels| self.depths & (1 << labels) != 0)
            .find_map(|labels| self.zones.get(name.suffix(labels)))
            .map(|zone| &**zone)
    }
}
