//! Counters of the runtime, for programs that monitor it.

use crate::records::kthread;
use crate::records::runtime;
use core::sync::atomic::{AtomicU64, Ordering};

/// Events since the runtime started, over all kthreads; see [`counters`].
///
/// # Examples
/// ```
/// let before = tailwater::debug::RuntimeCounters::default();
/// assert_eq!(before.switches, 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RuntimeCounters {
    /// User threads resumed.
    pub switches: u64,
    /// User threads that a kthread took from another.
    pub stolen_threads: u64,
    /// Timers that fired on another kthread than the one on which they were set.
    pub stolen_timers: u64,
    /// User threads interrupted by the preempt signal.
    pub preemptions: u64,
    /// Turns that ended at a poll point because the quantum was over.
    pub yields: u64,
    /// Cores given up at the request of the IOKernel.
    pub cedes: u64,
    /// Cores given up for lack of work.
    pub parks: u64,
    /// Frames received.
    pub frames: u64,
    /// Frames, of those received, that a kthread took from another's ring.
    pub stolen_frames: u64,
}

/// Returns the runtime's counters; zeros without a runtime. Each number is exact, but they are read
/// one after another while threads run.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::{debug, thread};
///
/// #[tailwater::main]
/// fn main() {
///     let before = debug::counters();
///     thread::spawn(|| ()).join().unwrap();
///     assert!(debug::counters().switches > before.switches);
/// }
/// ```
pub fn counters() -> RuntimeCounters {
    let mut sum = RuntimeCounters::default();
    let Some(runtime) = runtime::started() else { return sum };
    for kthread in &runtime.kthreads {
        let kthread::Counters {
            stolen_threads,
            stolen_timers,
            frames,
            stolen_frames,
            cedes,
            parks,
            preemptions,
            yields,
        } = &kthread.counters;
        let add = |to: &mut u64, counter: &AtomicU64| *to += counter.load(Ordering::Relaxed);
        add(&mut sum.switches, &kthread.shared.turn.turns);
        add(&mut sum.stolen_threads, stolen_threads);
        add(&mut sum.stolen_timers, stolen_timers);
        add(&mut sum.preemptions, preemptions);
        add(&mut sum.yields, yields);
        add(&mut sum.cedes, cedes);
        add(&mut sum.parks, parks);
        add(&mut sum.frames, frames);
        add(&mut sum.stolen_frames, stolen_frames);
    }
    sum
}
