//! The word between a thread and the one that joins it: one locked instruction at the thread's end
//! unless the other side waits already, and at most one to join it.
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | `RUNNING` | no result yet, no waiter | [`enlist`](JoinWord::enlist), [`abandon`](JoinWord::abandon), [`finish`](JoinWord::finish) |
//! | a waiter's token | no result yet; that waiter must be woken | `finish` |
//! | `ABANDONED` | no result yet, and it will not be asked for | `finish` |
//! | `FINISHED` | the result is there | - |
//!
//! The result belongs to the finisher before `finish`, and to the other side once that has seen
//! `FINISHED`. The side that lets go last frees what both share: the finisher if it finds
//! `ABANDONED`, else the other side, which finds `FINISHED`.
//!
//! `finish` releases the result to the side that acquires `FINISHED`, and acquires what that side
//! did before it enlisted or abandoned.

use crate::ground::atomic::{AtomicU64, Ordering};

const RUNNING: u64 = 0;
const FINISHED: u64 = 2;
const ABANDONED: u64 = 4;
/// The smallest token of a waiter.
pub const MIN_TOKEN: u64 = 8;

/// What the finisher finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// No waiter yet. The other side may free what is shared from now on.
    NoJoiner,
    /// A waiter to wake. Once awake it may free what is shared.
    Waiter(u64),
    /// The other side is gone: what is shared is the finisher's.
    Abandoned,
}

/// See the module documentation.
#[derive(Debug)]
pub struct JoinWord(AtomicU64);

impl JoinWord {
    /// Returns the word of a running thread.
    pub fn new() -> Self {
        Self(AtomicU64::new(RUNNING))
    }

    /// Announces the result. The finisher calls this once.
    #[inline]
    pub fn finish(&self) -> Found {
        // Acquire: pairs with the Release in `enlist`.
        let seen = self.0.load(Ordering::Acquire);
        if seen >= MIN_TOKEN {
            // The other side waits: only the finisher changes the word now. Release: as below.
            self.0.store(FINISHED, Ordering::Release);
            return Found::Waiter(seen);
        }
        // AcqRel: Release pairs with the Acquire in `is_finished`, `enlist` and `abandon`; Acquire
        // with their Release.
        match self.0.swap(FINISHED, Ordering::AcqRel) {
            RUNNING => Found::NoJoiner,
            ABANDONED => Found::Abandoned,
            token => Found::Waiter(token),
        }
    }

    /// Returns whether the result is there.
    #[inline]
    pub fn is_finished(&self) -> bool {
        // Acquire: pairs with `finish`.
        self.0.load(Ordering::Acquire) == FINISHED
    }

    /// Leaves `token` to be woken; false if the result is there already.
    #[inline]
    pub fn enlist(&self, token: u64) -> bool {
        debug_assert!(token >= MIN_TOKEN);
        // Release: the waiter is whole for the finisher. Acquire: the result is there.
        self.0.compare_exchange(RUNNING, token, Ordering::Release, Ordering::Acquire).is_ok()
    }

    /// Gives the result up; true if it is there already: then all that is shared is the caller's.
    #[inline]
    pub fn abandon(&self) -> bool {
        // AcqRel: Release pairs with the Acquire in `finish`; Acquire as in `is_finished`.
        self.is_finished() || self.0.swap(ABANDONED, Ordering::AcqRel) == FINISHED
    }
}
