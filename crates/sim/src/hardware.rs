//! Speed and power of a machine's cores: clock rates, hyperthreads, halted cores.
//!
//! Owns the power model and its built-in profile, the speed of each core, and what a run used:
//! energy, and the work of the batch job. Decides nothing: the allocation policy sets the clock
//! rate, and [`machine`](crate::machine) reports which core does what.
//!
//! # The model
//!
//! The processor draws `uncore_w` always. A physical core draws `halted_w` if all its hyperthreads
//! are halted, and otherwise `static_w` plus `dynamic_w` times the cube of its clock rate over the
//! nominal one, for voltage rises with the rate; each further active hyperthread adds the fraction
//! `hyperthread` of that. A thread that polls counts as one that works.
//!
//! A hyperthread beside active ones runs at the speed at which all of them together have
//! [`HYPERTHREAD_GAIN`] more throughput. A batch job gains nothing from the second hyperthread of a
//! core that it has to itself (IX section 5.4).
//!
//! The constants of `ix-2017` are chosen, not measured. They meet what IX (TOCS'17) states of its
//! processor: 92 to 94 W at most (table IV), cores before hyperthreads before clock rates as the
//! order of least energy (section 5.4). An order that results from the model is therefore no
//! evidence for it.

use serde::{Deserialize, Serialize};
use tailwater_sched::alloc::{Clock, Clocks, HYPERTHREAD_GAIN};
use tailwater_sched::topology::Topology;

/// The constants of the power model. See the module header.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// Of everything but the cores, in watts.
    pub uncore_w: f64,
    /// Of a physical core whose hyperthreads are all halted, in watts.
    pub halted_w: f64,
    /// Of a physical core with an active hyperthread, without what depends on the clock rate.
    pub static_w: f64,
    /// What an active physical core adds at the nominal clock rate, in watts.
    pub dynamic_w: f64,
    /// Fraction of an active core's power that each further active hyperthread adds.
    pub hyperthread: f64,
}

impl Power {
    /// The built-in profile: eight cores at 2.8 GHz with both hyperthreads draw 93 W.
    pub const IX_2017: Self =
        Self { uncore_w: 18.0, halted_w: 0.2, static_w: 0.8, dynamic_w: 3.87, hyperthread: 0.35 };

    /// Returns the power of a physical core with so many active hyperthreads, at a speed in
    /// multiples of that at the nominal clock rate.
    #[must_use]
    pub fn of_core(&self, active: usize, speed: f64) -> f64 {
        match active {
            0 => self.halted_w,
            _ => {
                let one = self.static_w + self.dynamic_w * speed.powi(3);
                one * (1.0 + self.hyperthread * (active - 1) as f64)
            }
        }
    }
}

/// What a machine's cores can do.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Clock rates that can be set.
    pub clocks: Clocks,
    /// The power model.
    pub power: Power,
}

impl Hardware {
    /// Returns the power of a machine on which no core ever halts, at the highest clock rate: that
    /// of a service that polls on all cores.
    #[must_use]
    pub fn polling_w(&self, topology: &Topology) -> f64 {
        let speed = self.clocks.speed(self.clocks.turbo_mhz.map(|_| Clock::Turbo));
        let groups = Groups::new(topology);
        let cores = groups.members.iter().map(|members| self.power.of_core(members.len(), speed));
        self.power.uncore_w + cores.sum::<f64>()
    }
}

/// The activity of a hyperthread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    Halted,
    Service,
    Batch,
}

/// Which cores are hyperthreads of one physical core, by position.
#[derive(Clone, Debug)]
struct Groups {
    members: Vec<Vec<usize>>,
    of: Vec<usize>,
}

impl Groups {
    fn new(topology: &Topology) -> Self {
        let mut groups = Self { members: Vec::new(), of: vec![usize::MAX; topology.len()] };
        for (at, core) in topology.cores().iter().enumerate() {
            if groups.of[at] != usize::MAX {
                continue;
            }
            let siblings = topology.siblings(core.id).iter().filter_map(|id| topology.position(*id));
            let members: Vec<usize> = [at].into_iter().chain(siblings.filter(|s| *s != at)).collect();
            members.iter().for_each(|&member| groups.of[member] = groups.members.len());
            groups.members.push(members);
        }
        groups
    }
}

/// The cores of a running machine: what each does, how fast it is, what they have used.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    hardware: Hardware,
    groups: Groups,
    activity: Vec<Activity>,
    clock: Option<Clock>,
    /// By physical core: the time up to which its use is counted.
    counted_ns: Vec<u64>,
    from_ns: u64,
    joules: f64,
    batch_ns: f64,
}

impl Meter {
    /// Creates a meter that counts from `from_ns` on; all cores are halted.
    pub(crate) fn new(hardware: Hardware, topology: &Topology, from_ns: u64) -> Self {
        let groups = Groups::new(topology);
        Self {
            hardware,
            activity: vec![Activity::Halted; topology.len()],
            clock: None,
            counted_ns: vec![from_ns; groups.members.len()],
            groups,
            from_ns,
            joules: 0.0,
            batch_ns: 0.0,
        }
    }

    /// Sets the clock rate of all cores; returns true if it is another one.
    pub(crate) fn set_clock(&mut self, now_ns: u64, clock: Option<Clock>) -> bool {
        if clock == self.clock {
            return false;
        }
        self.count(now_ns);
        self.clock = clock;
        true
    }

    /// Returns what a core does.
    pub(crate) fn activity_of(&self, core: usize) -> Activity {
        self.activity[core]
    }

    /// Returns the clock rate.
    pub(crate) fn clock(&self) -> Option<Clock> {
        self.clock
    }

    /// Sets what a core does; returns true if that changes the speed of its siblings.
    pub(crate) fn set_activity(&mut self, now_ns: u64, core: usize, activity: Activity) -> bool {
        let before = self.activity[core];
        if before == activity {
            return false;
        }
        self.count_group(now_ns, self.groups.of[core]);
        self.activity[core] = activity;
        (before == Activity::Halted) != (activity == Activity::Halted)
    }

    /// Returns the other hyperthreads of a core.
    pub(crate) fn siblings(&self, core: usize) -> impl Iterator<Item = usize> + '_ {
        self.groups.members[self.groups.of[core]].iter().copied().filter(move |other| *other != core)
    }

    /// Returns the speed of a core in multiples of one that is alone on its physical core, at the
    /// nominal clock rate.
    pub(crate) fn speed(&self, core: usize) -> f64 {
        let others = self.siblings(core).filter(|&s| self.activity[s] != Activity::Halted).count() as f64;
        self.hardware.clocks.speed(self.clock) * (1.0 + HYPERTHREAD_GAIN * others) / (1.0 + others)
    }

    /// Counts what all cores used up to now.
    pub(crate) fn count(&mut self, now_ns: u64) {
        (0..self.groups.members.len()).for_each(|group| self.count_group(now_ns, group));
    }

    /// Returns energy in joules and the work of the batch job, in nanoseconds of a core that is
    /// alone at the nominal clock rate, from the beginning up to the latest [`Meter::count`].
    pub(crate) fn used(&self) -> (f64, f64) {
        let elapsed_ns = self.counted_ns.first().map_or(0, |counted| counted - self.from_ns);
        (self.joules + self.hardware.power.uncore_w * elapsed_ns as f64 / 1e9, self.batch_ns)
    }

    fn count_group(&mut self, now_ns: u64, group: usize) {
        let elapsed_ns = now_ns.saturating_sub(self.counted_ns[group]) as f64;
        if elapsed_ns <= 0.0 {
            return;
        }
        self.counted_ns[group] = now_ns;
        let members = &self.groups.members[group];
        let doing = |what: Activity| members.iter().filter(|&&m| self.activity[m] == what).count();
        let (batch, service) = (doing(Activity::Batch), doing(Activity::Service));
        let speed = self.hardware.clocks.speed(self.clock);
        self.joules += self.hardware.power.of_core(batch + service, speed) * elapsed_ns / 1e9;
        let rate = match (batch, service) {
            (0, _) => 0.0,
            (_, 0) => speed,
            _ => {
                members.iter().filter(|&&m| self.activity[m] == Activity::Batch).map(|&m| self.speed(m)).sum()
            }
        };
        self.batch_ns += rate * elapsed_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> (Hardware, Topology) {
        let clocks = Clocks { mhz: vec![1_200, 2_400], turbo_mhz: Some(2_800) };
        (Hardware { clocks, power: Power::IX_2017 }, Topology::uniform(4, 2, 1).unwrap())
    }

    #[test]
    fn the_built_in_profile_draws_what_the_paper_states_at_most() {
        let clocks = Clocks { mhz: vec![2_400], turbo_mhz: Some(2_800) };
        let hardware = Hardware { clocks, power: Power::IX_2017 };
        let most = hardware.polling_w(&Topology::uniform(16, 2, 1).unwrap());
        assert!((92.0..94.0).contains(&most), "{most} W");
    }

    #[test]
    fn energy_is_power_times_time_from_the_beginning_on() {
        let (hardware, topology) = machine();
        let power = hardware.power;
        let mut meter = Meter::new(hardware, &topology, 1_000_000_000);
        meter.set_activity(0, 0, Activity::Service);
        meter.set_clock(2_000_000_000, Some(Clock::Mhz(1_200)));
        meter.set_activity(3_000_000_000, 2, Activity::Service);
        meter.count(4_000_000_000);
        let cores = power.of_core(1, 1.0) + power.of_core(1, 0.5) + power.of_core(2, 0.5) + 3.0 * 0.2;
        let expected = 3.0 * power.uncore_w + cores;
        assert!((meter.used().0 - expected).abs() < 1e-9, "{:?} J of {expected}", meter.used());
    }

    #[test]
    fn hyperthreads_share_the_speed_of_a_core_and_only_services_gain_from_the_second() {
        let (hardware, topology) = machine();
        let mut meter = Meter::new(hardware, &topology, 0);
        assert!(meter.set_activity(0, 0, Activity::Batch));
        assert_eq!(meter.speed(0), 1.0);
        meter.count(10);
        assert_eq!(meter.used().1, 10.0);
        assert!(meter.set_activity(10, 2, Activity::Batch));
        meter.count(20);
        assert_eq!(meter.used().1, 20.0, "two halves of a core");
        assert!(!meter.set_activity(20, 2, Activity::Service));
        assert_eq!((meter.speed(0), meter.speed(1)), (0.65, 1.0));
        meter.set_clock(20, Some(Clock::Mhz(1_200)));
        meter.count(40);
        assert_eq!(meter.used().1, 20.0 + 0.325 * 20.0);
    }
}
