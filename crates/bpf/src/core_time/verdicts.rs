//! Whose the time of strangers was, decided look by look.
//!
//! Owns their times since a watch began. The programs add nanoseconds up by core and thread number
//! (`program`); what kind of thread has the number is known at a look only. Each look enters what
//! was added since the previous look, and changes nothing that was entered earlier. So a number
//! that another thread has got, and a thread that has become a kthread or is none any more, is
//! counted wrong within the interval in which that happens, and in no other. A thread that has
//! ended counts as what it was at the last look that found it; as a program's if none did.

use std::collections::HashMap;

use super::CoreTime;
use super::program::{Moment, Strange};

/// What kind of thread a stranger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Has become known as a kthread after it ran.
    Kthread,
    Kernel,
    Program,
}

/// The times of all strangers.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// By core and thread, as the programs write them: the sums that are entered, and the kind.
    entered: HashMap<u64, (Strange, Kind)>,
    cores: HashMap<u16, CoreTime>,
}

impl Verdicts {
    /// Enters what was added to the sums of a stranger, of the kind that it has now; `None` if it
    /// has ended.
    pub(super) fn enter(&mut self, key: u64, sums: Strange, kind: impl FnOnce(u32) -> Option<Kind>) {
        let (before, was) = self.entered.get(&key).copied().unwrap_or(([0; 2], Kind::Program));
        if sums == before {
            return;
        }
        let kind = kind(key as u32).unwrap_or(was);
        self.entered.insert(key, (sums, kind));
        let added = |moment: Moment| sums[moment as usize].saturating_sub(before[moment as usize]);
        let (free, taken) = (added(Moment::Free), added(Moment::Taken));
        let time = self.cores.entry((key >> 32) as u16).or_default();
        match kind {
            Kind::Kthread => time.kthreads += free + taken,
            Kind::Kernel => {
                time.free.kernel += free;
                time.taken.kernel += taken;
            }
            Kind::Program => {
                time.free.programs += free;
                time.taken.programs += taken;
            }
        }
    }

    /// Adds the times of strangers on its core to `time`.
    pub(super) fn add_to(&self, time: &mut CoreTime) {
        let Some(strangers) = self.cores.get(&time.core) else { return };
        time.kthreads += strangers.kthreads;
        for (sum, part) in [(&mut time.free, &strangers.free), (&mut time.taken, &strangers.taken)] {
            sum.kernel += part.kernel;
            sum.programs += part.programs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_time::Strangers;

    const CORE: u16 = 3;
    const TID: u32 = 77;

    fn enter(verdicts: &mut Verdicts, sums: Strange, kind: Option<Kind>) -> CoreTime {
        verdicts.enter(u64::from(CORE) << 32 | u64::from(TID), sums, |tid| {
            assert_eq!(tid, TID);
            kind
        });
        let mut time = CoreTime { core: CORE, ..CoreTime::default() };
        verdicts.add_to(&mut time);
        time
    }

    #[test]
    fn a_number_that_another_thread_has_got_changes_nothing_before() {
        let mut verdicts = Verdicts::default();
        let of = |kernel, programs| Strangers { interrupts: 0, kernel, programs };
        enter(&mut verdicts, [1, 10], Some(Kind::Program));
        enter(&mut verdicts, [3, 10], Some(Kind::Kernel));
        let time = enter(&mut verdicts, [3, 50], Some(Kind::Kthread));
        assert_eq!((time.free, time.taken, time.kthreads), (of(2, 1), of(0, 10), 40));
    }

    #[test]
    fn a_thread_that_has_ended_counts_as_what_it_was() {
        for (kind, expected) in [
            (Some(Kind::Kthread), [30, 0, 0]),
            (Some(Kind::Kernel), [0, 30, 0]),
            (Some(Kind::Program), [0, 0, 30]),
            (None, [0, 0, 30]),
        ] {
            let mut verdicts = Verdicts::default();
            enter(&mut verdicts, [10, 0], kind);
            let time = enter(&mut verdicts, [30, 0], None);
            assert_eq!([time.kthreads, time.free.kernel, time.free.programs], expected, "{kind:?}");
        }
    }

    #[test]
    fn a_thread_that_did_not_run_is_not_looked_up_and_counts_for_its_own_core() {
        let mut verdicts = Verdicts::default();
        enter(&mut verdicts, [5, 6], Some(Kind::Kernel));
        verdicts.enter(u64::from(CORE) << 32 | u64::from(TID), [5, 6], |_| panic!("it did not run"));
        let mut other = CoreTime { core: CORE + 1, ..CoreTime::default() };
        verdicts.add_to(&mut other);
        assert_eq!(other.all(), 0);
    }
}
