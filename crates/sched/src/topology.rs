//! Cores as data: which exist, which share a physical core, which share a socket.
//!
//! Owns only the list. It never asks the operating system; its caller does and passes the answer to
//! [`Topology::new`].
//!
//! Invariants, established by the constructors: cores are in ascending order of id and unique; the
//! sibling relation is symmetric, transitive, never reflexive, and stays inside the list and inside
//! one socket.

use crate::ids::CoreId;
use heap::vec;
use heap::vec::Vec;
use thiserror::Error;

/// Maximum number of cores in one topology: far above any machine this runs on, and a bound for
/// tables sized by it.
pub const MAX_CORES: usize = 1024;

/// One core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// The operating system's number of this CPU.
    pub id: CoreId,
    /// The socket it sits on.
    pub socket: u16,
    /// The other hyperthreads of the same physical core; empty without simultaneous multithreading.
    pub siblings: Vec<CoreId>,
}

/// Why a list of cores is not a topology.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// The list is empty.
    #[error("a topology needs at least one core; none was given")]
    Empty,
    /// The list is longer than [`MAX_CORES`].
    #[error("{0} cores given; at most {MAX_CORES} are supported, manage fewer")]
    TooMany(usize),
    /// The same core is listed twice.
    #[error("{0} is listed twice")]
    Duplicate(CoreId),
    /// A requested core is not part of this machine.
    #[error("{0} does not exist in this topology")]
    Unknown(CoreId),
    /// A core names itself as its sibling.
    #[error("{0} names itself as its own hyperthread sibling")]
    OwnSibling(CoreId),
    /// A core names a sibling that the list does not contain.
    #[error(
        "{core} names {sibling} as hyperthread sibling, which is not listed; list it, or restrict afterwards"
    )]
    UnknownSibling {
        /// The core that names it.
        core: CoreId,
        /// The sibling it names.
        sibling: CoreId,
    },
    /// One core names the other as a sibling and the other disagrees, or their further siblings
    /// differ.
    #[error("{core} and {sibling} disagree about the hyperthreads of their physical core")]
    Disagreement {
        /// The core that names the other.
        core: CoreId,
        /// The core that disagrees.
        sibling: CoreId,
    },
    /// Two hyperthreads of one physical core are said to sit on different sockets.
    #[error("{core} and {sibling} are hyperthreads of one physical core but on different sockets")]
    SplitAcrossSockets {
        /// One of the two.
        core: CoreId,
        /// The other.
        sibling: CoreId,
    },
}

/// A validated set of cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cores: Vec<Core>,
    /// Position by core number, `NOWHERE` for numbers without a core; as long as the largest number
    /// requires.
    positions: Vec<u16>,
}

/// Marks a core number that is not in the list. No position reaches it: [`MAX_CORES`] is smaller.
const NOWHERE: u16 = u16::MAX;

impl Topology {
    /// Creates a topology from an explicit list, in any order.
    ///
    /// # Errors
    /// [`TopologyError`] says which core is wrong: an empty or over-long list, duplicates, siblings
    /// that are unknown, not mutual or on another socket.
    pub fn new(mut cores: Vec<Core>) -> Result<Self, TopologyError> {
        if cores.is_empty() {
            return Err(TopologyError::Empty);
        }
        if cores.len() > MAX_CORES {
            return Err(TopologyError::TooMany(cores.len()));
        }
        cores.sort_unstable_by_key(|core| core.id);
        if let Some(pair) = cores.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(TopologyError::Duplicate(pair[0].id));
        }
        for core in &mut cores {
            core.siblings.sort_unstable();
            core.siblings.dedup();
        }
        let topology = Self { positions: positions(&cores), cores };
        topology.cores.iter().try_for_each(|core| topology.check_siblings(core))?;
        Ok(topology)
    }

    /// Creates a made-up machine of cores `0..cores` with `smt` hyperthreads per physical core;
    /// physical cores are dealt to `sockets` in consecutive blocks. As on Linux, hyperthreads of
    /// one physical core are numbered `physical` apart: on 8 cores with `smt` 2, core 0's sibling
    /// is core 4. A remainder that fills no physical core has no siblings.
    ///
    /// # Errors
    /// [`TopologyError::Empty`] if `cores`, `smt` or `sockets` is 0, [`TopologyError::TooMany`]
    /// over [`MAX_CORES`].
    pub fn uniform(cores: u16, smt: u16, sockets: u16) -> Result<Self, TopologyError> {
        if cores == 0 || smt == 0 || sockets == 0 {
            return Err(TopologyError::Empty);
        }
        let physical = (cores / smt).max(1);
        let complete = physical * smt.min(cores);
        let core = |id: u16| {
            let in_full = id < complete;
            let place = id % physical;
            let siblings = (0..smt)
                .map(|thread| CoreId(place + thread * physical))
                .filter(|sibling| in_full && sibling.0 < complete && sibling.0 != id)
                .collect();
            let socket = u32::from(place) * u32::from(sockets) / u32::from(physical);
            Core { id: CoreId(id), socket: socket as u16, siblings }
        };
        Self::new((0..cores).map(core).collect())
    }

    /// Returns the part of this machine that consists of `managed` only; siblings outside it are
    /// dropped.
    ///
    /// # Errors
    /// [`TopologyError::Unknown`] names a core that this topology lacks;
    /// [`TopologyError::Duplicate`] one named twice; [`TopologyError::Empty`] if `managed` is
    /// empty.
    pub fn restrict(&self, managed: &[CoreId]) -> Result<Self, TopologyError> {
        let keep = |&id: &CoreId| {
            let mut core = self.core(id).ok_or(TopologyError::Unknown(id))?.clone();
            core.siblings.retain(|sibling| managed.contains(sibling));
            Ok(core)
        };
        Self::new(managed.iter().map(keep).collect::<Result<_, _>>()?)
    }

    /// Returns how many cores there are, at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.cores.len()
    }

    /// Returns all cores, ascending by id.
    #[must_use]
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// Returns a core by its id.
    #[must_use]
    pub fn core(&self, id: CoreId) -> Option<&Core> {
        self.cores.get(self.position(id)?)
    }

    /// Returns where a core stands in [`Topology::cores`]: a dense index for tables that run
    /// parallel to it.
    #[must_use]
    pub fn position(&self, id: CoreId) -> Option<usize> {
        self.positions.get(usize::from(id.0)).filter(|&&at| at != NOWHERE).map(|&at| usize::from(at))
    }

    /// Returns the other hyperthreads of the same physical core; empty if it has none or the core
    /// does not exist.
    #[must_use]
    pub fn siblings(&self, id: CoreId) -> &[CoreId] {
        self.core(id).map_or(&[], |core| &core.siblings)
    }

    fn check_siblings(&self, core: &Core) -> Result<(), TopologyError> {
        for &sibling in &core.siblings {
            if sibling == core.id {
                return Err(TopologyError::OwnSibling(core.id));
            }
            let Some(other) = self.core(sibling) else {
                return Err(TopologyError::UnknownSibling { core: core.id, sibling });
            };
            // The relation is mutual and transitive if the group seen from either side is the same
            // set.
            let same_group = group(core).eq(group(other));
            if !same_group {
                return Err(TopologyError::Disagreement { core: core.id, sibling });
            }
            if other.socket != core.socket {
                return Err(TopologyError::SplitAcrossSockets { core: core.id, sibling });
            }
        }
        Ok(())
    }
}

/// Returns a core and its siblings, ascending; the siblings are sorted.
fn group(core: &Core) -> impl Iterator<Item = CoreId> + '_ {
    let (below, above) = core.siblings.split_at(core.siblings.partition_point(|id| *id < core.id));
    below.iter().copied().chain([core.id]).chain(above.iter().copied())
}

fn positions(sorted: &[Core]) -> Vec<u16> {
    let longest = sorted.last().map_or(0, |core| usize::from(core.id.0) + 1);
    let mut positions = vec![NOWHERE; longest];
    for (at, core) in sorted.iter().enumerate() {
        positions[usize::from(core.id.0)] = at as u16;
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(id: u16, socket: u16, siblings: &[u16]) -> Core {
        Core { id: CoreId(id), socket, siblings: siblings.iter().copied().map(CoreId).collect() }
    }

    #[test]
    fn hyperthreads_of_a_made_up_machine_are_numbered_as_linux_does() {
        let machine = Topology::uniform(8, 2, 2).unwrap();
        assert_eq!(machine.siblings(CoreId(0)), [CoreId(4)]);
        assert_eq!(machine.siblings(CoreId(7)), [CoreId(3)]);
        let sockets: Vec<u16> = machine.cores().iter().map(|core| core.socket).collect();
        assert_eq!(sockets, [0, 0, 1, 1, 0, 0, 1, 1]);
    }

    #[test]
    fn every_made_up_machine_of_1_to_128_cores_is_valid() {
        for cores in 1..=128 {
            for (smt, sockets) in [(1, 1), (2, 1), (2, 2), (4, 3)] {
                let machine = Topology::uniform(cores, smt, sockets).unwrap();
                assert_eq!(machine.len(), usize::from(cores));
            }
        }
    }

    #[test]
    fn more_hyperthreads_than_cores_make_one_physical_core() {
        let machine = Topology::uniform(3, 200, 2).unwrap();
        assert_eq!(machine.siblings(CoreId(1)), [CoreId(0), CoreId(2)]);
    }

    #[test]
    fn a_core_left_over_by_the_hyperthread_count_stands_alone() {
        let machine = Topology::uniform(5, 2, 1).unwrap();
        assert_eq!(machine.siblings(CoreId(4)), []);
        assert_eq!(machine.siblings(CoreId(1)), [CoreId(3)]);
    }

    #[test]
    fn restricting_forgets_unmanaged_siblings_and_keeps_numbers() {
        let managed =
            Topology::uniform(4, 2, 1).unwrap().restrict(&[CoreId(3), CoreId(2), CoreId(1)]).unwrap();
        assert_eq!(managed.siblings(CoreId(2)), []);
        assert_eq!(managed.siblings(CoreId(1)), [CoreId(3)]);
        assert_eq!(managed.position(CoreId(1)), Some(0));
        assert_eq!(managed.position(CoreId(0)), None);
        assert_eq!(managed.position(CoreId(9)), None);
    }

    #[test]
    fn each_kind_of_wrong_list_is_refused_by_name() {
        let refused = |cores: Vec<Core>| Topology::new(cores).unwrap_err();
        let (a, b) = (CoreId(0), CoreId(1));
        assert_eq!(refused(vec![]), TopologyError::Empty);
        assert_eq!(refused(vec![core(1, 0, &[]), core(1, 0, &[])]), TopologyError::Duplicate(b));
        assert_eq!(refused(vec![core(0, 0, &[0])]), TopologyError::OwnSibling(a));
        assert_eq!(refused(vec![core(0, 0, &[1])]), TopologyError::UnknownSibling { core: a, sibling: b });
        assert_eq!(
            refused(vec![core(0, 0, &[1]), core(1, 0, &[])]),
            TopologyError::Disagreement { core: a, sibling: b }
        );
        assert_eq!(
            refused(vec![core(0, 0, &[1]), core(1, 1, &[0])]),
            TopologyError::SplitAcrossSockets { core: a, sibling: b }
        );
        let many = (0..=MAX_CORES as u16).map(|id| core(id, 0, &[])).collect();
        assert_eq!(refused(many), TopologyError::TooMany(MAX_CORES + 1));
        let machine = Topology::uniform(1, 1, 1).unwrap();
        assert_eq!(machine.restrict(&[b]).unwrap_err(), TopologyError::Unknown(b));
        assert_eq!(machine.restrict(&[]).unwrap_err(), TopologyError::Empty);
    }
}
