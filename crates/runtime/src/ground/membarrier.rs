//! A full barrier on every thread of the process, paid for by one of them: `membarrier(2)`.
//!
//! Two threads that each write one word and then look at the other's word both need a full barrier
//! in between. Where one side is hot and the other is not, the hot side has a barrier for the
//! compiler only, and the other side calls [`everywhere`]: each thread of the process then passes a
//! full barrier at some point between the beginning and the end of the call. A thread that does not
//! run has passed one when Linux descheduled it, and passes one before it runs again.
//!
//! The hot side may omit its barrier while [`works`] is true. The other side calls [`decide`] before
//! it relies on the answer, so the state leaves `UNDECIDED` once, and a process in which the call is
//! `REFUSED` has never had a hot side without a barrier.
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | `UNDECIDED` | the process has not registered | `decide`, when a runtime starts, or the first mutex that is waited for |
//! | `WORKS` | registered | `everywhere`, if the kernel refuses a call: to `LOST` |
//! | `REFUSED` | an old kernel, or a filter of system calls | - |
//! | `LOST` | a filter was installed after the registration | - |
//!
//! The state is read and written relaxed. It is a hint for the hot side, which may read an old
//! `WORKS` or `UNDECIDED` at any time; callers of `everywhere` act on what it returned.

use core::sync::atomic::{AtomicU8, Ordering};
use rustix::io::Result;
use rustix::thread::{MembarrierCommand, membarrier};

const UNDECIDED: u8 = 0;
const WORKS: u8 = 1;
const REFUSED: u8 = 2;
const LOST: u8 = 3;

/// On a cache line of its own: every unlocking of a mutex reads it.
#[repr(align(64))]
struct State(AtomicU8);

static STATE: State = State(AtomicU8::new(UNDECIDED));

/// Returns whether a thread may omit its half of a full barrier.
#[inline]
pub fn works() -> bool {
    STATE.0.load(Ordering::Relaxed) == WORKS
}

/// Registers the process if it has not done so, which takes up to about ten milliseconds if it has
/// several threads. Returns whether a thread may omit its half of a full barrier, or could once.
pub fn decide() -> bool {
    let mut state = STATE.0.load(Ordering::Relaxed);
    if state == UNDECIDED {
        let registered = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        let found = if registered { WORKS } else { REFUSED };
        // The first answer stays: others may have acted on it.
        state = match STATE.0.compare_exchange(UNDECIDED, found, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => found,
            Err(earlier) => earlier,
        };
    }
    state != REFUSED
}

/// Makes every thread of the process pass a full barrier, the caller included. Costs a system call
/// (0.3 us), and an interrupt for each other core on which the process runs (17 us on a nested
/// virtual machine).
///
/// # Errors
/// If the kernel refuses the call. Then [`works`] is false from now on.
pub fn everywhere() -> Result<()> {
    membarrier(MembarrierCommand::PrivateExpedited).inspect_err(|_| {
        // A process that has never registered stays `UNDECIDED`.
        let _ = STATE.0.compare_exchange(WORKS, LOST, Ordering::Relaxed, Ordering::Relaxed);
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_decided_stays() {
        let works_here = decide();
        assert_eq!(decide(), works_here);
        assert_eq!(works(), works_here);
        assert_eq!(everywhere().is_ok(), works_here);
    }
}
