//! Queues a new thread on a kthread of its creator's choice, for programs that balance load when
//! they create threads.
//!
//! A kthread's load is the number of user threads that it runs or has queued: words of one cache
//! line, which the kthread writes and the IOKernel reads anyway. Of two random kthreads the less
//! loaded one is nearly as good a choice as the best (Arachne section 5.2).
//!
//! A thread is offered to the kthread's mailbox, else put at the end of its overflow list. Choices
//! are hints: a kthread that loses its core or is late has its threads stolen like all others, so
//! no thread waits for a core that the program does not have. Where the policy of classes binds,
//! the thread is [pinned](super::pinned) to the core instead.

use super::ready::{queue_by_class, ready};
use super::{handover, lease, local};
use crate::ground::guard::NoPreempt;
use crate::records::kthread::{Kthread, NO_CORE, ThisKthread};
use crate::records::placing;
use crate::records::runtime::{Runtime, runtime};
use crate::records::uthread::Runnable;
use core::sync::atomic::Ordering::Relaxed;
use tailwater_shm::layout::IN_THREAD;

/// Which kthread a new thread is queued on.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// The one with the least load of this many random ones.
    LeastLoaded(usize),
    /// The one on this core.
    Core(u16),
    /// The one with the least load of two random ones with which threads of this class may be
    /// placed; of all of them if the policy binds.
    Class(u8),
}

/// Makes a new thread runnable on the kthread that `target` selects. If there is none, or the
/// caller is an ordinary thread and binds the new one to no core, it becomes runnable as usual.
pub fn ready_at(target: Target, runnable: Runnable) {
    let guard = NoPreempt::new();
    let runtime = runtime();
    let kthread = guard.kthread();
    if let Target::Class(class) = target
        && placing::binds()
    {
        runnable.thread().pin_to(core_of(class, &runtime.kthreads));
    }
    let Err(runnable) = queue_by_class(kthread, runtime, runnable) else { return };
    match kthread.and_then(|kthread| choose(target, kthread, runtime)) {
        Some(chosen) => queue(chosen, runtime, runnable),
        None => ready(runnable),
    }
}

/// Returns the core of the least loaded kthread with which threads of a class may be placed.
fn core_of(class: u8, all: &[&'static Kthread]) -> Option<u16> {
    let bit = bit_of(class);
    // One that has lost its core keeps the bits of its classes until they are divided anew.
    let usable = |kthread: &&&Kthread| {
        kthread.classes.load(Relaxed) & bit != 0 && !kthread.hosts() && kthread.core.load(Relaxed) != NO_CORE
    };
    let least = all.iter().filter(usable).min_by_key(|kthread| load_of(kthread))?;
    Some(least.core.load(Relaxed)).filter(|&core| core != NO_CORE)
}

/// Returns the bit of a class in the words of kthreads.
fn bit_of(class: u8) -> u64 {
    1u64.checked_shl(class.into()).unwrap_or(0)
}

/// Returns another kthread than the caller's, or `None` if the caller's is to be used.
fn choose(target: Target, kthread: ThisKthread<'_>, runtime: &Runtime) -> Option<&'static Kthread> {
    let all = &runtime.kthreads;
    let index = match target {
        Target::Core(core) => all.iter().position(|k| k.core.load(Relaxed) == core && !k.hosts())?,
        Target::LeastLoaded(tries) => {
            let lent = runtime.is_attached();
            let has_core = |kthread: &Kthread| !lent || kthread.core.load(Relaxed) != NO_CORE;
            lightest_of(kthread, all, tries, has_core)?
        }
        Target::Class(class) => {
            let bit = bit_of(class);
            lightest_of(kthread, all, 2, |kthread| kthread.classes.load(Relaxed) & bit != 0)?
        }
    };
    (index != usize::from(kthread.index)).then_some(all[index])
}

/// Returns the kthread with the least load of `tries` random ones that are `usable` and no hosts.
fn lightest_of(
    kthread: ThisKthread<'_>,
    all: &[&'static Kthread],
    tries: usize,
    usable: impl Fn(&Kthread) -> bool,
) -> Option<usize> {
    let load = |index: usize| (usable(all[index]) && !all[index].hosts()).then(|| load_of(all[index]));
    lightest(all.len(), tries, |below| kthread.private().random.below(below), load)
}

/// Returns the index below `n` with the least load of `tries` random ones, each the first at or
/// after a random place that has a load. With two tries the two differ if they can.
fn lightest(
    n: usize,
    tries: usize,
    random: impl Fn(usize) -> usize,
    load: impl Fn(usize) -> Option<u32>,
) -> Option<usize> {
    let from = |start: usize| (0..n).map(|i| (start + i) % n).find_map(|i| Some((load(i)?, i)));
    let mut best: Option<(u32, usize)> = None;
    let mut start = random(n);
    for _ in 0..tries.clamp(1, n) {
        let found = from(start)?;
        best = Some(best.map_or(found, |best| best.min(found)));
        start = found.1 + 1 + random(n - 1);
    }
    best.map(|(_, index)| index)
}

/// Returns the number of user threads that the kthread runs or has queued. All words but that of
/// pinned threads are of one line.
fn load_of(kthread: &Kthread) -> u32 {
    let status = &kthread.shared.status;
    let runs = status.doing.load(Relaxed) == IN_THREAD;
    let pinned = if placing::has_bound() { kthread.pinned_len.load(Relaxed) } else { 0 };
    let lists = status.overflow.load(Relaxed).saturating_add(pinned);
    status.runq_len().saturating_add(lists).saturating_add(runs.into())
}

/// Gives a thread to another kthread.
fn queue(kthread: &Kthread, runtime: &Runtime, runnable: Runnable) {
    let Err(runnable) = handover::offer_to(kthread, runnable) else { return };
    let mut overflow = kthread.overflow.lock();
    overflow.push_back(runnable);
    kthread.publish_overflow(overflow.len());
    drop(overflow);
    local::work_added(runtime);
    lease::report_surplus(runtime);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Returns these numbers one after the other, each below the bound.
    fn random(numbers: &[usize]) -> impl Fn(usize) -> usize + '_ {
        let next = Cell::new(0);
        move |below| {
            let number = numbers[next.replace(next.get() + 1)];
            if below == 0 { 0 } else { number % below }
        }
    }

    #[test]
    fn of_two_random_ones_the_less_loaded_is_chosen() {
        let loads = [5, 3, 9, 0].map(Some);
        let choose = |numbers: &[usize]| lightest(4, 2, random(numbers), |i| loads[i]);
        assert_eq!(choose(&[0, 0, 0]), Some(1), "0, then the next");
        assert_eq!(choose(&[2, 1, 0]), Some(0), "2, then two further");
        assert_eq!(choose(&[2, 0, 0]), Some(3));
    }

    #[test]
    fn kthreads_without_a_core_are_passed_over() {
        let loads = [None, Some(7), None, Some(8)];
        for first in 0..4 {
            for second in 0..3 {
                let chosen = lightest(4, 2, random(&[first, second, 0]), |i| loads[i]).unwrap();
                assert!(chosen == 1 || chosen == 3, "{chosen}");
            }
        }
        assert_eq!(lightest(4, 4, random(&[0; 5]), |_| None), None);
        assert_eq!(lightest(1, 2, random(&[0; 3]), |_| Some(1)), Some(0), "the only one");
    }

    #[test]
    fn as_many_tries_as_kthreads_in_turn_find_the_least() {
        let loads = [4, 3, 2, 1].map(Some);
        assert_eq!(lightest(4, 9, random(&[0; 5]), |i| loads[i]), Some(3));
    }
}
