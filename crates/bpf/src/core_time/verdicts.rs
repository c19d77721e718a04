//! Whose the time of strangers was, decided look by look.
//!
//! Owns their times since a watch began. The programs add nanoseconds up by core, thread number and
//! waiting kthread (`program`); what kind of thread has the number, and its control group, is known
//! at a look only. Each look enters what was added since the previous look, and changes nothing
//! that was entered earlier. So a number that another thread has got, and a thread that has become
//! a kthread or is none any more, is counted wrong within the interval in which that happens, and
//! in no other. A thread that has ended counts as what it was at the last look that found it; as a
//! program's if none did. Some looks later it is forgotten, so that its place in the map is free
//! for another; its time stays in the sums of its core.

use std::collections::HashMap;
use std::sync::Arc;

use super::CoreTime;
use super::helpers::command;
use super::program::{Key, Strange};

/// What kind of thread a stranger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Has become known as a kthread after it ran.
    Kthread,
    Kernel,
    Program,
}

/// What a look finds of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) kind: Kind,
    /// Its control group, if Linux shows it.
    pub(super) group: Option<Arc<str>>,
}

/// A thread that is no kthread, and its time on one core since the watch began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranger {
    /// The core.
    pub core: u16,
    /// The process; of a thread of the kernel, the thread.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Name of the thread when it last left the core. Programs choose it: any bytes, without those
    /// that are no UTF-8.
    pub command: String,
    /// Whether it is a thread of the kernel.
    pub is_kernel: bool,
    /// Its control group; none if it had ended by the first look, or Linux does not show it.
    pub group: Option<Arc<str>>,
    /// The kthread that waited for the core meanwhile, if one did.
    pub waiter: Option<u32>,
    /// Nanoseconds.
    pub ns: u64,
}

/// Looks for which a thread that has ended is kept. Readers compare two lists of strangers, and may
/// look once more between these.
const KEPT: u8 = 4;

/// A stranger.
#[derive(Debug)]
struct Entered {
    strange: Strange,
    /// What the last look found that found it.
    found: Found,
    /// Looks since one that did not find it; 0 while it lives.
    gone: u8,
}

/// The times of all strangers.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// What is entered.
    entered: HashMap<Key, Entered>,
    cores: HashMap<u16, CoreTime>,
}

impl Verdicts {
    /// Enters what was added to the sum of a stranger, as what it is now; `None` if it has ended.
    pub(super) fn enter(&mut self, key: Key, now: Strange, find: impl FnOnce(u32) -> Option<Found>) {
        let before = self.entered.get(&key);
        let sum = before.map_or(0, |it| it.strange[0]);
        if now[0] == sum {
            return;
        }
        let was = || before.map_or(Found { kind: Kind::Program, group: None }, |it| it.found.clone());
        let present = find(key[0] as u32);
        let gone = u8::from(present.is_none());
        let found = present.unwrap_or_else(was);
        let kind = found.kind;
        self.entered.insert(key, Entered { strange: now, found, gone });
        let time = self.cores.entry((key[0] >> 32) as u16).or_default();
        let added = now[0].saturating_sub(sum);
        let of_moment = if key[1] == 0 { &mut time.free } else { &mut time.taken };
        match kind {
            Kind::Kthread => time.kthreads += added,
            Kind::Kernel => of_moment.kernel += added,
            Kind::Program => of_moment.programs += added,
        }
    }

    /// Ends a look at a stranger that is entered; returns whether it is forgotten, having ended
    /// some looks ago. One that did not run is looked up only if there are `many`.
    pub(super) fn forgets(&mut self, key: &Key, many: bool, is_there: impl FnOnce(u32) -> bool) -> bool {
        let Some(stranger) = self.entered.get_mut(key) else { return false };
        let has_ended = stranger.gone > 0 || many && !is_there(key[0] as u32);
        stranger.gone += u8::from(has_ended);
        let is_old = stranger.gone > KEPT;
        if is_old {
            self.entered.remove(key);
        }
        is_old
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

    /// Returns the strangers by name, in no order.
    pub(super) fn strangers(&self) -> Vec<Stranger> {
        let others = self.entered.iter().filter(|(_, it)| it.found.kind != Kind::Kthread);
        let stranger = |(key, Entered { strange, found, .. }): (&Key, &Entered)| Stranger {
            core: (key[0] >> 32) as u16,
            pid: (strange[1] >> 32) as u32,
            tid: key[0] as u32,
            command: command(&strange[2..]),
            is_kernel: found.kind == Kind::Kernel,
            group: found.group.clone(),
            waiter: Some(key[1] as u32).filter(|&tid| tid != 0),
            ns: strange[0],
        };
        others.map(stranger).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_time::Strangers;

    const CORE: u16 = 3;
    const TID: u32 = 77;
    const WHOSE: u64 = (CORE as u64) << 32 | TID as u64;

    fn named(ns: u64) -> Strange {
        [ns, 70 << 32 | u64::from(TID), u64::from_ne_bytes(*b"xz\x1b[2J\0z"), 0]
    }

    /// Enters sums without and with a waiting kthread.
    fn enter(verdicts: &mut Verdicts, [free, taken]: [u64; 2], kind: Option<Kind>) -> CoreTime {
        for (waiter, ns) in [(0, free), (101, taken)] {
            verdicts.enter([WHOSE, waiter], named(ns), |tid| {
                assert_eq!(tid, TID);
                kind.map(|kind| Found { kind, group: Some("/batch".into()) })
            });
        }
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
        for (waiter, ns) in [(0, 5), (101, 6)] {
            verdicts.enter([WHOSE, waiter], named(ns), |_| panic!("it did not run"));
        }
        let mut other = CoreTime { core: CORE + 1, ..CoreTime::default() };
        verdicts.add_to(&mut other);
        assert_eq!(other.all(), 0);
    }

    #[test]
    fn a_stranger_has_its_names_and_the_kthread_that_waited() {
        let mut verdicts = Verdicts::default();
        enter(&mut verdicts, [5, 6], Some(Kind::Program));
        // It has ended, and ran until then.
        enter(&mut verdicts, [5, 9], None);
        let mut strangers = verdicts.strangers();
        strangers.sort_by_key(|stranger| stranger.ns);
        let taken = Stranger {
            core: CORE,
            pid: 70,
            tid: TID,
            command: "xz\x1b[2J".to_owned(),
            is_kernel: false,
            group: Some("/batch".into()),
            waiter: Some(101),
            ns: 9,
        };
        assert_eq!(strangers, [Stranger { waiter: None, ns: 5, ..taken.clone() }, taken]);
        enter(&mut verdicts, [7, 10], Some(Kind::Kthread));
        assert_eq!(verdicts.strangers(), []);
    }

    #[test]
    fn a_thread_that_has_ended_is_kept_for_some_looks_and_its_time_for_ever() {
        let mut verdicts = Verdicts::default();
        let key = [WHOSE, 0];
        let look = |verdicts: &mut Verdicts, ns, kind: Option<Kind>, many| {
            verdicts.enter(key, named(ns), |_| kind.map(|kind| Found { kind, group: None }));
            verdicts.forgets(&key, many, |_| kind.is_some())
        };
        // It lives, and is not looked up while it does not run.
        assert!((0..20).all(|_| !look(&mut verdicts, 5, Some(Kind::Program), true)));
        assert!((0..20).all(|_| !look(&mut verdicts, 5, None, false)));
        // It has ended; where there are many, that is noticed although it did not run.
        assert!((1..KEPT).all(|_| !look(&mut verdicts, 5, None, true)));
        // Another thread has its number.
        assert!(!look(&mut verdicts, 6, Some(Kind::Program), false));
        assert!((0..20).all(|_| !look(&mut verdicts, 6, Some(Kind::Program), true)));
        assert!((1..KEPT).all(|_| !look(&mut verdicts, 7, None, false)));
        assert_eq!(verdicts.strangers().len(), 1);
        assert!(look(&mut verdicts, 7, None, false));
        assert_eq!(verdicts.strangers(), []);
        // A third one begins with nothing.
        assert!(!look(&mut verdicts, 2, Some(Kind::Program), false));
        let mut time = CoreTime { core: CORE, ..CoreTime::default() };
        verdicts.add_to(&mut time);
        assert_eq!((time.free.programs, verdicts.strangers()[0].ns), (9, 2));
    }
}
