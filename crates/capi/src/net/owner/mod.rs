//! Owners of descriptors: threads that find a socket without counting references.
//!
//! Most descriptors are used by one thread at a time, for many calls. A thread that has made some
//! calls in succession on a descriptor becomes its owner. Its calls then note the descriptor in a
//! word of the thread by plain stores; calls of other threads count. On a 2-vCPU VM (AMD EPYC) a
//! lock and two counts, which they replace, take 13 to 18 ns.
//!
//! A thread is known by its FS base, the address of its thread-local storage, which no two threads
//! have at a time. A record belongs to an FS base, is never freed, and goes to the next thread with
//! that FS base, so it is used by one thread at a time.
//!
//! # Closing by another thread
//! * The owner, at the beginning of a call, stores the descriptor in `using`, and then reads
//!   whether it is still the owner; if not, it leaves as at the end, and counts.
//! * The owner, at the end, clears `using`, and then reads `given`: the reference that it finds
//!   there it gives up.
//! * The thread that closes takes the ownership away, stores the descriptor in `given`, makes every
//!   thread of the process pass a full barrier (`membarrier(2)`), and reads `using`. If that is the
//!   descriptor, the reference is the owner's to give up. Otherwise it takes it back from `given`,
//!   unless the owner has it already, and gives it up itself.
//!
//! Each side writes a word before it reads the other's. The barrier makes one of the two reads see
//! the other's write though the owner has none of its own: a store of the owner that comes before
//! the barrier is seen by the other thread, and a read after it sees that thread's stores. The
//! exchange of `given` has one winner. Threads that close take turns, so what they find in `given`
//! is the descriptor of a call in which the owner is still; it is not in another one.
//!
//! Loom has no barrier of one thread for all. `owner/model.rs` runs the steps in every order, with
//! the buffers of stores that x86 has; a program of the tests closes descriptors in the middle of
//! calls of their owners.

use super::table::{self, Slot};
use core::sync::atomic::{AtomicUsize, Ordering, compiler_fence};
use std::collections::BTreeMap;
use tailwater::internals::SpinLock;

#[cfg(test)]
mod model;

/// No descriptor.
const NONE: usize = usize::MAX;

/// See the module documentation.
#[derive(Debug)]
#[repr(align(64))]
pub struct Owner {
    identity: usize,
    /// Descriptor of the call that the thread makes. Written by it.
    using: AtomicUsize,
    /// Descriptor that another thread has closed meanwhile. Written by that one, and cleared by an
    /// exchange of either.
    given: AtomicUsize,
}

/// Returns what no other thread has at this time.
#[inline]
pub fn me() -> usize {
    let base;
    // SAFETY: the first word at FS base is the base itself (x86-64 psABI, TLS variant II).
    unsafe { core::arch::asm!("mov {}, fs:[0]", out(reg) base, options(nostack, preserves_flags, readonly)) };
    base
}

/// Returns the record of a thread; `None` if the kernel has no barrier.
pub fn of(identity: usize) -> Option<&'static Owner> {
    static OWNERS: SpinLock<BTreeMap<usize, &'static Owner>> = SpinLock::new(BTreeMap::new());
    if !barrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        return None;
    }
    let make = || {
        let [using, given] = [const { AtomicUsize::new(NONE) }; 2];
        &*Box::leak(Box::new(Owner { identity, using, given }))
    };
    Some(*OWNERS.lock().entry(identity).or_insert_with(make))
}

/// Makes a call of `membarrier(2)`; returns whether it succeeded. The runtime has registered the
/// process when it started, so that takes no time here.
fn barrier(command: libc::c_int) -> bool {
    // SAFETY: the call changes nothing in memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

impl Owner {
    /// Begins a call of the owner; false if the calling thread is not, or uses another descriptor.
    #[inline]
    pub fn enter(&self, index: usize, slot: &Slot) -> bool {
        if self.identity != me() || self.using.load(Ordering::Relaxed) != NONE {
            return false;
        }
        self.using.store(index, Ordering::Relaxed);
        // The barrier of `is_outside` makes it one for the processor.
        compiler_fence(Ordering::SeqCst);
        if slot.is_owned_by(self) {
            return true;
        }
        self.leave();
        false
    }

    /// Ends a call of the owner.
    #[inline]
    pub fn leave(&self) {
        // Release: pairs with the Acquire in `is_outside`, behind which the socket is dropped.
        self.using.store(NONE, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        if self.given.load(Ordering::Relaxed) != NONE {
            self.take_given();
        }
    }

    #[cold]
    fn take_given(&self) {
        let given = self.given.swap(NONE, Ordering::SeqCst);
        if given != NONE {
            table::release(given);
        }
    }

    /// Returns whether the owner of a descriptor that was closed is in no call on it, so that the
    /// caller gives up the table's reference; the owner does so otherwise.
    pub fn is_outside(&self, index: usize) -> bool {
        static CLOSING: SpinLock<()> = SpinLock::new(());
        if self.identity == me() {
            return true;
        }
        let _turn = CLOSING.lock();
        // SeqCst, as the exchange of `bias` before and, in the owner, that in `take_given` and the
        // load in `is_owned_by` after it: an owner that leaves the call on that descriptor finds
        // that it does not own this one.
        if self.given.load(Ordering::SeqCst) != NONE {
            return true;
        }
        self.given.store(index, Ordering::Release);
        assert!(barrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED), "the process has registered for membarrier");
        // Acquire: pairs with the Release in `leave`.
        if self.using.load(Ordering::Acquire) == index {
            return false;
        }
        self.given.compare_exchange(index, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
