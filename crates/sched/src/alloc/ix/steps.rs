//! The steps of IX's control loop: physical cores, hyperthreads and clock rates, in one order.
//!
//! Owns [`Step`], the two sequences of the paper (TOCS'17 section 5.4) and the choice of the cores
//! that a step stands for. Sets no clock: the caller does, where the machine lets it.

use crate::ledger::{CoreState, Ledger};
use crate::topology::Topology;
use heap::vec;
use heap::vec::Vec;

/// Throughput that a further hyperthread adds to that of its physical core: IX measured 1.3 times
/// that of one hyperthread with two (section 5.4).
pub const HYPERTHREAD_GAIN: f64 = 0.3;

/// The order in which resources are added (IX section 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// Whole physical cores at the nominal clock rate, both hyperthreads at once, then Turbo Boost:
    /// leaves whole cores to batch work.
    Consolidation,
    /// At the lowest clock rate one hyperthread of each physical core, then all further
    /// hyperthreads in one step; then higher clock rates; then Turbo Boost: least energy.
    Energy,
}

/// A clock rate of the managed cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// At most this many MHz.
    Mhz(u32),
    /// As high as the processor goes, beyond its nominal rate.
    Turbo,
}

/// The clock rates that a machine offers.
///
/// # Examples
/// ```
/// use tailwater_sched::alloc::{Clock, Clocks};
///
/// let clocks = Clocks { mhz: vec![1200, 2400], turbo_mhz: Some(3000) };
/// assert_eq!(clocks.speed(Some(Clock::Mhz(1200))), 0.5);
/// assert_eq!(clocks.speed(Some(Clock::Turbo)), 1.25);
/// assert_eq!(Clocks::default().speed(None), 1.0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// Rates that can be set, ascending; the last is the nominal one. Empty if none can be set.
    pub mhz: Vec<u32>,
    /// Highest rate with Turbo Boost; `None` without it.
    pub turbo_mhz: Option<u32>,
}

impl Clocks {
    /// Returns the speed at a clock rate in multiples of that at the nominal one.
    #[must_use]
    pub fn speed(&self, clock: Option<Clock>) -> f64 {
        let Some(&nominal) = self.mhz.last() else { return 1.0 };
        let mhz = match clock {
            Some(Clock::Mhz(mhz)) => mhz,
            Some(Clock::Turbo) => self.turbo_mhz.unwrap_or(nominal),
            None => nominal,
        };
        f64::from(mhz) / f64::from(nominal.max(1))
    }
}

/// What the loop uses of the machine after one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Physical cores, at least 1.
    pub cores: u16,
    /// Hyperthreads of each, at least 1. A physical core that has fewer counts with all it has.
    pub threads: u16,
    /// Clock rate; `None` leaves it alone.
    pub clock: Option<Clock>,
}

impl Step {
    /// Returns the throughput of the step, in physical cores with one hyperthread at the nominal
    /// clock rate.
    pub(super) fn capacity(&self, clocks: &Clocks) -> f64 {
        let threads = 1.0 + HYPERTHREAD_GAIN * f64::from(self.threads.saturating_sub(1));
        f64::from(self.cores) * threads * clocks.speed(self.clock)
    }
}

impl Sequence {
    /// Returns the steps of the paper for a machine.
    ///
    /// # Examples
    /// ```
    /// use tailwater_sched::alloc::{Clocks, Sequence};
    /// use tailwater_sched::topology::Topology;
    ///
    /// let machine = Topology::uniform(16, 2, 1).unwrap();
    /// let clocks = Clocks { mhz: (12..=24).map(|x| x * 100).collect(), turbo_mhz: Some(2800) };
    /// assert_eq!(Sequence::Energy.steps(&machine, &clocks).len(), 22);
    /// assert_eq!(Sequence::Consolidation.steps(&machine, &clocks).len(), 9);
    /// ```
    #[must_use]
    pub fn steps(self, topology: &Topology, clocks: &Clocks) -> Vec<Step> {
        let physical = physical(topology);
        let cores = physical.len() as u16;
        let threads = physical.iter().map(Vec::len).max().unwrap_or(1) as u16;
        let rate = |mhz: Option<&u32>| mhz.map(|&mhz| Clock::Mhz(mhz));
        let turbo = clocks.turbo_mhz.filter(|_| !clocks.mhz.is_empty()).map(|_| Clock::Turbo);
        let mut steps = Vec::new();
        match self {
            Self::Consolidation => {
                let clock = rate(clocks.mhz.last());
                steps.extend((1..=cores).map(|cores| Step { cores, threads, clock }));
            }
            Self::Energy => {
                let clock = rate(clocks.mhz.first());
                steps.extend((1..=cores).map(|cores| Step { cores, threads: 1, clock }));
                if threads > 1 {
                    steps.push(Step { cores, threads, clock });
                }
                let higher = clocks.mhz.iter().skip(1).map(|mhz| rate(Some(mhz)));
                steps.extend(higher.map(|clock| Step { cores, threads, clock }));
            }
        }
        steps.extend(turbo.map(|turbo| Step { cores, threads, clock: Some(turbo) }));
        steps
    }
}

/// Returns the steps where no clock rate can be set: those that add cores, the fewest first.
pub(super) fn without_clocks(mut steps: Vec<Step>) -> Vec<Step> {
    steps.iter_mut().for_each(|step| step.clock = None);
    let none = Clocks::default();
    steps.sort_by(|a, b| a.capacity(&none).total_cmp(&b.capacity(&none)));
    steps.dedup();
    steps
}

/// Returns the positions of the cores, by physical core.
pub(super) fn physical(topology: &Topology) -> Vec<Vec<usize>> {
    let mut seen = vec![false; topology.len()];
    let mut physical = Vec::new();
    for (at, core) in topology.cores().iter().enumerate() {
        if core::mem::replace(&mut seen[at], true) {
            continue;
        }
        let siblings = topology.siblings(core.id).iter().filter_map(|s| topology.position(*s));
        let mut group = vec![at];
        group.extend(siblings.filter(|s| !core::mem::replace(&mut seen[*s], true)));
        physical.push(group);
    }
    physical
}

/// Returns the positions of the cores that a step uses: of the physical cores with a hyperthread
/// that is there the first so many, and of each the first so many that are there.
pub(super) fn cores_of<'a>(
    step: Step,
    physical: &'a [Vec<usize>],
    ledger: &'a Ledger,
) -> impl Iterator<Item = usize> + 'a {
    let is_present = move |at: &usize| !matches!(ledger.cores()[*at], CoreState::Absent);
    let there = physical.iter().filter(move |group| group.iter().any(is_present));
    there
        .take(usize::from(step.cores))
        .flat_map(move |group| group.iter().copied().filter(is_present).take(usize::from(step.threads)))
}
