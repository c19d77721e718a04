//! The classes of threads that may be placed with each kthread, by the program's
//! [`PlacementPolicy`].
//!
//! Owns the policy, and when its answers are computed: at the first creation of a thread of a class
//! after a kthread's core has changed. Where none has changed, a creation reads two words.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `CHANGES` | kthreads whose core changes, while there is a policy | creators |
//! | `COMPUTED` | a creator, under the lock | creators |
//! | `Kthread::classes` | a creator, under the lock | creators |
//!
//! All are hints: a thread that is placed by an old answer is stolen as any other, or bound to a
//! core of that answer.

use super::kthread::{Kthread, NO_CORE};
use crate::ground::spin::SpinLock;
use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::Arc;

/// A core that the program has.
///
/// # Examples
/// ```
/// use tailwater::cores::Held;
///
/// let first = Held { core: 1, physical: 1, socket: 0 };
/// let second = Held { core: 5, ..first };
/// assert_eq!(first.physical, second.physical, "two hyperthreads of one physical core");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Its number.
    pub core: usize,
    /// Number of the first hyperthread of its physical core.
    pub physical: usize,
    /// Number of its socket.
    pub socket: usize,
}

/// Decides on which cores threads of each class are queued when they are created with
/// [`Placement::Class`](crate::thread::Placement::Class): with the less loaded of two of them. As
/// with every placement a kthread without work takes them from there, unless the policy
/// [binds](Self::binds).
///
/// Pure: the answers are kept until the program's cores change.
///
/// # Examples
/// ```
/// use tailwater::cores::{Held, PlacementPolicy};
///
/// /// Threads of class 0 begin on the first core, those of class 1 on all others.
/// struct OneApart;
///
/// impl PlacementPolicy for OneApart {
///     fn classes(&self) -> u8 {
///         2
///     }
///
///     fn allows(&self, class: u8, core: &Held, held: &[Held]) -> bool {
///         (core.core == held[0].core) == (class == 0)
///     }
/// }
/// ```
pub trait PlacementPolicy: Send + Sync + 'static {
    /// Returns the number of classes, up to 64. Threads of other classes are placed as usual.
    fn classes(&self) -> u8;

    /// Returns whether threads of a class may be queued on `core`, which is one of `held`, the
    /// cores that the program has, in ascending order. A class for which there is none is placed as
    /// usual.
    ///
    /// Called when a thread is created, by its creator.
    fn allows(&self, class: u8, core: &Held, held: &[Held]) -> bool;

    /// Returns whether a thread stays on the core where it begins, the least loaded one of its
    /// class: whenever it becomes runnable it waits there, and no other kthread takes it, if the
    /// program has that core. If the program does not, or loses the core meanwhile, the thread may
    /// run anywhere until it waits or yields. False by default.
    ///
    /// Called once, by [`set_placement`](crate::cores::set_placement).
    fn binds(&self) -> bool {
        false
    }
}

/// Number of classes at most: one bit each.
pub const CLASSES: u8 = 64;

static USED: AtomicBool = AtomicBool::new(false);
/// True if the policy binds threads; the other is true if any policy so far did.
static BINDS: AtomicBool = AtomicBool::new(false);
static HAS_BOUND: AtomicBool = AtomicBool::new(false);
/// Number of changes of a kthread's core, or of the policy.
static CHANGES: AtomicU64 = AtomicU64::new(1);
/// `CHANGES` as of the latest computation.
static COMPUTED: AtomicU64 = AtomicU64::new(0);
static PLACING: SpinLock<Option<Arc<Placing>>> = SpinLock::new(None);

/// The policy, and what it is told of a core: by core number, those that Linux has.
pub struct Placing {
    pub policy: Box<dyn PlacementPolicy>,
    pub cores: Vec<Held>,
}

/// Puts a policy in force, in place of any other.
pub fn set(placing: Placing) {
    let binds = placing.policy.binds();
    if binds {
        HAS_BOUND.store(true, Relaxed);
    }
    BINDS.store(binds, Relaxed);
    let former = PLACING.lock().replace(Arc::new(placing));
    USED.store(true, Relaxed);
    CHANGES.fetch_add(1, Release);
    drop(former);
}

/// Returns whether the policy binds threads to the core where they begin.
pub fn binds() -> bool {
    BINDS.load(Relaxed)
}

/// Returns whether there may be threads that are bound to a core.
#[inline(always)]
pub fn has_bound() -> bool {
    HAS_BOUND.load(Relaxed)
}

/// Counts a change of a kthread's core. After its word was written.
#[inline(always)]
pub fn count_change() {
    if USED.load(Relaxed) {
        // Release: pairs with the Acquire in `update`, which then finds the core.
        CHANGES.fetch_add(1, Release);
    }
}

/// Has the words of kthreads say what the policy answers for the cores that the program has now.
/// Calls the policy: not with a lock held, nor with preemption off.
pub fn update(kthreads: &[&'static Kthread]) {
    // Acquire: pairs with the Release of each change.
    let changes = CHANGES.load(Acquire);
    if COMPUTED.load(Relaxed) == changes || !USED.load(Relaxed) {
        return;
    }
    let Some(placing) = PLACING.lock().clone() else { return };
    let classes = classes_of(kthreads, &placing);
    let lock = PLACING.lock();
    // Of two creators with different answers, the one with the older one leaves it to the other, or
    // to the next.
    if CHANGES.load(Acquire) == changes {
        for (kthread, classes) in kthreads.iter().zip(classes) {
            kthread.classes.store(classes, Relaxed);
        }
        COMPUTED.store(changes, Relaxed);
    }
    drop(lock);
}

/// Returns, for each kthread, the classes whose threads may be placed with it: a bit each.
fn classes_of(kthreads: &[&'static Kthread], placing: &Placing) -> Vec<u64> {
    // Linux may have more cores by now than when the policy was set.
    let unknown = |core: usize| Held { core, physical: core, socket: 0 };
    let cores: Vec<Option<Held>> = kthreads
        .iter()
        .map(|kthread| kthread.core.load(Relaxed))
        .map(|core| (core != NO_CORE).then_some(usize::from(core)))
        .map(|core| core.map(|core| placing.cores.get(core).copied().unwrap_or(unknown(core))))
        .collect();
    let mut held: Vec<Held> = cores.iter().copied().flatten().collect();
    held.sort_unstable_by_key(|held| held.core);
    let number = placing.policy.classes().min(CLASSES);
    let of = |core: Option<Held>| {
        let Some(core) = core else { return 0 };
        let may = |&class: &u8| placing.policy.allows(class, &core, &held);
        (0..number).filter(may).fold(0, |bits, class| bits | 1 << class)
    };
    cores.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::{Pinned, WholeCores};

    /// Returns kthreads that have these cores.
    fn kthreads(cores: &[Option<u16>]) -> Vec<&'static Kthread> {
        let kthread = |(index, core): (u16, &Option<u16>)| {
            let kthread = Kthread::leak(index, Box::leak(Box::default()), None, false);
            kthread.core.store(core.unwrap_or(NO_CORE), Relaxed);
            kthread
        };
        (0..).zip(cores).map(kthread).collect()
    }

    /// Cores 0 and 2 are hyperthreads of one physical core, 1 and 3 of another.
    fn placing(policy: impl PlacementPolicy) -> Placing {
        let held = |core: usize| Held { core, physical: core % 2, socket: 0 };
        Placing { policy: Box::new(policy), cores: (0..4).map(held).collect() }
    }

    #[test]
    fn a_kthread_has_the_classes_of_its_core_and_one_without_a_core_has_none() {
        let pinned = placing(Pinned::new(2));
        assert_eq!(classes_of(&kthreads(&[Some(3), None, Some(1)]), &pinned), [2, 0, 1]);
        assert_eq!(classes_of(&kthreads(&[Some(3), None, None]), &pinned), [3, 0, 0], "both on the only one");
        assert_eq!(classes_of(&kthreads(&[None]), &pinned), [0]);
        let whole = placing(WholeCores);
        assert_eq!(classes_of(&kthreads(&[Some(2), Some(0), Some(1)]), &whole), [2, 1, 1]);
        assert_eq!(classes_of(&kthreads(&[Some(9)]), &whole), [3], "a core that came later");
    }
}
