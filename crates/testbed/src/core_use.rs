//! What Linux does on some cores while a watch goes on: which threads run there, and interrupts.
//!
//! Owns the slices of time made from `bpf::core_events`, and their times on the cycle clock.
//! Where eBPF is not allowed there are none, and the reason is passed on. The kernel keeps no such
//! events, so there are none of a time before.

use std::collections::{BTreeMap, VecDeque};

use tailwater_bpf::core_events::{Event, Kind, Recorder};
use tailwater_bpf::core_time::Refused;
use tailwater_shm::{Cycles, clock};

/// Events read at a time: a machine may make them as fast as they are read.
const EVENTS: usize = 1 << 17;
/// Interrupts of one core that have begun and not ended: more are events that were lost.
const NESTED: usize = 4;

/// The same moment on two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// On the cycle clock.
    pub cycles: Cycles,
    /// `CLOCK_MONOTONIC`, that of the kernel's events.
    pub ns: u64,
}

impl Moment {
    /// Returns this moment.
    pub fn now() -> Self {
        let before = clock::now();
        let ns = clock::monotonic_ns();
        Self { cycles: before + (clock::now() - before) / 2, ns }
    }
}

/// What a core was used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Use {
    /// A thread, with its name, its process and its number.
    Thread {
        /// What it calls itself.
        command: String,
        /// Its process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// An interrupt.
    Interrupt(&'static str),
}

/// A time for which a core was used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The core.
    pub core: u16,
    /// Its beginning, in nanoseconds of `CLOCK_MONOTONIC`.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// For what.
    pub used: Use,
}

/// What is under way on a core.
#[derive(Debug, Default)]
struct Core {
    /// When the present thread came to it, if that was seen.
    since: Option<u64>,
    /// Interrupts that have begun and not ended.
    inside: Vec<(&'static str, u64)>,
    /// Events that were lost so far.
    lost: u32,
}

/// Slices made of events: the latest `most`.
#[derive(Debug)]
struct Slices {
    slices: VecDeque<Slice>,
    most: usize,
    cores: BTreeMap<u16, Core>,
}

impl Slices {
    /// Returns an empty list that keeps the latest `most` slices.
    fn keeping(most: usize) -> Self {
        Self { slices: VecDeque::new(), most, cores: BTreeMap::new() }
    }

    /// Adds an event; those of one core come in order. What was under way before an event that was
    /// lost is not known to have gone on.
    fn push(&mut self, Event { at_ns, core, lost, kind }: Event) {
        let state = self.cores.entry(core).or_default();
        if state.lost != lost {
            *state = Core { lost, ..Core::default() };
        }
        let (from_ns, used) = match kind {
            Kind::Left { pid, tid, command } => {
                let since = state.since.replace(at_ns);
                // No interrupt contains a switch: the end of one that is open was lost.
                state.inside.clear();
                // An idle core is used by nothing.
                let Some(since) = since.filter(|_| tid != 0) else { return };
                (since, Use::Thread { command, pid, tid })
            }
            Kind::Begins(name) => {
                state.inside.truncate(NESTED - 1);
                return state.inside.push((name, at_ns));
            }
            Kind::Ends(name) => {
                let Some(place) = state.inside.iter().rposition(|(inside, _)| *inside == name) else {
                    return;
                };
                let (_, began) = state.inside[place];
                // The end of one inside was lost.
                state.inside.truncate(place);
                (began, Use::Interrupt(name))
            }
        };
        if self.slices.len() >= self.most {
            self.slices.pop_front();
        }
        self.slices.push_back(Slice { core, from_ns, to_ns: at_ns.max(from_ns), used });
    }
}

/// The kernel's events during a watch.
pub struct Linux {
    recorder: Recorder,
    slices: Slices,
    began: Moment,
}

impl Linux {
    /// Begins to watch these cores, and keeps the latest `most` slices.
    ///
    /// # Errors
    /// Why the kernel refuses.
    pub fn watch(cores: &[u16], most: usize) -> Result<Self, Refused> {
        let recorder = Recorder::start(cores)?;
        Ok(Self { recorder, slices: Slices::keeping(most), began: Moment::now() })
    }

    /// Takes the events that have come.
    pub fn take(&mut self) {
        for _ in 0..EVENTS {
            let Some(event) = self.recorder.next_event() else { break };
            self.slices.push(event);
        }
    }

    /// Returns what was seen until now.
    pub fn seen(&self) -> Seen<'_> {
        Seen {
            slices: &self.slices.slices,
            began: self.began,
            now: Moment::now(),
            lost: self.recorder.lost().unwrap_or(0),
        }
    }
}

/// What was seen in a watch.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// In the order of their ends.
    pub slices: &'a VecDeque<Slice>,
    /// The beginning of the watch.
    pub began: Moment,
    /// Its end.
    pub now: Moment,
    /// Events that were lost.
    pub lost: u64,
}

impl Seen<'_> {
    /// Returns a moment of the kernel's clock on the cycle clock: both advance evenly between the
    /// beginning and the end of the watch.
    pub fn cycles(&self, ns: u64) -> Cycles {
        let Self { began, now, .. } = self;
        let (all_ns, all) = (now.ns.saturating_sub(began.ns).max(1), now.cycles.saturating_sub(began.cycles));
        let at = u128::from(ns.saturating_sub(began.ns)) * u128::from(all) / u128::from(all_ns);
        began.cycles.saturating_add(u64::try_from(at).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(at_ns: u64, core: u16, tid: u32) -> Event {
        Event { at_ns, core, lost: 0, kind: Kind::Left { pid: 70, tid, command: format!("t{tid}") } }
    }

    fn thread(core: u16, from_ns: u64, to_ns: u64, tid: u32) -> Slice {
        Slice { core, from_ns, to_ns, used: Use::Thread { command: format!("t{tid}"), pid: 70, tid } }
    }

    #[test]
    fn threads_follow_one_another_and_an_idle_core_is_used_by_nothing() {
        let mut slices = Slices::keeping(9);
        // The thread that leaves first came before the watch.
        for event in [left(10, 1, 7), left(30, 1, 8), left(35, 2, 9), left(50, 1, 0), left(70, 1, 7)] {
            slices.push(event);
        }
        assert_eq!(slices.slices, [thread(1, 10, 30, 8), thread(1, 50, 70, 7)]);
        let mut few = Slices::keeping(1);
        (1..5).for_each(|at| few.push(left(at, 1, 7)));
        assert_eq!(few.slices, [thread(1, 3, 4, 7)]);
    }

    #[test]
    fn interrupts_nest_and_one_whose_end_was_lost_ends_with_what_is_around_it() {
        let mut slices = Slices::keeping(9);
        let at = |at_ns, kind| Event { at_ns, core: 1, lost: 0, kind };
        let names = ["softirq", "local_timer"];
        let [outer, inner] = names;
        for event in [
            at(1, Kind::Ends(outer)),
            at(2, Kind::Begins(outer)),
            at(3, Kind::Begins(inner)),
            at(5, Kind::Ends(inner)),
            at(6, Kind::Begins(inner)),
            at(9, Kind::Ends(outer)),
            at(10, Kind::Ends(inner)),
        ] {
            slices.push(event);
        }
        let interrupt = |from_ns, to_ns, name| Slice { core: 1, from_ns, to_ns, used: Use::Interrupt(name) };
        assert_eq!(slices.slices, [interrupt(3, 5, inner), interrupt(2, 9, outer)]);
        (0..100).for_each(|ns| slices.push(at(ns, Kind::Begins(inner))));
        assert!(slices.cores[&1].inside.len() <= NESTED);
    }

    #[test]
    fn no_slice_spans_an_event_that_was_lost() {
        let mut slices = Slices::keeping(9);
        let begins = Event { at_ns: 15, core: 1, lost: 0, kind: Kind::Begins("softirq") };
        let ends = Event { at_ns: 45, core: 1, lost: 3, kind: Kind::Ends("softirq") };
        let after = |event: Event| Event { lost: 3, ..event };
        for event in
            [left(10, 1, 7), begins, left(12, 2, 5), ends, after(left(50, 1, 8)), after(left(60, 1, 9))]
        {
            slices.push(event);
        }
        slices.push(left(20, 2, 6));
        assert_eq!(slices.slices, [thread(1, 50, 60, 9), thread(2, 12, 20, 6)]);
    }

    #[test]
    fn the_kernels_clock_is_that_of_the_trace_by_two_moments() {
        let (began, now) = (Moment { cycles: 1_000, ns: 50 }, Moment { cycles: 3_000, ns: 1_050 });
        let seen = Seen { slices: &VecDeque::new(), began, now, lost: 0 };
        assert_eq!([50, 550, 1_050, 0].map(|ns| seen.cycles(ns)), [1_000, 2_000, 3_000, 1_000]);
        let (one, two) = (Moment::now(), Moment::now());
        assert!(one.ns <= two.ns && one.cycles <= two.cycles);
    }
}
