//! Where a kthread without a core sleeps: a futex word in its own program's region.
//!
//! The region is mapped by the program and the IOKernel only, and only the IOKernel wakes a kthread
//! that waits for a core. Nothing that one program does to a futex reaches a kthread of another:
//! `FUTEX_WAKE` and `FUTEX_REQUEUE` act on whatever sleeps at a word, for any process that maps it.
//!
//! # Awake or asleep
//! A kthread that has just ceded its core to another one sleeps, or first stays runnable and lets
//! Linux run the other ([`Slot::let_successor_run`]) a few times at most, by its rank
//! ([`yields`](crate::priority::yields)): if it gets the core back soon, it needs no wake. On a
//! 2-vCPU VM a hand-off between two processes takes 0.6-0.8 us by `sched_yield`; a wake by the
//! IOKernel, from another core, is an interrupt, which takes 7-40 us to a busy core and longer to
//! a halted one. A kthread that Linux resumes without a grant (a timer tick, a third one on the
//! core) yields again; after a few of those in a row it sleeps, and the next hand-off to it pays
//! for a real wake. `asleep` tells the IOKernel which of the two it is.
//!
//! # Crash and lie
//! A program that resets its own words, moves its own sleepers or wakes them keeps its own kthreads
//! from starting, or starts them in vain. The IOKernel repeats the wake of a kthread that does not
//! start ([`Slot::rouse`]), which wakes one thread at most and never waits.
//!
//! A kthread sleeps for [`BACKSTOP`] at most and then reads its grant again. A sleep that lasted
//! that long although its word was counted up is a *lost wake*: none is known to be possible, and
//! each is counted.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `word` | the waker: add 1, Release | its kthread: Acquire, then its grant word, then `FUTEX_WAIT` on the value read |
//! | `asleep` | its kthread: 1 before `FUTEX_WAIT`, 0 after | the waker, after the addition and a fence |
//!
//! No wake is lost: the waker publishes the grant before it adds; the sleeper reads the word before
//! the grant. Reading the new word implies seeing the grant; reading the old one makes `FUTEX_WAIT`
//! return at once or be woken. Of the waker's addition and the sleeper's `asleep`, each followed by
//! a fence, at least one is seen by the other side.
//!
//! Without an IOKernel the same words, in private memory, are woken by other kthreads of the
//! program.

use crate::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Longest sleep of a kthread that waits for a core.
pub const BACKSTOP: Duration = Duration::from_secs(1);

/// One kthread's parking place, on its own cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    word: AtomicU32,
    asleep: AtomicU32,
    #[cfg(loom)]
    sleepers: crate::sync::Sleepers,
}

/// How a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sleep {
    /// By a wake, because the ticket was stale, or for no reason.
    Ended,
    /// Its time passed.
    TimedOut,
    /// Its time passed although it was woken.
    WakeLost,
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

    /// Returns whether its kthread seems to sleep.
    pub fn is_asleep(&self) -> bool {
        // Relaxed: a hint.
        self.asleep.load(Ordering::Relaxed) != 0
    }

    /// Lets other runnable threads on this core run, in particular the kthread that gets it.
    pub fn let_successor_run(&self) {
        #[cfg(not(loom))]
        rustix::thread::sched_yield();
        #[cfg(loom)]
        loom::thread::yield_now();
    }

    /// Sleeps until a wake that came after `ticket` was read, `timeout` passes, or spuriously.
    pub fn wait(&self, ticket: u32, timeout: Option<Duration>) -> Sleep {
        self.asleep.store(1, Ordering::Relaxed);
        // Store-load: `asleep` before the kernel's look at the word. Pairs with the fence in
        // `wake`.
        fence(Ordering::SeqCst);
        let timed_out = self.futex_wait(ticket, timeout);
        self.asleep.store(0, Ordering::Relaxed);
        match timed_out {
            false => Sleep::Ended,
            true if self.ticket() == ticket => Sleep::TimedOut,
            true => Sleep::WakeLost,
        }
    }

    /// Returns whether the time has passed.
    #[cfg(loom)]
    fn futex_wait(&self, ticket: u32, _timeout: Option<Duration>) -> bool {
        self.sleepers.wait(&self.word, ticket);
        false
    }

    /// Returns whether the time has passed.
    #[cfg(not(loom))]
    fn futex_wait(&self, ticket: u32, timeout: Option<Duration>) -> bool {
        use rustix::thread::futex;
        let timeout = timeout.map(|d| futex::Timespec {
            tv_sec: d.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: d.subsec_nanos().into(),
        });
        // Every error is a reason to look again: EAGAIN (woken meanwhile), EINTR, ETIMEDOUT.
        let ended = futex::wait(&self.word, futex::Flags::empty(), ticket, timeout.as_ref());
        ended == Err(rustix::io::Errno::TIMEDOUT)
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

    /// As [`wake`](Self::wake), whatever the slot contains: for a slot that its program may have
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
        assert_eq!(slot.wait(ticket, Some(Duration::from_secs(120))), Sleep::Ended);
    }

    #[test]
    fn a_sleep_that_times_out_although_its_word_was_counted_up_lost_a_wake() {
        let slot = Slot::new();
        let short = Some(Duration::from_millis(1));
        assert_eq!(slot.wait(slot.ticket(), short), Sleep::TimedOut);
        // The word changes without a wake once the kthread sleeps.
        std::thread::scope(|s| {
            let sleeper = s.spawn(|| {
                let ticket = slot.ticket();
                loop {
                    let sleep = slot.wait(ticket, Some(Duration::from_millis(50)));
                    if sleep != Sleep::TimedOut {
                        return sleep;
                    }
                }
            });
            while !slot.is_asleep() {
                std::thread::yield_now();
            }
            // A sleeper that is between two waits finds the word changed.
            slot.word.fetch_add(1, SeqCst);
            assert!(matches!(sleeper.join().unwrap(), Sleep::WakeLost | Sleep::Ended));
        });
        assert!(!slot.is_asleep());
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
