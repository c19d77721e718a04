//! What `libtailwater`, `libtailwater_posix` and the tests use besides the public interface: spin
//! locks, wait lists for synchronisation types of their own, and a bound on time that tests
//! shorten. Not part of the interface; changes with any commit.

pub use crate::ground::spin::{SpinGuard, SpinLock};
#[cfg(feature = "signal")]
pub use crate::signal::set_looks_before_end;
pub use crate::verbs::wait::{WaitList, WaitOutcome, wake_all};

use crate::records::runtime::deadline_after;
use crate::verbs::wait as verb;
use std::time::Instant;

/// Blocks the calling thread on the list that `list` finds in the guarded state, until it is woken
/// or `deadline` passes. Unlocks the state while it waits, and does not lock it again for the
/// caller.
///
/// Works in user threads and in ordinary OS threads. For an example see [`WaitList`].
///
/// # Safety
/// 1. Whenever `list` is called it returns the same list, which is part of the value that the lock
///    guards.
/// 2. While threads wait on the list it is not moved, and no other list is put in its place.
///
/// # Panics
/// On a user thread that holds another spin lock, or reads an [`Rcu`](crate::sync::Rcu).
pub unsafe fn wait<T>(
    guard: SpinGuard<'_, T>,
    list: impl Fn(&mut T) -> &mut WaitList,
    deadline: Option<Instant>,
) -> WaitOutcome {
    let deadline = deadline.map(|at| deadline_after(at.saturating_duration_since(Instant::now())));
    // SAFETY: 1. and 2. are the caller's.
    unsafe { verb::wait(guard, list, deadline) }
}
