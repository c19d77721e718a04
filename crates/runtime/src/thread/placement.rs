//! [`Placement`]: where a new thread is queued.

use crate::records::placing;
use crate::records::runtime::runtime;
use crate::verbs::place::Target;

/// Where a new thread is queued; see [`Builder::placement`](crate::thread::Builder::placement).
///
/// A placement is where the thread waits, not a binding, unless the program's policy
/// [binds](crate::cores::PlacementPolicy::binds): a kthread without work takes it, as any other,
/// and where it runs on after it has blocked depends on who wakes it. An
/// [exclusive](crate::thread::ThreadClass::Exclusive) or
/// [background](crate::thread::ThreadClass::Background) thread is queued for any kthread.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::thread::{Builder, Placement};
///
/// #[tailwater::main]
/// fn main() {
///     let thread = Builder::new().placement(Placement::LeastLoaded(2)).spawn(|| 6 * 7).unwrap();
///     assert_eq!(thread.join().unwrap(), 42);
/// }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// A kthread that looks for work, else that of the creator, from which others steal. Costs the
    /// creator nothing while all are busy.
    #[default]
    Parent,
    /// The kthread with the fewest threads of this many that are picked at random among those that
    /// have a core. 2 is nearly as good as all. Costs the creator about a cache miss for each.
    LeastLoaded(usize),
    /// The kthread on this core, if the program has it; else as [`Parent`](Self::Parent). Without
    /// an IOKernel no kthread has a core.
    Core(usize),
    /// A kthread on one of the cores that the program's
    /// [`PlacementPolicy`](crate::cores::PlacementPolicy) has for this class: the less loaded of
    /// two, or the least loaded of all where the policy binds. Without a policy, without an
    /// IOKernel, or if the program has no such core, as [`Parent`](Self::Parent).
    Class(u8),
}

impl Placement {
    /// Returns the kthread to look for, if it is not the usual one. May call the program's policy.
    pub(crate) fn target(self) -> Option<Target> {
        match self {
            Self::Parent => None,
            Self::LeastLoaded(tries) => Some(Target::LeastLoaded(tries)),
            Self::Class(class) => {
                placing::update(&runtime().kthreads);
                Some(Target::Class(class))
            }
            Self::Core(core) => u16::try_from(core).ok().filter(|&core| core != u16::MAX).map(Target::Core),
        }
    }
}
