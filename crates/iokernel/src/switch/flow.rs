//! Flow groups: which kthread of a runtime serves which flow.
//!
//! Owns the map from 128 groups to kthreads of one runtime. Groups follow cores: a kthread that
//! gets a core takes its share from the others, one that loses its core leaves its groups to them
//! (Shenango section 4.2). If no kthread has a core, the groups stay where they were, so that a
//! frame still has a ring to go to. Beside the map lies where the latest frame of each group is:
//! that ring is read first when the group continues in another ([`moves`](super::moves)).
//!
//! Invariants: while any kthread has a core, every group belongs to one
//! that has; and the shares differ by at most one more than minimal movement forces, never by more
//! than a factor of two.

/// Groups per runtime.
pub(crate) const GROUPS: usize = 128;

/// Position of a group that has no frame in the ring: all of it is behind this one.
pub(super) const NONE: u64 = 0;

/// The map of one runtime.
#[derive(Debug, Clone)]
pub(crate) struct FlowGroups {
    /// Kthread index by group. `u8` suffices: `MAX_KTHREADS` is 256.
    map: [u8; GROUPS],
    /// Kthreads that have a core or are promised one, in the order they got it.
    serving: Vec<u8>,
    /// Kthread whose ring has the latest frame, by group.
    ring: [u8; GROUPS],
    /// Position behind that frame; [`NONE`] if the ring has none of the group.
    position: [u64; GROUPS],
}

/// Where the latest frame of a flow group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The kthread whose ring has it.
    pub(crate) kthread: u16,
    /// The position behind it.
    pub(crate) position: u64,
}

const _: () = assert!(tailwater_shm::layout::MAX_KTHREADS as usize <= 1 << 8);

impl FlowGroups {
    /// Returns a map with all groups at kthread 0, which has no core.
    pub(crate) fn new(kthreads: u16) -> Self {
        Self {
            map: [0; GROUPS],
            serving: Vec::with_capacity(kthreads.into()),
            ring: [0; GROUPS],
            position: [NONE; GROUPS],
        }
    }

    /// Returns the kthread that gets frames with this flow hash.
    #[inline(always)]
    pub(crate) fn kthread(&self, hash: u32) -> u16 {
        self.map[hash as usize % GROUPS].into()
    }

    /// Returns whether the latest frame of this flow hash is in another ring than the next one.
    #[inline(always)]
    pub(crate) fn has_moved(&self, hash: u32) -> bool {
        let group = hash as usize % GROUPS;
        self.ring[group] != self.map[group]
    }

    /// Returns where the latest frame of this flow hash is.
    pub(crate) fn mark(&self, hash: u32) -> Mark {
        let group = hash as usize % GROUPS;
        Mark { kthread: self.ring[group].into(), position: self.position[group] }
    }

    /// Notes that frames of this flow hash now go to the ring of its kthread. The position is still
    /// one of the ring before until [`note`](Self::note) is called.
    pub(crate) fn follow(&mut self, hash: u32) {
        let group = hash as usize % GROUPS;
        self.ring[group] = self.map[group];
    }

    /// Notes the position behind a frame of this flow hash in the ring of its kthread.
    #[inline(always)]
    pub(crate) fn note(&mut self, hash: u32, position: u64) {
        self.position[hash as usize % GROUPS] = position;
    }

    /// Returns whether no kthread has a core or is promised one.
    #[inline(always)]
    pub(crate) fn is_unserved(&self) -> bool {
        self.serving.is_empty()
    }

    /// Gives `kthread`, which has a core or is promised one, its share of the groups.
    pub(crate) fn gain(&mut self, kthread: u16) {
        let kthread = kthread as u8;
        if self.serving.contains(&kthread) {
            return;
        }
        self.serving.push(kthread);
        if self.serving.len() == 1 {
            self.map = [kthread; GROUPS];
            return;
        }
        // Take from kthreads that have more than the new share, group by group, until this kthread
        // has its own.
        let share = GROUPS / self.serving.len();
        let mut counts = [0u16; 256];
        self.map.iter().for_each(|&k| counts[k as usize] += 1);
        let mut taken = 0;
        for group in &mut self.map {
            if taken == share {
                break;
            }
            if usize::from(counts[*group as usize]) > share {
                counts[*group as usize] -= 1;
                *group = kthread;
                taken += 1;
            }
        }
    }

    /// Gives the groups of `kthread`, which lost its core or the promise of one, to the others.
    pub(crate) fn lose(&mut self, kthread: u16) {
        let kthread = kthread as u8;
        let Some(at) = self.serving.iter().position(|&k| k == kthread) else { return };
        self.serving.swap_remove(at);
        if self.serving.is_empty() {
            return;
        }
        let mut counts = [0u16; 256];
        self.map.iter().for_each(|&k| counts[k as usize] += 1);
        for group in self.map.iter_mut().filter(|group| **group == kthread) {
            let poorest = self.serving.iter().copied().min_by_key(|&k| counts[k as usize]);
            *group = poorest.expect("a kthread serves");
            counts[*group as usize] += 1;
        }
    }

    /// Verifies the invariants.
    #[cfg(test)]
    fn check(&self) -> Result<(), String> {
        if self.serving.is_empty() {
            return Ok(());
        }
        let count = |k: u8| self.map.iter().filter(|&&group| group == k).count();
        if let Some(stray) = self.map.iter().find(|k| !self.serving.contains(k)) {
            return Err(format!("kthread {stray} has groups and no core"));
        }
        let counts: Vec<usize> = self.serving.iter().map(|&k| count(k)).collect();
        let (least, most) =
            (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
        if self.serving.len() <= GROUPS && (least == 0 || most > 2 * least.max(1) + 1) {
            return Err(format!("uneven shares {counts:?}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn groups_follow_cores_and_shares_stay_even(steps in prop::collection::vec((any::<bool>(), 0u16..12), 1..200)) {
            let mut groups = FlowGroups::new(12);
            for (gain, kthread) in steps {
                let before = groups.map;
                if gain { groups.gain(kthread) } else { groups.lose(kthread) }
                if let Err(why) = groups.check() {
                    prop_assert!(false, "{why}");
                }
                // Only groups of the kthread concerned move.
                for (was, is) in before.iter().zip(&groups.map) {
                    let touched = u16::from(if gain { *is } else { *was }) == kthread;
                    prop_assert!(was == is || touched);
                }
            }
        }
    }

    #[test]
    fn the_last_kthread_keeps_its_groups_when_it_loses_its_core() {
        let mut groups = FlowGroups::new(4);
        groups.gain(3);
        groups.lose(3);
        assert!(groups.is_unserved());
        assert_eq!(groups.kthread(77), 3);
    }
}
