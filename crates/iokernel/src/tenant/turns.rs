//! Whose turn it is with the polling thread's time: start-time fair queueing over tenants.
//!
//! Owns [`Turns`], a virtual time, and the [`Tag`] of each tenant: the virtual time at which its
//! next turn begins (Goyal, Vin and Cheng, SIGCOMM 1996). A turn costs the time that it took,
//! divided by the weight of the program's class. That is known afterwards, as in elastic round
//! robin, so no number of frames has to be guessed. Tenants that have frames are served in the
//! order of their tags. One that had none for a while starts at the present virtual time, so it is
//! ahead of those that send without end, and saves nothing up. Turns are work-conserving: a tenant
//! that sends alone has all the time. Pure: times are arguments.

use tailwater_sched::ledger::RuntimeClass;
use tailwater_shm::Cycles;

/// Cost of a unit of time for a service and for a best-effort program: weights of 3 and 1.
const SERVICE_COST: Cycles = 1;
const BATCH_COST: Cycles = 3;

/// Virtual time at which a tenant's next turn begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag(u64);

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    now: Tag,
}

impl Turns {
    /// Begins a round in which the tenant that is first has this tag; returns the last tag with a
    /// turn in it, if a turn takes `turn`.
    #[inline]
    pub(crate) fn begin(&mut self, first: Tag, turn: Cycles) -> Tag {
        self.now = self.now.max(first);
        Tag(self.now.0.saturating_add(turn))
    }

    /// Charges a turn of a program of this class that took `took`.
    #[inline]
    pub(crate) fn charge(&self, tag: &mut Tag, class: RuntimeClass, took: Cycles) {
        let cost = match class {
            RuntimeClass::LatencyCritical => SERVICE_COST,
            RuntimeClass::BestEffort => BATCH_COST,
        };
        tag.0 = self.now.0.max(tag.0).saturating_add(took.saturating_mul(cost));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RuntimeClass::{BestEffort, LatencyCritical};

    const TURN: Cycles = 100;

    /// Serves tenants of these classes in rounds for `rounds` turns; each turn of a tenant takes
    /// the time of its entry in `took`, zero if it has no frames. Returns the time that each had.
    fn serve(classes: &[RuntimeClass], rounds: u64, took: impl Fn(usize, u64) -> Cycles) -> Vec<Cycles> {
        let (mut turns, mut tags) = (Turns::default(), vec![Tag::default(); classes.len()]);
        let mut had = vec![0; classes.len()];
        for round in 0..rounds {
            let mut waiting: Vec<usize> = (0..classes.len()).filter(|&at| took(at, round) > 0).collect();
            waiting.sort_by_key(|&at| tags[at]);
            let Some(&first) = waiting.first() else { continue };
            let last = turns.begin(tags[first], TURN);
            for at in waiting {
                if tags[at] <= last {
                    turns.charge(&mut tags[at], classes[at], took(at, round));
                    had[at] += took(at, round);
                }
            }
        }
        had
    }

    #[test]
    fn a_service_has_three_times_the_time_of_a_best_effort_program_that_sends_as_much() {
        let had = serve(&[LatencyCritical, BestEffort, BestEffort], 30_000, |_, _| TURN);
        assert!(had[0].abs_diff(3 * had[1]) < had[0] / 20, "{had:?}");
        assert!(had[1].abs_diff(had[2]) < had[1] / 20, "{had:?}");
    }

    #[test]
    fn long_turns_are_paid_for_with_fewer_of_them() {
        let had = serve(&[BestEffort, BestEffort], 30_000, |at, _| if at == 0 { TURN } else { 20 * TURN });
        assert!(had[0].abs_diff(had[1]) < had[0] / 20, "{had:?}");
    }

    #[test]
    fn one_that_sends_alone_has_all_the_time_and_owes_nothing_to_one_that_begins() {
        let had = serve(
            &[BestEffort, BestEffort],
            20_000,
            |at, round| {
                if at == 0 || round >= 10_000 { TURN } else { 0 }
            },
        );
        assert!(had[0] >= 10_000 * TURN, "{had:?}");
        let (before, after) = (10_000 * TURN, had[0] - 10_000 * TURN);
        assert!(after.abs_diff(had[1]) < before / 20, "{had:?}");
    }

    #[test]
    fn one_that_sends_seldom_is_first_each_time() {
        let mut turns = Turns::default();
        let (mut greedy, mut seldom) = (Tag::default(), Tag::default());
        for round in 0..1_000 {
            turns.begin(greedy, TURN);
            turns.charge(&mut greedy, BestEffort, TURN);
            if round % 10 == 9 {
                assert!(seldom < greedy);
                turns.charge(&mut seldom, LatencyCritical, 1);
            }
        }
    }
}
