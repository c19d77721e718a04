//! The parking lot: one small memory file of futex words, mapped by the IOKernel and every runtime
//! of the machine.
//!
//! A kthread without a core waits on its slot. The IOKernel or the kthread that cedes that same
//! core increments the word and wakes it; waker and woken then share a core and no interrupt is
//! sent.
//!
//! # Awake or asleep
//! A kthread that has just ceded its core to another one sleeps, or first stays runnable and lets
//! Linux run the other ([`Slot::let_successor_run`]) a few times at most, by its rank
//! ([`yields`](crate::priority::yields)): if it gets the core back soon, it needs no wake. On a
//! 2-vCPU VM a hand-off between two processes takes 0.6-0.8 us by `sched_yield`, 1.2-2.0 us by
//! `FUTEX_WAKE` and `FUTEX_WAIT`, and 20-28 us across cores. A kthread that Linux resumes without a
//! grant (a timer tick, a third one on the core) yields again; after a few of those in a row it
//! sleeps, and the next hand-off to it pays for a real wake. `asleep` tells the waker which of the
//! two it is.
//!
//! # Crash and lie
//! The file holds nothing else, so a hostile runtime can wake a kthread, which reads its own grant
//! word and waits again; or keep one asleep, by resetting a word or by not waking its successor.
//! The IOKernel, which follows every hand-off, then wakes the successor whatever the words contain
//! ([`Slot::rouse`]).
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `word` | any waker: add 1, Release | its kthread: Acquire, then its grant word, then `FUTEX_WAIT` on the value read |
//! | `asleep` | its kthread: 1 before `FUTEX_WAIT`, 0 after | wakers, after the addition and a fence |
//!
//! No wake is lost: the waker publishes the grant before it adds; the sleeper reads the word before
//! the grant. Reading the new word implies seeing the grant; reading the old one makes `FUTEX_WAIT`
//! return at once or be woken. Of the waker's addition and the sleeper's `asleep`, each followed by
//! a fence, at least one is seen by the other side.

use crate::memory::Mapping;
use crate::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Number of a parking slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct SlotId(pub u16);

/// Number of slots in a lot. Bounds the kthreads of one machine.
pub const SLOTS: usize = 4096;

/// One kthread's parking place, on its own cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    word: AtomicU32,
    asleep: AtomicU32,
    #[cfg(loom)]
    sleepers: crate::sync::Sleepers,
}

impl Slot {
    /// Returns a slot without a wake.
    #[cfg_attr(loom, allow(clippy::new_without_default))]
    pub fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            #[cfg(loom)]
            sleepers: crate::sync::Sleepers::new(),
        }
    }

    /// Returns the value to sleep on. Read it **before** the condition for sleeping.
    #[inline]
    pub fn ticket(&self) -> u32 {
        // Acquire: pairs with the Release in `bump`; a new ticket implies the grant that came with
        // it.
        self.word.load(Ordering::Acquire)
    }

    /// Lets other runnable threads on this core run, in particular the kthread that was just woken
    /// there.
    pub fn let_successor_run(&self) {
        #[cfg(not(loom))]
        rustix::thread::sched_yield();
        #[cfg(loom)]
        loom::thread::yield_now();
    }

    /// Sleeps until a wake that came after `ticket` was read, `timeout` passes, or spuriously.
    pub fn wait(&self, ticket: u32, timeout: Option<Duration>) {
        self.asleep.store(1, Ordering::Relaxed);
        // Store-load: `asleep` before the kernel's look at the word. Pairs with the fence in
        // `wake`.
        fence(Ordering::SeqCst);
        self.futex_wait(ticket, timeout);
        self.asleep.store(0, Ordering::Relaxed);
    }

    #[cfg(loom)]
    fn futex_wait(&self, ticket: u32, _timeout: Option<Duration>) {
        self.sleepers.wait(&self.word, ticket);
    }

    #[cfg(not(loom))]
    fn futex_wait(&self, ticket: u32, timeout: Option<Duration>) {
        use rustix::thread::futex;
        let timeout = timeout.map(|d| futex::Timespec {
            tv_sec: d.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: d.subsec_nanos().into(),
        });
        // Every error is a reason to look again: EAGAIN (woken meanwhile), EINTR, ETIMEDOUT.
        let _ = futex::wait(&self.word, futex::Flags::empty(), ticket, timeout.as_ref());
    }

    /// Makes every earlier ticket stale, and wakes the kthread if it sleeps.
    #[inline]
    pub fn wake(&self) {
        // Release: pairs with `ticket`.
        self.word.fetch_add(1, Ordering::Release);
        // Store-load: the addition before the look at `asleep`. Pairs with the fence in `wait`.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.futex_wake();
        }
    }

    /// As [`wake`](Self::wake), whatever the slot contains: for a slot that a program may have
    /// tampered with. Always a system call.
    pub fn rouse(&self) {
        // Release: pairs with `ticket`.
        self.word.fetch_add(1, Ordering::Release);
        self.futex_wake();
    }

    fn futex_wake(&self) {
        #[cfg(loom)]
        self.sleepers.wake_one();
        // Cannot fail on a mapped, aligned word; a wake without a sleeper is not an error.
        #[cfg(not(loom))]
        let _ = rustix::thread::futex::wake(&self.word, rustix::thread::futex::Flags::empty(), 1);
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

/// The mapped lot.
#[derive(Debug)]
pub struct ParkingLot {
    mapping: Mapping,
}

/// Length of the lot's memory file in bytes.
pub const LOT_BYTES: usize = SLOTS * size_of::<Slot>();

impl ParkingLot {
    /// Uses `mapping`, a mapping of a lot's memory file.
    ///
    /// # Errors
    /// If the mapping is not [`LOT_BYTES`] long.
    pub fn new(mapping: Mapping) -> Result<Self, crate::memory::MemoryError> {
        if mapping.len() == LOT_BYTES {
            Ok(Self { mapping })
        } else {
            Err(crate::memory::MemoryError::WrongSize {
                what: "parking lot",
                expected: LOT_BYTES,
                found: mapping.len(),
            })
        }
    }

    /// Returns the slot `id`.
    ///
    /// # Panics
    /// If `id` is out of range; the IOKernel assigns valid ids only.
    #[inline]
    pub fn slot(&self, id: SlotId) -> &Slot {
        assert!((id.0 as usize) < SLOTS, "parking slot {} is out of range", id.0);
        // SAFETY: the mapping is LOT_BYTES long, page aligned and lives as long as self; a Slot is
        // one atomic, valid for any bytes, and is only ever accessed atomically.
        unsafe { &*self.mapping.base().cast::<Slot>().add(id.0 as usize) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    #[test]
    fn a_wake_between_ticket_and_wait_is_not_lost() {
        let slot = Slot::new();
        let ticket = slot.ticket();
        slot.wake();
        let before = std::time::Instant::now();
        slot.wait(ticket, Some(Duration::from_secs(120)));
        assert!(before.elapsed() < Duration::from_secs(60), "slept through a wake");
    }

    #[test]
    fn a_sleeper_is_woken_after_the_condition_is_published() {
        let shared = Arc::new((Slot::new(), AtomicBool::new(false)));
        let sleeper = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || loop {
                let ticket = shared.0.ticket();
                if shared.1.load(SeqCst) {
                    break;
                }
                shared.0.wait(ticket, None);
            }
        });
        shared.1.store(true, SeqCst);
        shared.0.wake();
        sleeper.join().unwrap();
    }
}
