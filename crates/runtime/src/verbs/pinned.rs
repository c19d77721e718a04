//! Pinned threads: placed by a policy that [binds](crate::cores::PlacementPolicy::binds), they run
//! on one core for as long as the program has it.
//!
//! Owns the list of pinned threads at each kthread, from which no kthread steals. A pinned thread
//! that becomes runnable is queued with the kthread that is lent its core. If there is none, or if
//! that kthread is a [host](super::host), it is queued as any other thread, may run anywhere, and
//! is queued with its core again the next time.
//!
//! | event | what becomes of the list |
//! |---|---|
//! | the kthread visits its scheduler | its threads run in turn with those of the run queue |
//! | the kthread gives its core up, or becomes a host | its threads are queued as any others |
//! | the IOKernel ends | no kthread has a core then: each runs what its list has, and nothing is added |
//!
//! A list is invisible to the IOKernel: another core would not run its threads.
//!
//! A thread may be handed over to a kthread that loses the core between the choice and the offer,
//! or gets another one: the kthread that takes it out of its mailbox [sends it home](send_home)
//! then. What was queued as any other thread is not looked at again: it may run elsewhere once
//! although the core has come back.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `Uthread::pinned` | its creator, before it is first queued | any thread that makes it runnable |
//! | `Kthread::pinned` | any thread that makes one of its threads runnable; its own OS thread | |
//! | `Kthread::pinned_len` | the thread that holds the lock of the list | its own OS thread, as a hint |
//!
//! A thread is added only under the list's lock, and after a look at the kthread's core. The
//! kthread writes that it has no core before it takes the lock to empty the list, so nothing is
//! left behind.

use super::handover;
use crate::records::kthread::{Kthread, ThisKthread};
use crate::records::placing;
use crate::records::runtime::Runtime;
use crate::records::uthread::Runnable;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use std::collections::VecDeque;

/// Queues a pinned thread with the kthread that has its core; returns it if there is none.
#[cold]
pub fn queue(caller: Option<ThisKthread<'_>>, runtime: &Runtime, runnable: Runnable) -> Result<(), Runnable> {
    let Some(home) = home_of(&runtime.kthreads, &runnable) else { return Err(runnable) };
    let runnable = match caller {
        Some(caller) if caller.index == home.index => runnable,
        _ => match handover::offer_to(home, runnable) {
            Ok(()) => return Ok(()),
            Err(runnable) => runnable,
        },
    };
    add(home, runnable)?;
    if !runtime.is_attached() {
        // Store-load: the thread in the list before the look at the ticket. A kthread that sleeps
        // takes its ticket before it looks at the list.
        fence(SeqCst);
        home.shared.parker.wake();
    }
    Ok(())
}

/// Queues a thread, which this kthread was handed, with the kthread that has the thread's core;
/// returns it if that is this one, or none.
pub fn send_home(kthread: ThisKthread<'_>, runtime: &Runtime, runnable: Runnable) -> Result<(), Runnable> {
    if may_run_on(&kthread, &runnable) { Err(runnable) } else { queue(Some(kthread), runtime, runnable) }
}

/// Returns whether a thread may run on this kthread.
pub fn may_run_on(kthread: &Kthread, runnable: &Runnable) -> bool {
    runnable.thread().pinned().is_none_or(|core| kthread.core.load(Relaxed) == core)
}

fn home_of(kthreads: &[&'static Kthread], runnable: &Runnable) -> Option<&'static Kthread> {
    let core = runnable.thread().pinned()?;
    // Relaxed: looked at again under the lock.
    kthreads.iter().copied().find(|kthread| kthread.core.load(Relaxed) == core && !kthread.hosts())
}

/// Adds a thread to the list of `home`, unless that has lost the thread's core.
fn add(home: &Kthread, runnable: Runnable) -> Result<(), Runnable> {
    let mut list = home.pinned.lock();
    if !may_run_on(home, &runnable) || home.hosts() {
        return Err(runnable);
    }
    list.push_back(runnable);
    home.pinned_len.store(list.len() as u32, Relaxed);
    Ok(())
}

/// Returns the pinned thread that the kthread is to run next: every second time, while others wait
/// in its run queue.
#[inline]
pub fn next(kthread: ThisKthread<'_>) -> Option<Runnable> {
    let ran_pinned = &kthread.private().ran_pinned;
    if !kthread.has_pinned() || (ran_pinned.get() && !kthread.runq.is_empty()) {
        ran_pinned.set(false);
        return None;
    }
    let mut list = kthread.pinned.lock();
    let found = list.pop_front();
    kthread.pinned_len.store(list.len() as u32, Relaxed);
    ran_pinned.set(found.is_some());
    found
}

/// Empties the list of a kthread that has just lost its core or become a host.
pub fn take_all(kthread: &Kthread) -> VecDeque<Runnable> {
    if !placing::has_bound() {
        return VecDeque::new();
    }
    // Also if it seems empty: a thread may be on its way into it, and the lock waits for that.
    let mut list = kthread.pinned.lock();
    kthread.pinned_len.store(0, Relaxed);
    core::mem::take(&mut *list)
}

/// Queues the threads of a kthread that has just lost its core as any others. Before the IOKernel
/// learns of the loss, so that it sees them.
pub fn release(kthread: &Kthread) {
    let freed = take_all(kthread);
    if freed.is_empty() {
        return;
    }
    let mut overflow = kthread.overflow.lock();
    overflow.extend(freed);
    kthread.publish_overflow(overflow.len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::Pinned;
    use crate::records::kthread::NO_CORE;
    use crate::records::placing::{Placing, set};
    use crate::records::uthread::Uthread;
    use crate::verbs::host::admit;
    use crate::verbs::lease::pass_on;
    use std::panic::resume_unwind;

    /// Has a policy in force that binds, which turns the lists on.
    fn bind() {
        set(Placing { policy: Box::new(Pinned::new(1)), cores: Vec::new() });
    }

    fn kthread(index: u16, core: u16) -> &'static Kthread {
        let kthread = Kthread::leak(index, Box::leak(Box::default()), None, false);
        kthread.core.store(core, Relaxed);
        kthread
    }

    fn pinned_to(core: u16) -> Runnable {
        let record: &'static Uthread = Box::leak(Box::new(Uthread::new(0, 0, false)));
        record.pin_to(Some(core));
        // SAFETY: 1. and 2. the record stands for a suspended thread, and nothing resumes it.
        unsafe { Runnable::new(record) }
    }

    /// Runs `f` on an OS thread that is the first of kthreads with these cores.
    fn on_first_of(cores: [u16; 2], f: impl FnOnce(ThisKthread<'_>, &Runtime) + Send + 'static) {
        bind();
        let [first, second] = [0, 1].map(|index| kthread(index, cores[usize::from(index)]));
        let runtime = Runtime::of(&[first, second]);
        let os_thread = std::thread::spawn(move || {
            let guard = first.adopt_os_thread();
            f(guard.kthread().expect("this thread is a kthread"), &runtime);
        });
        os_thread.join().unwrap_or_else(|panic| resume_unwind(panic));
    }

    #[test]
    #[cfg_attr(sanitizing, ignore = "the sanitizers do not follow an OS thread that becomes a kthread")]
    fn a_thread_handed_to_a_kthread_with_another_core_is_sent_home() {
        on_first_of([3, 5], |first, runtime| {
            assert!(admit(first, runtime, pinned_to(5)).is_none());
            assert_eq!(runtime.kthreads[1].pinned_len.load(Relaxed), 1);
            // Its home polls, and takes it at once.
            runtime.kthreads[1].mailbox.open();
            assert!(admit(first, runtime, pinned_to(5)).is_none());
            assert!(runtime.kthreads[1].mailbox.close().is_some());
        });
    }

    #[test]
    #[cfg_attr(sanitizing, ignore = "the sanitizers do not follow an OS thread that becomes a kthread")]
    fn a_thread_handed_over_runs_on_its_core_and_anywhere_without_it() {
        on_first_of([3, NO_CORE], |first, runtime| {
            for core in [3, 5] {
                let admitted = admit(first, runtime, pinned_to(core)).expect("no other kthread runs it");
                assert_eq!(admitted.thread().pinned(), Some(core));
            }
            // As when no IOKernel lends cores: else two kthreads would hand it to each other.
            first.core.store(NO_CORE, Relaxed);
            assert!(admit(first, runtime, pinned_to(3)).is_some());
        });
    }

    #[test]
    #[cfg_attr(sanitizing, ignore = "the sanitizers do not follow an OS thread that becomes a kthread")]
    fn a_host_sends_a_thread_home() {
        on_first_of([3, 5], |first, runtime| {
            first.set_hosted(Some(pinned_to(3).thread()));
            assert!(admit(first, runtime, pinned_to(5)).is_none());
            assert_eq!((runtime.kthreads[1].pinned_len.load(Relaxed), runtime.injected()), (1, 0));
            assert!(admit(first, runtime, pinned_to(3)).is_none());
            assert_eq!(runtime.injected(), 1, "a host runs it on no core");
            first.set_hosted(None);
        });
    }

    #[test]
    #[cfg_attr(sanitizing, ignore = "the sanitizers do not follow an OS thread that becomes a kthread")]
    fn a_thread_handed_to_a_kthread_whose_core_is_taken_is_sent_home_or_queued_there() {
        on_first_of([3, 5], |first, runtime| {
            pass_on(first, runtime, pinned_to(5));
            assert_eq!((runtime.kthreads[1].pinned_len.load(Relaxed), first.runq.len()), (1, 0));
            pass_on(first, runtime, pinned_to(3));
            assert_eq!(first.runq.len(), 1, "where the IOKernel sees it");
        });
    }

    #[test]
    fn a_pinned_thread_is_where_no_thief_looks_and_moves_when_the_core_is_lost() {
        bind();
        let kthreads = [kthread(0, 3), kthread(1, 5)];
        let home = home_of(&kthreads, &pinned_to(5)).unwrap();
        assert_eq!(home.index, 1);
        add(home, pinned_to(5)).unwrap();
        assert!(home.has_pinned() && home.runq.is_empty() && home.overflowed() == 0);
        // The core is lost: what waits may be taken, and nothing more is added.
        home.core.store(NO_CORE, Relaxed);
        release(home);
        assert!(!home.has_pinned() && home.overflowed() == 1);
        assert!(add(home, pinned_to(5)).is_err());
        assert!(home_of(&kthreads, &pinned_to(5)).is_none());
        home.overflow.lock().clear();
    }
}
