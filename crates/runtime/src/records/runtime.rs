//! The one runtime of a process: what all kthreads share.
//!
//! Owns the list of kthreads, the injection list and the stack pool. A process has at most one
//! runtime, and it lives as long as the process, so everything it hands out is `&'static`.
//! [`boot`](crate::boot) makes it.

use super::background::Background;
use super::iokernel::IoKernel;
use super::kthread::{Kthread, NO_CORE};
use super::placing;
use super::stacks::StackPool;
use super::uthread::{Runnable, Uthread};
use crate::ground::halt::Halt;
use crate::ground::pollers::Pollers;
use crate::ground::sleepers::Sleepers;
use crate::ground::spin::{SpinGuard, SpinLock};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::Duration;
use tailwater_shm::grant::{Generation, Grant};
use tailwater_shm::priority::{self, Rank};
use tailwater_shm::{Clock, Cycles};

/// What all kthreads share. See the module documentation.
#[derive(Debug)]
pub struct Runtime {
    /// All kthreads, by index.
    pub kthreads: Box<[&'static Kthread]>,
    /// Stacks.
    pub stacks: StackPool,
    /// Kthreads that poll for work.
    pub pollers: Pollers,
    /// Sleeping kthreads, standalone.
    pub sleepers: Sleepers,
    /// The cycle clock.
    pub clock: Clock,
    /// True if kthreads also take frames of kthreads that have a core.
    pub steals_packets: bool,
    /// How long a kthread without work polls.
    pub idle_timeout: Cycles,
    /// Longest turn of a user thread while others wait for its kthread; `Cycles::MAX`: no limit.
    pub quantum: Cycles,
    /// User threads that are queued for any kthread. Its lock is also that of the region's words
    /// that such threads write.
    pub injected: Injected,
    /// Background threads that are runnable.
    pub background: Background,
    /// Number of exclusive threads, and whether there was any.
    pub exclusive: Exclusive,
    /// The IOKernel at which it has registered, also when that has ended; `None` standalone.
    pub iokernel: Option<&'static IoKernel>,
    /// True while an IOKernel lends this runtime its cores.
    pub attached: AtomicBool,
    /// True while this runtime waits for another IOKernel.
    pub awaits: AtomicBool,
    /// Number of meters of the program's load: kthreads measure while there is one.
    pub meters: AtomicUsize,
    /// Where kthreads stop while the shared memory is replaced.
    pub halt: Halt,
    /// Sibling hyperthread of each core, by core number; empty standalone.
    pub siblings: Box<[Option<u16>]>,
}

/// The exclusive threads of the program.
#[derive(Debug, Default)]
pub struct Exclusive {
    /// True once there was any.
    used: AtomicBool,
    count: AtomicUsize,
}

impl Exclusive {
    /// Returns whether there was any.
    #[inline(always)]
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts one more, unless there are `limit`; returns whether it did.
    pub fn begin(&self, limit: usize) -> bool {
        let more = |count: usize| (count < limit).then_some(count + 1);
        let begun = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if begun && !self.is_used() {
            self.used.store(true, Ordering::Relaxed);
        }
        begun
    }

    /// Counts one less.
    pub fn end(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// User threads that are in no run queue yet: readied by ordinary OS threads, or not to be queued
/// on the kthread that readied them. Exclusive threads stay here until a kthread becomes their
/// host.
#[derive(Debug, Default)]
pub struct Injected {
    list: SpinLock<VecDeque<Runnable>>,
    len: AtomicUsize,
}

#[cfg(feature = "libc-waits")]
impl Injected {
    /// Returns the list with its lock. A caller that changes it calls
    /// [`Runtime::publish_injected`].
    pub fn lock(&self) -> &SpinLock<VecDeque<Runnable>> {
        &self.list
    }
}

#[cfg(test)]
impl Runtime {
    /// Returns a standalone runtime that is not the process's.
    pub fn of(kthreads: &[&'static Kthread]) -> Self {
        let shape = crate::ground::tls::shape().expect("glibc has what the runtime needs");
        Self {
            kthreads: kthreads.into(),
            stacks: StackPool::new(64 << 10, shape),
            pollers: Pollers::default(),
            sleepers: Sleepers::new(),
            clock: clock(),
            steals_packets: true,
            idle_timeout: Cycles::MAX,
            quantum: Cycles::MAX,
            injected: Injected::default(),
            background: Background::default(),
            exclusive: Exclusive::default(),
            iokernel: None,
            attached: AtomicBool::new(false),
            awaits: AtomicBool::new(false),
            meters: AtomicUsize::new(0),
            halt: Halt::default(),
            siblings: Box::default(),
        }
    }
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// Returns the runtime of this process.
///
/// # Panics
/// If none has been started.
#[inline]
pub fn runtime() -> &'static Runtime {
    RUNTIME
        .get()
        .expect("no Tailwater runtime in this process: use #[tailwater::main] or tailwater::RuntimeBuilder")
}

/// Returns the runtime of this process, if one has been started.
pub fn started() -> Option<&'static Runtime> {
    RUNTIME.get()
}

/// Returns the cycle clock: the runtime's, or, without a runtime, one that is calibrated on first
/// use.
pub fn clock() -> Clock {
    static FALLBACK: OnceLock<Clock> = OnceLock::new();
    RUNTIME.get().map_or_else(|| *FALLBACK.get_or_init(|| Clock::calibrate(5)), |r| r.clock)
}

/// Returns the cycle count `duration` from now, or a little later: the clock is calibrated in
/// milliseconds and may be fast by a part in 8,192, and no wait ends early. Saturates at a count
/// that is never reached.
pub fn deadline_after(duration: Duration) -> Cycles {
    let ns = nanoseconds(duration);
    after(ns.saturating_add(ns >> 13))
}

/// Returns the cycle count `duration` from now as exactly as the clock knows it. Saturates as
/// [`deadline_after`].
pub fn about(duration: Duration) -> Cycles {
    after(nanoseconds(duration))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn after(ns: u64) -> Cycles {
    tailwater_shm::clock::now().saturating_add(clock().from_ns(ns))
}

impl Runtime {
    /// Makes this the process's runtime.
    ///
    /// # Panics
    /// If there is one.
    pub fn install(self) -> &'static Self {
        assert!(RUNTIME.set(self).is_ok(), "a process has one runtime");
        runtime()
    }

    /// True while an IOKernel lends this runtime its cores.
    #[inline(always)]
    pub fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Relaxed)
    }

    /// True while this runtime, whose IOKernel has ended, waits for another one: what is sent to
    /// other hosts has to wait, too.
    #[inline(always)]
    pub fn awaits_iokernel(&self) -> bool {
        self.awaits.load(Ordering::Relaxed)
    }

    /// Returns whether kthreads measure their load.
    #[inline(always)]
    pub fn measures(&self) -> bool {
        self.meters.load(Ordering::Relaxed) != 0
    }

    /// Returns the time until which a kthread that is idle at `now` polls.
    pub fn idle_deadline(&self, now: Cycles) -> Cycles {
        now.saturating_add(self.idle_timeout)
    }

    /// Wakes the IOKernel if it sleeps.
    pub fn ring_doorbell(&self) {
        if let Some(iokernel) = self.iokernel {
            iokernel.ring_doorbell();
        }
    }

    /// Returns the kthread on the sibling hyperthread of `kthread`'s core, if it is this runtime's.
    pub fn sibling_of(&self, kthread: &Kthread) -> Option<&'static Kthread> {
        let sibling = (*self.siblings.get(kthread.core.load(Ordering::Relaxed) as usize)?)?;
        self.kthreads.iter().copied().find(|k| k.core.load(Ordering::Relaxed) == sibling)
    }

    /// Returns whether threads of another class than the usual one, or pinned ones, may exist.
    #[inline(always)]
    pub fn has_classes(&self) -> bool {
        self.background.is_used() || self.has_bound()
    }

    /// Returns whether threads may exist that run on one kthread only: exclusive or pinned ones.
    #[inline(always)]
    pub fn has_bound(&self) -> bool {
        self.exclusive.is_used() || placing::has_bound()
    }

    /// Returns the number of threads in the injection list.
    #[inline(always)]
    pub fn injected(&self) -> usize {
        self.injected.len.load(Ordering::Relaxed)
    }

    /// Appends to the injection list.
    pub fn push_injected(&self, runnable: Runnable) {
        let mut list = self.injected.list.lock();
        list.push_back(runnable);
        self.publish_injected(list.len());
    }

    /// Prepends to the injection list.
    pub fn push_injected_first(&self, runnable: Runnable) {
        let mut list = self.injected.list.lock();
        list.push_front(runnable);
        self.publish_injected(list.len());
    }

    /// Takes the first injected thread, if it is an exclusive thread.
    pub fn take_exclusive(&self) -> Option<Runnable> {
        if !self.exclusive.is_used() {
            return None;
        }
        let mut list = self.injected.list.try_lock()?;
        let first = list.pop_front_if(|first| first.thread().is_exclusive());
        self.publish_injected(list.len());
        first
    }

    /// Hands up to `limit` injected threads to `accept`, until that returns one, or an exclusive
    /// thread is the first.
    pub fn take_injected(&self, limit: usize, accept: impl Fn(Runnable) -> Result<(), Runnable>) {
        let Some(mut list) = self.injected.list.try_lock() else { return };
        for _ in 0..limit {
            let next = list.pop_front_if(|next| !next.thread().is_exclusive());
            let Some(runnable) = next else { break };
            if let Err(runnable) = accept(runnable) {
                list.push_front(runnable);
                break;
            }
        }
        self.publish_injected(list.len());
    }

    /// Returns the injection list at this moment, for a dump.
    pub fn injected_snapshot(&self) -> Vec<*const Uthread> {
        self.injected.list.lock().iter().map(|runnable| core::ptr::from_ref(runnable.thread())).collect()
    }

    /// Publishes which cores the program requests; returns whether that is new.
    pub fn publish_requests(&self, requests: u64) -> bool {
        let _held = self.hold_region_words();
        let word = &self.kthreads[0].shared.status.requests;
        // Relaxed: under the lock, and the doorbell's fence orders it before the look at whether
        // the IOKernel sleeps.
        word.swap(requests, Ordering::Relaxed) != requests
    }

    /// Keeps threads that are no kthreads from writing words of the region: the number of injected
    /// threads, the requested cores, and the connections that await acknowledgments.
    pub fn hold_region_words(&self) -> SpinGuard<'_, impl Sized> {
        self.injected.list.lock()
    }

    /// Publishes the length of the injection list, to the IOKernel as a word of kthread 0.
    pub(crate) fn publish_injected(&self, len: usize) {
        self.injected.len.store(len, Ordering::Relaxed);
        self.kthreads[0].shared.status.injected.store(len as u32, Ordering::Relaxed);
    }

    /// Goes on without the IOKernel, which has ended: from now on kthreads run on whatever cores
    /// Linux gives them. `awaits` says whether calls wait for another IOKernel.
    pub fn orphan(&self, awaits: bool) {
        // Before the other flag: a sender that finds no IOKernel finds this.
        self.awaits.store(awaits, Ordering::SeqCst);
        self.attached.store(false, Ordering::SeqCst);
        if let Some(iokernel) = self.iokernel {
            iokernel.end();
        }
        for kthread in &self.kthreads {
            if self.iokernel.is_some() {
                // The IOKernel may have given it another one, and is not there to let it rest, or
                // to see that no other program wants the core any more.
                let _ = priority::set_rank(kthread.os_tid.load(Ordering::Relaxed), Rank::Ordinary);
            }
            if self.quantum != Cycles::MAX {
                // No IOKernel is left to look at the clock.
                kthread.head().count_polls(true);
            }
        }
        self.withdraw_orders();
        // Before the cores: pairs with the fence of a kthread that begins a tenancy. Either it
        // finds the grant withdrawn, or what it wrote of its core is overwritten here.
        fence(Ordering::SeqCst);
        for kthread in &self.kthreads {
            kthread.set_core(NO_CORE);
            kthread.shared.parker.wake_always();
        }
    }

    /// Takes back the last order to each kthread, for which no IOKernel stands any more. It may be
    /// to cede, and no poll point is to obey it.
    pub fn withdraw_orders(&self) {
        for kthread in &self.kthreads {
            kthread.shared.grant.0.store(Grant::Park, Generation(0));
        }
    }

    /// Lets calls fail from now on that waited for another IOKernel.
    pub fn give_up_waiting(&self) {
        self.awaits.store(false, Ordering::SeqCst);
    }

    /// Records that another IOKernel has taken this runtime.
    pub fn rejoin(&self) {
        self.attached.store(true, Ordering::SeqCst);
        self.awaits.store(false, Ordering::SeqCst);
    }
}
